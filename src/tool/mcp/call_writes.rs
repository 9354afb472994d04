//! The calls of a connection that are written to the server, or never will be.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, RequestId};

/// Decides for each call whether it is written or withdrawn, whichever comes first. The library queues calls, and
/// answers all of them alike when the connection ends; here a call is known that was certainly not sent.
#[derive(Debug, Default)]
pub(super) struct CallWrites(Mutex<HashMap<RequestId, CallWrite>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallWrite {
    /// A byte of it may have been written.
    Begun,
    /// It is never written.
    Withdrawn,
}

impl CallWrites {
    /// Begins to write a message. Returns false if it is a call that is withdrawn.
    pub(super) fn begin(&self, message: &ClientJsonRpcMessage) -> bool {
        let Some(call) = call_id(message) else { return true };
        match self.0.lock().entry(call.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(CallWrite::Begun);
                true
            }
            Entry::Occupied(entry) => {
                entry.remove();
                false
            }
        }
    }

    /// Notes that no byte of a message was written.
    pub(super) fn fail(&self, message: &ClientJsonRpcMessage) {
        if let Some(call) = call_id(message) {
            self.0.lock().remove(call);
        }
    }

    /// Withdraws a call, unless its writing has begun. Returns whether it is withdrawn.
    pub(super) fn withdraw(&self, call: &RequestId) -> bool {
        let mut writes = self.0.lock();
        *writes.entry(call.clone()).or_insert(CallWrite::Withdrawn) == CallWrite::Withdrawn
    }

    /// Ends a call. If it is still queued, it is withdrawn.
    pub(super) fn end(&self, call: &RequestId) {
        if !self.withdraw(call) {
            self.0.lock().remove(call);
        }
    }
}

/// Returns the id of a message that is a call of a tool.
fn call_id(message: &ClientJsonRpcMessage) -> Option<&RequestId> {
    let ClientJsonRpcMessage::Request(request) = message else { return None };
    matches!(request.request, ClientRequest::CallToolRequest(_)).then_some(&request.id)
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequest, CallToolRequestParams};

    use super::*;

    fn call(id: i64) -> ClientJsonRpcMessage {
        let request = CallToolRequest::new(CallToolRequestParams::new("act"));
        ClientJsonRpcMessage::request(
            ClientRequest::CallToolRequest(request),
            RequestId::Number(id),
        )
    }

    #[test]
    fn a_call_is_written_or_withdrawn_whichever_comes_first() {
        let (writes, id) = (CallWrites::default(), RequestId::Number);
        assert!(writes.begin(&call(1)) && !writes.withdraw(&id(1)));
        writes.end(&id(1));
        assert!(writes.withdraw(&id(2)) && writes.withdraw(&id(2)) && !writes.begin(&call(2)));
        writes.end(&id(3));
        assert!(!writes.begin(&call(3)), "a call that has ended is not sent");
        assert!(writes.begin(&call(4)));
        writes.fail(&call(4));
        assert!(writes.withdraw(&id(4)));
        assert_eq!(writes.0.lock().len(), 1, "what was answered is forgotten");
    }
}
