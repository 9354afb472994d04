//! A hook that runs a program: `[[hooks]]` with `kind = "command"`.
//!
//! The program reads one JSON object from its standard input. With exit status 0 its standard output is its
//! answer; with 2 it refuses, and the last 10 lines of its standard error are the message. Everything else is a
//! failure.

use async_trait::async_trait;

use super::{Hook, HookAnswer, HookError, HookInput};
use crate::command::{ProgramRun, run_program};
use crate::defined_input::DefinitionError;
use crate::launcher::{ProcessEnd, Program};
use callsheet_values::config::ProcessConfig;
use callsheet_values::types::Secrets;

/// Maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The exit status of a refusal.
const REFUSED: i32 = 2;

/// A hook that runs a program.
#[derive(Debug)]
pub(super) struct ProgramHook {
    program: Program,
    arguments: Vec<String>,
    process: ProcessConfig,
    /// The secrets of the host.
    secrets: Secrets,
}

impl ProgramHook {
    /// Checks the program of a hook.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn new(
        command: &[String],
        process: &ProcessConfig,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(DefinitionError::new("command", "must not be empty"));
        };
        let program = Program::check(program, process)
            .map_err(|error| DefinitionError::new(error.key, error.message))?;
        let (process, secrets) = (process.clone(), secrets.clone());
        Ok(Self { program, arguments: arguments.to_vec(), process, secrets })
    }
}

#[async_trait]
impl Hook for ProgramHook {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        let input = serde_json::to_string(input).map_err(HookError::new)?;
        let arguments = self.arguments.clone();
        let run = run_program(
            &self.program,
            arguments,
            format!("{input}\n"),
            ANSWER_BYTES_MAX,
            &self.secrets,
            std::future::pending(),
        );
        let ended = run.await;
        let ProgramRun { end, stdout, stderr } =
            ended.map_err(|error| HookError::new(format!("it did not start: {error}")))?;
        match end {
            ProcessEnd::Exited(0) => match stdout.whole() {
                Some(bytes) => HookAnswer::parse(bytes, &self.secrets),
                None => Err(HookError::new(format!(
                    "its answer has more than {ANSWER_BYTES_MAX} bytes"
                ))),
            },
            ProcessEnd::Exited(REFUSED) => {
                let message = stderr.last_lines().trim().to_owned();
                let message = Some(message).filter(|message| !message.is_empty());
                let mut refusal = HookAnswer::refuse("");
                refusal.message = message;
                Ok(refusal)
            }
            ProcessEnd::Exited(_)
            | ProcessEnd::Signalled(_)
            | ProcessEnd::TooManyProcesses
            | ProcessEnd::LauncherDied => {
                let failure = stdout.failure(end, &stderr, self.process.max_processes);
                Err(HookError::new(failure.message()))
            }
        }
    }
}
