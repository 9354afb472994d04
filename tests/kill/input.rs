//! The inputs of clients and the model's responses to them. A response depends only on the history
//! in its request, so it is the same for every process of the host.

use callsheet::config::ToolProtocol;
use callsheet_mock_provider::{Call, MockProvider, Response};
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
    pub(crate) fn plain(name: &str, model: &MockProvider, port: u16) -> Self {
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

    /// Makes an input whose calls a model without tool calling writes into its text: two turns of calls. The
    /// session has had `turns_before` such turns.
    pub(crate) fn in_text(
        name: &str,
        model: &MockProvider,
        port: u16,
        protocol: ToolProtocol,
        turns_before: usize,
    ) -> Self {
        let input = format!("job {name};");
        let sum = Call::new("calculator", json!({"expression": "6 * 7"}));
        let effect = |turn: usize, call: usize| effect("slow", port, name, turn, call);
        let turns = [vec![effect(0, 0), sum, effect(0, 1)], vec![effect(1, 0)]];
        // The results are in the last message of the user, which names the calls.
        let results_of = |turn: usize| format!("call_{}_0", turns_before + turn);
        let last_user = [input.clone(), results_of(0), results_of(1)];
        let texts = turns.iter().map(|calls| calls_in_text(protocol, calls));
        for (last_user, text) in last_user.iter().zip(texts.chain(["Done.".to_owned()])) {
            // In small pieces, so that calls come over several chunks.
            let chars: Vec<char> = format!("Let me löok.\n{text}").chars().collect();
            let pieces = chars.chunks(7).map(|piece| piece.iter().collect());
            let response = Response { text: pieces.collect(), ..Response::default() };
            model.push(response.with(|response| {
                response.when.last_user = Some(last_user.clone());
                response.repeat = true;
            }));
        }
        let start = json!({"input": input, "queue": true});
        Self { name: name.to_owned(), start, steer: None, stop: None }
    }

    pub(crate) fn random(name: &str, model: &MockProvider, port: u16, rng: &mut SeededRng) -> Self {
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

/// Writes calls in the form of a protocol, as many as a response may have.
fn calls_in_text(protocol: ToolProtocol, calls: &[Call]) -> String {
    let write = |call: &Call| {
        let (name, arguments) = (call.name.as_ref().unwrap(), call.arguments.as_ref().unwrap());
        let members = arguments.as_object().unwrap().iter();
        match protocol {
            ToolProtocol::Xml => {
                let parameters = members.map(|(name, value)| {
                    format!("<parameter={name}>{}</parameter>\n", value.as_str().unwrap())
                });
                let parameters: String = parameters.collect();
                format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
            }
            ToolProtocol::React => format!("Action: {name}\nAction Input: {arguments}"),
            ToolProtocol::Pythonic => {
                let keywords = members.map(|(name, value)| format!("{name}={value}"));
                format!("{name}({})", keywords.collect::<Vec<_>>().join(", "))
            }
            ToolProtocol::Arrow => format!("=>#{name} {arguments}"),
            _ => format!(
                "<tool_call>\n{}\n</tool_call>",
                json!({"name": name, "arguments": arguments})
            ),
        }
    };
    let written: Vec<String> = calls.iter().map(write).collect();
    match protocol {
        ToolProtocol::Pythonic => format!("[{}]", written.join(", ")),
        ToolProtocol::Arrow => written[0].clone(),
        _ => written.join("\n"),
    }
}

/// Scripts the turns and the answer for requests whose last input is `last_user`.
fn script(model: &MockProvider, last_user: &str, turns: Vec<Response>) {
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
