//! Rules of the `allow` lists of tools, hooks and servers: hosts and networks that may be reached although they are
//! not public.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use reqwest::Url;

/// One entry of an `allow` list: `host`, `host:port` or a network such as `10.0.0.0/8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllowRule(Rule);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Rule {
    /// A host name, whatever its addresses, on one port or on all ports.
    Host { host: String, port: Option<u16> },
    /// A network, whatever the host names of its addresses.
    Network(IpNet),
}

impl AllowRule {
    /// Returns true if the rule allows the URL's host and port, whatever the host's addresses.
    pub(super) fn allows_host(&self, url: &Url) -> bool {
        match &self.0 {
            Rule::Host { host, port } => {
                let matches = url.host_str().is_some_and(|named| without_final_dot(named) == host);
                matches && port.is_none_or(|port| url.port_or_known_default() == Some(port))
            }
            Rule::Network(_) => false,
        }
    }

    /// Returns true if the rule allows this address, whatever the host name.
    pub(super) fn allows_address(&self, address: IpAddr) -> bool {
        match &self.0 {
            Rule::Host { .. } => false,
            Rule::Network(network) => network.contains(&address.to_canonical()),
        }
    }
}

impl FromStr for AllowRule {
    type Err = InvalidAllowRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |reason| InvalidAllowRule { text: text.to_owned(), reason };
        if text.contains("://") {
            return Err(invalid("give only the host, without a scheme"));
        }
        if text.contains('/') {
            let network: IpNet = text
                .parse()
                .map_err(|_| invalid("\"/\" must separate an address and a number of bits"))?;
            if network != network.trunc() {
                return Err(invalid("the address has bits beyond the prefix, such as 10.0.0.1/8"));
            }
            return Ok(Self(Rule::Network(network)));
        }
        let (host, port) = split_port(text).map_err(invalid)?;
        let host = normalise(host).ok_or_else(|| invalid("it is not a host name or address"))?;
        Ok(Self(Rule::Host { host, port }))
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::Host { host, port: Some(port) } => write!(f, "{host}:{port}"),
            Rule::Host { host, port: None } => f.write_str(host),
            Rule::Network(network) => network.fmt(f),
        }
    }
}

/// An entry of an `allow` list is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a \"host\", a \"host:port\" or a network such as \"10.0.0.0/8\": {reason}"
)]
pub struct InvalidAllowRule {
    text: String,
    reason: &'static str,
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    // A bare IPv6 address contains colons that do not separate a port.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => (host, port),
        Some(_) | None => return Ok((text, None)),
    };
    match port.parse() {
        Ok(port) if port != 0 => Ok((host, Some(port))),
        Ok(_) | Err(_) => Err("after \":\" must follow a port from 1 to 65535"),
    }
}

/// Returns a host in the URL parser's normal form, so that it can be compared with a URL's host.
fn normalise(host: &str) -> Option<String> {
    if host.is_empty()
        || host.contains(['*', '@', '?', '#', '\\', '%'])
        || host.contains(char::is_whitespace)
    {
        return None;
    }
    let is_bare_v6 = host.contains(':') && !host.starts_with('[');
    let url = match is_bare_v6 {
        true => Url::parse(&format!("http://[{host}]/")),
        false => Url::parse(&format!("http://{host}/")),
    };
    url.ok()?.host_str().map(|host| without_final_dot(host).to_owned())
}

/// Removes the final dot, which marks a DNS name as absolute.
fn without_final_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> AllowRule {
        text.parse().unwrap()
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn rules_are_normalised() {
        for (text, expect) in [
            ("Intranet.Example", "intranet.example"),
            ("intranet.", "intranet"),
            ("localhost:8080", "localhost:8080"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("0x7f.1", "127.0.0.1"),
            ("::1", "[::1]"),
            ("[::1]:8080", "[::1]:8080"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("fd00::/8", "fd00::/8"),
        ] {
            assert_eq!(rule(text).to_string(), expect, "{text}");
        }
    }

    #[test]
    fn errors_give_the_reason() {
        for (text, reason) in [
            ("", "not a host name"),
            ("*", "not a host name"),
            ("*.example.com", "not a host name"),
            ("a b", "not a host name"),
            ("user@host", "not a host name"),
            ("http://host", "without a scheme"),
            ("host:", "must follow a port"),
            ("host:0", "must follow a port"),
            ("host:65536", "must follow a port"),
            ("host:http", "must follow a port"),
            ("[::1", "not a host name"),
            ("1.2.3.4.5", "not a host name"),
            ("10.0.0.1/8", "bits beyond"),
            ("10.0.0.0/33", "number of bits"),
            ("10.0.0.0/8:80", "number of bits"),
            ("host/8", "must separate an address"),
            ("host/path", "must separate an address"),
        ] {
            let error = text.parse::<AllowRule>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_host_rule_matches_name_and_port() {
        let any = rule("intranet");
        assert!(any.allows_host(&url("http://INTRANET./x")));
        assert!(any.allows_host(&url("https://intranet:8443/")));
        assert!(!any.allows_host(&url("http://sub.intranet/")));
        assert!(!any.allows_host(&url("http://intranet.example/")));
        assert!(!any.allows_address("10.0.0.1".parse().unwrap()));
        let one = rule("intranet:80");
        assert!(one.allows_host(&url("http://intranet/")));
        assert!(one.allows_host(&url("https://intranet:80/")));
        assert!(!one.allows_host(&url("https://intranet/")));
        assert!(!one.allows_host(&url("http://intranet:8080/")));
        assert!(rule("::1").allows_host(&url("http://[0:0::1]:9/")));
        assert!(rule("127.0.0.1").allows_host(&url("http://2130706433/")));
    }

    #[test]
    fn a_network_rule_matches_addresses() {
        let ten = rule("10.0.0.0/8");
        assert!(ten.allows_address("10.1.2.3".parse().unwrap()));
        assert!(ten.allows_address("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!ten.allows_address("11.1.2.3".parse().unwrap()));
        assert!(!ten.allows_host(&url("http://10.1.2.3/")));
    }
}
