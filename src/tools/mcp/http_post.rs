//! A request to a server at a URL whose answer the host reads itself. The library would drop a body that is nearly
//! JSON, and members that it does not know. All else is as in the library: the same limits, and the same errors.

use std::io;

use futures::StreamExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, StatusCode};
use reqwest::{RequestBuilder, Response};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcRequest, ServerJsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpError,
    StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use rmcp_sse_stream::SseStream;

use super::incoming::read_message;
use super::transport_error::TransportError;

/// Number of bytes of an unreadable body that are kept, as in the library.
const QUOTED_BYTES_MAX: usize = 256;

/// Returns whether the host reads the answer to a message: of calls, lists and resources. The answers about the
/// connection are read by the library.
pub(super) fn reads_answer(message: &ClientJsonRpcMessage) -> bool {
    let ClientJsonRpcMessage::Request(JsonRpcRequest { request, .. }) = message else {
        return false;
    };
    matches!(
        request,
        ClientRequest::CallToolRequest(_)
            | ClientRequest::ListToolsRequest(_)
            | ClientRequest::ListResourcesRequest(_)
            | ClientRequest::ListResourceTemplatesRequest(_)
            | ClientRequest::ReadResourceRequest(_)
    )
}

/// Sends a request, and reads the answer. `request` has the URL.
///
/// # Errors
/// Those of the library.
pub(super) async fn post(
    request: RequestBuilder,
    message: &ClientJsonRpcMessage,
    session: Option<&str>,
    headers: HeaderMap,
    limits: StreamableHttpResponseLimits,
) -> Result<StreamableHttpPostResponse, TransportError> {
    let accepted = [EVENT_STREAM_MIME_TYPE, JSON_MIME_TYPE].join(", ");
    let mut request = request.headers(headers).header(ACCEPT, accepted);
    if let Some(session) = session {
        request = request.header(HEADER_SESSION_ID, session);
    }
    let response = request.json(message).send().await.map_err(StreamableHttpError::Client)?;
    let status = response.status();
    match (status, header(&response, &WWW_AUTHENTICATE)) {
        (StatusCode::UNAUTHORIZED, Some(challenge)) => {
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            let error = InsufficientScopeError::new(challenge, None);
            return Err(StreamableHttpError::InsufficientScope(error));
        }
        (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, _) => {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        (StatusCode::NOT_FOUND, _) if session.is_some() => {
            return Err(StreamableHttpError::SessionExpired);
        }
        _ => {}
    }
    let media_type = header(&response, &CONTENT_TYPE);
    let is_type = |expected: &str| {
        let essence = media_type.as_deref().and_then(|value| value.split(';').next());
        essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(expected))
    };
    let session = header(&response, &HeaderName::from_static("mcp-session-id"));
    if !status.is_success() {
        return refusal(response, session, is_type(JSON_MIME_TYPE), limits).await;
    }
    if is_type(EVENT_STREAM_MIME_TYPE) {
        let events = event_stream(response, limits.max_sse_event_size);
        return Ok(StreamableHttpPostResponse::Sse(events, session));
    }
    if !is_type(JSON_MIME_TYPE) {
        return Err(StreamableHttpError::UnexpectedContentType(media_type));
    }
    let body = read_body(response, limits.max_json_response_size).await?;
    match read_message(&body) {
        Some(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
        None => {
            let error = serde_json::from_slice::<ServerJsonRpcMessage>(&body).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            let quoted = if body.is_empty() { "<empty>".into() } else { beginning(&body) };
            let text =
                format!("could not parse JSON response as ServerJsonRpcMessage: {error}: {quoted}");
            Err(StreamableHttpError::UnexpectedServerResponse(text.into()))
        }
    }
}

/// Returns the answer with a status of failure: an error of the protocol, or else the error of the status.
async fn refusal(
    response: Response,
    session: Option<String>,
    is_json: bool,
    limits: StreamableHttpResponseLimits,
) -> Result<StreamableHttpPostResponse, TransportError> {
    let status = response.status();
    let is_busy = status == StatusCode::TOO_MANY_REQUESTS;
    let failed = (is_busy || status.is_server_error()).then(|| {
        TransportError::from(HttpStatusError::new(status.as_u16(), header(&response, &RETRY_AFTER)))
    });
    let failed = match failed {
        Some(error) if is_busy || !is_json => return Err(error),
        failed => failed,
    };
    let is_unauthorized = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let text = if is_json && !is_unauthorized {
        match read_body(response, limits.max_json_response_size).await {
            Ok(body) => {
                if let Some(answer @ ServerJsonRpcMessage::Error(_)) = read_message(&body) {
                    return Ok(StreamableHttpPostResponse::Json(answer, session));
                }
                text_up_to(&body, limits.max_error_response_size)
            }
            Err(StreamableHttpError::Client(_)) => "<failed to read response body>".to_owned(),
            Err(error) => return Err(failed.unwrap_or(error)),
        }
    } else {
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while body.len() < limits.max_error_response_size
            && let Some(Ok(chunk)) = chunks.next().await
        {
            body.extend_from_slice(&chunk);
        }
        text_up_to(&body, limits.max_error_response_size)
    };
    let error = format!("HTTP {status}: {text}");
    Err(failed.unwrap_or_else(|| StreamableHttpError::UnexpectedServerResponse(error.into())))
}

fn header(response: &Response, name: &HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Returns the first bytes of a body as a text.
fn beginning(body: &[u8]) -> String {
    text_up_to(body, QUOTED_BYTES_MAX)
}

fn text_up_to(body: &[u8], bytes_max: usize) -> String {
    String::from_utf8_lossy(body.get(..bytes_max).unwrap_or(body)).into_owned()
}

/// Reads a body of at most `max_size` bytes.
async fn read_body(response: Response, max_size: usize) -> Result<Vec<u8>, TransportError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(StreamableHttpError::Client)?;
        if body.len() + chunk.len() > max_size {
            return Err(StreamableHttpError::ResponseBodyTooLarge { max_size });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Reads the events of a body, each of at most `bytes_max` bytes.
fn event_stream(response: Response, bytes_max: usize) -> BoxedSseResponse {
    let mut size = EventSize { bytes_max, ..EventSize::default() };
    let chunks = response.bytes_stream().map(move |chunk| {
        let chunk = chunk.map_err(io::Error::other)?;
        size.add(&chunk)?;
        Ok::<_, io::Error>(chunk)
    });
    SseStream::from_bytes_stream(chunks).boxed()
}

/// Counts the bytes of an event that is not complete.
#[derive(Default)]
struct EventSize {
    bytes_max: usize,
    bytes: usize,
    /// The bytes of the last line that is not complete.
    line_bytes: usize,
    /// The last byte was CR. A following LF belongs to the same end of line.
    after_cr: bool,
}

impl EventSize {
    /// Counts the next bytes.
    ///
    /// # Errors
    /// If an event has more than the maximum.
    fn add(&mut self, chunk: &[u8]) -> io::Result<()> {
        for byte in chunk {
            match byte {
                b'\n' if self.after_cr => {}
                b'\n' | b'\r' => {
                    if self.line_bytes == 0 {
                        self.bytes = 0;
                    }
                    self.line_bytes = 0;
                }
                _ => {
                    self.line_bytes += 1;
                    self.bytes += 1;
                }
            }
            self.after_cr = *byte == b'\r';
            if self.bytes > self.bytes_max {
                let message = format!("an event has more than {} bytes", self.bytes_max);
                return Err(io::Error::other(message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_one_event_are_limited() {
        let is_read = |chunks: &[&str]| {
            let mut size = EventSize { bytes_max: 10, ..EventSize::default() };
            chunks.iter().all(|chunk| size.add(chunk.as_bytes()).is_ok())
        };
        for end in ["\n", "\r", "\r\n"] {
            let event = format!("data: 1234{end}{end}");
            assert!(is_read(&[&event, &event]));
            assert!(!is_read(&[&format!("data: 1234{end}"), "data: 1"]), "{end:?}");
        }
        assert!(is_read(&["data: 1\r", "\n\r", "\ndata: 123"]));
        assert!(!is_read(&["data: 1", "2345"]));
    }
}
