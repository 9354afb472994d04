//! A user of one session: asks, watches, steers, decides, and repeats every request until it is
//! answered, whichever life of the host answers it.

use std::collections::BTreeSet;
use std::sync::Arc;

use callsheet::event::EventId;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::chance::Chance;
use crate::http::{self, Answer, Events, Seen};
use crate::job::Job;
use crate::world::Shared;

/// What the host has answered for.
#[derive(Clone, Debug)]
pub(crate) enum Promise {
    /// This run was accepted, with the record of this place.
    Run { run_id: String, seq: u64, input: String },
    /// This was said to a run.
    Steered { seq: u64, input: String },
    /// This was decided about a call.
    Decided { tool_id: String },
}

/// Everything that a user was told of a session.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) session: String,
    pub(crate) events: Vec<Seen>,
    pub(crate) promises: Vec<Promise>,
    /// How often its stream broke and was taken up again.
    pub(crate) reconnects: usize,
}

/// A user of one session.
pub(crate) struct Client {
    shared: Arc<Shared>,
    session: String,
    chance: Chance,
    promises: Vec<Promise>,
    decided: BTreeSet<String>,
    watcher: Arc<Watcher>,
}

/// What has been seen of the session so far.
struct Watcher {
    events: watch::Sender<Vec<Seen>>,
    reconnects: Mutex<usize>,
}

impl Client {
    /// Opens a session, has these jobs done in it, and tells what it was told.
    pub(crate) async fn play(
        shared: Arc<Shared>,
        session: &str,
        mut chance: Chance,
        mut next: impl FnMut(&mut Chance) -> Option<Vec<Job>>,
    ) -> Told {
        let watcher =
            Watcher { events: watch::Sender::new(Vec::new()), reconnects: Mutex::default() };
        let mut client = Self {
            shared,
            session: session.to_owned(),
            chance: chance.split(),
            promises: Vec::new(),
            decided: BTreeSet::new(),
            watcher: Arc::new(watcher),
        };
        client.open().await;
        let watcher = Arc::clone(&client.watcher);
        let watching = watcher.watch(Arc::clone(&client.shared), session);
        let acting = async {
            while let Some(jobs) = next(&mut chance) {
                client.work(jobs).await;
            }
        };
        tokio::select! {
            () = acting => {}
            () = watching => unreachable!("it watches for ever"),
        }
        let (events, reconnects) =
            (client.watcher.events.borrow().clone(), *client.watcher.reconnects.lock());
        Told { session: client.session, events, promises: client.promises, reconnects }
    }

    /// Asks until some life of the host answers; and whether one broke off before.
    async fn ask(&self, path: &str, key: Option<&str>, body: &Value) -> (Answer, bool) {
        let mut lives = self.shared.lives.subscribe();
        let mut broke = false;
        loop {
            let addr = *lives.borrow_and_update();
            if let Some(addr) = addr {
                match http::post(addr, path, key, body).await {
                    // It is about to end.
                    Ok(answer) if answer.status == 503 => {}
                    Ok(answer) => return (answer, broke),
                    Err(_) => broke = true,
                }
            }
            lives.changed().await.unwrap();
        }
    }

    async fn open(&self) {
        let agent = if self.chance.clone().percent(50) { "parallel" } else { "sequential" };
        let body = json!({"id": self.session, "agent": agent});
        let (answer, broke) = self.ask("/v1/sessions", None, &body).await;
        let was_there = broke && answer.code() == "session_exists";
        assert!(answer.status == 201 || was_there, "{}: {answer:?}", self.session);
    }

    /// Has these jobs done, the later ones behind the first, and waits for the end of all.
    async fn work(&mut self, jobs: Vec<Job>) {
        let mut runs = Vec::new();
        for job in &jobs {
            let answer = self.start(job).await;
            runs.push(answer.body["run_id"].as_str().unwrap().to_owned());
            if let Some(steer) = &job.steer {
                self.steer(&job.name, steer).await;
            }
        }
        if let Some(mode) = jobs[0].stop {
            let path = format!("/v1/sessions/{}/stop", self.session);
            let (answer, _) = self.ask(&path, None, &json!({"mode": mode})).await;
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        self.until_ended(&runs).await;
        for job in &jobs {
            // The run is over by now, and its key still known.
            if self.chance.percent(40) {
                self.start(job).await;
            }
        }
    }

    /// The same request has the same answer, in every life.
    async fn start(&mut self, job: &Job) -> Answer {
        let path = format!("/v1/sessions/{}/runs", self.session);
        let (answer, _) = self.ask(&path, Some(&job.name), &job.start).await;
        assert_eq!(answer.status, 202, "{path} {} {answer:?}", job.start);
        let promise = Promise::Run {
            run_id: answer.body["run_id"].as_str().unwrap().to_owned(),
            seq: answer.body["seq"].as_u64().unwrap(),
            input: job.start["input"].as_str().unwrap().to_owned(),
        };
        self.promises.push(promise);
        answer
    }

    async fn steer(&mut self, job: &str, body: &Value) {
        let path = format!("/v1/sessions/{}/steer", self.session);
        let key = format!("{job}/steer");
        for _ in 0..2 {
            let (answer, _) = self.ask(&path, Some(&key), body).await;
            match answer.status {
                202 => self.promises.push(Promise::Steered {
                    seq: answer.body["seq"].as_u64().unwrap(),
                    input: body["input"].as_str().unwrap().to_owned(),
                }),
                // The run had ended by then.
                409 if answer.code() == "no_run" => return,
                _ => panic!("{path}: {answer:?}"),
            }
        }
    }

    /// Waits until these runs have ended, and decides about calls meanwhile.
    async fn until_ended(&mut self, runs: &[String]) {
        let mut events = self.watcher.events.subscribe();
        loop {
            let open: Vec<Seen> = {
                let seen = events.borrow_and_update();
                let ended = |run: &String| {
                    let is_end = |event: &&Seen| event.kind == "stream_end";
                    seen.iter().rev().filter(is_end).any(|event| event.data["run_id"] == **run)
                };
                if runs.iter().all(ended) {
                    return;
                }
                seen.iter().filter(|event| event.kind == "tool_approval").cloned().collect()
            };
            let question = open.iter().find(|event| self.decided.insert(asked(event)));
            match question {
                Some(question) => self.decide(question).await,
                None => events.changed().await.unwrap(),
            }
        }
    }

    async fn decide(&mut self, question: &Seen) {
        let tool_id = question.data["tool_id"].as_str().unwrap();
        let path = format!("/v1/sessions/{}/approvals/{tool_id}", self.session);
        let decision = if self.chance.percent(70) { "approve" } else { "reject" };
        let body = json!({
            "decision": decision,
            "phase": question.data["phase"],
            "arguments_sha256": question.data["arguments_sha256"],
        });
        let (answer, _) = self.ask(&path, None, &body).await;
        match answer.status {
            200 => self.promises.push(Promise::Decided { tool_id: tool_id.to_owned() }),
            // The run was stopped before.
            404 if answer.code() == "no_such_approval" => {}
            _ => panic!("{path}: {answer:?}"),
        }
    }
}

fn asked(question: &Seen) -> String {
    format!("{} {}", question.data["tool_id"], question.data["phase"])
}

impl Watcher {
    /// Watches in every life of the host, each time from behind the last event that came.
    async fn watch(&self, shared: Arc<Shared>, session: &str) {
        let mut lives = shared.lives.subscribe();
        let mut last = EventId::default();
        loop {
            let addr = *lives.borrow_and_update();
            if let Some(addr) = addr
                && let Ok(opened) = Events::open(addr, session, last).await
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
            lives.changed().await.unwrap();
        }
    }

    /// Reads to the end of a stream; whether to connect again at once.
    async fn read(&self, shared: &Shared, stream: &mut Events, last: &mut EventId) -> bool {
        while let Some(event) = stream.next().await {
            if event.kind == "resync" {
                return true;
            }
            let is_closed = event.data["code"] == "session_closed";
            assert!(!is_closed, "nobody has closed it: {event:?}");
            if let Some(id) = event.id {
                assert!(id > *last, "{event:?} came behind {last}");
                *last = id;
            }
            self.events.send_modify(|events| events.push(event));
            shared.events.send_modify(|count| *count += 1);
        }
        false
    }
}
