//! Tools with scripted behaviour, which log their calls and wait for the test.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use callsheet::tool::{Question, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use parking_lot::{Condvar, Mutex};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;

/// The log of the calls, and the control over those that wait.
#[derive(Clone)]
pub(crate) struct CallControl {
    log: Arc<Mutex<Vec<String>>>,
    changed: watch::Sender<u64>,
    open: Arc<Mutex<BTreeSet<String>>>,
    opened: Arc<Condvar>,
}

impl CallControl {
    pub(crate) fn new() -> Self {
        Self {
            log: Arc::default(),
            changed: watch::Sender::new(0),
            open: Arc::default(),
            opened: Arc::default(),
        }
    }

    /// Releases the waiting call `id`.
    pub(crate) fn release(&self, id: &str) {
        self.open.lock().insert(id.to_owned());
        self.opened.notify_all();
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits until the log contains the line.
    pub(crate) async fn until_logged(&self, line: &str) {
        let mut changed = self.changed.subscribe();
        super::within(changed.wait_for(|_| self.log.lock().iter().any(|l| l == line)))
            .await
            .expect("the sender lives");
    }

    /// Waits until the log has `count` lines.
    pub(crate) async fn lines(&self, count: usize) {
        let mut changed = self.changed.subscribe();
        super::within(changed.wait_for(|_| self.log.lock().len() == count))
            .await
            .expect("the sender lives");
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
            assert!(!waited.timed_out(), "{id} was not released");
        }
    }

    pub(crate) async fn released(&self, id: &str) {
        let mut changed = self.changed.subscribe();
        changed.wait_for(|_| self.open.lock().contains(id)).await.expect("the sender lives");
    }
}

/// The behaviour of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Returns `done ID` at once.
    Quick,
    /// Waits until the test releases its id.
    Waits,
    /// Blocks its thread until the test releases its id.
    Blocks,
    /// Panics.
    Panics,
    /// Fails.
    Fails,
    /// Asks for consent at once.
    Asks,
    /// Never returns, and ignores cancellation.
    Hangs,
}

#[derive(Deserialize, JsonSchema)]
struct TestInput {
    id: String,
}

/// A tool with a scripted behaviour. The `id` in the arguments identifies a call.
pub(crate) struct ControlledTool {
    pub(crate) spec: ToolSpec,
    pub(crate) behaviour: Behaviour,
    pub(crate) control: CallControl,
}

#[async_trait]
impl Tool for ControlledTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let TestInput { id } = context.input()?;
        self.control.note(format!("start {id}"));
        match self.behaviour {
            Behaviour::Quick => {}
            Behaviour::Waits => self.control.released(&id).await,
            Behaviour::Blocks => self.control.block_until_released(&id),
            Behaviour::Asks => {
                let consent = Question::url("Sign in.", "https://example.com/in");
                self.control.note(format!("answer {:?}", context.ask(consent).await?));
            }
            Behaviour::Panics => panic!("on stage"),
            Behaviour::Fails => return Err(ToolError::new("it does not work")),
            Behaviour::Hangs => std::future::pending().await,
        }
        self.control.note(format!("end {id}"));
        Ok(format!("done {id}").into())
    }
}

/// Makes a registry of tools with the argument `{id}`. `quick`, `waits`, `panics`, `fails` and `hangs`
/// are pure; `writes` (quick), `slow_write` (waits) and `asks` have effects.
pub(crate) fn registry(control: &CallControl) -> ToolRegistry {
    let mut registry = ToolRegistry::new();
    let pure = |name: &str| ToolSpec::new::<TestInput>(name, "For a test.").pure();
    let tools = [
        (pure("quick"), Behaviour::Quick),
        (pure("waits"), Behaviour::Waits),
        (pure("panics"), Behaviour::Panics),
        (pure("fails"), Behaviour::Fails),
        (pure("hangs"), Behaviour::Hangs),
        (ToolSpec::new::<TestInput>("writes", "For a test."), Behaviour::Quick),
        (ToolSpec::new::<TestInput>("slow_write", "For a test."), Behaviour::Waits),
        (ToolSpec::new::<TestInput>("asks", "For a test."), Behaviour::Asks),
    ];
    for (spec, behaviour) in tools {
        let tool = ControlledTool { spec, behaviour, control: control.clone() };
        registry.register(tool).expect("the names differ");
    }
    registry
}

/// Adds `blocks`, which is pure and runs on a thread of its own.
pub(crate) fn registry_with_blocks(control: &CallControl) -> ToolRegistry {
    let mut registry = registry(control);
    let spec = ToolSpec::new::<TestInput>("blocks", "For a test.").pure().blocking();
    let tool = ControlledTool { spec, behaviour: Behaviour::Blocks, control: control.clone() };
    registry.register(tool).expect("the names differ");
    registry
}
