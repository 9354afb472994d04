//! The details of refusals: in responses, and in errors by which a service refuses to answer.
//!
//! Anthropic's `stop_details` (<https://platform.claude.com/docs/en/build-with-claude/handle-streaming-refusals>), the
//! filter results of Azure (<https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter>), and Gemini's
//! safety ratings (<https://ai.google.dev/api/generate-content>).

use serde_json::Value;
use serde_json::value::RawValue;

use super::repair::parse_value;
use callsheet_values::types::RefusalDetails;

/// The codes of errors by which a service refuses to answer. OpenAI and Azure, DashScope, Volcengine, Moonshot, and the
/// numbers of Zhipu (1301) and MiniMax (1026, 1027).
const REFUSAL_CODES: [&str; 16] = [
    "content_filter",
    "content_filtered",
    "content_policy_violation",
    "responsibleaipolicyviolation",
    "cyber_policy",
    "bio_policy",
    "data_inspection_failed",
    "datainspectionfailed",
    "sensitivecontentdetected",
    "inputtextsensitivecontentdetected",
    "outputtextsensitivecontentdetected",
    "content_moderation",
    "moderation_blocked",
    "1301",
    "1026",
    "1027",
];

/// Texts in the messages of such errors that have no code of their own: OpenAI (`invalid_prompt`), DeepSeek,
/// OpenRouter.
const REFUSAL_TEXTS: [&str; 4] = [
    "flagged as potentially violating",
    "content exists risk",
    "requires moderation",
    "content management policy",
];

/// Texts in the messages of errors with HTTP status 400 or 422 that name a policy about contents.
const POLICY_TEXTS: [&str; 13] = [
    "content policy",
    "content_policy",
    "usage policy",
    "usage policies",
    "safety system",
    "safety policy",
    "safety policies",
    "safety filter",
    "content filter",
    "content moderation",
    "inappropriate content",
    "prohibited content",
    "敏感",
];

/// Returns the details if the message of an error with HTTP status 400 or 422 names a policy about contents.
pub(super) fn refusal_of_text(message: &str) -> Option<RefusalDetails> {
    let lower_case = message.to_lowercase();
    let is_policy = POLICY_TEXTS.iter().any(|text| lower_case.contains(text));
    is_policy.then(|| RefusalDetails::new(None, Some(message.to_owned())))
}

/// Reads the details of a refused response: `stop_details`, or an object with `category` and `explanation`.
pub(super) fn stop_details(raw: &RawValue) -> RefusalDetails {
    let details = parse_value(raw.get()).unwrap_or_default();
    let text = |key: &str| details.get(key).and_then(Value::as_str).map(str::to_owned);
    RefusalDetails::new(text("category"), text("explanation"))
}

/// Returns the names of the categories in Azure's filter results for which content was filtered.
pub(super) fn filtered_categories(results: &Value) -> Option<String> {
    let is_filtered = |result: &Value| result.get("filtered") == Some(&Value::Bool(true));
    let filtered = results.as_object()?.iter().filter(|(_, result)| is_filtered(result));
    joined(filtered.map(|(name, _)| name.as_str()))
}

/// Returns the categories of Gemini's safety ratings that blocked the content.
pub(super) fn blocked_categories(ratings: &Value) -> Option<String> {
    let is_blocked = |rating: &&Value| rating.get("blocked") == Some(&Value::Bool(true));
    let blocked = ratings.as_array()?.iter().filter(is_blocked);
    joined(blocked.filter_map(|rating| rating.get("category")?.as_str()))
}

/// Returns the details if an error is a refusal to answer. `message` is its text.
pub(super) fn refusal_of_error(error: &Value, message: &str) -> Option<RefusalDetails> {
    let inner = ["innererror", "inner_error"].iter().find_map(|key| error.get(*key));
    let metadata = error.get("metadata");
    let reasons = metadata.and_then(|metadata| metadata.get("reasons")?.as_array());
    let codes = [Some(error), inner].into_iter().flatten();
    let code = codes
        .flat_map(|of| ["code", "type", "status_code"].map(|key| of.get(key)))
        .flatten()
        .filter_map(|code| match code {
            Value::String(word) => Some(word.to_ascii_lowercase()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        })
        .find(|code| REFUSAL_CODES.contains(&code.as_str()));
    let lower_case = message.to_ascii_lowercase();
    let is_said = REFUSAL_TEXTS.iter().any(|text| lower_case.contains(text));
    if code.is_none() && !is_said && reasons.is_none() {
        return None;
    }
    let results = ["content_filter_result", "content_filter_results"];
    let filtered = [inner, Some(error)]
        .into_iter()
        .flatten()
        .find_map(|of| results.iter().find_map(|key| filtered_categories(of.get(*key)?)));
    let reasons = reasons.and_then(|reasons| joined(reasons.iter().filter_map(Value::as_str)));
    let policy = code.filter(|code| code.ends_with("_policy"));
    Some(RefusalDetails::new(filtered.or(reasons).or(policy), Some(message.to_owned())))
}

fn joined<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let words: Vec<&str> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn details(error: &Value) -> Option<(Option<String>, Option<String>)> {
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
        let refusal = refusal_of_error(error, message)?;
        Some((refusal.category, refusal.explanation))
    }

    #[test]
    fn an_error_of_a_content_filter_is_a_refusal_with_its_categories() {
        let azure = json!({
            "code": "content_filter", "message": "The prompt was filtered.", "status": 400,
            "innererror": {
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": {
                    "hate": {"filtered": false, "severity": "safe"},
                    "jailbreak": {"filtered": true, "detected": true},
                    "violence": {"filtered": true, "severity": "high"},
                },
            },
        });
        let text = |text: &str| Some(text.to_owned());
        let filtered = (text("jailbreak, violence"), text("The prompt was filtered."));
        assert_eq!(details(&azure), Some(filtered));
        for (error, category) in [
            (json!({"code": "cyber_policy", "message": "no"}), text("cyber_policy")),
            (json!({"code": "data_inspection_failed", "message": "no"}), None),
            (json!({"code": "1301", "message": "no"}), None),
            (json!({"status_code": 1026, "message": "no"}), None),
            (
                json!({"code": 403, "message": "no", "metadata": {"reasons": ["violence"]}}),
                text("violence"),
            ),
        ] {
            assert_eq!(details(&error), Some((category, text("no"))), "{error}");
        }
        let said =
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.";
        let error = json!({"code": "invalid_prompt", "message": said});
        assert_eq!(details(&error), Some((None, text(said))));
        let said = "Content Exists Risk";
        let error = json!({"type": "invalid_request_error", "message": said});
        assert_eq!(details(&error), Some((None, text(said))));
    }

    #[test]
    fn another_error_is_no_refusal() {
        for error in [
            json!({"code": "invalid_prompt", "message": "the prompt has no input"}),
            json!({"code": 400, "message": "no such model"}),
            json!({"type": "invalid_request_error", "message": "unknown parameter"}),
        ] {
            assert_eq!(details(&error), None, "{error}");
        }
    }
}
