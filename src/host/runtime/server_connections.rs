//! The connections to servers of tools: one for each server, or one for each server and session. Each is run by an
//! actor below the host's.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::agent::Agent;
use super::host_ref::HostRef;
use super::message::{HostMessage, ServerAudience, SessionMessage};
use super::tool_servers::{PerSessionConnection, SessionServer, ToolServers};
use callsheet_tools::{ServerListing, ServerObserver, ServerState, ServerStatus, ToolServer};
use callsheet_values::event::{ServerToolsChange, ToolListChange};
use callsheet_values::types::SessionId;

/// Wait before a server whose task panicked runs again.
const RESTART_WAIT: Duration = Duration::from_secs(1);

impl ToolServers {
    /// Connects a session to the servers that its agent names and that sessions do not share. The connections
    /// end when what this returns is dropped.
    pub(super) fn connect_session(
        &self,
        host_ref: &HostRef,
        agent: &Agent,
        (id, session): (&SessionId, &ActorRef<SessionMessage>),
    ) -> Vec<PerSessionConnection> {
        let named = self.servers.iter().filter(|server| agent.names_server(&***server));
        let opened: Vec<_> = named.filter_map(|server| server.for_session(Some(id))).collect();
        if !opened.is_empty() {
            let mut connections = self.session_connections.lock();
            connections.retain(|_, servers| servers.iter().any(|server| server.strong_count() > 0));
            connections.insert(id.clone(), opened.iter().map(Arc::downgrade).collect());
        }
        let audience = ServerAudience::Session(session.clone());
        opened.into_iter().map(|server| begin(host_ref, server, audience.clone())).collect()
    }

    /// Returns the needed servers as a session sees them. To a server that sessions do not share, a session without
    /// a connection, or a caller without a session, gets one for as long as it holds what this returns.
    pub(super) fn servers_for(
        &self,
        host_ref: &HostRef,
        session: Option<&SessionId>,
        is_needed: impl Fn(&dyn ToolServer) -> bool,
    ) -> Vec<SessionServer> {
        let connected =
            session.and_then(|session| self.session_connections.lock().get(session).cloned());
        let connected: Vec<_> = connected.iter().flatten().filter_map(Weak::upgrade).collect();
        let needed = self.servers.iter().filter(|server| is_needed(&***server)).map(|server| {
            if !server.is_per_session() {
                return SessionServer { server: Arc::clone(server), _opened: None };
            }
            if let Some(other) = connected.iter().find(|other| other.name() == server.name()) {
                return SessionServer { server: Arc::clone(other), _opened: None };
            }
            let server = server.for_session(None).unwrap_or_else(|| Arc::clone(server));
            let opened = begin(host_ref, Arc::clone(&server), ServerAudience::Nobody);
            SessionServer { server, _opened: Some(opened) }
        });
        needed.collect()
    }

    /// Logs the changes of a server's state, notifies its audience of changes of its list, and stores each new
    /// list.
    async fn follow(&self, server: &dyn ToolServer, host_ref: &HostRef, audience: &ServerAudience) {
        let mut status = server.status();
        let mut logged = None;
        let mut last = self.last_listing(server.name());
        let mut stored_startup = server.startup();
        loop {
            let now = Arc::clone(&status.borrow_and_update());
            if logged.as_ref() != Some(&now.state) {
                log_state(server.name(), &now);
                if now.state == ServerState::Released
                    && let ServerAudience::Session(session) = audience
                {
                    let server = server.name().into();
                    // A session that has ended needs no notification.
                    let _ = session.cast(SessionMessage::ServerReleased { server });
                }
                logged = Some(now.state.clone());
            }
            if let Some(listing) = &now.listing {
                if let Some(last) = last.replace(Arc::clone(listing))
                    && last.tools != listing.tools
                {
                    notify_list_changed(server.name(), &last, listing, host_ref, audience);
                }
                self.keep_listing(server.name(), listing).await;
            }
            if let Some(startup) = server.startup()
                && stored_startup.replace(startup) != Some(startup)
            {
                self.keep_startup(server, startup).await;
            }
            if status.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Asks the host to run a connection of one session, or one that only reads the list.
fn begin(
    host_ref: &HostRef,
    server: Arc<dyn ToolServer>,
    audience: ServerAudience,
) -> PerSessionConnection {
    // A host that is gone ends its servers with it.
    let _ = host_ref.actor.cast(HostMessage::BeginServer { server: Arc::clone(&server), audience });
    PerSessionConnection(server)
}

/// Logs a change of a server's list, and notifies its audience.
fn notify_list_changed(
    server: &str,
    last: &ServerListing,
    now: &ServerListing,
    host_ref: &HostRef,
    audience: &ServerAudience,
) {
    let change = ToolListChange::between(&last.tools, &now.tools, |tool| &tool.name);
    let ToolListChange { added, removed, changed } = &change;
    tracing::info!(server, ?added, ?removed, ?changed, "tools_changed");
    let change = Arc::new(ServerToolsChange { server: server.to_owned(), change });
    let notify = |session: &ActorRef<SessionMessage>| {
        // A session that has ended needs no notification.
        let _ = session.cast(SessionMessage::ServerToolsChanged { change: Arc::clone(&change) });
    };
    match audience {
        ServerAudience::Sessions => {
            let all_awake = host_ref.shared.index.all_awake();
            all_awake.iter().for_each(|(_, session)| notify(&session.actor));
        }
        ServerAudience::Session(session) => notify(session),
        ServerAudience::Nobody => {}
    }
}

/// Keeps a server connected, and its last list stored. A panic of the server ends this actor, and the
/// host starts another one.
pub(super) struct ToolServerActor;

/// The only message to a [`ToolServerActor`]: run the server.
pub(super) struct RunToolServer {
    pub(super) server: Arc<dyn ToolServer>,
    pub(super) host_ref: HostRef,
    pub(super) audience: ServerAudience,
    pub(super) observer: ServerObserver,
    /// True if the last actor of the server panicked: this one waits before it connects.
    pub(super) wait: bool,
}

impl Actor for ToolServerActor {
    type Msg = RunToolServer;
    type State = ();
    type Arguments = ();

    async fn pre_start(
        &self,
        _: ActorRef<RunToolServer>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<RunToolServer>,
        run: RunToolServer,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let RunToolServer { server, host_ref, audience, observer, wait } = run;
        if wait {
            tokio::time::sleep(RESTART_WAIT).await;
        }
        tokio::select! {
            () = server.run(observer) => {}
            () = host_ref.shared.catalog.tool_servers.follow(&*server, &host_ref, &audience) => {}
        }
        myself.stop(None);
        Ok(())
    }
}

fn log_state(server: &str, status: &ServerStatus) {
    match &status.state {
        ServerState::Starting => {}
        ServerState::Released => tracing::info!(server, "tool_server_released"),
        ServerState::Up => {
            let listing = status.listing.as_deref();
            let tools = listing.map_or(0, |listing| listing.tools.len());
            tracing::info!(server, tools, "tool_server_up");
            for (tool, reason) in listing.iter().flat_map(|listing| &listing.left_out) {
                tracing::warn!(server, tool, error = reason, "tool_not_offered");
            }
            for (tool, reason) in listing.iter().flat_map(|listing| &listing.warnings) {
                tracing::warn!(server, tool, reason, "tool_has_warning");
            }
        }
        ServerState::Down(reason) => tracing::warn!(server, error = reason, "tool_server_down"),
    }
}
