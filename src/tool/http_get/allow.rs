//! What the configuration allows although it is not public: `http_get.allow`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use reqwest::Url;

use super::address::Network;

/// One entry of `http_get.allow`: `host`, `host:port` or a network such as `10.0.0.0/8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllowRule(Rule);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Rule {
    /// A host as a URL names it, whatever its addresses; on one port or on all.
    Host { host: String, port: Option<u16> },
    /// Addresses, whatever the name of their host.
    Network(Network),
}

impl AllowRule {
    /// Whether the host that the URL names may have any address.
    pub(super) fn allows_host(&self, url: &Url) -> bool {
        match &self.0 {
            Rule::Host { host, port } => {
                let named = url.host_str().is_some_and(|named| plain(named) == host);
                named && port.is_none_or(|port| url.port_or_known_default() == Some(port))
            }
            Rule::Network(_) => false,
        }
    }

    /// Whether any host may have this address.
    pub(super) fn allows_address(&self, address: IpAddr) -> bool {
        match &self.0 {
            Rule::Host { .. } => false,
            Rule::Network(network) => network.contains(address),
        }
    }
}

impl FromStr for AllowRule {
    type Err = InvalidAllowRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |why| InvalidAllowRule { text: text.to_owned(), why };
        if text.contains("://") {
            return Err(invalid("give the host alone, without a scheme"));
        }
        if let Some((address, prefix)) = text.split_once('/') {
            let address = address.parse().map_err(|_| invalid("before \"/\" stands no address"))?;
            let prefix = prefix.parse().map_err(|_| {
                invalid("after \"/\" stands no number of bits; a path has no place here")
            })?;
            let network = Network::new(address, prefix);
            let network = network
                .ok_or_else(|| invalid("the address has bits beyond the prefix, as 10.0.0.1/8"))?;
            return Ok(Self(Rule::Network(network)));
        }
        let (host, port) = split_port(text).map_err(invalid)?;
        let host = normalise(host).ok_or_else(|| invalid("it is no host name or address"))?;
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

/// An entry of `http_get.allow` that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no \"host\", \"host:port\" or \"10.0.0.0/8\": {why}")]
pub struct InvalidAllowRule {
    text: String,
    why: &'static str,
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    // A bare IPv6 address has colons of its own.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => (host, port),
        Some(_) | None => return Ok((text, None)),
    };
    match port.parse() {
        Ok(port) if port != 0 => Ok((host, Some(port))),
        Ok(_) | Err(_) => Err("after \":\" stands no port"),
    }
}

/// A host as the URL parser writes it, so that the two compare.
fn normalise(host: &str) -> Option<String> {
    if host.is_empty()
        || host.contains(['*', '@', '?', '#', '\\', '%'])
        || host.contains(char::is_whitespace)
    {
        return None;
    }
    let bare_v6 = host.contains(':') && !host.starts_with('[');
    let url = match bare_v6 {
        true => Url::parse(&format!("http://[{host}]/")),
        false => Url::parse(&format!("http://{host}/")),
    };
    url.ok()?.host_str().map(|host| plain(host).to_owned())
}

/// A name without the dot that marks it as complete.
fn plain(host: &str) -> &str {
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
    fn rules_say_themselves() {
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
    fn says_what_is_wrong() {
        for (text, why) in [
            ("", "no host name"),
            ("*", "no host name"),
            ("*.example.com", "no host name"),
            ("a b", "no host name"),
            ("user@host", "no host name"),
            ("http://host", "without a scheme"),
            ("host:", "no port"),
            ("host:0", "no port"),
            ("host:65536", "no port"),
            ("host:http", "no port"),
            ("[::1", "no host name"),
            ("1.2.3.4.5", "no host name"),
            ("10.0.0.1/8", "bits beyond"),
            ("10.0.0.0/33", "bits beyond"),
            ("10.0.0.0/8:80", "no number of bits"),
            ("host/8", "no address"),
            ("host/path", "no address"),
        ] {
            let error = text.parse::<AllowRule>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_host_is_allowed_by_its_name_and_port() {
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
    fn a_network_is_allowed_by_address() {
        let ten = rule("10.0.0.0/8");
        assert!(ten.allows_address("10.1.2.3".parse().unwrap()));
        assert!(ten.allows_address("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!ten.allows_address("11.1.2.3".parse().unwrap()));
        assert!(!ten.allows_host(&url("http://10.1.2.3/")));
    }
}
