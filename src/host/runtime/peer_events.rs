//! Event streams of other hosts, which `GET /v1/events` of those hosts sends.

use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use serde::Deserialize;

use super::peers::{PeerRequest, Peers};
use super::session_events::WatchOptions;
use super::session_states::SessionStateChange;
use crate::journal::OtherHost;
use callsheet_values::event::{EventForm, EventId};
use callsheet_values::types::SessionId;

/// Time limit for the beginning of a stream.
const START_MAX: Duration = Duration::from_secs(2);

/// A stream that is silent for so long is dead. Hosts send a comment every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// The end of an event in a stream of a host.
const EVENT_END: &[u8] = b"\n\n";

/// An item of a stream of another host.
#[derive(Debug)]
pub(super) enum PeerItem {
    /// An event of a session, or of a child session below it, as it stands in the stream.
    Event { of: Vec<SessionId>, id: Option<EventId>, text: String },
    /// The new state of a session.
    State(SessionStateChange),
    /// The events of the session cannot be read. This is the last item about it.
    Failed { session: SessionId, text: String },
}

/// The members of an event that say what it is about.
#[derive(Deserialize)]
struct EventHead {
    session_id: Option<SessionId>,
    parent_session_id: Option<SessionId>,
    state: Option<String>,
    timestamp: Option<u64>,
    /// Of a session that was deleted.
    agent: Option<String>,
}

impl Peers {
    /// Opens a stream of another host: of the states of its sessions, or of the events of some of them after positions.
    /// `None` if the other host does not answer, or refuses it.
    pub(super) async fn watch(
        &self,
        host: &OtherHost,
        sessions: &[(SessionId, EventId)],
        options: WatchOptions,
    ) -> Option<BoxStream<'static, PeerItem>> {
        let request = PeerRequest::get(path(sessions, options));
        let answer = tokio::time::timeout(START_MAX, self.send(host, request));
        let answer = answer.await.ok()?.ok().filter(|answer| answer.status().is_success())?;
        let chunks = answer.bytes_stream().map(|chunk| chunk.ok());
        Some(items(chunks).boxed())
    }
}

/// Returns the path of a stream with its query.
fn path(sessions: &[(SessionId, EventId)], options: WatchOptions) -> String {
    if sessions.is_empty() {
        return "/v1/events?sessions=*".to_owned();
    }
    let ids: Vec<&str> = sessions.iter().map(|(id, _)| id.as_str()).collect();
    let after: Vec<String> = sessions.iter().map(|(id, after)| format!("{id}:{after}")).collect();
    let full = if options.form == EventForm::Full { "&full=true" } else { "" };
    let arguments = if options.arguments { "&arguments=true" } else { "" };
    format!("/v1/events?sessions={}&after={}{full}{arguments}", ids.join(","), after.join(","))
}

/// Returns the items of a stream. It ends with the stream, or when nothing comes any more.
fn items<B: AsRef<[u8]>>(
    chunks: impl Stream<Item = Option<B>> + Send + 'static,
) -> impl Stream<Item = PeerItem> + Send {
    let state = (Box::pin(chunks), Vec::new());
    let groups = stream::unfold(state, async |(mut chunks, mut bytes)| {
        let next = tokio::time::timeout(SILENCE_MAX, chunks.next()).await;
        let chunk = next.ok()???;
        bytes.extend_from_slice(chunk.as_ref());
        let end = memchr::memmem::rfind(&bytes, EVENT_END).map_or(0, |at| at + EVENT_END.len());
        let whole: Vec<u8> = bytes.drain(..end).collect();
        let whole = String::from_utf8(whole).unwrap_or_default();
        let found: Vec<PeerItem> = whole.split_inclusive("\n\n").filter_map(item).collect();
        Some((stream::iter(found), (chunks, bytes)))
    });
    groups.flatten()
}

/// Parses an event. `None` for comments.
fn item(text: &str) -> Option<PeerItem> {
    let (mut kind, mut id, mut data) = ("", None, "");
    for line in text.lines() {
        match line.split_once(": ") {
            Some(("event", value)) => kind = value,
            Some(("id", value)) => id = value.parse().ok(),
            Some(("data", value)) => data = value,
            Some(_) | None => {}
        }
    }
    let head: EventHead = serde_json::from_str(data).ok()?;
    match kind {
        "session_state" => {
            // "closed" is no state: the session was deleted. One of a later version is left out.
            let state = match head.state.as_deref() {
                Some("closed") => None,
                name => Some(serde_json::from_value(name.into()).ok()?),
            };
            let (session, time) = (head.session_id?, head.timestamp.unwrap_or(0));
            Some(PeerItem::State(SessionStateChange { session, state, agent: head.agent, time }))
        }
        // The stream ends with it: its sessions go on elsewhere.
        "resync" => None,
        "error" if head.timestamp.is_none() => {
            Some(PeerItem::Failed { session: head.session_id?, text: text.to_owned() })
        }
        _ => {
            let of = [head.session_id, head.parent_session_id].into_iter().flatten().collect();
            Some(PeerItem::Event { of, id, text: text.to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_host_is_asked_for_the_same_form() {
        let id = |text: &str| SessionId::parse(text).unwrap();
        let sessions = [(id("a"), "3.7".parse().unwrap()), (id("b"), EventId::default())];
        let with = |form, arguments| WatchOptions { form, arguments };
        let plain = "/v1/events?sessions=a,b&after=a:3.7,b:0.0";
        assert_eq!(path(&sessions, WatchOptions::default()), plain);
        assert_eq!(path(&sessions, with(EventForm::Full, false)), format!("{plain}&full=true"));
        let both = path(&sessions, with(EventForm::Full, true));
        assert_eq!(both, format!("{plain}&full=true&arguments=true"));
        assert_eq!(path(&[], with(EventForm::Full, true)), "/v1/events?sessions=*");
    }

    #[tokio::test]
    async fn events_are_read_wherever_the_pieces_begin_and_end() {
        let text = "event: run_start\nid: 2.0\ndata: {\"session_id\":\"s\",\"timestamp\":1}\n\n\
                    : alive\n\n\
                    event: turn_end\ndata: {\"session_id\":\"sub_1\",\"parent_session_id\":\"s\",\"timestamp\":2}\n\n\
                    event: session_state\ndata: {\"session_id\":\"a\",\"timestamp\":3,\"state\":\"running\"}\n\n\
                    event: session_state\ndata: {\"session_id\":\"a\",\"timestamp\":4,\"state\":\"dancing\"}\n\n\
                    event: session_state\ndata: {\"session_id\":\"a\",\"timestamp\":5,\"state\":\"closed\",\"agent\":\"x\"}\n\n\
                    event: error\ndata: {\"session_id\":\"s\",\"code\":\"journal_failed\"}\n\n\
                    event: resync\ndata: {\"session_id\":\"s\",\"id\":\"2.0\"}\n\n";
        for size in [1, 2, 7, 64, text.len()] {
            let chunks: Vec<_> =
                text.as_bytes().chunks(size).map(|chunk| Some(chunk.to_vec())).collect();
            let found: Vec<_> = items(stream::iter(chunks)).collect().await;
            let shown = found.iter().map(|item| match item {
                PeerItem::Event { of, id, text } => {
                    assert!(text.starts_with("event: ") && text.ends_with("\n\n"), "{text:?}");
                    let of: Vec<&str> = of.iter().map(SessionId::as_str).collect();
                    format!("event of {} at {id:?}", of.join(" "))
                }
                PeerItem::State(change) => {
                    format!("state {:?} of {} {:?}", change.state, change.session, change.agent)
                }
                PeerItem::Failed { session, .. } => format!("failed {session}"),
            });
            let at = Some("2.0".parse::<EventId>().unwrap());
            assert_eq!(
                shown.collect::<Vec<_>>(),
                [
                    format!("event of s at {at:?}"),
                    "event of sub_1 s at None".to_owned(),
                    "state Some(Running) of a None".to_owned(),
                    "state None of a Some(\"x\")".to_owned(),
                    "failed s".to_owned(),
                ],
                "{size}"
            );
        }
    }
}
