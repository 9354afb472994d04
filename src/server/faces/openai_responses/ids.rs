//! Ids of responses, conversations and items. Each one names its session, its run and what it stands for there, so that
//! nothing is stored for it.

use std::fmt;

use callsheet_values::types::{Seq, SessionId};

/// The beginning of the ids of responses and conversations.
const RESPONSE: &str = "resp";
const CONVERSATION: &str = "conv_";

/// The id of a response: `resp_RUN_SESSION`, or `resp_RUN-BEGINS_SESSION` if an earlier response of its run ended where
/// its client had to act. RUN is the first record of the run, BEGINS the one with which the response begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponseId {
    pub(super) session: SessionId,
    pub(super) run: Seq,
    pub(super) begins: Seq,
}

impl ResponseId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let ItemId { kind: RESPONSE, run, of, session } = ItemId::parse(text)? else {
            return None;
        };
        let begins = if of.is_empty() { run } else { Seq(of.parse().ok()?) };
        Some(Self { session, run, begins })
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, run, begins } = self;
        match begins == run {
            true => write!(f, "{RESPONSE}_{run}_{session}"),
            false => write!(f, "{RESPONSE}_{run}-{begins}_{session}"),
        }
    }
}

/// The id of an item: `KIND_RUN-OF_SESSION`. OF names the item in its run: a call by its `tool_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemId<'a> {
    pub(super) kind: &'a str,
    pub(super) run: Seq,
    pub(super) of: &'a str,
    pub(super) session: SessionId,
}

impl<'a> ItemId<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (kind, rest) = text.split_once('_')?;
        let (place, session) = rest.split_once('_')?;
        let (run, of) = place.split_once('-').unwrap_or((place, ""));
        let run = Seq(run.parse().ok()?);
        Some(Self { kind, run, of, session: SessionId::parse(session).ok()? })
    }
}

impl fmt::Display for ItemId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, run, of, session } = self;
        write!(f, "{kind}_{run}-{of}_{session}")
    }
}

/// Returns the id of a conversation: that of its session, with a prefix.
pub(super) fn conversation_id(session: &SessionId) -> String {
    format!("{CONVERSATION}{session}")
}

/// Returns the session of a conversation.
pub(super) fn session_of_conversation(id: &str) -> Option<SessionId> {
    SessionId::parse(id.strip_prefix(CONVERSATION)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back() {
        let session = SessionId::parse("a_b-c_9").unwrap();
        for begins in [2, 17] {
            let id = ResponseId { session: session.clone(), run: Seq(2), begins: Seq(begins) };
            assert_eq!(ResponseId::parse(&id.to_string()), Some(id));
        }
        let id = ItemId { kind: "mcpr", run: Seq(2), of: "t1a1c0.ff", session: session.clone() };
        assert_eq!(ItemId::parse(&id.to_string()), Some(id));
        assert_eq!(session_of_conversation(&conversation_id(&session)), Some(session));
        for other in ["resp_abc", "resp_1", "msg_2-3-0_s", "resp_x_s", "resp_1-x_s", ""] {
            assert_eq!(ResponseId::parse(other), None, "{other}");
        }
    }
}
