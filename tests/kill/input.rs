//! The inputs of clients and the model's responses to them. A response depends only on the history
//! in its request, so it is the same for every process of the host.

use callsheet::rehearsal::{Call, Rehearsal, Response};
use serde_json::{Value, json};

use crate::rng::SeededRng;

/// An input with its steer and stop.
#[derive(Clone, Debug)]
pub(crate) struct UserInput {
    /// The name, which is part of the text, of the keys and of the URLs of effects.
    pub(crate) name: String,
    /// The body of the request that starts it.
    pub(crate) start: Value,
    /// The body of a steer request during the run.
    pub(crate) steer: Option<Value>,
    pub(crate) stop: Option<&'static str>,
}

impl UserInput {
    /// Makes an input with every kind of call and a steer.
    pub(crate) fn plain(name: &str, model: &Rehearsal, port: u16) -> Self {
        let mut input = Self {
            name: name.to_owned(),
            start: json!({"input": format!("job {name};"), "queue": true}),
            steer: None,
            stop: None,
        };
        input.steer = Some(json!({"input": format!("also {name};")}));
        let effect = |turn: usize, call: usize| effect("slow", port, name, turn, call);
        let sum = Call::new("calculator", json!({"expression": "6 * 7"}));
        let first = Response::calls([effect(0, 0), sum.clone(), effect(0, 1)]);
        script(model, &format!("job {name};"), vec![first, Response::calls([effect(1, 0)])]);
        script(model, &format!("also {name};"), vec![Response::calls([sum, effect(2, 0)])]);
        input
    }

    pub(crate) fn random(name: &str, model: &Rehearsal, port: u16, rng: &mut SeededRng) -> Self {
        let input = format!("job {name};");
        let mut start = json!({"input": input, "queue": true});
        if rng.percent(20) {
            start["approval"] = json!("before");
        } else if rng.percent(5) {
            start["approval"] = json!("after");
        }
        let mut turns = Vec::new();
        for turn in 0..=rng.below(3) as usize {
            turns.push(random_turn(name, port, turn, rng));
        }
        if rng.percent(5) {
            // The first stream breaks at a random chunk.
            let cut = turns[0].clone().with(|response| {
                response.when.last_user = Some(input.clone());
                response.when.turns = Some(0);
                response.cut_after_chunks = Some(2 + rng.below(20) as usize);
            });
            model.push(cut);
        }
        script(model, &input, turns);
        let steer = rng.percent(30).then(|| {
            let input = format!("also {name};");
            script(model, &input, vec![random_turn(name, port, 9, rng)]);
            json!({"input": input})
        });
        let stop = match rng.below(20) {
            0 => Some("now"),
            1 => Some("after_turn"),
            _ => None,
        };
        Self { name: name.to_owned(), start, steer, stop }
    }
}

fn random_turn(name: &str, port: u16, turn: usize, rng: &mut SeededRng) -> Response {
    let calls = (0..1 + rng.below(4) as usize).map(|call| match rng.below(20) {
        0..4 => Call::new("calculator", json!({"expression": format!("{turn} + {call}")})),
        4..8 => Call::new("clock", json!({"zone": "Asia/Tokyo"})),
        8 => effect("never", port, name, turn, call),
        9..15 => effect("slow", port, name, turn, call),
        _ => effect("do", port, name, turn, call),
    });
    let mut response = Response::calls(calls);
    if rng.percent(40) {
        response.reasoning = vec!["Hm, ".to_owned(), "né. ".to_owned()];
    }
    response
}

fn effect(mode: &str, port: u16, name: &str, turn: usize, call: usize) -> Call {
    let url = format!("http://127.0.0.1:{port}/{mode}/{name}-{turn}-{call}");
    Call::new("http_get", json!({ "url": url }))
}

/// Scripts the turns and the answer for requests whose last input is `last_user`.
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
