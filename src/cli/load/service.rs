//! The built-in service of a load test, in a process of its own, so that its cost is not measured.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;
use serde_json::json;

use super::options::ExpectedRun;
use super::{LoadError, work};
use callsheet_rehearsal::{Call, Rehearsal, RehearsalOptions, Response, Script};
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

    fn script(&self) -> Script {
        let ms = callsheet_values::types::millis(self.work);
        let calls = (0..self.calls).map(|i| {
            // Makes arguments of about 60 bytes.
            let pad = format!("{i:0>34}");
            Call::new(work::NAME, json!({"i": i, "ms": ms, "pad": pad}))
        });
        let in_turn = |turns: usize, response: Response| {
            response.with(|response| {
                response.repeat = true;
                response.when.turns = Some(turns);
            })
        };
        let done = Response { text: self.text("All of it is done"), ..Response::default() };
        if self.calls == 0 {
            return Script::new([in_turn(0, done)]).then_done();
        }
        let asking = Response {
            text: self.text("Some work is to be done"),
            calls: calls.collect(),
            ..Response::default()
        };
        Script::new([in_turn(0, asking), in_turn(1, done)]).then_done()
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
    let options = RehearsalOptions {
        script: workload.script(),
        chunk_delay: workload.pace,
        keep_requests: 0,
        ..RehearsalOptions::default()
    };
    let rehearsal = Rehearsal::start(options).await?;
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
    fn the_expected_answer_is_that_of_the_script() {
        for calls in [0, 1, 4] {
            let workload = Workload { calls, texts: 9, ..Workload::default() };
            let script = workload.script();
            let last = script.responses.last().unwrap();
            let expected = workload.expected();
            assert_eq!(expected.text, Some(last.text.concat()));
            assert_eq!(last.text.len(), 9);
            let called: usize = script.responses.iter().map(|response| response.calls.len()).sum();
            assert_eq!(expected.calls, Some(called));
        }
    }
}
