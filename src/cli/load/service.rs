//! The built-in service of a load test, in a process of its own, so that its cost is not measured.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;
use serde_json::{Value, json};

use super::options::ExpectedRun;
use super::{LoadError, work};
use callsheet_rehearsal::{Call, Rehearsal, RehearsedAnswer};
use callsheet_values::config::BaseUrl;

/// The number of bytes that are read of the line that the service's process prints.
const LINE_MAX: u64 = 4096;

/// The answers of the service to every run: text and calls, and then text. Without calls, only the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The number of calls of the first answer.
    pub calls: u32,
    /// The time that each call sleeps.
    pub work: Duration,
    /// The number of text pieces of each answer.
    pub texts: u32,
    /// The pause before each chunk of an answer but the first.
    pub pace: Duration,
}

impl Default for Workload {
    /// Returns four calls that take no time and two answers of 32 pieces, without pauses.
    fn default() -> Self {
        Self { calls: 4, work: Duration::ZERO, texts: 32, pace: Duration::ZERO }
    }
}

impl Workload {
    /// Returns the expected answer of a run.
    #[must_use]
    pub fn expected(&self) -> ExpectedRun {
        ExpectedRun {
            calls: Some(self.calls as usize),
            text: Some(self.text("All of it is done").concat()),
        }
    }

    /// Answers a request: with calls, and after their results with the last text.
    fn answer(&self, request: &Value) -> RehearsedAnswer {
        let last = request["messages"].as_array().and_then(|messages| messages.last());
        let has_results = last.is_some_and(|message| message["role"] == "tool");
        if self.calls == 0 || has_results {
            return RehearsedAnswer { text: self.text("All of it is done"), calls: Vec::new() };
        }
        let ms = callsheet_values::types::millis(self.work);
        let call = |i: u32| {
            // Makes arguments of about 60 bytes.
            let pad = format!("{i:0>34}");
            let arguments = json!({"i": i, "ms": ms, "pad": pad});
            Call { name: work::NAME.to_owned(), arguments }
        };
        let text = self.text("Some work is to be done");
        RehearsedAnswer { text, calls: (0..self.calls).map(call).collect() }
    }

    fn text(&self, begin: &str) -> Vec<String> {
        let words = begin.split_inclusive(' ').chain([" (offline rehearsal model)"]);
        words.chain(std::iter::repeat(" la")).take(self.texts as usize).map(str::to_owned).collect()
    }
}

/// The running service. Dropping it ends its process; so does the end of this process.
#[derive(Debug)]
pub struct ServiceProcess {
    child: Child,
    base_url: BaseUrl,
}

impl ServiceProcess {
    /// Starts the process: `program` with these arguments must call [`serve`]. Blocks until it listens.
    ///
    /// # Errors
    /// If the process does not start or does not listen.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Self, LoadError> {
        let service_error = |error: io::Error| LoadError::Service(error.to_string());
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches this process only, which then ends the service.
            .process_group(0)
            .spawn()
            .map_err(service_error)?;
        let mut line = String::new();
        let stdout = child.stdout.take().map(|out| BufReader::new(out.take(LINE_MAX)));
        let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_line(&mut line));
        let base_url = match read {
            Ok(0) => Err("it ended before it printed its address".to_owned()),
            Ok(_) => BaseUrl::parse(line.trim_end()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match base_url {
            Ok(base_url) => Ok(Self { child, base_url }),
            Err(error) => {
                kill(&mut child);
                Err(LoadError::Service(error))
            }
        }
    }

    /// Returns the `base_url` of the service.
    #[must_use]
    pub fn base_url(&self) -> &BaseUrl {
        &self.base_url
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// Kills the process; one that has already ended is not an error.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs the service: prints its `base_url` on stdout, and serves until stdin ends.
///
/// # Errors
/// If it cannot listen, or stdout is closed.
pub async fn serve(workload: Workload) -> io::Result<()> {
    let answer = move |request: &Value| workload.answer(request);
    let rehearsal = Rehearsal::start(answer, workload.pace).await?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", rehearsal.base_url()).and_then(|()| stdout.flush())?;
    drop(stdout);
    let until_stdin_ends = tokio::task::spawn_blocking(|| {
        let mut rest = [0; 64];
        while io::stdin().read(&mut rest).is_ok_and(|read| read > 0) {}
    });
    let _ = until_stdin_ends.await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_answer_is_the_one_after_the_results() {
        for calls in [0, 1, 4] {
            let workload = Workload { calls, texts: 9, ..Workload::default() };
            let asked_by = |role: &str| workload.answer(&json!({"messages": [{"role": role}]}));
            let last = asked_by("tool");
            let expected = workload.expected();
            assert_eq!(expected.text, Some(last.text.concat()));
            assert_eq!((last.text.len(), last.calls.len()), (9, 0));
            assert_eq!(expected.calls, Some(asked_by("user").calls.len()));
        }
    }
}
