//! `callsheet tools import`, with real documents: what it prints is a configuration, and its tools are called
//! against a real server.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::{CancellationToken, DropGuard};

const TICKETS: &str = include_str!("../openapi/tickets.json");
const PETS: &str = include_str!("../openapi/pets.yaml");

/// A folder with a configuration.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("import-{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG");
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().await.unwrap()
    }

    /// Imports a document, and writes a configuration with the printed tools.
    async fn import(&self, document: &str, flags: &[&str]) -> String {
        std::fs::write(self.0.join("spec"), document).unwrap();
        let args = [&["tools", "import", "spec"], flags].concat();
        let printed = stdout(&self.run(&args).await);
        let host = "[models.main]\nwire = \"openai-chat\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\n\
                    [agents.default]\nmodel = \"main\"\ntools = [\"*\"]\n";
        std::fs::write(self.0.join("callsheet.toml"), format!("{host}{printed}")).unwrap();
        printed
    }

    /// Calls a tool, and returns the request that the echo server received.
    async fn call(&self, tool: &str, input: &Value) -> Value {
        let output = self.try_call(tool, input).await;
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    async fn try_call(&self, tool: &str, input: &Value) -> Output {
        let input = input.to_string();
        let mut command = self.command(&["tools", "call", tool, "--input", &input]);
        with_secrets(&mut command).output().await.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_secrets(command: &mut Command) -> &mut Command {
    let tickets = ["TICKET_API_TOKEN", "TICKET_API_LOGIN_TOKEN"];
    let pets = ["PETS_FRIENDS_API_KEY", "PETS_FRIENDS_PARTNER_TOKEN", "PETS_FRIENDS_BASIC_TOKEN"];
    for name in tickets.into_iter().chain(pets) {
        command.env(name, format!("value of {name}"));
    }
    command
}

#[track_caller]
fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the only line of stderr of a command that refused its input.
#[track_caller]
fn refused(output: &Output) -> String {
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors.strip_prefix("callsheet: ").unwrap().trim_end().to_owned()
}

/// Starts a server that answers with the request that it received. Secrets are named by their digest,
/// because the host redacts them.
async fn echo() -> (String, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let routes = Router::new().fallback(answer);
    #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
    tokio::spawn(async move {
        tokio::select! {
            () = stopped => {}
            served = axum::serve(listener, routes) => served.unwrap(),
        }
    });
    (address, stop.drop_guard())
}

async fn answer(method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let status = match method.as_str() {
        "POST" if !uri.path().ends_with("/comments") && !uri.path().ends_with("/search") => {
            StatusCode::CREATED
        }
        _ => StatusCode::OK,
    };
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
    // Lengths, because the host redacts the values of secrets.
    let secret = |name| header(name).map(str::len);
    let body = String::from_utf8(body.to_vec()).unwrap();
    let request = json!({
        "request": format!("{method} {uri}"),
        "body": serde_json::from_str(&body).unwrap_or(Value::from(body)),
        "type": header("content-type"), "version": header("x-api-version"),
        "has_key": headers.contains_key("idempotency-key"),
        "secrets": [secret("authorization"), secret("x-api-key"), secret("x-partner")],
    });
    (status, request.to_string())
}

#[tokio::test]
async fn tools_of_a_ticket_service_send_what_its_document_describes() {
    let (address, _server) = echo().await;
    let folder = Folder::new("tickets");
    let printed = folder.import(&TICKETS.replace("tickets.example.com", &address), &[]).await;
    let token = json!(["value of TICKET_API_TOKEN".len(), null, null]);
    let none = json!([null, null, null]);
    let expect = |request: &str, body: Value, content_type: Option<&str>| {
        json!({"request": request, "body": body, "type": content_type,
            "version": null, "has_key": true, "secrets": token})
    };
    let input = json!({
        "project": "a b/c", "status": ["open", "closed"], "fields": "id,title",
        "limit": 5, "project_query": "x&y",
    });
    assert_eq!(
        folder.call("listTickets", &input).await,
        expect(
            "GET /api/v2/projects/a%20b%2Fc/tickets?fields=id%2Ctitle&limit=5\
             &project=x%26y&status=open&status=closed",
            json!(""),
            None
        )
    );
    let got = folder.call("listTickets", &json!({"project": "web"})).await;
    assert_eq!(got["request"], "GET /api/v2/projects/web/tickets");
    let input = json!({"project": "web", "title": "Broken", "labels": ["ui"], "priority": 1.5});
    let mut created = expect(
        "POST /api/v2/projects/web/tickets",
        json!({"title": "Broken", "labels": ["ui"], "priority": 1.5}),
        Some("application/json"),
    );
    created["version"] = "2026-01".into();
    assert_eq!(folder.call("createTicket", &input).await, created);
    let mut got = expect("GET /api/v2/tickets/T-1", json!(""), None);
    got["secrets"] = none.clone();
    assert_eq!(folder.call("tickets_get", &json!({"id": "T-1"})).await, got);
    let ticket = json!({"id": "T-1", "title": "Mended", "status": "closed"});
    assert_eq!(
        folder.call("tickets_replace", &json!({"id": "T-1", "body": ticket})).await,
        expect("PUT /api/v2/tickets/T-1", ticket, Some("application/json"))
    );
    // The default of `status` is not sent, and null is.
    assert_eq!(
        folder.call("tickets_change", &json!({"id": "T-1", "assignee": null})).await,
        expect(
            "PATCH /api/v2/tickets/T-1",
            json!({"assignee": null}),
            Some("application/merge-patch+json")
        )
    );
    let comments = json!([{"text": "a", "replies": [{"text": "b"}]}]);
    assert_eq!(
        folder.call("addComments", &json!({"id": "T-1", "body": comments})).await,
        expect("POST /api/v2/tickets/T-1/comments", comments, Some("application/json"))
    );
    assert_eq!(
        folder.call("setNote", &json!({"id": "T-1", "body": "# Hello"})).await,
        expect("PUT /api/v2/tickets/T-1/note", json!("# Hello"), Some("text/markdown"))
    );
    let rebuild = "rebuild_the_index_of_all_tickets_of_all_projects_of_the_0aaab646";
    // The document names 202, and the server answers with 201.
    let output = folder.try_call(rebuild, &json!({})).await;
    assert!(String::from_utf8_lossy(&output.stdout).contains("HTTP 201"), "{output:?}");
    let got = folder.call("search", &json!({"body": {"query": 1}})).await;
    let login = json!(["value of TICKET_API_LOGIN_TOKEN".len(), null, null]);
    assert_eq!((&got["body"], &got["secrets"]), (&json!({"query": 1}), &login));
    for (tool, wrong) in [
        ("createTicket", json!({"project": "web"})),
        ("createTicket", json!({"project": "web", "title": "a", "created": "2026-01-01"})),
        ("tickets_get", json!({"id": "1"})),
        ("tickets_change", json!({"id": "T-1", "status": "lost"})),
        ("search", json!({"body": "text"})),
    ] {
        let output = folder.try_call(tool, &wrong).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && !text.contains("request"), "{tool} {wrong}: {text}");
    }
    for line in [
        "# left out: /remote: it refers to \"./remote.json\", and other documents are not read",
        "# left out: listFiles (GET /files): it is deprecated",
        "# left out: uploadFile (POST /files): its body is multipart/form-data, which kind = \"http\" cannot send",
        "# left out: tickets_exists (HEAD /tickets/{id}): kind = \"http\" does not send HEAD",
        "# a schema refers to \"https://example.com/query.json\", and other documents are not read; any value is accepted there",
        "# Comment contains itself, and is cut there",
        "secret_headers = { authorization = \"TICKET_API_LOGIN_TOKEN\" }  # TICKET_API_LOGIN_TOKEN: \"Bearer \" and a token of your own; the host gets none by OAuth",
        "secret_headers = { authorization = \"TICKET_API_TOKEN\" }  # TICKET_API_TOKEN: the whole value, \"Bearer \" included",
        "# 10 tools written, 4 left out",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
    }
}

#[tokio::test]
async fn tools_of_a_pet_service_in_yaml_have_the_policies_of_their_methods() {
    let (address, _server) = echo().await;
    let folder = Folder::new("pets");
    let printed = folder.import(PETS, &[]).await;
    assert!(
        printed
            .contains("# the document has no absolute URL of its server: replace server.invalid"),
        "{printed}"
    );
    let mut list = folder.command(&["tools", "list", "--json"]);
    let listed: Value =
        serde_json::from_str(&stdout(&with_secrets(&mut list).output().await.unwrap())).unwrap();
    let tools = listed["tools"].as_array().unwrap().iter().filter(|tool| tool["kind"] == "http");
    let policies: Vec<Value> =
        tools.map(|tool| json!([tool["name"], tool["effect"], tool["idempotent"]])).collect();
    let expected = json!([
        ["addPet", "some", false],
        ["deletePet", "some", false],
        ["getPet", "some", true],
        ["getPhoto", "some", true],
        ["get_pets", "some", true],
    ]);
    assert_eq!(Value::from(policies), expected);
    let lines = |wanted: &str| printed.lines().filter(|line| *line == wanted).count();
    assert_eq!((lines("destructive = true"), lines("destructive = false")), (1, 3));
    let config = folder.0.join("callsheet.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let server = format!("http://{address}");
    std::fs::write(&config, text.replace("https://server.invalid", &server)).unwrap();
    let got = folder.call("get_pets", &json!({"kind": "yes", "limit": 1})).await;
    assert_eq!(got["request"], "GET /v1/pets?kind=yes&limit=1");
    let pet = json!({"name": "Tom", "nick name": "T", "kind": null, "mother": {"name": "Ann"},
        "weight": 4.5, "tattoo": "X"});
    let got = folder.call("addPet", &json!({"body": pet})).await;
    assert_eq!((&got["request"], &got["body"]), (&json!("POST /v1/pets"), &pet));
    let lengths = ["value of PETS_FRIENDS_API_KEY", "value of PETS_FRIENDS_PARTNER_TOKEN"];
    assert_eq!(got["secrets"], json!([null, lengths[0].len(), lengths[1].len()]));
    let got = folder.call("getPhoto", &json!({"pet-id": 7, "photo": "a?b"})).await;
    assert_eq!(got["request"], "GET /v1/pets/7/photos/a%3Fb.jpg");
    for wrong in [
        json!({"body": {"name": "Tom", "weight": 0}}),
        json!({"body": {"name": "Tom", "kind": "fish"}}),
        json!({"body": {"name": null}}),
    ] {
        let output = folder.try_call("addPet", &wrong).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && !text.contains("request"), "{wrong}: {text}");
    }
    for line in [
        "# the header X-Region is required; no argument can fill it, only a fixed value in `headers`",
        "# the security scheme url_key is none that a header can express",
        "# the document does not describe {photo} of the path",
        "# left out: importPets (POST /import): its body is application/xml, which kind = \"http\" cannot send",
        "# left out: login (PUT /import): the cookie parameter \"session\" cannot be sent by kind = \"http\"",
        "# 5 tools written, 2 left out",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
    }
}

#[tokio::test]
async fn operations_are_chosen_by_name_and_tag() {
    let folder = Folder::new("choice");
    let count = |printed: &str| printed.lines().filter(|line| line.starts_with("[tools.")).count();
    let names = |printed: &str| {
        let headings = printed.lines().filter_map(|line| line.strip_prefix("[tools."));
        let names = headings.filter_map(|line| line.strip_suffix(']'));
        names.filter(|name| !name.contains('.')).map(str::to_owned).collect::<Vec<_>>()
    };
    let printed = folder.import(TICKETS, &["--include", "*Ticket*", "--include", "search"]).await;
    assert_eq!(names(&printed), ["listTickets", "createTicket", "search"]);
    assert!(printed.ends_with("\n# 3 tools written, 0 left out\n"), "{printed}");
    assert_eq!(count(&printed), 6);
    let printed = folder.import(TICKETS, &["--tag", "admin", "--include", "tickets_*"]).await;
    assert_eq!(names(&printed), ["tickets_delete"]);
    let output = folder.run(&["tools", "import", "spec", "--tag", "Admin"]).await;
    let error = refused(&output);
    assert!(error.starts_with("spec: no operation matches --include and --tag (tags: admin, files, tickets; names: addComments, createTicket, "), "{error}");
    // A document on standard input.
    let mut command = folder.command(&["tools", "import", "-", "--include", "addPet"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, PETS.as_bytes()).await.unwrap();
    drop(stdin);
    let printed = stdout(&child.wait_with_output().await.unwrap());
    assert_eq!(names(&printed), ["addPet"]);
}

#[tokio::test]
async fn a_wrong_document_gives_one_line() {
    let folder = Folder::new("wrong");
    let paths = |paths: &str| format!("openapi: 3.1.0\npaths:\n  {paths}\n");
    let deep = format!("openapi: 3.1.0\nx: {}", "[".repeat(1_000));
    let deep_json = format!("{{\"openapi\": \"3.1.0\", \"x\": {}", "[".repeat(200_000));
    let mut bomb = "openapi: 3.0.0\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let items = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    for (text, expected) in [
        ("", "is not an OpenAPI document: it has no `openapi`, such as \"3.1.0\""),
        ("{\"openapi\": 1,", "is not JSON: EOF while parsing a value at line 1 column 14"),
        ("a: [", "is not YAML: "),
        ("just text", "is not an OpenAPI document: it has no `openapi`, such as \"3.1.0\""),
        ("info: {}", "is not an OpenAPI document: it has no `openapi`, such as \"3.1.0\""),
        (
            "swagger: '2.0'",
            "is Swagger 2.0: convert it to OpenAPI 3 first, such as with `npx swagger2openapi`",
        ),
        ("openapi: 4.0.0", "is OpenAPI 4.0.0, and only 3.0 to 3.2 can be read"),
        ("openapi: 3.1.0", "paths is missing"),
        ("openapi: 3.1.0\npaths: []", "paths must be an object"),
        ("openapi: 3.1.0\npaths: {}", "paths has no operations"),
        (&paths("pets: {}"), "paths.\"pets\" must begin with \"/\""),
        (&paths("/pets: []"), "paths.\"/pets\" must be an object"),
        (&paths("/pets: {get: 1}"), "paths.\"/pets\".get must be an object"),
        ("openapi: 3.1.0\nopenapi: 3.1.0", "is not YAML: duplicate entry with key \"openapi\""),
        (&paths("1: {}"), "paths.\"1\" must begin with \"/\""),
        (&deep, "is not YAML: recursion limit exceeded at line 2"),
        (&deep_json, "is not JSON: recursion limit exceeded at line 1"),
        (&bomb, "is not YAML: repetition limit exceeded"),
    ] {
        std::fs::write(folder.0.join("spec"), text).unwrap();
        let error = refused(&folder.run(&["tools", "import", "spec"]).await);
        let shown = text.get(..60).unwrap_or(text);
        assert!(error.starts_with(&format!("spec: {expected}")), "{shown}: {error}");
    }
    let error = refused(&folder.run(&["tools", "import", "nothing"]).await);
    assert_eq!(error, "read nothing: No such file or directory (os error 2)");
    std::fs::write(folder.0.join("spec"), b"openapi: \xff").unwrap();
    let error = refused(&folder.run(&["tools", "import", "spec"]).await);
    assert!(error.starts_with("spec: is no text: invalid utf-8"), "{error}");
    let mut file = std::fs::File::create(folder.0.join("spec")).unwrap();
    file.write_all(&vec![b' '; (32 << 20) + 1]).unwrap();
    let error = refused(&folder.run(&["tools", "import", "spec"]).await);
    assert_eq!(error, "spec: is larger than 32 MiB");
}

#[tokio::test]
async fn a_large_document_is_read() {
    let folder = Folder::new("large");
    let text = "An operation with a long description. ".repeat(400);
    let paths: serde_json::Map<String, Value> = (0..700)
        .map(|number| {
            let post = json!({"operationId": format!("op{number}"), "description": text,
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/x/L0"}}}}});
            (format!("/p{number}"), json!({"post": post}))
        })
        .collect();
    // Each schema has the next one ten times: the whole would have 10^15 members.
    let levels: serde_json::Map<String, Value> = (0..15)
        .map(|level| {
            let next = json!({"$ref": format!("#/x/L{}", level + 1)});
            let properties: serde_json::Map<String, Value> =
                (0..10).map(|at| (format!("p{at}"), next.clone())).collect();
            (format!("L{level}"), json!({"type": "object", "properties": properties}))
        })
        .chain([("L15".to_owned(), json!({"type": "string"}))])
        .collect();
    let document = json!({"openapi": "3.1.0", "paths": paths, "x": levels}).to_string();
    assert!(document.len() > 10_000_000);
    let printed = folder.import(&document, &["--include", "op1?"]).await;
    assert!(printed.ends_with("\n# 10 tools written, 0 left out\n"));
    assert!(printed.contains("# a part of the schema is too deep or too large, and left open"));
    // The host accepts it.
    stdout(&folder.run(&["--check"]).await);
}
