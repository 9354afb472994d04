//! A tool that runs a program: `[tools.NAME]` with `kind = "command"`.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the tool: one call starts one process and waits for it |
//! | `arguments.rs` | the arguments of the program, from templates |
//! | `output.rs` | the captured output of the program, and the result or error that it makes |

mod arguments;
mod output;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::defined_input::{DefinedInput, DefinitionError, load_schema};
use super::redaction::redacted;
use super::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use crate::launcher::{LaunchedProcess, ProcessControl, ProcessEnd, Program, StartError};
use arguments::ArgumentTemplates;
use callsheet_values::config::{CommandConfig, CommandOutput, CommandStdin, ConfiguredTool};
use callsheet_values::types::{FailureKind, Secrets};
use output::CapturedOutput;

/// Time for which output may still arrive after the end of the program, whose descendants may hold its
/// pipes open.
const OUTPUT_GRACE: Duration = Duration::from_millis(200);

/// Number of bytes of the standard error that are kept, for an error to quote: the last ones.
const STDERR_BYTES_MAX: usize = 2048;

/// A tool that runs a program.
#[derive(Debug)]
pub(crate) struct CommandTool {
    name: String,
    description: String,
    input: DefinedInput,
    program: Program,
    arguments: ArgumentTemplates,
    config: CommandConfig,
    output_schema: Option<ParsedSchema>,
    /// The secrets of the host.
    secrets: Secrets,
}

impl CommandTool {
    /// Checks a configured tool: its program, its templates, its schemas and its sandbox.
    ///
    /// # Errors
    /// If the program, a template, a schema or the sandbox is invalid: the first problem.
    pub(crate) fn new(
        name: &str,
        tool: &ConfiguredTool,
        config: &CommandConfig,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        let input = DefinedInput::load(&tool.input)?;
        let Some((program, arguments)) = config.command.split_first() else {
            return Err(DefinitionError::new("command", "must not be empty"));
        };
        if program.contains(['{', '\0']) {
            let message = "the program is fixed: it cannot have a placeholder";
            return Err(DefinitionError::new("command[0]", message));
        }
        let arguments = ArgumentTemplates::parse(&input, arguments)?;
        if let CommandStdin::Text(argument) = &config.stdin {
            input.check_name("stdin", argument)?;
        }
        let output_schema = config.output_schema.as_deref();
        let output_schema =
            output_schema.map(|file| load_schema("output_schema", file)).transpose()?;
        let program = Program::check(program, &config.process)
            .map_err(|error| DefinitionError::new(error.key, error.message))?;
        let (name, description) = (name.to_owned(), tool.description.clone());
        let (config, secrets) = (config.clone(), secrets.clone());
        Ok(Self { name, description, input, program, arguments, config, output_schema, secrets })
    }

    /// Returns what the program reads from its standard input.
    fn stdin_text(&self, arguments: &Map<String, Value>) -> String {
        match &self.config.stdin {
            CommandStdin::None => String::new(),
            CommandStdin::Json => format!("{}\n", Value::from(arguments.clone())),
            CommandStdin::Text(argument) => match arguments.get(argument) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            },
        }
    }

    /// Returns the result of the call. An error after too many processes names their maximum. A text result without
    /// output names the exit status if it is not 0, which `ok_exit` may allow.
    fn result(
        &self,
        end: ProcessEnd,
        stdout: &CapturedOutput,
        stderr: &CapturedOutput,
    ) -> Result<ToolOutput, ToolError> {
        let is_ok = matches!(end, ProcessEnd::Exited(code) if self.config.ok_exit.contains(&code));
        if !is_ok {
            return Err(stdout.failure(end, stderr, self.config.process.max_processes));
        }
        match self.config.output {
            CommandOutput::Text => Ok(stdout.text_result(end).into()),
            CommandOutput::Json => {
                let value = stdout.json_result(self.output_schema.as_ref())?;
                Ok(ToolOutput::default().with_structured(value))
            }
        }
    }
}

#[async_trait]
impl Tool for CommandTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec::with_schema(&self.name, &self.description, self.input.schema().clone())
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments = self.input.with_defaults(context.arguments());
        let argv = self.arguments.render(&arguments)?;
        let input = self.stdin_text(&arguments);
        let bytes_max = self.config.max_output_bytes;
        let (program, secrets) = (&self.program, &self.secrets);
        let run = run_program(program, argv, input, bytes_max, secrets, context.cancelled()).await;
        let ProgramRun { end, stdout, stderr } = run.map_err(start_error)?;
        redacted(self.result(end, &stdout, &stderr), secrets)
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct ProgramRun {
    pub(super) end: ProcessEnd,
    pub(super) stdout: CapturedOutput,
    pub(super) stderr: CapturedOutput,
}

/// Runs a program to its end, with this text on its standard input, and kills the descendants that it leaves.
/// Sends it `SIGTERM` when `cancelled` is ready, and kills it if the future that this function returns is dropped
/// before. Keeps the first `bytes_max` bytes of its standard output. `secrets` are removed from its texts.
///
/// # Errors
/// If it does not start.
pub(super) async fn run_program(
    program: &Program,
    arguments: Vec<String>,
    input: String,
    bytes_max: usize,
    secrets: &Secrets,
    cancelled: impl Future<Output = ()>,
) -> Result<ProgramRun, StartError> {
    let process = program.start(arguments).await?;
    let LaunchedProcess { stdin, stdout, stderr, mut control } = process;
    let mut standard_output = CapturedOutput::keeping_first(bytes_max, secrets);
    let mut standard_error = CapturedOutput::keeping_last(STDERR_BYTES_MAX, secrets);
    let transfer = async {
        tokio::join!(
            write_input(stdin, input),
            standard_output.read(stdout),
            standard_error.read(stderr)
        );
    };
    let end = {
        tokio::pin!(transfer);
        let exited = wait(&mut control, cancelled);
        tokio::pin!(exited);
        // The program may close its output before it ends, or end before its descendants close it.
        tokio::select! {
            end = &mut exited => {
                let _ = tokio::time::timeout(OUTPUT_GRACE, transfer).await;
                end
            }
            () = &mut transfer => exited.await,
        }
    };
    control.kill().await;
    Ok(ProgramRun { end, stdout: standard_output, stderr: standard_error })
}

/// Waits for the end of the program. Sends `SIGTERM` when `cancelled` is ready; the host drops the call after
/// `cancel_grace`, which kills the program.
async fn wait(control: &mut ProcessControl, cancelled: impl Future<Output = ()>) -> ProcessEnd {
    tokio::select! {
        end = control.wait() => return end,
        () = cancelled => {}
    }
    control.terminate().await;
    control.wait().await
}

async fn write_input(mut stdin: pipe::Sender, input: String) {
    // A program may end, or close its standard input, before it has read everything.
    let _ = stdin.write_all(input.as_bytes()).await;
}

fn start_error(error: StartError) -> ToolError {
    let kind = match &error {
        StartError::Sandbox(_) => FailureKind::Sandbox,
        StartError::NoLauncher
        | StartError::LauncherDidNotAnswer { .. }
        | StartError::Program(_)
        | StartError::MissingSecret(_)
        | StartError::Io(_) => FailureKind::ToolError,
    };
    ToolError::new(format!("the program did not start: {error}")).with_kind(kind)
}
