//! Which addresses belong to the public internet.
//!
//! After the IANA special-purpose registries for IPv4 and IPv6
//! (<https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>). For IPv6 the rule is the other
//! way round: only global unicast (2000::/3) and what embeds a public IPv4 address is public.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A block of addresses, written as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, prefix: u8) -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, 0)), prefix }
    }

    const fn v6(a: u16, b: u16, prefix: u8) -> Self {
        Self { address: IpAddr::V6(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0)), prefix }
    }

    /// A network, unless the prefix is too long or the address has bits beyond it.
    pub(super) fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let (bits, width) = bits(address);
        let beyond = bits.checked_shl(128 - width + u32::from(prefix)).unwrap_or(0);
        (u32::from(prefix) <= width && beyond == 0).then_some(Self { address, prefix })
    }

    /// Whether the address lies in the network. An IPv4 address that is written as an IPv6 one
    /// (`::ffff:10.0.0.1`) counts as what it is.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let ((own, own_width), (other, width)) = (bits(self.address), bits(address.to_canonical()));
        let host_bits = own_width.saturating_sub(u32::from(self.prefix));
        own_width == width && (own ^ other).checked_shr(host_bits).unwrap_or(0) == 0
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An address as a number, and how many bits it has.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (v4.to_bits().into(), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

const SPECIAL_V4: &[(Network, &str)] = &[
    (Network::v4(0, 0, 0, 8), "an address of this host"),
    (Network::v4(10, 0, 0, 8), "a private address"),
    (Network::v4(100, 64, 0, 10), "a shared address of a provider's network"),
    (Network::v4(127, 0, 0, 8), "a loopback address"),
    (Network::v4(169, 254, 0, 16), "a link-local address"),
    (Network::v4(172, 16, 0, 12), "a private address"),
    (Network::v4(192, 0, 0, 24), "a reserved address"),
    (Network::v4(192, 0, 2, 24), "a documentation address"),
    (Network::v4(192, 88, 99, 24), "a relay address"),
    (Network::v4(192, 168, 0, 16), "a private address"),
    (Network::v4(198, 18, 0, 15), "a benchmarking address"),
    (Network::v4(198, 51, 100, 24), "a documentation address"),
    (Network::v4(203, 0, 113, 24), "a documentation address"),
    (Network::v4(224, 0, 0, 4), "a multicast address"),
    (Network::v4(240, 0, 0, 4), "a reserved address"),
    // Azure's platform service answers each virtual machine here, with its secrets.
    (
        Network { address: IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), prefix: 32 },
        "a metadata address",
    ),
];

/// What within 2000::/3 is special, and the well-known blocks outside, for the sake of the name.
const SPECIAL_V6: &[(Network, &str)] = &[
    // Teredo, benchmarking, ORCHID and other protocol assignments.
    (Network::v6(0x2001, 0, 23), "a protocol's address"),
    (Network::v6(0x2001, 0xdb8, 32), "a documentation address"),
    (Network::v6(0x3fff, 0, 20), "a documentation address"),
    (Network::v6(0xfc00, 0, 7), "a private address"),
    (Network::v6(0xfe80, 0, 10), "a link-local address"),
    (Network::v6(0xff00, 0, 8), "a multicast address"),
];

const GLOBAL_UNICAST: Network = Network::v6(0x2000, 0, 3);
const NAT64: Network = Network::v6(0x64, 0xff9b, 96);
const SIX_TO_FOUR: Network = Network::v6(0x2002, 0, 16);

/// Says what an address is, where it is not a public one.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let address = IpAddr::V4(address);
    SPECIAL_V4.iter().find(|(network, _)| network.contains(address)).map(|(_, what)| *what)
}

fn special_v6(v6: Ipv6Addr) -> Option<&'static str> {
    let address = IpAddr::V6(v6);
    let [_, b, c, _, _, _, g, h] = v6.segments();
    if NAT64.contains(address) {
        return special_v4(joined(g, h));
    }
    if SIX_TO_FOUR.contains(address) {
        return special_v4(joined(b, c));
    }
    if v6.is_loopback() {
        return Some("a loopback address");
    }
    SPECIAL_V6
        .iter()
        .find(|(network, _)| network.contains(address))
        .map(|(_, what)| *what)
        .or_else(|| (!GLOBAL_UNICAST.contains(address)).then_some("a reserved address"))
}

fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(addresses: &[&str], expect: Option<&str>) {
        for address in addresses {
            assert_eq!(special(address.parse().unwrap()), expect, "{address}");
        }
    }

    #[test]
    fn public_addresses_are_public() {
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
    fn special_addresses_are_named() {
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
    fn embedded_addresses_are_looked_into() {
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

    #[test]
    fn networks_contain_their_addresses() {
        let contains = |network: Network, address: &str| network.contains(address.parse().unwrap());
        let ten = Network::v4(10, 0, 0, 8);
        assert!(contains(ten, "10.255.0.1") && contains(ten, "::ffff:10.0.0.1"));
        assert!(!contains(ten, "11.0.0.0") && !contains(ten, "a00::1"));
        let one = Network::new("::1".parse().unwrap(), 128).unwrap();
        assert!(contains(one, "::1") && !contains(one, "::2") && !contains(one, "127.0.0.1"));
        let all = Network::new("0.0.0.0".parse().unwrap(), 0).unwrap();
        assert!(contains(all, "255.0.0.1") && !contains(all, "::1"));
        let all = Network::new("::".parse().unwrap(), 0).unwrap();
        assert!(contains(all, "ffff::1") && !contains(all, "1.1.1.1"));
    }

    #[test]
    fn a_network_has_no_bits_beyond_its_prefix() {
        let new = |address: &str, prefix| Network::new(address.parse().unwrap(), prefix);
        assert!(new("10.0.0.0", 8).is_some() && new("10.0.0.1", 32).is_some());
        assert!(new("10.0.0.1", 8).is_none() && new("10.0.0.0", 33).is_none());
        assert!(new("fd00::", 8).is_some() && new("fd00::1", 127).is_none());
        assert!(new("fd00::", 129).is_none() && new("10.0.0.1", 0).is_none());
    }
}
