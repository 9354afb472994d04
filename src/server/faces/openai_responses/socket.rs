//! `GET /v1/responses` with an upgrade: the same requests and events over a WebSocket, one response after the other.
//!
//! A message of the client is a request with `"type": "response.create"`, and one of the host an event. Sessions of
//! requests with `"store": false` are deleted when the connection ends and their runs have ended.

use std::sync::Arc;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use super::super::super::access::Caller;
use super::super::super::state::{ApiState, AppState};
use super::super::DecisionAddress;
use super::super::begin::{KEY_HEADER, ReceivedRequest};
use super::super::openai_error::{OpenAiError, wrong};
use super::super::openai_parameters::Parameters;
use super::super::retries::{RETRY_HEADER, RunPlace};
use super::super::stream::{FacePart, Fold as _};
use super::create::{self, BegunResponse, Plan};
use super::fold::ResponseFold;
use super::ids::ResponseId;
use super::request::{CreateRequest, Named, no_such_response};
use super::unstored;
use callsheet_host::runtime::SessionHandle;
use callsheet_host::telemetry::FaceKind;

/// Maximum number of requests that wait for the response in progress.
const WAITING_MAX: usize = 16;

pub(super) async fn upgrade(
    State(state): State<AppState>,
    caller: Caller,
    mut headers: HeaderMap,
    DecisionAddress(console): DecisionAddress,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, OpenAiError> {
    let upgrade = upgrade.map_err(|_| {
        let message = "GET opens a WebSocket: send a request for an upgrade, or POST";
        OpenAiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    })?;
    let permit = Arc::clone(&state.faces.sockets).try_acquire_owned().map_err(|_| {
        let message = "too many WebSockets are open: try again later";
        OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message)
    })?;
    let bytes_max = state.options.body_bytes_max;
    let path = uri.path().to_owned();
    // They are about the handshake, not about the requests.
    for name in [KEY_HEADER, RETRY_HEADER] {
        headers.remove(name);
    }
    let upgrade = upgrade.max_message_size(bytes_max).max_frame_size(bytes_max);
    Ok(upgrade.on_upgrade(async move |socket| {
        let connection = SocketConnection {
            state,
            caller,
            headers,
            console,
            path,
            socket,
            waiting: Vec::new(),
            unstored: Vec::new(),
        };
        connection.serve().await;
        drop(permit);
    }))
}

struct SocketConnection {
    state: Arc<ApiState>,
    caller: Caller,
    headers: HeaderMap,
    console: String,
    path: String,
    socket: WebSocket,
    waiting: Vec<String>,
    /// The sessions of this connection that are not stored, with their last runs. Only it can go on in them.
    unstored: Vec<(SessionHandle, RunPlace)>,
}

/// The client has closed the connection, or the server shuts down.
struct Closed;

impl SocketConnection {
    async fn serve(mut self) {
        while let Ok(text) = self.next_request().await {
            let answered = match self.begin(text.as_bytes()).await {
                Ok(SocketAnswer::Response(begun)) => {
                    if begun.fold.settings.pair.unstored {
                        let run = (begun.begun.session.clone(), begun.begun.place.clone());
                        self.unstored.push(run);
                    }
                    self.send_response(*begun).await
                }
                Ok(SocketAnswer::Parts(parts)) => self.send(&parts).await,
                Err(error) => {
                    if let Some(id) = named_response(&text) {
                        // The specification of 2026-04-24: a request that fails evicts the response that it goes on from.
                        let evicted =
                            self.unstored.extract_if(.., |(_, place)| place.session == id.session);
                        for (session, _) in evicted {
                            drop(session.close().await);
                        }
                    }
                    self.send_error(&error).await
                }
            };
            if answered.is_err() {
                break;
            }
        }
        for (session, place) in self.unstored {
            unstored::delete_after_run(&self.state, session, place);
        }
    }

    async fn next_request(&mut self) -> Result<String, Closed> {
        if !self.waiting.is_empty() {
            return Ok(self.waiting.remove(0));
        }
        loop {
            if let Some(text) = self.receive().await? {
                return Ok(text);
            }
        }
    }

    /// Receives a message. `None`: it is no request.
    async fn receive(&mut self) -> Result<Option<String>, Closed> {
        let message = tokio::select! {
            message = self.socket.recv() => message,
            () = self.state.closing.cancelled() => None,
        };
        match message {
            Some(Ok(Message::Text(text))) => Ok(Some(text.to_string())),
            Some(Ok(Message::Binary(bytes))) => {
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(None),
            // The message is too large, or the connection is broken anyway.
            Some(Err(_)) => {
                let reason = "the message is too large".into();
                let frame = CloseFrame { code: close_code::SIZE, reason };
                drop(self.socket.send(Message::Close(Some(frame))).await);
                Err(Closed)
            }
            Some(Ok(Message::Close(_))) | None => Err(Closed),
        }
    }

    async fn begin(&mut self, message: &[u8]) -> Result<SocketAnswer, OpenAiError> {
        let mut parameters = Parameters::parse(message)?;
        if parameters.take("type") != Some("response.create".into()) {
            return Err(wrong("type", "must be response.create"));
        }
        parameters.take("stream");
        if parameters.take("background").is_some_and(|value| value != false) {
            return Err(wrong("background", "is not supported over a WebSocket"));
        }
        let body = parameters.to_bytes();
        let mut request = CreateRequest::read(parameters)?;
        let received = ReceivedRequest {
            face: FaceKind::Responses,
            caller: &self.caller,
            headers: &self.headers,
            path: &self.path,
            body: &body,
        };
        if let Some(Named::Response(id)) = &request.names {
            let is_own = self.unstored.iter().any(|(_, place)| place.session == id.session);
            if unstored::is_unstored(&id.session) && !is_own {
                return Err(no_such_response("previous_response_id", &id.to_string()));
            }
        }
        let asked = create::agent_of(&self.state, &self.caller, &request)?;
        let plan = create::plan(&self.state, received, &mut request, &asked, &self.console).await?;
        if let Plan::Repeat(fold) = plan {
            let mut parts = Vec::new();
            fold.repeated(&mut parts);
            return Ok(SocketAnswer::Parts(parts));
        }
        let begun =
            create::carry_out(&self.state, received, &request, &asked, plan, &self.console).await?;
        Ok(SocketAnswer::Response(Box::new(begun)))
    }

    async fn send_response(&mut self, begun: BegunResponse) -> Result<(), Closed> {
        let BegunResponse { begun, fold, .. } = begun;
        let (mut events, answer) = (begun.events, begun.answer.in_parts());
        let (mut fold, mut parts) = (ResponseFold::new(fold), Vec::new());
        while !fold.has_ended() {
            let next = tokio::select! {
                next = events.next() => Some(next),
                message = self.socket.recv() => {
                    match message {
                        Some(Ok(Message::Text(text))) if self.waiting.len() < WAITING_MAX => {
                            self.waiting.push(text.to_string());
                        }
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                        Some(Ok(_) | Err(_)) | None => return Err(Closed),
                    }
                    None
                }
                () = tokio::time::sleep(self.state.options.keep_alive) => {
                    self.write(Message::Ping(Vec::new().into())).await?;
                    None
                }
                () = self.state.closing.cancelled() => return Err(Closed),
            };
            match next {
                None => continue,
                Some(Ok(Some(event))) => fold.push(&event, &mut parts),
                Some(Ok(None)) => return Err(Closed),
                Some(Err(error)) => {
                    if !fold.fail(&error, &mut parts) {
                        return Err(Closed);
                    }
                }
            }
            self.send(&std::mem::take(&mut parts)).await?;
        }
        answer.end_delivered();
        Ok(())
    }

    async fn send(&mut self, parts: &[FacePart]) -> Result<(), Closed> {
        for part in parts {
            // A response that has failed says so itself. Clients take an event of an error behind it for that of their next
            // request.
            if part.name == Some("error") {
                continue;
            }
            let text = part.data.clone();
            self.write(Message::Text(text.into())).await?;
        }
        Ok(())
    }

    async fn send_error(&mut self, error: &OpenAiError) -> Result<(), Closed> {
        let body = error.to_json();
        let status = error.status().as_u16();
        let event = json!({"type": "error", "status": status, "error": body["error"]});
        self.write(Message::Text(event.to_string().into())).await
    }

    async fn write(&mut self, message: Message) -> Result<(), Closed> {
        let sent =
            tokio::time::timeout(self.state.options.write_timeout, self.socket.send(message));
        match sent.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Closed),
        }
    }
}

/// Returns the response that a request goes on from.
fn named_response(request: &str) -> Option<ResponseId> {
    let request: Value = serde_json::from_str(request).ok()?;
    ResponseId::parse(request["previous_response_id"].as_str()?)
}

enum SocketAnswer {
    Response(Box<BegunResponse>),
    Parts(Vec<FacePart>),
}
