//! Special-purpose addresses: those that do not belong to the public internet.
//!
//! The tables follow the IANA special-purpose registries for IPv4 and IPv6
//! (<https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>). An IPv4 address is public unless
//! the table lists it. An IPv6 address that embeds an IPv4 address (IPv4-mapped, NAT64, 6to4) is what that one is.
//! Any other one is public if it is global unicast (2000::/3) and the table does not list it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

const fn v4(a: u8, b: u8, c: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

const SPECIAL_V4: &[(Ipv4Net, &str)] = &[
    (v4(0, 0, 0, 8), "an address of this host"),
    (v4(10, 0, 0, 8), "a private address"),
    (v4(100, 64, 0, 10), "a shared address of a provider's network"),
    (v4(127, 0, 0, 8), "a loopback address"),
    (v4(169, 254, 0, 16), "a link-local address"),
    (v4(172, 16, 0, 12), "a private address"),
    (v4(192, 0, 0, 24), "a reserved address"),
    (v4(192, 0, 2, 24), "a documentation address"),
    (v4(192, 88, 99, 24), "a relay address"),
    (v4(192, 168, 0, 16), "a private address"),
    (v4(198, 18, 0, 15), "a benchmarking address"),
    (v4(198, 51, 100, 24), "a documentation address"),
    (v4(203, 0, 113, 24), "a documentation address"),
    (v4(224, 0, 0, 4), "a multicast address"),
    (v4(240, 0, 0, 4), "a reserved address"),
    // Azure serves each virtual machine's metadata, which includes secrets, at this address.
    (Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32), "a metadata address"),
];

/// Special blocks within 2000::/3, and blocks outside of it whose kind an error can name.
const SPECIAL_V6: &[(Ipv6Net, &str)] = &[
    // Teredo, benchmarking, ORCHID and other protocol assignments.
    (v6(0x2001, 0, 23), "a protocol's address"),
    (v6(0x2001, 0xdb8, 32), "a documentation address"),
    (v6(0x3fff, 0, 20), "a documentation address"),
    (v6(0xfc00, 0, 7), "a private address"),
    (v6(0xfe80, 0, 10), "a link-local address"),
    (v6(0xff00, 0, 8), "a multicast address"),
];

const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 3);
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 96);
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 16);

/// Describes the kind of an address that is not public. Returns `None` for a public address.
///
/// An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) is treated as the IPv4 address.
pub(super) fn special_kind(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    SPECIAL_V4.iter().find(|(network, _)| network.contains(&address)).map(|(_, kind)| *kind)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let [_, b, c, _, _, _, g, h] = address.segments();
    if NAT64.contains(&address) {
        return special_v4(embedded_v4(g, h));
    }
    if SIX_TO_FOUR.contains(&address) {
        return special_v4(embedded_v4(b, c));
    }
    if address.is_loopback() {
        return Some("a loopback address");
    }
    SPECIAL_V6
        .iter()
        .find(|(network, _)| network.contains(&address))
        .map(|(_, kind)| *kind)
        .or_else(|| (!GLOBAL_UNICAST.contains(&address)).then_some("a reserved address"))
}

fn embedded_v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(addresses: &[&str], expect: Option<&str>) {
        for address in addresses {
            assert_eq!(special_kind(address.parse().unwrap()), expect, "{address}");
        }
    }

    #[test]
    fn public_addresses_have_no_special_kind() {
        check(
            &[
                "1.1.1.1",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "100.128.0.0",
                "126.255.255.255",
                "128.0.0.0",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.0.1.0",
                "192.167.255.255",
                "192.169.0.0",
                "198.17.255.255",
                "198.20.0.0",
                "223.255.255.255",
                "2606:4700:4700::1111",
                "2a00:1450::1",
                "::ffff:1.1.1.1",
                "64:ff9b::1.1.1.1",
                "2002:101:101::1",
            ],
            None,
        );
    }

    #[test]
    fn special_addresses_have_a_kind() {
        check(&["0.0.0.0", "0.1.2.3"], Some("an address of this host"));
        check(&["127.0.0.1", "127.255.255.255", "::1"], Some("a loopback address"));
        check(
            &["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.1"],
            Some("a private address"),
        );
        check(&["fc00::1", "fd00:ec2::254"], Some("a private address"));
        check(&["169.254.169.254", "fe80::1", "febf::1"], Some("a link-local address"));
        check(
            &["100.64.0.0", "100.100.100.200", "100.127.255.255"],
            Some("a shared address of a provider's network"),
        );
        check(&["168.63.129.16"], Some("a metadata address"));
        check(&["192.88.99.1"], Some("a relay address"));
        check(&["198.18.0.0", "198.19.255.255"], Some("a benchmarking address"));
        check(&["224.0.0.1", "239.255.255.255", "ff02::1"], Some("a multicast address"));
        check(
            &["192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1"],
            Some("a documentation address"),
        );
        check(&["2001::1", "2001:2::1", "2001:1ff::1"], Some("a protocol's address"));
        check(
            &[
                "192.0.0.192",
                "240.0.0.1",
                "255.255.255.255",
                "::",
                "::1.1.1.1",
                "::127.0.0.1",
                "64:ff9b:1::1.1.1.1",
                "100::1",
                "fec0::1",
                "::ffff:0:1.1.1.1",
                "5f00::1",
                "4000::1",
            ],
            Some("a reserved address"),
        );
    }

    #[test]
    fn an_embedded_ipv4_address_decides() {
        check(
            &["::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::1"],
            Some("a loopback address"),
        );
        check(
            &["::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::1"],
            Some("a private address"),
        );
        check(
            &["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::"],
            Some("a link-local address"),
        );
    }
}
