//! Records the metrics of the faces, by which clients of other systems drive sessions.

use ::metrics::{Counter, Gauge};

use super::metric_table::{self as table, SharedRecorder};

/// A protocol of other systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaceKind {
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions.
    Chat,
    /// The UI message stream of the AI SDK.
    Ui,
    /// AG-UI.
    Agui,
}

impl FaceKind {
    const ALL: [Self; 4] = [Self::Responses, Self::Chat, Self::Ui, Self::Agui];

    /// Returns the label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Responses => "openai_responses",
            Self::Chat => "openai_chat",
            Self::Ui => "ui",
            Self::Agui => "agui",
        }
    }
}

/// The end of the answer to a request of a face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaceEnd {
    /// It was sent as a whole.
    Delivered,
    /// The client closed its connection before the end.
    Cut,
    /// It was an error.
    Refused,
    /// This host aborted the connection, because the answer could not be completed.
    Aborted,
}

impl FaceEnd {
    const ALL: [Self; 4] = [Self::Delivered, Self::Cut, Self::Refused, Self::Aborted];

    fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Cut => "cut",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
        }
    }
}

/// The metrics of the faces of a host.
#[derive(Debug)]
pub struct FaceMetrics {
    requests: Vec<((FaceKind, FaceEnd), Counter)>,
    joins: Vec<(FaceKind, Counter)>,
    streams: Gauge,
}

impl FaceMetrics {
    pub(super) fn new(recorder: &SharedRecorder) -> Self {
        let ends = |face: FaceKind| FaceEnd::ALL.map(|end| (face, end));
        let request = |(face, end): (FaceKind, FaceEnd)| {
            let labels = [("face", face.as_str()), ("end", end.as_str())];
            ((face, end), table::FACE_REQUESTS.series(recorder, &labels))
        };
        let join =
            |face: FaceKind| (face, table::FACE_JOINS.series(recorder, &[("face", face.as_str())]));
        Self {
            requests: FaceKind::ALL.into_iter().flat_map(ends).map(request).collect(),
            joins: FaceKind::ALL.into_iter().map(join).collect(),
            streams: table::FACE_STREAMS.series(recorder, &[]),
        }
    }

    /// Counts an answer in parts that begins.
    pub fn stream_began(&self) {
        self.streams.increment(1.0);
    }

    /// Counts an answer in parts that has ended.
    pub fn stream_ended(&self) {
        self.streams.decrement(1.0);
    }

    /// Counts a request whose answer has ended.
    pub fn answered(&self, face: FaceKind, end: FaceEnd) {
        let counter = self.requests.iter().find(|(labels, _)| *labels == (face, end));
        counter.inspect(|(_, counter)| counter.increment(1));
    }

    /// Counts a request that has joined a run which was started before.
    pub fn joined(&self, face: FaceKind) {
        let counter = self.joins.iter().find(|(of, _)| *of == face);
        counter.inspect(|(_, counter)| counter.increment(1));
    }
}
