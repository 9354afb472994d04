//! Handles of metrics with labels, found without asking the recorder each time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use parking_lot::RwLock;

use super::names::{self, Metric, MetricKind, OTHER};
use crate::event::ConflictResolution;
use crate::types::ToolStatus;

/// The recorder of one host.
pub(super) type SharedRecorder = Arc<dyn Recorder + Send + Sync>;

const METADATA: Metadata<'static> = Metadata::new("callsheet", Level::INFO, None);

/// Distinct names of tools, models, agents and limits that become labels; more are `other`.
const NAMES_MAX: usize = 64;

impl Metric {
    /// Tells the recorder what the metric means.
    pub(super) fn describe(&self, recorder: &SharedRecorder) {
        let (name, unit, help) = (self.name.into(), Some(self.unit), self.help.into());
        match self.kind {
            MetricKind::Counter => recorder.describe_counter(name, unit, help),
            MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
            MetricKind::Histogram(_) => recorder.describe_histogram(name, unit, help),
            MetricKind::Sum => {}
        }
    }

    pub(super) fn counter(&self, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Counter {
        debug_assert_eq!(self.kind, MetricKind::Counter, "{}", self.name);
        recorder.register_counter(&self.key(labels), &METADATA)
    }

    pub(super) fn gauge(&self, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Gauge {
        debug_assert_eq!(self.kind, MetricKind::Gauge, "{}", self.name);
        recorder.register_gauge(&self.key(labels), &METADATA)
    }

    pub(super) fn histogram(
        &self,
        recorder: &SharedRecorder,
        labels: &[(&str, &str)],
    ) -> Histogram {
        debug_assert!(matches!(self.kind, MetricKind::Histogram(_)), "{}", self.name);
        recorder.register_histogram(&self.key(labels), &METADATA)
    }

    fn key(&self, labels: &[(&str, &str)]) -> Key {
        debug_assert!(labels.iter().all(|(name, _)| self.labels.contains(name)), "{}", self.name);
        let labels: Vec<Label> = labels
            .iter()
            .map(|(name, value)| Label::new((*name).to_owned(), (*value).to_owned()))
            .collect();
        Key::from_parts(self.name, labels)
    }
}

/// The counters of one metric for each value of a small enum, at 0 from the start.
#[derive(Debug)]
pub(super) struct PerValue<K>(Vec<(K, Counter)>);

impl<K: Copy + PartialEq> PerValue<K> {
    pub(super) fn new(
        recorder: &SharedRecorder,
        metric: Metric,
        label: &str,
        values: &[K],
        word: fn(K) -> &'static str,
    ) -> Self {
        let counter = |value: K| metric.counter(recorder, &[(label, word(value))]);
        Self(values.iter().map(|&value| (value, counter(value))).collect())
    }

    pub(super) fn increment(&self, value: K) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.increment(1);
        }
    }
}

/// Handles by a name that is met as time goes by. The first 64 names have their own, the rest
/// share those of `other`.
#[derive(Debug)]
pub(super) struct PerName<H>(RwLock<HashMap<String, Arc<H>>>);

impl<H> Default for PerName<H> {
    fn default() -> Self {
        Self(RwLock::new(HashMap::new()))
    }
}

impl<H> PerName<H> {
    /// With the names that are known from the start.
    pub(super) fn known(names: &[&str], make: impl Fn(&str) -> H) -> Self {
        let per_name = Self::default();
        names.iter().for_each(|name| drop(per_name.handles(name, &make)));
        per_name
    }

    pub(super) fn handles(&self, name: &str, make: impl FnOnce(&str) -> H) -> Arc<H> {
        if let Some(known) = self.0.read().get(name) {
            return Arc::clone(known);
        }
        let mut handles = self.0.write();
        let name = if handles.len() < NAMES_MAX { name } else { OTHER };
        Arc::clone(handles.entry(name.to_owned()).or_insert_with(|| Arc::new(make(name))))
    }
}

/// The handles of the tools that the host has, and of the names that are none. Of more than 64
/// tools the first 64 that are called have their own, the rest share those of `other`.
#[derive(Debug)]
pub(super) struct PerTool {
    tools: HashMap<String, OnceLock<OneTool>>,
    /// How many of them have their own.
    named: AtomicUsize,
    other: OneTool,
}

/// The handles of one tool.
#[derive(Debug)]
struct OneTool {
    statuses: Vec<ToolHandles>,
    /// By whether the call was run again.
    conflicts: PerValue<ConflictResolution>,
    /// Registered when first needed: few tools have a cap.
    queue_wait: OnceLock<Histogram>,
}

/// The handles of one tool and one status.
#[derive(Debug)]
pub(super) struct ToolHandles {
    status: ToolStatus,
    pub(super) results: Counter,
    /// Registered when first needed: most pairs never are, and each is twenty lines of the page.
    duration: OnceLock<Histogram>,
}

impl PerTool {
    pub(super) const STATUSES: [ToolStatus; 6] = [
        ToolStatus::Ok,
        ToolStatus::Failed,
        ToolStatus::TimedOut,
        ToolStatus::Cancelled,
        ToolStatus::Refused,
        ToolStatus::Unknown,
    ];

    /// Few tools are there from the start, at 0.
    pub(super) fn new(recorder: &SharedRecorder, tools: &[String]) -> Self {
        let per_tool = Self {
            tools: tools.iter().map(|tool| (tool.clone(), OnceLock::new())).collect(),
            named: AtomicUsize::new(0),
            other: OneTool::new(recorder, OTHER),
        };
        if per_tool.tools.len() <= NAMES_MAX {
            for tool in per_tool.tools.keys() {
                let _ = per_tool.named(recorder, tool);
            }
        }
        per_tool
    }

    /// The handles of a tool and a status, and the tool's name as a label.
    pub(super) fn handles(
        &self,
        recorder: &SharedRecorder,
        tool: &str,
        status: ToolStatus,
    ) -> Option<(&str, &ToolHandles)> {
        let (name, tool) = self.named(recorder, tool);
        Some((name, tool.statuses.iter().find(|handles| handles.status == status)?))
    }

    /// How long calls of a tool waited for its places.
    pub(super) fn queue_wait(&self, recorder: &SharedRecorder, tool: &str) -> &Histogram {
        let (name, tool) = self.named(recorder, tool);
        let register = || names::QUEUE_WAIT.histogram(recorder, &[("tool", name)]);
        tool.queue_wait.get_or_init(register)
    }

    /// Counts a call of a tool that had read what an earlier one wrote meanwhile.
    pub(super) fn conflict(
        &self,
        recorder: &SharedRecorder,
        tool: &str,
        resolution: ConflictResolution,
    ) {
        self.named(recorder, tool).1.conflicts.increment(resolution);
    }

    fn named(&self, recorder: &SharedRecorder, tool: &str) -> (&str, &OneTool) {
        let Some((name, own)) = self.tools.get_key_value(tool) else {
            return (OTHER, &self.other);
        };
        let claims_place = || self.named.fetch_add(1, Ordering::Relaxed) < NAMES_MAX;
        if own.get().is_none()
            && (self.named.load(Ordering::Relaxed) >= NAMES_MAX || !claims_place())
        {
            return (OTHER, &self.other);
        }
        (name, own.get_or_init(|| OneTool::new(recorder, name)))
    }
}

impl OneTool {
    fn new(recorder: &SharedRecorder, tool: &str) -> Self {
        let of_status = |status: ToolStatus| ToolHandles {
            status,
            results: names::TOOL_RESULTS
                .counter(recorder, &[("tool", tool), ("status", status.as_str())]),
            duration: OnceLock::new(),
        };
        let conflict = |resolution: ConflictResolution| {
            let labels = [("tool", tool), ("resolution", resolution.as_str())];
            (resolution, names::CONFLICTS.counter(recorder, &labels))
        };
        Self {
            statuses: PerTool::STATUSES.into_iter().map(of_status).collect(),
            conflicts: PerValue(ConflictResolution::ALL.map(conflict).into()),
            queue_wait: OnceLock::new(),
        }
    }
}

impl ToolHandles {
    pub(super) fn duration(&self, recorder: &SharedRecorder, tool: &str) -> &Histogram {
        self.duration.get_or_init(|| {
            let labels = [
                ("gen_ai_operation_name", "execute_tool"),
                ("gen_ai_tool_name", tool),
                ("status", self.status.as_str()),
            ];
            names::EXECUTE_TOOL_DURATION.histogram(recorder, &labels)
        })
    }
}
