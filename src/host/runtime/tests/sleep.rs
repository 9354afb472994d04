//! Tests of requests that arrive while a session hibernates.

use futures::StreamExt as _;
use futures::future::join_all;

use super::provider::{Reply, answer_with};
use super::*;
use crate::telemetry::FeedItem;
use callsheet_values::event::EventId;
use callsheet_values::message::Message;
use callsheet_values::record::StopMode;

const CLIENTS: usize = 6;
const ROUNDS: usize = 8;

/// Hibernates every session as soon as possible until the task is aborted.
fn sleepy(host: &Host) -> tokio::task::JoinHandle<()> {
    let host = host.clone();
    spawn(async move {
        loop {
            for (id, _) in host.inner.host_ref.shared.index.all_awake() {
                host.session(&id).hibernate();
            }
            // A shorter interval would only fill the mailboxes of the sessions.
            sleep(Duration::from_millis(1)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_during_hibernation_are_neither_lost_nor_doubled() {
    let provider = Provider::new(|_, _| Reply::Sse(answer_with("well"))).await;
    let host = host(&provider, ToolRegistry::new(), |config| {
        config.host.max_queued_inputs = CLIENTS * ROUNDS;
    })
    .await;
    let session = session(&host).await;
    let lulling = sleepy(&host);
    let clients = (0..CLIENTS).map(|client| {
        let session = session.clone();
        async move {
            for round in 0..ROUNDS {
                let input = format!("{client} {round}");
                let request = RunRequest { queue: true, ..RunRequest::from(input) };
                let report = session.run(request).await.unwrap();
                assert_eq!(report.text, "well");
                session.snapshot().await.unwrap();
                session.stop(StopMode::AfterTurn).await.unwrap();
                assert!(session.subscribe().await.is_ok());
                let mut watch = session.watch(EventId::default()).await.unwrap();
                let mut runs = 0;
                // All events so far are delivered, even if the session hibernates meanwhile.
                while runs <= round {
                    match watch.next().await {
                        Some(FeedItem::Event(published)) => {
                            runs += usize::from(matches!(
                                published.event,
                                callsheet_values::event::Event::RunEnded { .. }
                            ));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    });
    timeout(SOON * 3, join_all(clients)).await.expect("all requests are answered");
    lulling.abort();
    let history = session.snapshot().await.unwrap().history;
    let inputs =
        history.iter().filter(|message| matches!(***message, Message::User { .. })).count();
    assert_eq!(inputs, CLIENTS * ROUNDS);
    until("it is over", || host.counts().runs == 0).await;
    nothing_left(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_can_be_deleted_and_reopened_during_hibernation() {
    let provider = Provider::new(|_, _| Reply::Sse(answer_with("well"))).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let lulling = sleepy(&host);
    let clients = (0..CLIENTS).map(|client| {
        let host = host.clone();
        async move {
            for _ in 0..ROUNDS {
                let open = OpenSession { id: Some(format!("s{client}")), ..OpenSession::default() };
                let session = host.open_session(open).await.unwrap();
                assert_eq!(session.run("go").await.unwrap().text, "well");
                session.delete().await.unwrap();
                assert!(matches!(session.snapshot().await, Err(HostError::NoSuchSession(_))));
                assert!(matches!(session.delete().await, Err(HostError::NoSuchSession(_))));
                session.close().await.unwrap();
            }
        }
    });
    timeout(SOON * 3, join_all(clients)).await.expect("all requests are answered");
    lulling.abort();
    assert_eq!(host.counts().sessions, 0);
    nothing_left(&host).await;
    until("all sessions hibernate", || host.counts().awake == 0).await;
}

#[tokio::test]
async fn a_session_hibernates_on_request_unless_it_is_in_use() {
    let provider = Provider::new(|_, _| Reply::Sse(answer_with("well"))).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let listens = session.subscribe().await.unwrap();
    session.run("go").await.unwrap();
    session.hibernate();
    // The reply comes after the message, so the session is still awake.
    session.snapshot().await.unwrap();
    assert_eq!(session.state(), SessionState::Idle);
    drop(listens);
    session.hibernate();
    until("it sleeps", || session.state() == SessionState::Hibernated).await;
    assert_eq!(host.counts().awake, 0);
    // This does not change a hibernated session, and a run wakes it.
    session.hibernate();
    assert_eq!(session.run("again").await.unwrap().text, "well");
    assert_eq!(session.snapshot().await.unwrap().history.len(), 4);
    session.hibernate();
    until("it sleeps again", || host.counts().awake == 0).await;
    nothing_left(&host).await;
}
