use bpe_openai::Tokenizer;
use serde_json::json;

use super::samples::SAMPLES;
use super::*;
use callsheet_values::message::Message;
use callsheet_values::types::{Content, ContentPart, Image};
use callsheet_wire::ToolDefinition;

/// The tokenizers of two generations of OpenAI's models, and one that is close to those of open models.
fn tokenizers() -> [(&'static str, &'static Tokenizer); 3] {
    [
        ("o200k", bpe_openai::o200k_base()),
        ("cl100k", bpe_openai::cl100k_base()),
        ("voyage3", bpe_openai::voyage3_base()),
    ]
}

/// The parts of a conversation with a service that counts with `tokenizer`: what the host estimates, and
/// what the service counts.
struct Conversation {
    tokenizer: &'static Tokenizer,
    estimated: u64,
    tokens: u64,
}

impl Conversation {
    /// Starts with a system text and tools.
    fn new(tokenizer: &'static Tokenizer) -> Self {
        let mut conversation = Self { tokenizer, estimated: 0, tokens: 0 };
        conversation.add("You are a careful assistant. Answer in the language of the question.");
        conversation.add(&serde_json::to_string(&schema()).unwrap());
        conversation
    }

    fn add(&mut self, text: &str) {
        self.estimated += estimate_text(text) + 4;
        self.tokens += self.tokenizer.count(text) as u64 + 5;
    }
}

fn schema() -> serde_json::Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
}

/// Returns by how many percent `estimated` differs from `actual`.
fn error_percent(estimated: u64, actual: u64) -> i64 {
    (estimated as i64 - actual as i64) * 100 / actual as i64
}

#[test]
fn a_first_estimate_is_in_the_range_of_the_tokenizers() {
    let mut report = String::new();
    for (name, pieces) in &SAMPLES {
        let text = pieces.concat();
        let estimated = estimate_text(&text);
        let errors = tokenizers()
            .map(|(_, tokenizer)| error_percent(estimated, tokenizer.count(text.as_str()) as u64));
        report += &format!("{name:20} {errors:?}\n");
        // The estimate agrees with tokenizers that agree, and lies between those that differ.
        assert!(errors.iter().any(|error| *error >= -10), "{name}: {errors:?}\n{report}");
        assert!(errors.iter().any(|error| *error <= 25), "{name}: {errors:?}\n{report}");
        assert!(errors.iter().all(|error| (-60..=150).contains(error)), "{name}: {errors:?}");
    }
    println!("{report}");
}

#[test]
fn removals_do_not_raise_the_ratio_again_and_again() {
    // The service counts 150 tokens that the host does not see.
    let count = |estimated: u64| 150 + estimated * 6 / 5;
    let (mut meter, mut request) = (TokenMeter::default(), 400);
    meter.handle_usage(100, count(100));
    for _ in 0..50 {
        for _ in 0..3 {
            let (expected, counted) = (meter.tokens(request), count(request));
            assert!(expected >= counted * 8 / 10, "{expected} instead of {counted}: {meter:?}");
            assert!(expected <= counted * 15 / 10, "{expected} instead of {counted}: {meter:?}");
            meter.handle_usage(request, counted);
            request += 300;
        }
        meter.handle_removal(900);
        request -= 900;
    }
}

#[test]
fn an_estimate_is_found_for_a_number_of_tokens() {
    let mut meter = TokenMeter::default();
    for request in [1_000, 2_000, 4_000] {
        meter.handle_usage(request, request * 3 / 2);
    }
    for estimated in [10, 1_000, 123_456] {
        let found = meter.estimate_of(meter.part(estimated));
        assert!(found.abs_diff(estimated) <= 1, "{found} for {estimated}");
    }
    assert!(meter.estimate_of(30_000) < 25_000, "the service counts more than the estimate");
}

#[test]
fn after_two_turns_the_meter_is_never_ten_percent_low() {
    for (tokenizer_name, tokenizer) in tokenizers() {
        for (name, pieces) in &SAMPLES {
            // Short pieces, and results of tools of many kilobytes.
            for repeated in [1, 3, 20] {
                let mut meter = TokenMeter::default();
                let mut conversation = Conversation::new(tokenizer);
                for (turn, piece) in pieces.iter().cycle().take(6).enumerate() {
                    let piece = piece.repeat(repeated);
                    conversation.add(&piece);
                    let error =
                        error_percent(meter.tokens(conversation.estimated), conversation.tokens);
                    let place = format!("{tokenizer_name}, {name} x {repeated}, turn {turn}");
                    assert!(turn < 2 || error >= -10, "{place}: {error} %");
                    assert!(turn < 2 || error <= 30, "{place}: {error} %");
                    meter.handle_usage(conversation.estimated, conversation.tokens);
                }
                // The context shrinks to its last piece.
                let mut short = Conversation::new(tokenizer);
                short.add(&pieces[1].repeat(repeated));
                let error = error_percent(meter.tokens(short.estimated), short.tokens);
                assert!(error >= -20, "{tokenizer_name}, {name} x {repeated}: {error} %");
            }
        }
    }
}

#[test]
fn after_two_turns_a_change_of_the_language_is_within_the_error_of_the_estimate() {
    for (tokenizer_name, tokenizer) in tokenizers() {
        let mut meter = TokenMeter::default();
        let mut conversation = Conversation::new(tokenizer);
        for turn in 0..3 {
            for (name, pieces) in &SAMPLES {
                conversation.add(pieces[turn]);
                let error =
                    error_percent(meter.tokens(conversation.estimated), conversation.tokens);
                let place = format!("{tokenizer_name}, {name}, turn {turn}");
                assert!(turn < 2 || error >= -10, "{place}: {error} %");
                meter.handle_usage(conversation.estimated, conversation.tokens);
            }
        }
    }
}

#[test]
fn without_a_count_an_estimate_is_taken_as_it_is() {
    let mut meter = TokenMeter::default();
    assert_eq!((meter.tokens(700), meter.counted()), (700, None));
    meter.handle_usage(700, 0);
    assert_eq!(meter, TokenMeter::default());
    meter.handle_usage(700, 900);
    assert_eq!((meter.tokens(700), meter.counted()), (900, Some(900)));
}

#[test]
fn a_short_request_with_hidden_tokens_does_not_spoil_the_ratio() {
    let mut meter = TokenMeter::default();
    meter.handle_usage(20, 400);
    let grown = meter.tokens(20 + 10_000) - 400;
    assert!((10_000..25_000).contains(&grown), "{grown}");
    meter.handle_usage(20 + 10_000, 400 + 10_000);
    let grown = meter.tokens(20 + 20_000) - 10_400;
    assert!((10_000..14_000).contains(&grown), "{grown}");
}

#[test]
fn a_count_without_cached_tokens_is_not_believed() {
    let mut meter = TokenMeter::default();
    meter.handle_usage(10_000, 11_000);
    meter.handle_usage(12_000, 2_000);
    assert_eq!(meter.counted(), Some(4_800));
    assert!(meter.tokens(20_000) >= 8_000);
}

#[test]
fn numbers_at_the_limit_do_not_overflow() {
    let mut meter = TokenMeter::default();
    meter.handle_usage(u64::MAX, u64::MAX);
    meter.handle_usage(1, u64::MAX);
    assert!(meter.tokens(u64::MAX) > 0);
}

#[test]
fn an_estimate_counts_each_part_of_a_message_once() {
    let text = "Look at this.";
    let image = Image::parse("data:image/png;base64,iVBORw==").unwrap();
    let content = Content::from(vec![ContentPart::Text(text.into()), ContentPart::Image(image)]);
    let user = |content: Content| estimate_message(&Message::User { content });
    assert_eq!(user(text.into()), estimate_text(text) + 4);
    assert_eq!(user(content.clone()), estimate_text(text) + 4 + IMAGE_TOKENS);
    let result = |content: callsheet_values::message::ResultContent| Message::Tool {
        call_id: "c".into(),
        name: "look".into(),
        content,
        metadata: json!({"ignored": "as it is not sent"}),
    };
    assert_eq!(estimate_message(&result(text.into())), estimate_text(text) + 5);
    let with_image = callsheet_values::message::ResultContent::with_images(text, content);
    assert_eq!(estimate_message(&result(with_image)), estimate_text(text) + 5 + IMAGE_TOKENS);
}

#[test]
fn a_tool_is_estimated_with_its_schema() {
    let tool = |schema| ToolDefinition {
        name: "read_file".into(),
        description: "Reads a file.".into(),
        schema,
    };
    assert!(estimate_tool(&tool(schema())) > estimate_tool(&tool(json!({}))) + 15);
}

#[test]
fn an_estimate_has_no_gaps() {
    let all = |range: std::ops::RangeInclusive<char>| range.map(String::from).collect::<String>();
    for text in ["", "a", " ", "\n", "\u{0}", "A", "ABc", "AbC", "é", "Aé", "éA", "0é", "a1b2"]
    {
        assert!(estimate_text(text) <= 4, "{text:?}");
        assert_eq!(estimate_text(text) == 0, text.is_empty(), "{text:?}");
    }
    for text in [all('\0'..='\u{7f}'), all('\u{80}'..='\u{2fff}'), all('\u{3000}'..='\u{2ffff}')] {
        let per_char = estimate_text(&text) * 10 / text.chars().count() as u64;
        assert!((2..=21).contains(&per_char), "{per_char}");
    }
}

#[test]
fn the_estimate_of_a_value_is_that_of_its_text() {
    let value = json!({
        "path": "src/main.rs", "quoted \"name\"": "line\nbreak\t\u{1}", "Empty": {}, "list": [],
        "numbers": [0, -12, 1.5e300, 12345678901_u64], "flags": [true, false, null],
        "scripts": ["Straße", "日本語 テスト", "😀 Ⅻ", "", " ", "  a", "ABCdef"],
    });
    let text = serde_json::to_string(&value).unwrap();
    assert_eq!(text::estimate_json(&value), estimate_text(&text));
}
