//! Handles of metrics whose label values are known only at run time. They are cached, because a
//! lookup in the recorder for each value would be slow.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ::metrics::{Counter, Histogram};
use parking_lot::RwLock;

use super::metric_table::{self as table, Metric, OTHER, SharedRecorder};
use crate::event::ConflictResolution;
use crate::types::{ProviderErrorKind, ToolStatus};

/// Maximum number of names of tools, models, agents and limits that become label values. Further
/// names share `other`.
const NAMES_MAX: usize = 64;

/// The counters of one metric for each value of a small enum. They exist from the start, at 0.
#[derive(Debug)]
pub(super) struct PerValue<K>(Vec<(K, Counter)>);

impl<K: Copy + PartialEq> PerValue<K> {
    /// Registers the counters. `as_str` returns the label value.
    pub(super) fn new(
        recorder: &SharedRecorder,
        metric: Metric,
        label: &str,
        values: &[K],
        as_str: fn(K) -> &'static str,
    ) -> Self {
        let counter = |value: K| metric.series(recorder, &[(label, as_str(value))]);
        Self(values.iter().map(|&value| (value, counter(value))).collect())
    }

    pub(super) fn increment(&self, value: K) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.increment(1);
        }
    }
}

/// Handles by names that are found at run time. The first 64 names have handles of their own, the
/// others share those of `other`.
#[derive(Debug)]
pub(super) struct PerName<H>(RwLock<HashMap<String, Arc<H>>>);

impl<H> Default for PerName<H> {
    fn default() -> Self {
        Self(RwLock::new(HashMap::new()))
    }
}

impl<H> PerName<H> {
    /// Registers the handles of these names at once.
    pub(super) fn with_names(names: &[&str], register: impl Fn(&str) -> H) -> Self {
        let per_name = Self::default();
        names.iter().for_each(|name| drop(per_name.handles(name, &register)));
        per_name
    }

    pub(super) fn handles(&self, name: &str, register: impl FnOnce(&str) -> H) -> Arc<H> {
        if let Some(handles) = self.0.read().get(name) {
            return Arc::clone(handles);
        }
        let mut by_name = self.0.write();
        let name = if by_name.len() < NAMES_MAX { name } else { OTHER };
        Arc::clone(by_name.entry(name.to_owned()).or_insert_with(|| Arc::new(register(name))))
    }
}

/// The handles of one model's successful requests.
pub(super) struct RequestHandles {
    /// The label value: the model's name, or `other`.
    pub(super) model: String,
    pub(super) duration: Histogram,
    pub(super) first_chunk: Histogram,
    pub(super) input_tokens: Histogram,
    pub(super) output_tokens: Histogram,
}

impl RequestHandles {
    pub(super) fn new(recorder: &SharedRecorder, model: &str) -> Self {
        let chat = [("gen_ai_operation_name", "chat"), ("gen_ai_request_model", model)];
        let [operation, request] = chat;
        let tokens = |kind| {
            let labels = [operation, request, ("gen_ai_token_type", kind)];
            table::TOKEN_USAGE.series(recorder, &labels)
        };
        Self {
            model: model.to_owned(),
            duration: table::OPERATION_DURATION.series(recorder, &chat),
            first_chunk: table::FIRST_CHUNK_TIME.series(recorder, &chat),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
        }
    }
}

/// The handles of one agent's runs.
pub(super) struct AgentHandles {
    /// The label value: the agent's name, or `other`.
    pub(super) agent: String,
    pub(super) duration: Histogram,
    pub(super) tool_calls: Histogram,
}

impl AgentHandles {
    pub(super) fn new(recorder: &SharedRecorder, agent: &str) -> Self {
        let labels = [("gen_ai_operation_name", "invoke_agent"), ("gen_ai_agent_name", agent)];
        Self {
            agent: agent.to_owned(),
            duration: table::INVOKE_AGENT_DURATION.series(recorder, &labels),
            tool_calls: table::INVOKE_AGENT_TOOL_CALLS.series(recorder, &labels),
        }
    }
}

/// The handles of the host's tools, and one set for all other names. With more than 64 tools, the
/// first 64 that are called have handles of their own and the others share those of `other`.
#[derive(Debug)]
pub(super) struct PerTool {
    tools: HashMap<String, OnceLock<ToolHandles>>,
    /// Number of tools that have handles of their own.
    registered: AtomicUsize,
    other: ToolHandles,
}

/// The handles of one tool.
#[derive(Debug)]
struct ToolHandles {
    statuses: Vec<ToolStatusHandles>,
    /// By whether the call ran again.
    conflicts: PerValue<ConflictResolution>,
    /// Registered at the first use, because few tools have `max_concurrent`.
    queue_wait: OnceLock<Histogram>,
}

/// The handles of one tool and one status.
#[derive(Debug)]
pub(super) struct ToolStatusHandles {
    status: ToolStatus,
    pub(super) results: Counter,
    /// Registered at the first use: most pairs are never used, and each takes twenty lines of the page.
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

    /// Registers up to 64 tools at once. With more tools, each is registered when it is first called.
    pub(super) fn new(recorder: &SharedRecorder, tools: &[String]) -> Self {
        let per_tool = Self {
            tools: tools.iter().map(|tool| (tool.clone(), OnceLock::new())).collect(),
            registered: AtomicUsize::new(0),
            other: ToolHandles::new(recorder, OTHER),
        };
        if per_tool.tools.len() <= NAMES_MAX {
            for tool in per_tool.tools.keys() {
                let _ = per_tool.tool(recorder, tool);
            }
        }
        per_tool
    }

    /// Returns the handles of a tool and a status, and the tool's label value.
    pub(super) fn handles(
        &self,
        recorder: &SharedRecorder,
        tool: &str,
        status: ToolStatus,
    ) -> Option<(&str, &ToolStatusHandles)> {
        let (label, tool) = self.tool(recorder, tool);
        Some((label, tool.statuses.iter().find(|handles| handles.status == status)?))
    }

    /// Returns the histogram of the time that a tool's calls waited for a permit.
    pub(super) fn queue_wait(&self, recorder: &SharedRecorder, tool: &str) -> &Histogram {
        let (label, tool) = self.tool(recorder, tool);
        let register = || table::TOOL_QUEUE_WAIT.series(recorder, &[("tool", label)]);
        tool.queue_wait.get_or_init(register)
    }

    /// Counts a call whose reads conflict with the writes of an earlier call.
    pub(super) fn conflict(
        &self,
        recorder: &SharedRecorder,
        tool: &str,
        resolution: ConflictResolution,
    ) {
        self.tool(recorder, tool).1.conflicts.increment(resolution);
    }

    fn tool(&self, recorder: &SharedRecorder, tool: &str) -> (&str, &ToolHandles) {
        let Some((name, own)) = self.tools.get_key_value(tool) else {
            return (OTHER, &self.other);
        };
        let may_register = || self.registered.fetch_add(1, Ordering::Relaxed) < NAMES_MAX;
        if own.get().is_none()
            && (self.registered.load(Ordering::Relaxed) >= NAMES_MAX || !may_register())
        {
            return (OTHER, &self.other);
        }
        (name, own.get_or_init(|| ToolHandles::new(recorder, name)))
    }
}

impl ToolHandles {
    fn new(recorder: &SharedRecorder, tool: &str) -> Self {
        let status_handles = |status: ToolStatus| ToolStatusHandles {
            status,
            results: table::TOOL_RESULTS
                .series(recorder, &[("tool", tool), ("status", status.as_str())]),
            duration: OnceLock::new(),
        };
        let conflicts = ConflictResolution::ALL.map(|resolution| {
            let labels = [("tool", tool), ("resolution", resolution.as_str())];
            (resolution, table::VARIABLE_CONFLICTS.series(recorder, &labels))
        });
        Self {
            statuses: PerTool::STATUSES.into_iter().map(status_handles).collect(),
            conflicts: PerValue(conflicts.into()),
            queue_wait: OnceLock::new(),
        }
    }
}

impl ToolStatusHandles {
    pub(super) fn duration(&self, recorder: &SharedRecorder, tool: &str) -> &Histogram {
        self.duration.get_or_init(|| {
            let labels = [
                ("gen_ai_operation_name", "execute_tool"),
                ("gen_ai_tool_name", tool),
                ("status", self.status.as_str()),
            ];
            table::EXECUTE_TOOL_DURATION.series(recorder, &labels)
        })
    }
}

/// Returns the label value of an error kind.
pub(super) fn error_type(kind: ProviderErrorKind) -> &'static str {
    match kind {
        ProviderErrorKind::Connect => "connect",
        ProviderErrorKind::Timeout => "timeout",
        ProviderErrorKind::Transport => "transport",
        ProviderErrorKind::Status => "status",
        ProviderErrorKind::InStream => "in_stream",
        ProviderErrorKind::Malformed => "malformed",
        ProviderErrorKind::TooLarge => "too_large",
        ProviderErrorKind::Unavailable => "unavailable",
    }
}
