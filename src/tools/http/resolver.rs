//! The DNS resolver of the HTTP clients of tools: returns only addresses that may be connected to.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::AllowRule;
use super::special_addresses::special_kind;

/// A function that finds the addresses of a host name.
pub type DnsLookup =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Returns a lookup that uses the system's resolver.
pub(crate) fn system_lookup() -> DnsLookup {
    Arc::new(|host| {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((host, 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    })
}

/// The addresses that a client may connect to.
#[derive(Clone, Debug)]
pub(super) enum AddressPolicy {
    /// Public addresses, and those that the rules allow.
    PublicOrAllowed(Vec<AllowRule>),
    /// All addresses.
    Any,
}

impl AddressPolicy {
    fn allows(&self, address: IpAddr) -> bool {
        match self {
            Self::PublicOrAllowed(rules) => {
                special_kind(address).is_none()
                    || rules.iter().any(|rule| rule.allows_address(address))
            }
            Self::Any => true,
        }
    }
}

/// A resolver that applies an [`AddressPolicy`]. For a host name, the client connects only to addresses that it
/// returns.
pub(super) struct Resolver {
    lookup: DnsLookup,
    policy: Arc<AddressPolicy>,
    /// The names of proxies, which may have any address.
    proxies: Vec<String>,
}

impl Resolver {
    pub(super) fn new(lookup: DnsLookup, policy: AddressPolicy) -> Self {
        Self { lookup, policy: Arc::new(policy), proxies: Vec::new() }
    }

    pub(super) fn with_proxies(self, proxies: Vec<String>) -> Self {
        Self { proxies, ..self }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let found = (self.lookup)(host.clone());
        let policy = match self.proxies.contains(&host) {
            true => Arc::new(AddressPolicy::Any),
            false => Arc::clone(&self.policy),
        };
        Box::pin(async move {
            let mut addresses = found.await?;
            let any_found = !addresses.is_empty();
            addresses.retain(|address| policy.allows(*address));
            if addresses.is_empty() && any_found {
                return Err(NoPublicAddress::new(&host).into());
            }
            // reqwest replaces port 0 by the URL's port.
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// A host name has addresses, but none that may be connected to. Does not name the addresses, which
/// would reveal the layout of a private network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} has no public address, and only public addresses can be fetched")]
pub(crate) struct NoPublicAddress {
    host: String,
}

impl NoPublicAddress {
    pub(super) fn new(host: &str) -> Self {
        Self { host: host.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolved(found: &[&str], policy: AddressPolicy) -> Result<Vec<String>, String> {
        let found: Vec<IpAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
        let lookup: DnsLookup = Arc::new(move |_| Box::pin(std::future::ready(Ok(found.clone()))));
        let resolver = Resolver::new(lookup, policy);
        match resolver.resolve("host.example".parse().unwrap()).await {
            Ok(addresses) => Ok(addresses.map(|address| address.to_string()).collect()),
            Err(e) => Err(e.to_string()),
        }
    }

    #[tokio::test]
    async fn returns_only_public_addresses() {
        let public = || AddressPolicy::PublicOrAllowed(Vec::new());
        let mixed = ["127.0.0.1", "1.1.1.1", "::1", "10.0.0.1", "2606:4700::1", "::ffff:10.0.0.1"];
        let expect = vec!["1.1.1.1:0".to_owned(), "[2606:4700::1]:0".to_owned()];
        assert_eq!(resolved(&mixed, public()).await, Ok(expect));
        let refused = resolved(&["127.0.0.1", "169.254.169.254"], public()).await.unwrap_err();
        assert_eq!(
            refused,
            "host.example has no public address, and only public addresses can be fetched"
        );
        assert_eq!(resolved(&[], public()).await, Ok(vec![]));
    }

    #[tokio::test]
    async fn returns_allowed_addresses() {
        let rules = vec!["10.0.0.0/8".parse().unwrap(), "host.example:80".parse().unwrap()];
        let found = ["10.0.0.1", "192.168.0.1"];
        let returned = resolved(&found, AddressPolicy::PublicOrAllowed(rules)).await;
        assert_eq!(returned, Ok(vec!["10.0.0.1:0".to_owned()]));
        let all = resolved(&found, AddressPolicy::Any).await;
        assert_eq!(all, Ok(vec!["10.0.0.1:0".to_owned(), "192.168.0.1:0".to_owned()]));
    }

    #[tokio::test]
    async fn the_system_lookup_finds_localhost() {
        let found = system_lookup()("localhost".to_owned()).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
