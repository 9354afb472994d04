//! Looks names up, and hands on only addresses that may be connected to.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::AllowRule;
use super::address::special;

/// Finds the addresses of a host name.
pub type DnsLookup =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Asks the system, as other programs do.
pub(super) fn system() -> DnsLookup {
    Arc::new(|host| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    })
}

/// Which addresses of a name may be connected to.
#[derive(Clone, Debug)]
pub(super) enum AddressPolicy {
    /// Public ones and those that the rules allow.
    PublicOr(Vec<AllowRule>),
    /// All.
    All,
}

impl AddressPolicy {
    fn admits(&self, address: IpAddr) -> bool {
        match self {
            Self::PublicOr(rules) => {
                special(address).is_none() || rules.iter().any(|rule| rule.allows_address(address))
            }
            Self::All => true,
        }
    }
}

/// The resolver of a client: what it does not hand on is never connected to.
pub(super) struct Resolver {
    lookup: DnsLookup,
    admission: Arc<AddressPolicy>,
}

impl Resolver {
    pub(super) fn new(lookup: DnsLookup, admission: AddressPolicy) -> Self {
        Self { lookup, admission: Arc::new(admission) }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let found = (self.lookup)(host.clone());
        let admission = Arc::clone(&self.admission);
        Box::pin(async move {
            let mut addresses = found.await?;
            let any_found = !addresses.is_empty();
            addresses.retain(|address| admission.admits(*address));
            if addresses.is_empty() && any_found {
                return Err(NoPublicAddress { host }.into());
            }
            // Port 0 is replaced by the URL's.
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// A name has addresses, but none that may be connected to. Which ones is not told: it would map
/// a private network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} has no public address, and only those are fetched from")]
pub(super) struct NoPublicAddress {
    host: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolved(found: &[&str], admission: AddressPolicy) -> Result<Vec<String>, String> {
        let found: Vec<IpAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
        let lookup: DnsLookup = Arc::new(move |_| Box::pin(std::future::ready(Ok(found.clone()))));
        let resolver = Resolver::new(lookup, admission);
        match resolver.resolve("host.example".parse().unwrap()).await {
            Ok(addresses) => Ok(addresses.map(|address| address.to_string()).collect()),
            Err(e) => Err(e.to_string()),
        }
    }

    #[tokio::test]
    async fn hands_on_only_public_addresses() {
        let public = || AddressPolicy::PublicOr(Vec::new());
        let mixed = ["127.0.0.1", "1.1.1.1", "::1", "10.0.0.1", "2606:4700::1", "::ffff:10.0.0.1"];
        let expect = vec!["1.1.1.1:0".to_owned(), "[2606:4700::1]:0".to_owned()];
        assert_eq!(resolved(&mixed, public()).await, Ok(expect));
        let refused = resolved(&["127.0.0.1", "169.254.169.254"], public()).await.unwrap_err();
        assert_eq!(refused, "host.example has no public address, and only those are fetched from");
        assert_eq!(resolved(&[], public()).await, Ok(vec![]));
    }

    #[tokio::test]
    async fn hands_on_allowed_addresses() {
        let rules = vec!["10.0.0.0/8".parse().unwrap(), "host.example:80".parse().unwrap()];
        let found = ["10.0.0.1", "192.168.0.1"];
        let handed_on = resolved(&found, AddressPolicy::PublicOr(rules)).await;
        assert_eq!(handed_on, Ok(vec!["10.0.0.1:0".to_owned()]));
        let all = resolved(&found, AddressPolicy::All).await;
        assert_eq!(all, Ok(vec!["10.0.0.1:0".to_owned(), "192.168.0.1:0".to_owned()]));
    }

    #[tokio::test]
    async fn the_system_knows_localhost() {
        let found = system()("localhost".to_owned()).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
