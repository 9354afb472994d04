use super::super::error::{keyed_error, provider_error};
use super::super::http_error;
use super::*;

/// Returns the overflow of an answer with this status and body.
fn overflow_of(status: u16, body: &str) -> Option<ContextOverflow> {
    http_error(status, body).overflow
}

/// Returns a body in the form of Chat Completions.
fn body(message: &str, code: &str) -> String {
    serde_json::json!({"error": {"message": message, "type": "invalid_request_error", "code": code}})
        .to_string()
}

/// The wordings of services: the status, the sentence, the window and the request's tokens in it.
const WORDINGS: [(u16, &str, Option<u64>, Option<u64>); 66] = [
    // Anthropic
    (400, "prompt is too long: 213462 tokens > 200000 maximum", Some(200_000), Some(213_462)),
    (
        400,
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try again",
        Some(200_000),
        Some(199_759),
    ),
    // OpenAI, Azure
    (
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    (
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. Please reduce the length of the messages.",
        Some(8_192),
        Some(8_545),
    ),
    (
        400,
        "This model's maximum context length is 4097 tokens, however you requested 5222 tokens (1222 in your prompt; 4000 for the completion). Please reduce your prompt; or completion length.",
        Some(4_097),
        Some(5_222),
    ),
    (
        400,
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens. Please reduce the length of the messages.",
        Some(272_000),
        Some(300_123),
    ),
    // Gemini, Vertex
    (
        400,
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        Some(1_048_575),
        Some(1_196_265),
    ),
    (
        400,
        "The input token count exceeds the maximum number of tokens allowed 1048576.",
        Some(1_048_576),
        None,
    ),
    (
        400,
        "Unable to submit request because the input token count is 40000 but model only supports up to 32768. Reduce the input token count and try again.",
        Some(32_768),
        Some(40_000),
    ),
    // Mistral
    (
        400,
        "Prompt contains 39120 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        Some(32_768),
        Some(39_120),
    ),
    // Groq, Cerebras
    (400, "Please reduce the length of the messages or completion.", None, None),
    (
        400,
        "Please reduce the length of the messages or completion. Current length is 19047 while limit is 8192",
        Some(8_192),
        Some(19_047),
    ),
    (413, "", None, None),
    (400, "", None, None),
    // xAI
    (
        400,
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        Some(131_072),
        Some(537_812),
    ),
    // OpenRouter
    (
        400,
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 of text input). Please reduce the length of either one, or use the \"middle-out\" transform to compress your prompt automatically.",
        Some(32_768),
        Some(42_832),
    ),
    (
        400,
        "Input length 140000 exceeds the maximum allowed input length of 131040 tokens.",
        Some(131_040),
        Some(140_000),
    ),
    // LiteLLM and other gateways
    (
        400,
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 140000 tokens: 130000 tokens from the input messages and 10000 tokens for the completion.",
        Some(131_072),
        Some(140_000),
    ),
    (
        400,
        "Input length (265330) exceeds model's maximum context length (262144).",
        Some(262_144),
        Some(265_330),
    ),
    (
        400,
        "litellm.ContextWindowExceededError: litellm.BadRequestError: AnthropicError - prompt is too long: 205668 tokens > 200000 maximum",
        Some(200_000),
        Some(205_668),
    ),
    // llama.cpp
    (400, "the request exceeds the available context size, try increasing it", None, None),
    (
        400,
        "request (14429 tokens) exceeds the available context size (8192 tokens), try increasing it",
        Some(8_192),
        Some(14_429),
    ),
    (
        500,
        "context shift is disabled: slot context: 4096 tokens, prompt 5000 tokens exceeds it",
        Some(4_096),
        Some(5_000),
    ),
    (500, "Requested tokens (2285) exceed context window of 2048", Some(2_048), Some(2_285)),
    // vLLM, SGLang, TGI
    (
        400,
        "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)",
        Some(262_144),
        Some(262_145),
    ),
    (
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 - 2104).",
        Some(4_096),
        Some(2_104),
    ),
    (
        400,
        "The decoder prompt (length 5012) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
        Some(4_096),
        Some(5_012),
    ),
    (
        400,
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        Some(4_096),
        Some(5_000),
    ),
    (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3474 `inputs` tokens and 60 `max_new_tokens`",
        Some(2_048),
        Some(3_474),
    ),
    (
        422,
        "Input validation error: `inputs` must have less than 4095 tokens. Given: 5022",
        Some(4_095),
        Some(5_022),
    ),
    // Ollama
    (400, "prompt too long; exceeded max context length by 5120 tokens", None, None),
    (400, "the input length exceeds the context length", None, None),
    // LM Studio
    (
        400,
        "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input",
        None,
        None,
    ),
    (
        400,
        "Trying to keep the first 5200 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input",
        Some(4_096),
        Some(5_200),
    ),
    (
        400,
        "Reached context length of 4096 tokens with model (arch: qwen2) that does not currently support mid-generation context overflow.",
        Some(4_096),
        None,
    ),
    // Bedrock
    (400, "Input is too long for requested model.", None, None),
    (
        400,
        "The model returned the following errors: input is too long. Max input tokens: 200000, request input token count: 201234",
        Some(200_000),
        Some(201_234),
    ),
    (
        400,
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
        None,
        None,
    ),
    // Fireworks, Together, SambaNova, Databricks
    (
        400,
        "The prompt is too long: 140000, model maximum context length: 131071",
        Some(131_071),
        Some(140_000),
    ),
    (400, "Input length 5000 exceeds the maximum context length of 4096", Some(4_096), Some(5_000)),
    (
        400,
        "Input is too long; it exceeds the max of 65,536 tokens. Received 70,001 tokens.",
        Some(65_536),
        Some(70_001),
    ),
    // Cohere
    (
        400,
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. Try using a shorter prompt or a smaller max_tokens value.",
        Some(2_048),
        Some(6_354),
    ),
    (
        400,
        "too many tokens: size limit exceeded by 3021 tokens. Try using shorter or fewer inputs",
        None,
        None,
    ),
    // GitHub Copilot
    (400, "prompt token count of 140123 exceeds the limit of 128000", Some(128_000), Some(140_123)),
    // MiniMax, Kimi, GLM, Qwen, DeepSeek
    (400, "invalid params, context window exceeds limit (2013)", None, None),
    (
        400,
        "Invalid request: Your request exceeded model token limit: 131072 (requested: 140021)",
        Some(131_072),
        Some(140_021),
    ),
    (400, "Prompt exceeds max length", None, None),
    (400, "Prompt 超长", None, None),
    (
        400,
        "输入内容超过模型的最大上下文长度: 最大 32768 tokens, 当前 40112 tokens",
        Some(32_768),
        Some(40_112),
    ),
    (
        400,
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
        Some(30_720),
        None,
    ),
    (
        400,
        "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (69648 in the messages, 0 in the completion). Please reduce the length of the messages or completion.",
        Some(65_536),
        Some(69_648),
    ),
    // Sentences of no known service
    (400, "Sorry, the conversation does not fit: 70,112 tokens/65,536", Some(65_536), Some(70_112)),
    (
        400,
        "Your chat history is 41k tokens long, which is more than the 32k this deployment accepts",
        Some(32_000),
        Some(41_000),
    ),
    (400, "sequence length 9000 > n_ctx 8192", Some(8_192), Some(9_000)),
    (500, "ran out of context window while reading the prompt", None, None),
    (400, "Request too large: estimated 150000 tokens, limit 128000", Some(128_000), Some(150_000)),
    (400, "Your prompt is over the model's limit (5000 > 4096)", Some(4_096), Some(5_000)),
    (400, "Message too long for this model", None, None),
    (400, "This model has a context of 4096 tokens, you sent 5000", Some(4_096), Some(5_000)),
    (400, "Requested 5000 tokens but the max is 4096", Some(4_096), Some(5_000)),
    (400, "Token count 5000 over limit 4096", Some(4_096), Some(5_000)),
    (400, "prompt has 5000 tokens (max 4096)", Some(4_096), Some(5_000)),
    (
        400,
        "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
        Some(4_096),
        Some(5_000),
    ),
    (400, "Error: context_length_exceeded", None, None),
    (
        400,
        "The prompt (5000 tokens) exceeds the KV-cache capacity of 4096 tokens",
        Some(4_096),
        Some(5_000),
    ),
    (429, "The context window of this model (32768 tokens) has been exceeded.", Some(32_768), None),
];

#[test]
fn the_wordings_of_services_are_recognised() {
    let mut wrong = String::new();
    for (status, message, window, request) in WORDINGS {
        let of_chat = body(message, "");
        let plain = message.to_owned();
        let nested =
            serde_json::json!({"error": {"message": "Provider returned error", "code": status,
            "metadata": {"raw": of_chat, "provider_name": "x"}}})
            .to_string();
        let detail = serde_json::json!({ "detail": message }).to_string();
        let bodies = match message {
            "" => vec![plain],
            _ => vec![of_chat, plain, nested, detail],
        };
        for body in bodies {
            let found = overflow_of(status, &body);
            let numbers = found.map(|found| (found.window, found.request_tokens));
            if numbers != Some((window, request)) {
                wrong += &format!("{numbers:?} instead of {:?}: {body}\n", (window, request));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Refusals of the length of the answer: the sentence, and the length that fits.
const ANSWERS: [(&str, Option<u32>); 17] = [
    (
        "This endpoint's maximum context length is 262144 tokens. However, you requested about 284283 tokens (8963 of text input, 13176 of tool input, 262144 in the output). Please reduce the length of either one.",
        Some(240_005),
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 5222 tokens (1222 in your prompt; 4000 for the completion). Please reduce your prompt; or completion length.",
        Some(2_875),
    ),
    (
        "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (3648 in the messages, 66000 in the completion). Please reduce the length of the messages or completion.",
        Some(61_888),
    ),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (1000 in the messages, 200 in the functions, and 7800 in the completion).",
        Some(6_992),
    ),
    (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again",
        Some(11_760),
    ),
    (
        "This model's maximum context length is 262144 tokens. However, you requested 200000 output tokens and your prompt contains at least 134145 input tokens, for a total of at least 334145 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)",
        Some(127_999),
    ),
    (
        "You passed 1000 input tokens and requested 8000 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 192 tokens. Please reduce the length of the input prompt.",
        Some(7_192),
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 - 2104).",
        Some(1_992),
    ),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3474 `inputs` tokens and 1024 `max_new_tokens`",
        Some(622),
    ),
    (
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 140000 tokens: 70000 tokens from the input messages and 70000 tokens for the completion.",
        Some(61_072),
    ),
    (
        "The sum of prompt length (4000) and max_tokens (5000) should not exceed max_seq_len (8192)",
        Some(4_192),
    ),
    (
        "The number of tokens in the prompt (3000) plus max_tokens (6000) exceeds the model's context length of 8192",
        Some(5_192),
    ),
    // The input alone is too large, or hardly any room is left.
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3474 `inputs` tokens and 60 `max_new_tokens`",
        None,
    ),
    (
        "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (69648 in the messages, 0 in the completion).",
        None,
    ),
    (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try again",
        None,
    ),
    ("prompt is too long: 213462 tokens > 200000 maximum", None),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", None),
];

#[test]
fn a_refusal_of_the_answers_length_says_which_length_fits() {
    let mut wrong = String::new();
    for (message, room) in ANSWERS {
        let nested =
            serde_json::json!({"error": {"message": "Provider returned error", "code": 400,
            "metadata": {"raw": body(message, "")}}})
            .to_string();
        for body in [body(message, "context_length_exceeded"), message.to_owned(), nested] {
            let found = overflow_of(400, &body);
            if found.map(|found| found.output_room) != Some(room) {
                wrong += &format!("{found:?} instead of {room:?}: {body}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_codes_of_services_are_recognised() {
    for code in [
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_window_exceeded",
        "ContextWindowExceededError",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "prompt_too_long",
        "input_too_long",
        "token_limit_exceeded",
        "1261",
    ] {
        let error = http_error(400, &body("no", code));
        assert!(error.is_context_overflow() && !error.is_transient(), "{code}");
        // A code decides, whatever the status says.
        assert!(http_error(429, &body("slow down", code)).is_context_overflow(), "{code}");
    }
    for code in ["request_too_large", "payload_too_large"] {
        let found = overflow_of(413, &body("Request exceeds the maximum size", code));
        assert_eq!(found, Some(ContextOverflow::of_body()), "{code}");
    }
}

#[test]
fn members_with_numbers_win() {
    let body = r#"{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":1407,"n_ctx":256}}"#;
    let found = overflow_of(500, body);
    assert_eq!(found, Some(ContextOverflow::of_window(Some(256), Some(1407))));
}

#[test]
fn an_error_within_a_stream_is_recognised() {
    let error = keyed_error(
        r#"{"message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}"#,
    );
    assert_eq!(error.unwrap().overflow, Some(ContextOverflow::of_window(Some(4096), None)));
    let value = serde_json::json!({"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"});
    assert_eq!(provider_error(&value).overflow, Some(ContextOverflow::of_window(None, None)));
}

/// Errors that are no overflow, although they speak of tokens, lengths and limits.
const OTHERS: [(u16, &str, &str); 44] = [
    (429, "Too many tokens, please wait before trying again.", "ThrottlingException"),
    (400, "ThrottlingException: Too many tokens, please wait before trying again.", ""),
    (429, "Too many tokens per day, please wait before trying again.", ""),
    (
        429,
        "Request too large for gpt-4o in organization org-78asdf87asdf9aaa8976 on tokens per min (TPM): Limit 30000, Requested 31538. The input or output tokens must be reduced in order to run successfully.",
        "rate_limit_exceeded",
    ),
    (
        413,
        "Request too large for model `llama-3.3-70b-versatile` in organization `org_01` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 10338, please reduce your message size and try again.",
        "rate_limit_exceeded",
    ),
    (
        429,
        "This request would exceed your organization's rate limit of 40,000 input tokens per minute.",
        "rate_limit_error",
    ),
    (429, "Number of request tokens has exceeded your per-minute rate limit", "rate_limit_error"),
    (429, "Rate limit reached for requests", "rate_limit_exceeded"),
    (429, "Token usage is too high, exceeded the limit", "tokens"),
    (
        429,
        "Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 86400 seconds.",
        "429",
    ),
    (
        429,
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
    ),
    (
        429,
        "Quota exceeded for aiplatform.googleapis.com/online_prediction_input_tokens_per_minute_per_base_model",
        "RESOURCE_EXHAUSTED",
    ),
    (
        402,
        "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 4000.",
        "",
    ),
    (400, "Extra usage is required for long context requests", "rate_limit_error"),
    (403, "You have exceeded your monthly token limit.", ""),
    (400, "Your prompt tokens exceed the daily limit of 100000.", ""),
    (400, "请求过多，超过每分钟 token 配额", ""),
    // The length of the answer.
    (
        400,
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
        "",
    ),
    (
        400,
        "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude-x",
        "",
    ),
    (
        400,
        "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at https://docs.example.com/thinking#max-tokens-and-context-window-size",
        "",
    ),
    (400, "max_tokens: Input should be less than or equal to 8192", ""),
    (400, "Invalid value for maxOutputTokens: must be less than 65537", ""),
    // Other parts of a request.
    (
        400,
        "messages.3.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
        "",
    ),
    (
        400,
        "messages.1.content.0.image.source: image dimensions exceed max allowed size: 8000 pixels",
        "",
    ),
    (
        400,
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 70 instead.",
        "string_above_max_length",
    ),
    (
        400,
        "Invalid 'input[3].id': string too long. Expected a string with maximum length 64.",
        "string_above_max_length",
    ),
    (
        400,
        "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64.",
        "",
    ),
    (
        400,
        "Invalid 'messages': array too long. Expected an array with maximum length 2048, but got an array with length 2050 instead.",
        "array_above_max_length",
    ),
    (400, "tools.0.custom.description: String should have at most 1024 characters", ""),
    (400, "messages: at least one message is required", ""),
    (400, "messages.1.content: Input should be a valid string", ""),
    (400, "temperature: must be less than or equal to 2", ""),
    (400, "A maximum of 4 blocks with cache_control may be provided. Found 5.", ""),
    (400, "The schema is too large: it exceeds the maximum nesting of 5 levels", ""),
    (400, "The prompt was flagged: it exceeds the safety threshold", "content_filter"),
    (400, "Too many tools: at most 128 are supported", ""),
    (400, "An assistant message with 'tool_calls' must be followed by tool messages", ""),
    // Access, time, failures.
    (401, "Invalid token: the access token exceeds its lifetime", ""),
    (404, "The model `x-128k` does not exist, or it exceeds the context window", ""),
    (408, "The request took longer than 600 seconds", ""),
    (504, "upstream request timeout", ""),
    (
        500,
        "The server had an error while processing your request. Sorry about that!",
        "server_error",
    ),
    (503, "The model is overloaded. Please try again later.", "UNAVAILABLE"),
    (400, "request header too large", ""),
];

#[test]
fn other_errors_are_no_overflow() {
    let mut wrong = String::new();
    for (status, message, code) in OTHERS {
        for body in [body(message, code), message.to_owned()] {
            // Without its code, a refused key is just another error.
            if let Some(found) = overflow_of(status, &body)
                .filter(|_| !code.contains("rate") || body.starts_with('{'))
            {
                wrong += &format!("{found:?}: {status} {body}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Wordings that were written from memory, before the words of the classification were read.
const FURTHER: [&str; 37] = [
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 500 `max_new_tokens`",
    "Input validation error: `inputs` must have less than 4095 tokens. Given: 9120",
    "too many tokens: total number of tokens in this prompt cannot exceed 4081 - received 5000. Try using a shorter prompt, or enabling prompt truncating.",
    "Prompt has 9000 tokens, which is above the model limit of 8191 tokens",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Range of input length should be [1, 30720]",
    "InternalError.Algo.InvalidParameter: Input data may exceed max length",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input",
    "Encountered an error in forwardAsync function: Input length (5000) exceeds max input length (4096)",
    "Prompt length (5000) exceeds maximum input length (4096). Set log level to info and check TRTGptModel logs for how maximum input length is set",
    "The sum of prompt length (5000.0), query length (0) should not exceed max_num_tokens (2048)",
    "Requested tokens (5000) exceed context window of 4096",
    "Request prompt has 5000 tokens in total, larger than the model input length limit 4096.",
    "prompt tokens too long",
    "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
    "Input sequence length 5000 exceeds the maximum sequence length of 4096",
    "Prompt length 9000 is greater than max_seq_len 8192",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
    "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    "The estimated number of input and maximum output tokens (5000) exceeded this model context window limit (4096).",
    "Unable to submit request because the input token count is 32000 but model only supports up to 30720. Reduce the input token count and try again.",
    "Total tokens of image and text exceed max message tokens.",
    "length of prompt_tokens (40000) must be less than max_seq_len (32768).",
    "Requested input length 9000 exceeds maximum input length 8191",
    "输入长度超过模型最大上下文长度限制",
    "Prompt 超长",
    "输入的 tokens 数量超过限制，最大 8192",
    "The text you submitted is too long for this model (12,400 tokens; the limit is 8,192 tokens)",
    "This conversation is too long to be processed by the model.",
    "Your prompt does not fit into the model's context of 8192 tokens",
    "The sequence is too long: 9000 > 8192",
    "Not enough room in the KV cache for a prompt of 9000 tokens",
    "Message history is too large: 9000 tokens, only 8192 allowed",
    "token indices sequence length is longer than the specified maximum sequence length for this model (9000 > 8192)",
    "Context limit reached: 8192 tokens",
    "n_prompt_tokens 9000 >= n_ctx 8192",
    "This request would use 9000 tokens of context but the deployment allows 8192",
];

#[test]
fn wordings_that_are_not_in_the_table_are_recognised() {
    let mut wrong = String::new();
    for message in FURTHER {
        for body in [body(message, ""), message.to_owned()] {
            if overflow_of(400, &body).is_none() {
                wrong += &format!("{body}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Errors of rates, quotas and other parts, in other words than those of the table.
const FURTHER_OTHERS: [(u16, &str); 19] = [
    (429, "Too many tokens per minute: 120000 used, limit 100000"),
    (429, "Token limit exceeded for this minute. Slow down."),
    (429, "Input tokens exceed your limit for this tier, try again later"),
    (400, "You have exceeded the maximum number of tokens for today"),
    (400, "tokens per minute limit exceeded: the prompt is too large for your plan"),
    (400, "rate limit: prompt tokens exceed 40000"),
    (403, "Your organization has exceeded its token quota"),
    (400, "max_tokens must be at most 4096"),
    (400, "max_completion_tokens is too large: the maximum is 16384"),
    (400, "the tool description is too long: at most 1024 characters"),
    (400, "Too many messages in the queue, limit is 10"),
    (400, "image is too large: more than 20 MB"),
    (400, "The request exceeds the maximum number of tools (128)"),
    (400, "Request contains more than 4 stop sequences"),
    (400, "metadata value too long"),
    (503, "The server is at its limit of concurrent requests"),
    (400, "Unknown parameter: 'max_input_tokens'."),
    (400, "Unsupported parameter: 'max_input_tokens' is not supported with this model."),
    (400, "max_input_tokens: Extra inputs are not permitted"),
];

#[test]
fn further_errors_are_no_overflow() {
    let mut wrong = String::new();
    for (status, message) in FURTHER_OTHERS {
        for body in [body(message, ""), message.to_owned()] {
            if let Some(found) = overflow_of(status, &body) {
                wrong += &format!("{found:?}: {status} {body}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn numbers_with_a_unit_may_have_decimals() {
    let found = overflow_of(400, "Prompt is too long: 1.51m tokens > 1.5m maximum").unwrap();
    assert_eq!((found.window, found.request_tokens), (Some(1_500_000), Some(1_510_000)));
    let found = overflow_of(400, "maximum context length is 32.8k tokens, got 40K").unwrap();
    assert_eq!((found.window, found.request_tokens), (Some(32_800), Some(40_000)));
    // A comma after the unit is not part of the number.
    let found = overflow_of(400, "context length is 128k, but you sent 140k").unwrap();
    assert_eq!((found.window, found.request_tokens), (Some(128_000), Some(140_000)));
    let found = overflow_of(400, "context length is 1.5m, but you sent 1.51m, too").unwrap();
    assert_eq!((found.window, found.request_tokens), (Some(1_500_000), Some(1_510_000)));
    // Units that follow no digits are words, and a version is no number of tokens.
    let found = overflow_of(400, "gpt 4.1mini: context limit is 8192. 9000 tokens given").unwrap();
    assert_eq!((found.window, found.request_tokens), (Some(8192), Some(9000)));
}

#[test]
fn a_parameter_that_the_service_does_not_know_is_no_overflow() {
    let message = "Do not send max_input_tokens.";
    for code in ["unknown_parameter", "unsupported_parameter"] {
        assert_eq!(overflow_of(400, &body(message, code)), None, "{code}");
    }
    let error = serde_json::json!({"message": "Wrong value.", "param": "max_input_tokens"});
    assert_eq!(overflow_of(400, &serde_json::json!({ "error": error }).to_string()), None);
}

#[test]
fn an_echo_of_the_request_is_not_read() {
    let body = r#"{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required","input":{"messages":[{"role":"user","content":"my prompt is too long for the context window"}]}}]}"#;
    assert_eq!(overflow_of(422, body), None);
}

#[test]
fn a_long_or_odd_error_is_read_in_bounds() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert_eq!(
        overflow_of(400, &format!(r#"{{"error":{{"message":"no","details":{deep}}}}}"#)),
        None
    );
    let long = "é ".repeat(200_000) + "prompt is too long";
    assert_eq!(overflow_of(400, &long), None);
    assert_eq!(
        numbers::find("exceeds the maximum of 99999999999999999999999 tokens", None, None),
        numbers::Numbers::default()
    );
    assert_eq!(numbers::find("1,,, > ,4k <= 5é 4096é token", None, None).window, Some(4000));
}
