//! Checks of a storage engine that a program implements.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{
    AppendStatus, Batch, BatchRefusal, BatchStatus, EngineLogState, HostInfo, Journal,
    JournalEntry, JournalError, Owner, Ownership, SessionOrder, SessionQuery,
};
use callsheet_values::record::{Record, Seq, StopMode};
use callsheet_values::types::{
    CallKey, Execution, Metadata, ParentCall, RootRun, RunId, SessionId, SessionState,
};

/// Time limit for the status of a batch.
const STATUS_WAIT_MAX: Duration = Duration::from_secs(10);

/// Number of statuses of a batch that an engine may report, one more than it should.
const STATUSES_MAX: usize = 3;

/// Checks that a storage engine keeps the contract of [`Journal`]: order, durability, reading, listing
/// and deletion. `open` opens the engine with an empty journal. If [`Journal::is_lasting`] is true, it is
/// called again after the engine was closed, and must then return the same data. If several hosts use the engine
/// ([`Journal::ownership`]), `open` is called again earlier, for a second and a third host.
///
/// ```
/// use std::sync::Arc;
/// use callsheet::journal::MemoryJournal;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// callsheet::testing::check_journal(async || Arc::new(MemoryJournal::new()) as _).await;
/// # });
/// ```
///
/// # Panics
/// If the engine breaks the contract. The message says how.
pub async fn check_journal(open: impl AsyncFn() -> Arc<dyn Journal>) {
    let journal = open().await;
    assert_eq!(journal.count().await, Ok(0), "the journal must be empty");
    let [a, b] = [session("check-a"), session("check-b")];
    let mut logs = [TestLog::new(&a), TestLog::new(&b)];
    // The last id comes first, so that an engine that lists in the order of creation fails.
    for log in logs.iter_mut().rev() {
        log.append(&*journal, vec![opening(None)]).await;
        log.append(&*journal, vec![stop(), stop()]).await;
    }
    let [log, _] = &mut logs;
    log.append(&*journal, (0..100).map(|_| stop()).collect()).await;
    let again = TestLog::new(&logs[0].session).try_append(&*journal, vec![opening(None)]).await;
    let exists = Err(JournalError::Refused(BatchRefusal::Exists));
    assert_eq!(again, exists, "a batch that opens a stored session is refused");
    check_contents(&*journal, &logs).await;
    check_nothing_follows_failure(&*journal).await;

    let listed = async |filter: &SessionQuery| -> Vec<SessionId> {
        let sessions = journal.list(filter).await.unwrap_or_else(|error| panic!("list: {error}"));
        sessions.into_iter().map(|stored| stored.id).collect()
    };
    let all = SessionQuery::default();
    assert!(listed(&all).await.iter().eq([&a, &b]), "list is in the order of the ids");
    let first = SessionQuery { limit: 1, ..SessionQuery::default() };
    assert!(listed(&first).await.iter().eq([&a]), "list respects limit");
    let later = SessionQuery { after: Some(a.clone()), ..SessionQuery::default() };
    assert!(listed(&later).await.iter().eq([&b]), "list respects after");
    let newest = SessionQuery { order: SessionOrder::Newest, ..SessionQuery::default() };
    let whole = journal.list(&newest).await.unwrap_or_else(|error| panic!("list: {error}"));
    assert!(
        whole.len() == 2 && whole.is_sorted_by(|newer, older| newer.number >= older.number),
        "list respects order"
    );
    let mut pages = SessionQuery { limit: 1, ..newest };
    for expected in &whole {
        let page = journal.list(&pages).await.unwrap_or_else(|error| panic!("list: {error}"));
        assert!(page.iter().eq([expected]), "pages with the newest first have each session once");
        pages.continue_after(expected);
    }
    assert!(listed(&pages).await.is_empty(), "no page follows the last session");
    let running = SessionQuery { state: Some(SessionState::Running), ..SessionQuery::default() };
    assert!(listed(&running).await.is_empty(), "list respects state");
    let old = SessionQuery { touched_before: Some(1), ..SessionQuery::default() };
    assert!(listed(&old).await.is_empty(), "list respects touched_before");

    assert_eq!(journal.document("check").await, Ok(None), "no document");
    for text in ["first", "second"] {
        journal
            .put_document("check", text, None)
            .await
            .unwrap_or_else(|e| panic!("put_document: {e}"));
        assert_eq!(
            journal.document("check").await,
            Ok(Some(text.to_owned())),
            "a document is replaced"
        );
    }

    if journal.ownership().is_some() {
        check_ownership(&*journal, &*open().await, &*open().await).await;
    }
    let removes_documents = check_unused_documents(&*journal, &mut logs).await;
    let points = ["chat-of-b", "chat-of-both", "chat-of-nobody"];
    for (key, users) in points.iter().zip([&[&b][..], &[&a, &b], &[&session("unknown")]]) {
        for &user in users {
            let put = journal.put_document(key, key, Some(user)).await;
            put.unwrap_or_else(|e| panic!("put_document: {e}"));
        }
    }
    let removed = journal.remove(&[b.clone(), session("unknown")]).await;
    removed.unwrap_or_else(|e| panic!("remove: {e}"));
    assert_eq!(journal.find(&b).await, Ok(None), "a removed session is not found");
    assert_eq!(journal.read(&b, Seq(0)).await, Ok(Vec::new()), "a removed session has no records");
    assert_eq!(journal.count().await, Ok(1), "a removed session does not count");
    remove_unused(&*journal, u64::MAX).await;
    let kept = journal.document("tools-of-b").await.map(|text| text.is_some());
    assert_eq!(kept, Ok(!removes_documents), "the document of a removed session is not used");
    let kept = journal.document("tools-of-a").await.map(|text| text.is_some());
    assert_eq!(kept, Ok(true), "a document that a session names is kept");
    for (key, is_kept) in points.iter().zip([false, true, true]) {
        let kept = journal.document(key).await.map(|text| text.is_some());
        // An engine may keep all documents.
        let is_right = kept == Ok(is_kept) || kept == Ok(true) && !removes_documents;
        assert!(is_right, "{key}: points are deleted with the last session of theirs: {kept:?}");
    }
    journal.close().await;
    if !journal.is_lasting() {
        return;
    }
    drop(journal);
    let journal = open().await;
    let [log, _] = logs;
    check_contents(&*journal, &[log]).await;
    assert_eq!(
        journal.document("check").await,
        Ok(Some("second".to_owned())),
        "a document is kept"
    );
    remove_unused(&*journal, u64::MAX).await;
    let kept = journal.document("tools-of-a").await.map(|text| text.is_some());
    assert_eq!(kept, Ok(true), "the sessions that name a document are known after a restart");
    journal.close().await;
}

/// Checks the deletion of documents that no record names. Returns whether the engine deletes them.
async fn check_unused_documents(journal: &dyn Journal, logs: &mut [TestLog; 2]) -> bool {
    let put = async |key: &str| {
        journal.put_document(key, key, None).await.unwrap_or_else(|e| panic!("put_document: {e}"));
    };
    let has = async |key: &str| {
        journal.document(key).await.unwrap_or_else(|e| panic!("document: {e}")).is_some()
    };
    for (log, name) in logs.iter_mut().zip(["of-a", "of-b"]) {
        let record = Record::ToolsFrozen { sha256: name.into() };
        log.append(journal, vec![record]).await;
        let key = log.entries.last().and_then(|entry| entry.document_key());
        let key = key.unwrap_or_else(|| panic!("a frozen list is a document"));
        // A host stores the list first. It stores an equal list again for a later session, as here.
        put(&key).await;
    }
    put("tools-unused").await;
    remove_unused(journal, 0).await;
    assert!(has("tools-unused").await, "a document that was stored later than the limit is kept");
    remove_unused(journal, u64::MAX).await;
    assert!(
        has("tools-of-a").await && has("tools-of-b").await,
        "a document that a record names is kept"
    );
    assert!(has("check").await, "a document with another prefix is kept");
    !has("tools-unused").await
}

/// Checks that a session has one owner among hosts that use the engine at the same time.
async fn check_ownership(first: &dyn Journal, second: &dyn Journal, third: &dyn Journal) {
    let [Some(one), Some(two)] = [first.ownership(), second.ownership()] else {
        panic!("the engines of all hosts have an ownership");
    };
    let [root, child] = [session("check-root"), session("check-child")];
    let started = || Record::RunStarted {
        run_id: RunId("check-run".into()),
        input: "x".into(),
        overrides: Arc::default(),
        model: String::new(),
        execution: Execution::Sequential,
        request: None,
        trace: None,
        metadata: Metadata::default(),
        into: None,
        authored_by: None,
    };
    let parent = Arc::new(ParentCall {
        session: root.clone(),
        run: RunId("check-run".into()),
        key: CallKey { turn: 1, attempt: 1, index: 0 },
        root: RootRun { session: root.clone(), run: RunId("check-run".into()), seq: Seq(2) },
        agent_path: vec!["default".into(), "default".into()],
        max_depth: 1,
        max_children: 1,
    });
    let fenced = Err(JournalError::Refused(BatchRefusal::Fenced));
    let owner = async |host: &dyn Ownership, session: &SessionId| {
        let owner = host.take(session).await.unwrap_or_else(|error| panic!("take: {error}"));
        owner == Owner::This
    };
    let give = async |host: &dyn Ownership, session: &SessionId| {
        host.give(session).await.unwrap_or_else(|error| panic!("give: {error}"));
    };
    let [mut of_root, mut of_child] = [TestLog::new(&root), TestLog::new(&child)];
    of_root.append(first, vec![opening(None)]).await;
    of_child.append(first, vec![opening(Some(parent))]).await;
    assert!(one.is_in_use(&root) && !two.is_in_use(&root), "a host uses what it has opened");
    assert!(owner(one, &root).await, "a host owns what it has opened");
    assert!(!owner(two, &root).await && !owner(two, &child).await, "a tree has one owner");
    let unknown_and_child = [session("check-unknown"), child.clone()];
    let owners = async |host: &dyn Ownership| {
        let owners = host.owners(&unknown_and_child).await;
        owners.unwrap_or_else(|error| panic!("owners: {error}"))
    };
    let hosts = async |host: &dyn Ownership| {
        host.hosts().await.unwrap_or_else(|error| panic!("hosts: {error}"))
    };
    assert_eq!(owners(one).await, [None, Some(Owner::This)], "the owner is known");
    let living = hosts(two).await;
    assert_eq!(living.len(), 3, "all hosts that live are listed");
    assert_eq!(living.iter().filter(|host| host.is_this).count(), 1, "this host is among them");
    let of_two = owners(two).await;
    assert_eq!(of_two.first(), Some(&None), "a session that is not stored has no owner");
    let Some(Some(Owner::Other(other))) = of_two.get(1) else {
        panic!("another host knows the owner: {of_two:?}")
    };
    let is_owner = |host: &HostInfo| host.id == other.id && !host.is_this;
    assert!(living.iter().any(is_owner), "the owner is one of the hosts");
    assert_eq!(other.id, one.host_id(), "a host knows its id");
    let mut stale = TestLog { entries: of_root.entries.clone(), ..TestLog::new(&root) };
    let refused = stale.try_append(second, vec![stop()]).await;
    assert_eq!(refused, fenced, "a batch of a host that does not own the session is fenced");
    let refused = TestLog::new(&root).try_append(second, vec![opening(None)]).await;
    let exists = Err(JournalError::Refused(BatchRefusal::Exists));
    assert_eq!(refused, exists, "a session is opened once");
    // The root was used twice: it was opened, and taken.
    give(one, &root).await;
    assert!(one.is_in_use(&root), "a session is in use until each use has ended");
    give(one, &root).await;
    assert!(!one.is_in_use(&root) && one.is_in_use(&child), "each session is used by itself");
    assert!(!owner(two, &root).await, "a host owns a tree while it uses a session of it");
    give(one, &child).await;
    assert_eq!(owners(one).await, [None, None], "a tree that was given has no owner");
    assert!(owner(two, &child).await, "a tree that is not used can be taken");
    let refused = of_root.try_append(first, vec![stop()]).await;
    assert_eq!(refused, fenced, "the host that had the tree before is fenced");
    let lost = tokio::time::timeout(STATUS_WAIT_MAX, one.lost()).await;
    assert!(lost.is_ok(), "a host that is fenced is told");
    assert!(!one.is_in_use(&child) && two.is_in_use(&child), "a lost session is not in use");
    let read = first.read(&root, Seq(1)).await;
    assert_eq!(read, Ok(Vec::new()), "nothing of a fenced batch is stored");

    // A tree with an open run is kept, until it is handed over.
    let mut of_child = TestLog { entries: of_child.entries.clone(), ..TestLog::new(&child) };
    of_child.append(second, vec![started()]).await;
    give(two, &child).await;
    assert!(!owner(one, &root).await, "a tree with an open run is not given up");
    let abandoned = async |host: &dyn Ownership| {
        host.take_abandoned(10).await.unwrap_or_else(|error| panic!("take_abandoned: {error}"))
    };
    assert_eq!(abandoned(one).await, [], "a tree whose owner lives is not abandoned");
    assert!(owner(two, &child).await, "the owner takes it once more");
    two.hand_over(&child).await.unwrap_or_else(|error| panic!("hand_over: {error}"));
    let taken = abandoned(one).await;
    assert!(taken.iter().eq([&child]), "another host goes on with the open run: {taken:?}");
    assert_eq!(abandoned(one).await, [], "it is taken once");
    assert!(!owner(two, &root).await, "the other host owns it");

    // A host that has ended owns nothing.
    let mut of_third = TestLog::new(&session("check-third"));
    of_third.append(third, vec![opening(None), started()]).await;
    let third_id = third.ownership().map(|third| third.host_id().to_owned()).unwrap_or_default();
    third.close().await;
    assert_eq!(abandoned(one).await, [of_third.session.clone()], "a host that has closed is gone");
    assert_eq!(hosts(one).await.len(), 2, "only hosts that live are listed");
    let dead =
        one.dead_hosts(STATUS_WAIT_MAX).await.unwrap_or_else(|error| panic!("dead_hosts: {error}"));
    assert!(!dead.contains(&third_id), "a host that has closed its journal is not dead");
    let replace = async |host: &dyn Ownership, before, text| {
        let replaced = host.replace_document("check-replaced", before, text, None).await;
        replaced.unwrap_or_else(|error| panic!("replace_document: {error}"))
    };
    assert!(replace(one, None, "a").await, "a document that is not stored is stored");
    assert!(!replace(two, None, "b").await, "one that is stored is kept");
    assert!(!replace(two, Some("b"), "c").await, "one with another text is kept");
    assert!(replace(two, Some("a"), "d").await, "one with the given text is replaced");
    let stored = first.document("check-replaced").await;
    assert_eq!(stored, Ok(Some("d".to_owned())), "the last text is stored");
    let removed = second.remove(std::slice::from_ref(&root)).await;
    assert!(removed.is_err(), "only the owner removes a session");
    let all = [root, child, of_third.session];
    first.remove(&all).await.unwrap_or_else(|error| panic!("remove: {error}"));
    second.close().await;
}

async fn remove_unused(journal: &dyn Journal, stored_before: u64) {
    let removed = journal.remove_unused_documents("tools-", stored_before).await;
    removed.unwrap_or_else(|error| panic!("remove_unused_documents: {error}"));
}

fn opening(parent: Option<Arc<ParentCall>>) -> Record {
    Record::SessionOpened {
        agent: "default".to_owned(),
        messages: Vec::new(),
        metadata: Metadata::default(),
        parent,
        client_tools: None,
    }
}

fn stop() -> Record {
    Record::StopAsked { mode: StopMode::Now, authored_by: None }
}

fn session(id: &str) -> SessionId {
    SessionId::parse(id).unwrap_or_else(|error| panic!("{error}"))
}

async fn check_contents(journal: &dyn Journal, logs: &[TestLog]) {
    assert_eq!(journal.count().await, Ok(logs.len()), "count returns the number of sessions");
    for TestLog { session, entries, .. } in logs {
        let read = async |after: u64, limit| {
            let entries = journal.read_some(session, Seq(after), limit).await;
            entries.unwrap_or_else(|error| panic!("read_some: {error}"))
        };
        let expected: Vec<JournalEntry> = entries.iter().map(|e| JournalEntry::clone(e)).collect();
        assert_eq!(read(0, usize::MAX).await, expected, "all entries are read back unchanged");
        let mut paged: Vec<JournalEntry> = Vec::new();
        loop {
            let page = read(paged.last().map_or(0, |entry| entry.seq.0), 7).await;
            assert!(page.len() <= 7, "read_some respects limit");
            if page.is_empty() {
                break;
            }
            paged.extend(page);
            assert!(paged.len() <= expected.len(), "read_some returns an entry twice");
        }
        assert_eq!(paged, expected, "pages of read_some have every entry once, in order");
        assert_eq!(read(1, 1).await, expected[1..2], "read_some respects after and limit");
        assert_eq!(read(expected.len() as u64, 9).await, [], "nothing follows the last entry");
        let found = journal.find(session).await.unwrap_or_else(|error| panic!("find: {error}"));
        let last = found.map(|found| (found.agent, found.seq.0));
        let expected = ("default".to_owned(), expected.len() as u64);
        assert_eq!(last, Some(expected), "find returns the agent and the last record");
    }
}

/// Checks that nothing is stored after a batch that was not stored, which would leave a gap.
async fn check_nothing_follows_failure(journal: &dyn Journal) {
    let failed = session("check-failed");
    let mut log = TestLog::new(&failed);
    log.append(journal, vec![opening(None)]).await;
    log.engine_state.fail(2);
    // Record 2 counts as failed, so record 3 is refused. A copy of record 1 stands for record 2.
    log.entries.extend(log.entries.first().cloned());
    let stored = log.try_append(journal, vec![stop()]).await;
    assert!(stored.is_err(), "an engine reports a batch as failed if Batch::follows_failure");
    let read = journal.read(&failed, Seq(1)).await;
    assert_eq!(read, Ok(Vec::new()), "a refused batch is not stored");
    journal.remove(&[failed]).await.unwrap_or_else(|e| panic!("remove: {e}"));
}

/// The log of one session, with what was appended.
struct TestLog {
    session: SessionId,
    engine_state: Arc<EngineLogState>,
    entries: Vec<Arc<JournalEntry>>,
}

impl TestLog {
    fn new(session: &SessionId) -> Self {
        Self { session: session.clone(), engine_state: Arc::default(), entries: Vec::new() }
    }

    /// Appends records and waits until they are durable.
    async fn append(&mut self, journal: &dyn Journal, records: Vec<Record>) {
        self.try_append(journal, records).await.unwrap_or_else(|error| panic!("append: {error}"));
    }

    /// Appends records and waits until they are durable or refused.
    async fn try_append(
        &mut self,
        journal: &dyn Journal,
        records: Vec<Record>,
    ) -> Result<(), JournalError> {
        let first = self.entries.len() as u64 + 1;
        let entries: Vec<_> = (first..)
            .zip(records)
            .map(|(seq, record)| JournalEntry {
                seq: Seq(seq),
                time: seq,
                displayed_bytes: 0,
                record,
            })
            .map(Arc::new)
            .collect();
        self.entries.extend(entries.iter().cloned());
        let (sender, mut statuses) = mpsc::channel(STATUSES_MAX);
        // The receiver is gone after a failed check.
        let on_status = Box::new(move |status| drop(sender.try_send(status)));
        let state = Arc::clone(&self.engine_state);
        let batch = Batch::new(self.session.clone(), entries, state, on_status);
        let status = journal.append(Batch { urgent: true, ..batch });
        if status == AppendStatus::Durable {
            return Ok(());
        }
        loop {
            match tokio::time::timeout(STATUS_WAIT_MAX, statuses.recv()).await {
                Ok(Some(BatchStatus::Written)) => {}
                Ok(Some(BatchStatus::Durable)) => return Ok(()),
                Ok(Some(BatchStatus::Failed(error))) => return Err(error),
                Ok(Some(BatchStatus::Refused(refusal))) => {
                    return Err(JournalError::Refused(refusal));
                }
                Ok(None) | Err(_) => panic!("no status of an urgent batch in {STATUS_WAIT_MAX:?}"),
            }
        }
    }
}
