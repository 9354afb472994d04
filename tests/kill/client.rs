//! A client of one session: starts runs, watches, steers, decides, and repeats every request until
//! some process of the host responds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use callsheet::event::EventId;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::http_client::{self, EventStream, HttpResponse, StreamEvent};
use crate::input::UserInput;
use crate::rng::SeededRng;
use crate::scenario::SharedState;

/// A request that the host has acknowledged.
#[derive(Clone, Debug)]
pub(crate) enum Acknowledged {
    /// A run was accepted with the record `seq`.
    Run { run_id: String, seq: u64, input: String },
    /// An input was added to a run.
    Steered { seq: u64, input: String },
    /// A decision about a call was accepted.
    Decided { tool_id: String },
}

/// Everything that a client received about a session.
#[derive(Debug)]
pub(crate) struct ClientLog {
    pub(crate) session: String,
    pub(crate) events: Vec<StreamEvent>,
    pub(crate) acknowledged: Vec<Acknowledged>,
    /// Number of times that its event stream was opened.
    pub(crate) reconnects: usize,
}

/// A client of one session.
pub(crate) struct Client {
    shared: Arc<SharedState>,
    session: String,
    rng: SeededRng,
    acknowledged: Vec<Acknowledged>,
    decided: BTreeSet<String>,
    watcher: Arc<Watcher>,
}

/// The interval at which a client looks whether its run is held.
const RESUME_PAUSE: Duration = Duration::from_millis(100);

/// The events that have been received so far.
struct Watcher {
    events: watch::Sender<Vec<StreamEvent>>,
    reconnects: Mutex<usize>,
}

/// Resumes the session's run whenever the host holds it, because it has been killed several times in a row.
async fn resume_again(shared: Arc<SharedState>, path: String) {
    loop {
        tokio::time::sleep(RESUME_PAUSE).await;
        let addr = *shared.address.borrow();
        if let Some(addr) = addr
            && let Ok(answer) = http_client::post(addr, &path, None, &json!({})).await
        {
            let is_expected = answer.status == 202
                || answer.status == 503
                || ["not_suspended", "no_such_session"].contains(&answer.code());
            assert!(is_expected, "{path}: {answer:?}");
        }
    }
}

impl Client {
    /// Opens a session, runs the inputs in it, and returns the log.
    pub(crate) async fn play(
        shared: Arc<SharedState>,
        session: &str,
        mut rng: SeededRng,
        mut next: impl FnMut(&mut SeededRng) -> Option<Vec<UserInput>>,
    ) -> ClientLog {
        let watcher =
            Watcher { events: watch::Sender::new(Vec::new()), reconnects: Mutex::default() };
        let mut client = Self {
            shared,
            session: session.to_owned(),
            rng: rng.split(),
            acknowledged: Vec::new(),
            decided: BTreeSet::new(),
            watcher: Arc::new(watcher),
        };
        client.open().await;
        let (of, path) = (Arc::clone(&client.shared), format!("/v1/sessions/{session}/resume"));
        let watcher = Arc::clone(&client.watcher);
        let watching = watcher.watch(Arc::clone(&client.shared), session);
        let acting = async {
            while let Some(inputs) = next(&mut rng) {
                client.run_inputs(inputs).await;
            }
        };
        let resuming = resume_again(Arc::clone(&of), path);
        tokio::select! {
            () = acting => {}
            () = resuming => unreachable!("it never ends"),
            () = watching => unreachable!("the watcher never ends"),
        }
        let (events, reconnects) =
            (client.watcher.events.borrow().clone(), *client.watcher.reconnects.lock());
        ClientLog { session: client.session, events, acknowledged: client.acknowledged, reconnects }
    }

    /// Repeats a request until some process of the host responds. The flag is true if an earlier
    /// connection broke.
    async fn send(&self, path: &str, key: Option<&str>, body: &Value) -> (HttpResponse, bool) {
        let mut address = self.shared.address.subscribe();
        let mut broke = false;
        loop {
            let addr = *address.borrow_and_update();
            if let Some(addr) = addr {
                match http_client::post(addr, path, key, body).await {
                    // The host is shutting down.
                    Ok(answer) if answer.status == 503 => {}
                    // The run goes on alone after several kills, or is set aside: `resume_again` resumes it.
                    Ok(answer) if answer.code() == "run_suspended" => {
                        tokio::time::sleep(RESUME_PAUSE).await;
                        continue;
                    }
                    Ok(answer) => return (answer, broke),
                    Err(_) => broke = true,
                }
            }
            address.changed().await.unwrap();
        }
    }

    async fn open(&self) {
        let agent = if self.rng.clone().percent(50) { "parallel" } else { "sequential" };
        let body = json!({"id": self.session, "agent": agent});
        let (answer, broke) = self.send("/v1/sessions", None, &body).await;
        let was_there = broke && answer.code() == "session_exists";
        assert!(answer.status == 201 || was_there, "{}: {answer:?}", self.session);
    }

    /// Starts runs for the inputs, later ones queued, and waits until all have ended.
    async fn run_inputs(&mut self, inputs: Vec<UserInput>) {
        let mut runs = Vec::new();
        for input in &inputs {
            let answer = self.start(input).await;
            runs.push(answer.body["run_id"].as_str().unwrap().to_owned());
            if let Some(steer) = &input.steer {
                self.steer(&input.name, steer).await;
            }
        }
        if let Some(mode) = inputs[0].stop {
            let path = format!("/v1/sessions/{}/stop", self.session);
            let (answer, _) = self.send(&path, None, &json!({"mode": mode})).await;
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        self.until_ended(&runs).await;
        for input in &inputs {
            // The run has ended, but its idempotency key is still stored.
            if self.rng.percent(40) {
                self.start(input).await;
            }
        }
    }

    /// Starts a run. Repetitions with the same key get the same response from every process.
    async fn start(&mut self, input: &UserInput) -> HttpResponse {
        let path = format!("/v1/sessions/{}/runs", self.session);
        let (answer, _) = self.send(&path, Some(&input.name), &input.start).await;
        assert_eq!(answer.status, 202, "{path} {} {answer:?}", input.start);
        let response = Acknowledged::Run {
            run_id: answer.body["run_id"].as_str().unwrap().to_owned(),
            seq: answer.body["seq"].as_u64().unwrap(),
            input: input.start["input"].as_str().unwrap().to_owned(),
        };
        self.acknowledged.push(response);
        answer
    }

    async fn steer(&mut self, input: &str, body: &Value) {
        let path = format!("/v1/sessions/{}/steer", self.session);
        let key = format!("{input}/steer");
        for _ in 0..2 {
            let (answer, _) = self.send(&path, Some(&key), body).await;
            match answer.status {
                202 => self.acknowledged.push(Acknowledged::Steered {
                    seq: answer.body["seq"].as_u64().unwrap(),
                    input: body["input"].as_str().unwrap().to_owned(),
                }),
                // The run has ended in the meantime.
                409 if answer.code() == "no_run" => return,
                _ => panic!("{path}: {answer:?}"),
            }
        }
    }

    /// Waits until the runs have ended, and decides about calls in the meantime.
    async fn until_ended(&mut self, runs: &[String]) {
        let mut events = self.watcher.events.subscribe();
        loop {
            let open: Vec<StreamEvent> = {
                let seen = events.borrow_and_update();
                let ended = |run: &String| {
                    let is_end = |event: &&StreamEvent| event.kind == "stream_end";
                    seen.iter().rev().filter(is_end).any(|event| event.data["run_id"] == **run)
                };
                if runs.iter().all(ended) {
                    return;
                }
                seen.iter().filter(|event| event.kind == "tool_approval").cloned().collect()
            };
            let request = open.iter().find(|event| self.decided.insert(approval_id(event)));
            match request {
                Some(request) => self.decide(request).await,
                None => events.changed().await.unwrap(),
            }
        }
    }

    async fn decide(&mut self, request: &StreamEvent) {
        let tool_id = request.data["tool_id"].as_str().unwrap();
        let path = format!("/v1/sessions/{}/approvals/{tool_id}", self.session);
        let decision = if self.rng.percent(70) { "approve" } else { "reject" };
        let body = json!({
            "decision": decision,
            "phase": request.data["phase"],
            "arguments_sha256": request.data["arguments_sha256"],
        });
        let (answer, _) = self.send(&path, None, &body).await;
        match answer.status {
            200 => self.acknowledged.push(Acknowledged::Decided { tool_id: tool_id.to_owned() }),
            // The run was stopped before the decision.
            404 if answer.code() == "no_such_approval" => {}
            _ => panic!("{path}: {answer:?}"),
        }
    }
}

fn approval_id(request: &StreamEvent) -> String {
    format!("{} {}", request.data["tool_id"], request.data["phase"])
}

impl Watcher {
    /// Watches every process of the host, each time after the last received event.
    async fn watch(&self, shared: Arc<SharedState>, session: &str) {
        let mut address = shared.address.subscribe();
        let mut last = EventId::default();
        loop {
            let addr = *address.borrow_and_update();
            if let Some(addr) = addr
                && let Ok(opened) = EventStream::open(addr, session, last).await
            {
                match opened {
                    Ok(mut stream) => {
                        *self.reconnects.lock() += 1;
                        if self.read(&shared, &mut stream, &mut last).await {
                            continue;
                        }
                    }
                    Err(answer) => assert_eq!(answer.status, 503, "{session} {last}: {answer:?}"),
                }
            }
            address.changed().await.unwrap();
        }
    }

    /// Reads a stream to its end. Returns true if the client should reconnect at once.
    async fn read(
        &self,
        shared: &SharedState,
        stream: &mut EventStream,
        last: &mut EventId,
    ) -> bool {
        while let Some(event) = stream.next().await {
            if event.kind == "resync" {
                return true;
            }
            let is_closed = event.data["code"] == "session_closed";
            assert!(!is_closed, "the session was not closed: {event:?}");
            if let Some(id) = event.id {
                assert!(id > *last, "{event:?} came after {last}");
                *last = id;
            }
            self.events.send_modify(|events| events.push(event));
            shared.events.send_modify(|count| *count += 1);
        }
        false
    }
}
