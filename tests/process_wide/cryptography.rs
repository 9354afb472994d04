//! A host changes nothing that belongs to the whole process. This test runs in a process of its own.

use callsheet::prelude::*;
use callsheet::tool::{BuiltinOptions, builtin};
use rustls::crypto::{CryptoProvider, ring};

#[tokio::test]
async fn a_program_may_install_a_cryptography_provider_after_its_host_has_started() {
    let tools = builtin(&BuiltinOptions::default()).unwrap();
    let host = Host::builder().tools(tools).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    session.run("Say hello.").await.unwrap().text().unwrap();

    assert!(CryptoProvider::get_default().is_none());
    ring::default_provider().install_default().unwrap();

    let other = Host::builder().start().await.unwrap();
    for host in [host, other] {
        let session = host.open_session(OpenSession::default()).await.unwrap();
        session.run("Say hello.").await.unwrap().text().unwrap();
        host.shutdown().await;
    }
}
