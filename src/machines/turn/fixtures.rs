//! Tools, rules, deltas and journal entries for the tests of the machines.
#![expect(clippy::unwrap_used, reason = "for tests")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{Budget, CommittedTurn, ModelPlan, ModelPlans, RunRules, TurnSpec};
use crate::context::exclusion::Excludable;
use crate::context::{History, ResultCut, Variables};
use crate::contract::{ParsedSchema, ToolSpec};
use callsheet_values::config::ApprovalPolicy;
use callsheet_values::config::{AgentToolConfig, AskedCalls, ContextPolicy, Limits};
use callsheet_values::record::{JournalEntry, Record, Seq};
use callsheet_values::types::{Execution, ModelOrigin, RunId, SessionId, Usage, Wire};
pub use callsheet_wire::response::fixtures::{call, finish, text};
use callsheet_wire::{CallDelta, Delta};

/// The calls of the tool need an approval, and so do their results.
const BOTH: ApprovalPolicy = ApprovalPolicy { before: AskedCalls::All, after: true };

/// Returns tools of every kind, by name. The names describe the tools: `put` writes a variable, `asked`
/// needs an approval to run, `reviewed` needs one for its result, `both` needs both, `asking` asks
/// questions while it runs, and the client runs `client`.
pub fn tools() -> BTreeMap<String, Arc<ToolSpec>> {
    let schema = || {
        ParsedSchema::parse(json!({"type": "object", "properties": {"n": {"type": "integer"}}}))
            .unwrap()
    };
    let tool = |name| ToolSpec::with_schema(name, "", schema());
    [
        tool("pure").pure(),
        tool("repeatable").pure().repeatable(),
        tool("effect"),
        tool("idempotent").idempotent(),
        tool("seal").start_on_seal(),
        tool("eager").idempotent().start_on_seal(),
        tool("exclusive").pure().exclusive(),
        tool("barrier").exclusive(),
        tool("capped").pure().max_concurrent(1),
        tool("capped_effect").max_concurrent(1),
        tool("capped_seal").start_on_seal().idempotent().max_concurrent(1),
        tool("quick").pure().timeout(Duration::from_millis(5)),
        tool("get").pure(),
        tool("put").pure(),
        tool("bump").pure(),
        tool("copy").pure(),
        tool("add"),
        tool("set"),
        tool("swap").start_on_seal(),
        tool("set_y"),
        tool("get_asked").pure().approval(ApprovalPolicy::BEFORE),
        tool("bump_reviewed").pure().approval(ApprovalPolicy::AFTER),
        tool("add_both").approval(BOTH),
        tool("asked_pure").pure().approval(ApprovalPolicy::BEFORE),
        tool("asked").approval(ApprovalPolicy::BEFORE),
        tool("reviewed_pure").pure().approval(ApprovalPolicy::AFTER),
        tool("reviewed").approval(ApprovalPolicy::AFTER),
        tool("reviewed_seal").start_on_seal().approval(ApprovalPolicy::AFTER),
        tool("both").approval(BOTH),
        tool("asking"),
        tool("asking_idempotent").idempotent(),
        tool("asking_pure").pure(),
        tool("asking_seal").start_on_seal(),
        tool("asking_bump").pure(),
        tool("asking_both").approval(BOTH),
        tool("bump_capped").pure().max_concurrent(1),
        tool("add_capped").approval(BOTH).max_concurrent(1),
        agent(tool("agent").timeout(Duration::from_secs(40))),
        agent(tool("eager_agent").start_on_seal()),
        by_client(tool("client")),
        by_client(tool("client_pure").pure()),
        by_client(tool("client_both").approval(BOTH)),
    ]
    .into_iter()
    .map(|spec| (spec.name.clone(), Arc::new(spec)))
    .collect()
}

/// Makes a tool an agent. Calls of agents are idempotent.
fn agent(spec: ToolSpec) -> ToolSpec {
    let agent = Some(Box::new(AgentToolConfig::new("researcher")));
    ToolSpec { agent, ..spec.idempotent() }
}

fn by_client(spec: ToolSpec) -> ToolSpec {
    ToolSpec { by_client: true, ..spec }
}

/// Returns the rules of a run with all tools.
pub fn rules(execution: Execution) -> RunRules {
    RunRules {
        tools: tools(),
        limits: Limits { tool_timeout: Some(Duration::from_secs(30)), ..Limits::default() },
        execution,
        multi_tool_calls: true,
        early_start: true,
        on_refusal: callsheet_values::config::OnRefusal::End,
        uses_tool_search: false,
        search_only_tools: Arc::default(),
        has_servers: false,
        fixed_tokens: 0,
        system_tokens: 0,
        context: ContextPolicy::default(),
        hooks: Arc::default(),
        tool_choice: callsheet_values::types::ToolChoice::Auto,
        output: None,
        models: Arc::new(ModelPlans::new(model("m", 3), Vec::new())),
    }
}

/// Returns a plan of a model that streams.
pub fn model(name: &str, max_attempts: u32) -> ModelPlan {
    let origin = Arc::new(ModelOrigin { wire: Wire::OpenaiChat, model: name.into() });
    let displayed_name = name.into();
    ModelPlan { origin, displayed_name, streamed: true, max_attempts, context_window: None }
}

/// Returns the first turn of a run.
pub fn spec(rules: RunRules) -> TurnSpec {
    TurnSpec {
        number: 1,
        turns_with_calls: 0,
        used_call_ids: Arc::new(BTreeSet::new()),
        request_kind: callsheet_values::types::RequestKind::Ordinary,
        budget: Budget::default(),
        run_elapsed: Duration::ZERO,
        run_time_left: None,
        window: None,
        excludable: Excludable::default(),
        new_prompt: None,
        variables: Variables::default(),
        seed: 1,
        run: RunId("s".into()),
        rules: Arc::new(rules),
    }
}

/// Returns a delta with more bytes of a call's arguments.
pub fn more(index: u64, arguments: &str) -> Delta {
    Delta::Call(CallDelta {
        index: Some(index),
        arguments: Some(arguments.to_owned()),
        ..CallDelta::default()
    })
}

/// Returns a delta with the usage of the response up to now.
pub fn usage(tokens: u64) -> Delta {
    let usage = Usage { output_tokens: tokens, ..Usage::default() };
    Delta::Usage { usage, raw: "{}".into() }
}

/// Returns the records as they are read from the journal. The first one follows the record `after`.
/// Each record has the time at which it was appended.
pub fn entries(after: u64, records: &[(Record, u64)]) -> Vec<JournalEntry> {
    let entry = |((record, time), seq): (&(Record, u64), u64)| JournalEntry {
        seq: Seq(seq),
        time: *time,
        displayed_bytes: 0,
        record: round_trip(record),
    };
    records.iter().zip(after + 1..).map(entry).collect()
}

/// Encodes and decodes the record as the journal does. Caches the results, because the explorer
/// stores the same records many times.
fn round_trip(record: &Record) -> Record {
    const CACHE_MAX: usize = 4096;
    thread_local! {
        static CACHE: RefCell<HashMap<Record, Record>> = RefCell::default();
    }
    CACHE.with_borrow_mut(|cache| {
        if let Some(read) = cache.get(record) {
            return read.clone();
        }
        let entry =
            JournalEntry { seq: Seq(1), time: 0, displayed_bytes: 0, record: record.clone() };
        let session = SessionId::parse("s").unwrap();
        let read =
            JournalEntry::from_body(&session, entry.seq, entry.time, &entry.body()).unwrap().record;
        if cache.len() == CACHE_MAX {
            cache.clear();
        }
        cache.insert(entry.record, read.clone());
        read
    })
}

/// Returns the history and the variables after the committed turns in these records of a run.
pub fn committed(records: &[Record], limits: &Limits) -> (History, Variables) {
    let (mut history, mut variables) = (History::new(), Variables::default());
    history.begin_run("go".into());
    let mut turn = Vec::new();
    for (record, time) in records.iter().map(|record| (record.clone(), 0)) {
        turn.push((record, time));
        let [.., (Record::TurnCommitted { .. }, _)] = turn.as_slice() else { continue };
        let entries = entries(0, &std::mem::take(&mut turn));
        let record =
            CommittedTurn::from_records(entries.iter().map(|entry| &entry.record)).unwrap();
        let cut = ResultCut { bytes_max: limits.max_result_bytes, references: true };
        history.commit(record.number, record.message.as_ref(), &record.results, cut);
        record.results.iter().for_each(|result| variables.apply(&result.writes));
    }
    (history, variables)
}
