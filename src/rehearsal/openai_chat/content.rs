//! The strict check of the parts of a message's content.

use serde_json::Value;

use super::check::Refusal;
use crate::types::Image;

/// Checks the content of a message, if it is a list.
///
/// # Errors
/// The first part with a fault.
pub(super) fn check_parts(at: usize, role: &str, parts: &[Value]) -> Result<(), Refusal> {
    if parts.is_empty() {
        return Err(Refusal::empty_array(format!("messages[{at}].content")));
    }
    for (n, part) in parts.iter().enumerate() {
        check_part(role, part, &format!("messages[{at}].content[{n}]"))?;
    }
    Ok(())
}

fn check_part(role: &str, part: &Value, here: &str) -> Result<(), Refusal> {
    // Other services of this wire format accept the reasoning of their models as a part.
    let supported: &[&str] = match role {
        "user" => &["text", "image_url", "input_audio", "file"],
        "assistant" => &["text", "refusal", "thinking"],
        _ => &["text"],
    };
    let Some(kind) = part["type"].as_str() else {
        return Err(Refusal::missing(format!("{here}.type")));
    };
    if !supported.contains(&kind) {
        let supported: Vec<String> = supported.iter().map(|word| format!("'{word}'")).collect();
        let message =
            format!("Invalid value: '{kind}'. Supported values are: {}.", supported.join(", "));
        return Err(Refusal::invalid_value(message, format!("{here}.type")));
    }
    match kind {
        "text" if part["text"].is_string() => Ok(()),
        "text" => Err(Refusal::missing(format!("{here}.text"))),
        "image_url" => {
            let param = format!("{here}.image_url.url");
            let Some(url) = part["image_url"]["url"].as_str() else {
                return Err(Refusal::missing(param));
            };
            Image::parse(url).map(drop).map_err(|reason| {
                Refusal::new(format!("Invalid image URL: {reason}."), param)
                    .coded("invalid_image_url")
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::check;
    use super::*;

    fn request(role: &str, content: &Value) -> Value {
        json!({"model": "m", "messages": [{"role": role, "content": content}]})
    }

    fn image(url: &str) -> Value {
        json!({"type": "image_url", "image_url": {"url": url}})
    }

    #[test]
    fn takes_text_and_images() {
        let text = json!({"type": "text", "text": "hi"});
        let (address, data) = (image("https://a/b.png"), image("data:image/png;base64,AAAA"));
        assert_eq!(check(&request("user", &json!([text, address, data]))), Ok(()));
        assert_eq!(check(&request("assistant", &json!([text]))), Ok(()));
    }

    #[test]
    fn refuses_parts_of_a_bad_form() {
        for (role, content, param) in [
            ("user", json!([]), ""),
            ("user", json!(["hi"]), "[0].type"),
            ("user", json!([{"type": "text"}]), "[0].text"),
            ("user", json!([{"type": "picture"}]), "[0].type"),
            (
                "user",
                json!([{"type": "image_url", "image_url": "https://a/b"}]),
                "[0].image_url.url",
            ),
            ("user", json!([image("ftp://a/b")]), "[0].image_url.url"),
            ("user", json!([image("AAAA")]), "[0].image_url.url"),
            ("user", json!([image("data:image/png;base64,A")]), "[0].image_url.url"),
            ("user", json!([image("data:text/plain;base64,AAAA")]), "[0].image_url.url"),
            ("assistant", json!([image("https://a/b.png")]), "[0].type"),
            ("system", json!([image("https://a/b.png")]), "[0].type"),
        ] {
            let refusal = check(&request(role, &content)).unwrap_err();
            let expected = format!("messages[0].content{param}");
            assert_eq!(refusal.param.as_deref(), Some(&*expected), "{content}");
        }
    }
}
