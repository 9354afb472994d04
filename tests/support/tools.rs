//! Tools that do what a test says, and tell it what they did.
#![expect(clippy::expect_used, dead_code, reason = "helpers of tests, each of which uses a part")]

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use parking_lot::{Condvar, Mutex};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;

/// What the calls did, and which of them may go on.
#[derive(Clone)]
pub(crate) struct Stage {
    log: Arc<Mutex<Vec<String>>>,
    changed: watch::Sender<u64>,
    open: Arc<Mutex<BTreeSet<String>>>,
    opened: Arc<Condvar>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            log: Arc::default(),
            changed: watch::Sender::new(0),
            open: Arc::default(),
            opened: Arc::default(),
        }
    }

    /// Lets the waiting call `id` go on.
    pub(crate) fn release(&self, id: &str) {
        self.open.lock().insert(id.to_owned());
        self.opened.notify_all();
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits until the log holds the line.
    pub(crate) async fn seen(&self, line: &str) {
        let mut changed = self.changed.subscribe();
        super::within(changed.wait_for(|_| self.log.lock().iter().any(|l| l == line)))
            .await
            .expect("the stage stands");
    }

    /// Waits until the log has so many lines.
    pub(crate) async fn lines(&self, count: usize) {
        let mut changed = self.changed.subscribe();
        super::within(changed.wait_for(|_| self.log.lock().len() == count))
            .await
            .expect("the stage stands");
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    pub(crate) fn note(&self, line: String) {
        self.log.lock().push(line);
        self.changed.send_modify(|n| *n += 1);
    }

    fn block_until_released(&self, id: &str) {
        let mut open = self.open.lock();
        while !open.contains(id) {
            let waited = self.opened.wait_for(&mut open, super::PATIENCE);
            assert!(!waited.timed_out(), "nobody releases {id}");
        }
    }

    pub(crate) async fn released(&self, id: &str) {
        let mut changed = self.changed.subscribe();
        changed.wait_for(|_| self.open.lock().contains(id)).await.expect("the stage stands");
    }
}

/// How a call behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Answers `done ID` at once.
    Quick,
    /// Waits until the test releases its id.
    Waits,
    /// Blocks its thread until the test releases its id.
    Blocks,
    /// Panics.
    Panics,
    /// Fails.
    Fails,
    /// Never comes back, and does not watch for a cancel.
    Hangs,
}

#[derive(Deserialize, JsonSchema)]
struct Input {
    id: String,
}

/// A tool with a manner; its calls are known by the `id` in their arguments.
pub(crate) struct Staged {
    pub(crate) spec: ToolSpec,
    pub(crate) manner: Manner,
    pub(crate) stage: Stage,
}

#[async_trait]
impl Tool for Staged {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Input { id } = context.input()?;
        self.stage.note(format!("start {id}"));
        match self.manner {
            Manner::Quick => {}
            Manner::Waits => self.stage.released(&id).await,
            Manner::Blocks => self.stage.block_until_released(&id),
            Manner::Panics => panic!("on stage"),
            Manner::Fails => return Err(ToolError::new("it does not work")),
            Manner::Hangs => std::future::pending().await,
        }
        self.stage.note(format!("end {id}"));
        Ok(format!("done {id}").into())
    }
}

/// Tools that take `{id}`: `quick`, `waits`, `panics`, `fails`, `hangs` are pure; `writes` (quick)
/// and `slow_write` (waits) have effects.
pub(crate) fn registry(stage: &Stage) -> ToolRegistry {
    let mut registry = ToolRegistry::new();
    let pure = |name: &str| ToolSpec::new::<Input>(name, "For a test.").pure();
    let tools = [
        (pure("quick"), Manner::Quick),
        (pure("waits"), Manner::Waits),
        (pure("panics"), Manner::Panics),
        (pure("fails"), Manner::Fails),
        (pure("hangs"), Manner::Hangs),
        (ToolSpec::new::<Input>("writes", "For a test."), Manner::Quick),
        (ToolSpec::new::<Input>("slow_write", "For a test."), Manner::Waits),
    ];
    for (spec, manner) in tools {
        let tool = Staged { spec, manner, stage: stage.clone() };
        registry.register(tool).expect("the names differ");
    }
    registry
}

/// The same, and `blocks`, which is pure and has a thread of its own.
pub(crate) fn registry_with_blocks(stage: &Stage) -> ToolRegistry {
    let mut registry = registry(stage);
    let spec = ToolSpec::new::<Input>("blocks", "For a test.").pure().blocking();
    let tool = Staged { spec, manner: Manner::Blocks, stage: stage.clone() };
    registry.register(tool).expect("the names differ");
    registry
}
