//! What a user asks for, and what the model makes of it: the same in every life, because an answer
//! depends on nothing but the history that it is asked about.

use callsheet::rehearsal::{Call, Rehearsal, Response};
use serde_json::{Value, json};

use crate::chance::Chance;

/// A user's input with all that goes with it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Names it: in its input, in its keys and in the URLs of its effects.
    pub(crate) name: String,
    /// The body of the request that starts it.
    pub(crate) start: Value,
    /// What is said while it runs.
    pub(crate) steer: Option<Value>,
    pub(crate) stop: Option<&'static str>,
}

impl Job {
    /// A job of every kind of call, with a word in between.
    pub(crate) fn plain(name: &str, model: &Rehearsal, port: u16) -> Self {
        let mut job = Self {
            name: name.to_owned(),
            start: json!({"input": format!("job {name};"), "queue": true}),
            steer: None,
            stop: None,
        };
        job.steer = Some(json!({"input": format!("also {name};")}));
        let effect = |turn: usize, call: usize| effect("slow", port, name, turn, call);
        let sum = Call::new("calculator", json!({"expression": "6 * 7"}));
        let first = Response::calls([effect(0, 0), sum.clone(), effect(0, 1)]);
        script(model, &format!("job {name};"), vec![first, Response::calls([effect(1, 0)])]);
        script(model, &format!("also {name};"), vec![Response::calls([sum, effect(2, 0)])]);
        job
    }

    pub(crate) fn random(name: &str, model: &Rehearsal, port: u16, chance: &mut Chance) -> Self {
        let input = format!("job {name};");
        let mut start = json!({"input": input, "queue": true});
        if chance.percent(20) {
            start["approval"] = json!("before");
        } else if chance.percent(5) {
            start["approval"] = json!("after");
        }
        let mut turns = Vec::new();
        for turn in 0..=chance.below(3) as usize {
            turns.push(random_turn(name, port, turn, chance));
        }
        if chance.percent(5) {
            // The first stream breaks somewhere; what was begun stands, or it is asked again.
            let cut = turns[0].clone().with(|response| {
                response.when.last_user = Some(input.clone());
                response.when.turns = Some(0);
                response.cut_after_chunks = Some(2 + chance.below(20) as usize);
            });
            model.push(cut);
        }
        script(model, &input, turns);
        let steer = chance.percent(30).then(|| {
            let input = format!("also {name};");
            script(model, &input, vec![random_turn(name, port, 9, chance)]);
            json!({"input": input})
        });
        let stop = match chance.below(20) {
            0 => Some("now"),
            1 => Some("after_turn"),
            _ => None,
        };
        Self { name: name.to_owned(), start, steer, stop }
    }
}

fn random_turn(name: &str, port: u16, turn: usize, chance: &mut Chance) -> Response {
    let calls = (0..1 + chance.below(4) as usize).map(|call| match chance.below(20) {
        0..4 => Call::new("calculator", json!({"expression": format!("{turn} + {call}")})),
        4..8 => Call::new("clock", json!({"zone": "Asia/Tokyo"})),
        8 => effect("never", port, name, turn, call),
        9..15 => effect("slow", port, name, turn, call),
        _ => effect("do", port, name, turn, call),
    });
    let mut response = Response::calls(calls);
    if chance.percent(40) {
        response.reasoning = vec!["Hm, ".to_owned(), "né. ".to_owned()];
    }
    response
}

fn effect(mode: &str, port: u16, name: &str, turn: usize, call: usize) -> Call {
    let url = format!("http://127.0.0.1:{port}/{mode}/{name}-{turn}-{call}");
    Call::new("http_get", json!({ "url": url }))
}

/// These turns for whoever says this last, and then an answer.
fn script(model: &Rehearsal, last_user: &str, turns: Vec<Response>) {
    for (turn, mut response) in turns.into_iter().enumerate() {
        response.text = ["Let ", "me ", "löok. "].map(str::to_owned).to_vec();
        model.push(response.with(|response| {
            response.when.last_user = Some(last_user.to_owned());
            response.when.turns = Some(turn);
            response.repeat = true;
        }));
    }
    model.push(Response::text(&format!("That was {last_user} Done.")).with(|response| {
        response.when.last_user = Some(last_user.to_owned());
        response.repeat = true;
    }));
}
