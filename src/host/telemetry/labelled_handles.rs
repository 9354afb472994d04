//! Handles of metrics whose label values are known only at run time. They are cached, because a
//! lookup in the recorder for each recorded sample would be slow.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use ::metrics::{Counter, Histogram};
use parking_lot::RwLock;

use super::metric_table::{self as table, Metric, OTHER, SharedRecorder};
use callsheet_values::event::ConflictResolution;
use callsheet_values::types::{ProviderErrorKind, ToolStatus};

/// Limits the cardinality of labels: the maximum number of names of one [`PerName`] (tools, models, agents or
/// limits) that become label values. Further names share `other`.
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
        self.add(value, 1);
    }

    pub(super) fn add(&self, value: K, count: u64) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.increment(count);
        }
    }
}

/// Handles by names that are found at run time. The first [`NAMES_MAX`] names have handles of their own,
/// the others share those of `other`.
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
        names.iter().for_each(|name| drop(per_name.get_or_register(name, &register)));
        per_name
    }

    /// Returns the handles of a name that is registered.
    fn get(&self, name: &str) -> Option<Arc<H>> {
        self.0.read().get(name).cloned()
    }

    pub(super) fn get_or_register(&self, name: &str, register: impl FnOnce(&str) -> H) -> Arc<H> {
        if let Some(handles) = self.get(name) {
            return handles;
        }
        let mut by_name = self.0.write();
        // Another thread may have registered the name since the look-up.
        let has_handles = by_name.contains_key(name) || by_name.len() < NAMES_MAX;
        let name = if has_handles { name } else { OTHER };
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
    pub(super) cached_tokens: Counter,
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
            cached_tokens: table::CACHED_TOKENS.series(recorder, &[request]),
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

/// The handles of the host's tools. A name that is not a tool's (a model can invent one) never becomes a label
/// value: it shares `other`.
#[derive(Debug)]
pub(super) struct PerTool {
    /// The names of all known tools. Only they may become label values.
    names: RwLock<HashSet<String>>,
    handles: PerName<ToolHandles>,
    other: Arc<ToolHandles>,
}

/// The handles of one tool.
#[derive(Debug)]
pub(super) struct ToolHandles {
    /// The label value: the tool's name, or `other`.
    pub(super) label: String,
    statuses: Vec<ToolStatusHandles>,
    /// By the resolution of the conflict.
    pub(super) conflicts: PerValue<ConflictResolution>,
    pub(super) attempts: Counter,
    /// Registered at the first use, because few tools have limits.
    queue_wait: OnceLock<Histogram>,
}

/// The handles of one tool and one status.
#[derive(Debug)]
pub(super) struct ToolStatusHandles {
    status: ToolStatus,
    pub(super) results: Counter,
    /// Registered at the first use: most pairs are never used, and each takes twenty lines of the metrics page.
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

    /// Registers the tools at once if there are at most [`NAMES_MAX`], or else each one at its first call.
    pub(super) fn new(recorder: &SharedRecorder, tools: &[String]) -> Self {
        let per_tool = Self {
            names: RwLock::new(tools.iter().cloned().collect()),
            handles: PerName::default(),
            other: Arc::new(ToolHandles::new(recorder, OTHER)),
        };
        if tools.len() <= NAMES_MAX {
            tools.iter().for_each(|tool| drop(per_tool.get_or_register(recorder, tool)));
        }
        per_tool
    }

    /// Adds names of tools that became known later, such as those of servers.
    pub(super) fn add_names<'n>(&self, names: impl Iterator<Item = &'n str>) {
        self.names.write().extend(names.map(str::to_owned));
    }

    /// Returns the handles of a tool.
    pub(super) fn get_or_register(
        &self,
        recorder: &SharedRecorder,
        tool: &str,
    ) -> Arc<ToolHandles> {
        if let Some(known) = self.handles.get(tool) {
            return known;
        }
        if !self.names.read().contains(tool) {
            return Arc::clone(&self.other);
        }
        self.handles.get_or_register(tool, |label| ToolHandles::new(recorder, label))
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
            label: tool.to_owned(),
            statuses: PerTool::STATUSES.into_iter().map(status_handles).collect(),
            conflicts: PerValue(conflicts.into()),
            attempts: table::TOOL_ATTEMPTS.series(recorder, &[("tool", tool)]),
            queue_wait: OnceLock::new(),
        }
    }

    /// Returns the handles of a status.
    pub(super) fn for_status(&self, status: ToolStatus) -> Option<&ToolStatusHandles> {
        self.statuses.iter().find(|handles| handles.status == status)
    }

    /// Returns the histogram of the time that calls waited for a permit.
    pub(super) fn queue_wait(&self, recorder: &SharedRecorder) -> &Histogram {
        let register = || table::TOOL_QUEUE_WAIT.series(recorder, &[("tool", &self.label)]);
        self.queue_wait.get_or_init(register)
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
        ProviderErrorKind::UnparsableOutput => "unparsable_output",
        ProviderErrorKind::BreakerOpen => "unavailable",
        ProviderErrorKind::EmptyAnswer => "empty_answer",
        ProviderErrorKind::Refused => "refused",
    }
}
