//! The answer to a request of a face: how it ends, for the metrics and for repeated requests.

use super::retries::RepeatGuard;
use callsheet_host::telemetry::{FaceEnd, FaceKind, Telemetry};

/// The answer to a request of a face. If it is dropped, its connection was closed before its end.
#[derive(Debug)]
pub(super) struct FaceAnswer {
    face: FaceKind,
    telemetry: Telemetry,
    answering: Option<RepeatGuard>,
    is_stream: bool,
    end: FaceEnd,
}

impl FaceAnswer {
    /// Begins an answer. `answering`: to a request that may be repeated.
    pub(super) fn new(
        face: FaceKind,
        telemetry: &Telemetry,
        answering: Option<RepeatGuard>,
    ) -> Self {
        let telemetry = telemetry.clone();
        Self { face, telemetry, answering, is_stream: false, end: FaceEnd::Cut }
    }

    /// Notes that the answer is sent in parts.
    pub(super) fn in_parts(mut self) -> Self {
        self.is_stream = true;
        self.telemetry.metrics().faces().stream_began();
        self
    }

    /// Ends an answer that was sent as a whole.
    pub(super) fn end_delivered(mut self) {
        self.end = FaceEnd::Delivered;
        if let Some(answering) = self.answering.take() {
            answering.end_delivered();
        }
    }

    /// Ends an answer with an error status.
    pub(super) fn end_refused(mut self) {
        self.end = FaceEnd::Refused;
    }

    /// Ends an answer whose connection this host aborts.
    pub(super) fn end_aborted(mut self) {
        self.end = FaceEnd::Aborted;
    }
}

impl Drop for FaceAnswer {
    fn drop(&mut self) {
        let faces = self.telemetry.metrics().faces();
        faces.answered(self.face, self.end);
        if self.is_stream {
            faces.stream_ended();
        }
    }
}
