//! Checks of the calls of agents: what a child may use, its ids, and what it has used.

use super::Verifier;
use crate::journal::export::{ChildRecords, ChildSession, ChildSessions, child_id, run_of_call};
use callsheet_values::record::JournalEntry;
use callsheet_values::transcript::{
    Breach, CallIntent, CallTranscript, Invariant, RecordLocation, RecordedOutcome, RunTranscript,
    Transcript, TurnTranscript,
};
use callsheet_values::types::{
    AgentLease, CallKey, ChildUse, ParentCall, SessionId, ToolStatus, child_run_id,
    child_session_id,
};

/// Tokens and calls.
#[derive(Clone, Copy, Default)]
struct Amount {
    tokens: u64,
    calls: u64,
}

impl Amount {
    fn new(tokens: u64, calls: u64) -> Self {
        Self { tokens, calls }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            calls: self.calls.saturating_add(other.calls),
        }
    }
}

/// Returns the breaches that show only in the records of a session and those of its child sessions together, in their
/// order. Children that are not stored or cannot be read are not checked.
#[must_use]
pub fn verify_children(
    session: &SessionId,
    entries: &[JournalEntry],
    children: &ChildSessions,
) -> Vec<Breach> {
    let transcript = Transcript::read(entries);
    let mut breaches = Vec::new();
    for run in &transcript.runs {
        let attempts = run.turns.iter().flat_map(|turn| &turn.attempts);
        for (key, call) in attempts.flat_map(|attempt| &attempt.calls) {
            let Some(child) = children.of_call(session, &transcript, call) else { continue };
            let Some(intent) = call.intents.last() else { continue };
            if let Some(what) = child_problem(intent, call.outcome(), &child) {
                let message = format!("the child {} of {key} {what}", child.id);
                breaches.push(Breach { seq: intent.at.seq, invariant: Invariant::Lease, message });
            }
        }
    }
    breaches.sort_by_key(|breach| breach.seq);
    breaches
}

/// Returns how a child session contradicts its call.
fn child_problem(
    intent: &CallIntent<'_>,
    outcome: Option<&RecordedOutcome<'_>>,
    child: &ChildSession<'_>,
) -> Option<String> {
    let ChildRecords::Stored(entries) = child.records else { return None };
    let transcript = Transcript::read(entries);
    let parent = transcript.opening.and_then(|opening| opening.parent);
    if parent.is_none_or(|parent| parent.key != intent.call.key) {
        return Some("names another call".to_owned());
    }
    let run = run_of_call(&child.id, &transcript)?;
    let lease = intent.lease.unwrap_or_default();
    if let Some(start) = run.start {
        let limits = &start.overrides.limits;
        let exceeds = |own: Option<u64>, leased: Option<u64>| {
            own.zip(leased).is_some_and(|(own, leased)| own > leased)
        };
        let calls = limits.max_tool_calls_per_run.map(u64::from);
        if exceeds(limits.max_tokens_per_run, lease.tokens)
            || exceeds(calls, lease.calls.map(u64::from))
        {
            return Some("has higher limits than its lease".to_owned());
        }
    }
    let outcome = outcome?.outcome;
    let noted = outcome.child.as_deref()?;
    run.end?;
    let used = amount_of_run(run);
    let is_same = (noted.tokens, u64::from(noted.calls)) == (used.tokens, used.calls);
    // A call that failed may not have seen the end of its child.
    let is_less = noted.tokens <= used.tokens && u64::from(noted.calls) <= used.calls;
    let fits = if outcome.status == ToolStatus::Ok { is_same } else { is_less };
    (!fits).then(|| {
        format!(
            "has used {} tokens and {} calls, and the outcome counts {} and {}",
            used.tokens, used.calls, noted.tokens, noted.calls
        )
    })
}

/// Returns the tokens and the calls of a run, with those of its children.
fn amount_of_run(run: &RunTranscript<'_>) -> Amount {
    let stats = run.end.map(|end| end.stats);
    let tokens = stats.map(|stats| stats.input_tokens.saturating_add(stats.output_tokens));
    let calls = stats.map(|stats| u64::from(stats.tool_calls));
    let own = Amount::new(tokens.unwrap_or_default(), calls.unwrap_or_default());
    run.committed().fold(own, |sum, (turn, _)| sum.plus(children_of_turn(turn)))
}

/// Returns what the children of the kept calls of a turn have used. A copy of an outcome counts once.
fn children_of_turn(turn: &TurnTranscript<'_>) -> Amount {
    let calls = turn.kept_calls().iter().filter_map(|call| turn.call(call.key)?.outcome());
    let own = calls.filter(|ended| ended.notes.duplicate_of.is_none());
    let used = own.filter_map(|ended| ended.outcome.child.as_deref());
    used.fold(Amount::default(), |sum, used| sum.plus(amount(used)))
}

fn amount(used: &ChildUse) -> Amount {
    Amount::new(used.tokens, used.calls.into())
}

impl<'a> Verifier<'_, 'a> {
    /// Checks that the id of a child session follows from the call that opened it. A fork of a child session names
    /// the same call, and its id is not checked.
    pub(super) fn check_parent(&mut self, at: RecordLocation, parent: &ParentCall) {
        let key = format!("{}/{}", parent.run, parent.key);
        let is_own = *self.session == child_session_id(&parent.session, &key);
        let is_fork = !self.transcript.forks.is_empty();
        self.require(is_own || is_fork, at, Invariant::Session, || {
            format!(
                "the id of this session is not that of the child of {} in session {}",
                parent.key, parent.session
            )
        });
    }

    /// Checks the leases of a run, and the children that its outcomes name. Compares a lease with what the run has
    /// left only if the overrides of the run limit it, because no record has the limits of the agent.
    pub(super) fn check_leases(&mut self, run: &RunTranscript<'a>) {
        let Some(start) = run.start else { return };
        let limits = &start.overrides.limits;
        let most_tokens = limits.max_tokens_per_run.filter(|most| *most > 0);
        let most_calls = limits.max_tool_calls_per_run.filter(|most| *most > 0);
        let mut spent = Amount::default();
        for turn in &run.turns {
            let calls: Vec<_> = turn.attempts.iter().flat_map(|attempt| &attempt.calls).collect();
            for (key, call) in &calls {
                self.check_lease_stays(**key, call);
                self.check_child(**key, call);
                let Some(intent) = call.intents.first() else { continue };
                let Some(lease) = intent.lease else { continue };
                let used = spent.plus(self.used_before(run, turn, intent));
                let open = calls.iter().filter_map(|(_, other)| committed_to_child(other, intent));
                let used = open.fold(used, Amount::plus);
                let left = |most: u64, used: u64| most.saturating_sub(used);
                self.require_lease(
                    (**key, intent.at),
                    ("tokens", lease.tokens),
                    most_tokens.map(|most| left(most, used.tokens)),
                );
                self.require_lease(
                    (**key, intent.at),
                    ("calls", lease.calls.map(u64::from)),
                    most_calls.map(|most| left(most.into(), used.calls)),
                );
            }
            if turn.commit.is_some() {
                let is_initial = self.opens_with_calls && turn.number == 1;
                let mut used = children_of_turn(turn);
                used.calls = used.calls.saturating_add(turn.kept_calls().len() as u64);
                used.calls = if is_initial { 0 } else { used.calls };
                used.tokens = used.tokens.saturating_add(turn.usage().total());
                spent = spent.plus(used);
            }
        }
    }

    fn require_lease(
        &mut self,
        (key, at): (CallKey, RecordLocation),
        (what, leased): (&str, Option<u64>),
        left: Option<u64>,
    ) {
        let Some(left) = left else { return };
        self.require(leased.is_some_and(|leased| leased <= left), at, Invariant::Lease, || {
            match leased {
                Some(leased) => {
                    format!("the child of {key} may use {leased} {what}, and {left} are left")
                }
                None => format!(
                    "the {what} of the child of {key} have no limit, but those of the run do"
                ),
            }
        });
    }

    /// Returns what the turn itself has used before an intent, and what the requests for summaries of the run have
    /// used before the turn.
    fn used_before(
        &self,
        run: &RunTranscript<'a>,
        turn: &TurnTranscript<'a>,
        intent: &CallIntent<'a>,
    ) -> Amount {
        let (mut tokens, mut calls) = (0_u64, 0);
        for attempt in &turn.attempts {
            let failure = attempt.failure.filter(|f| !f.kept && f.at.is_before(intent.at));
            let response = attempt.response.filter(|response| response.at.is_before(intent.at));
            let usages = [failure.map(|f| f.usage), response.map(|response| response.usage)];
            usages.into_iter().flatten().for_each(|usage| tokens += usage.total());
            calls += response.map_or(0, |response| response.message.calls.len() as u64);
        }
        calls += intent.partial.map_or(0, |partial| partial.message.calls.len() as u64);
        let begin = turn.attempts.first().and_then(|attempt| attempt.start);
        let starts = run.start.map(|start| start.at).zip(begin.map(|begin| begin.at));
        if let Some((run_start, turn_start)) = starts {
            let is_within =
                |at: RecordLocation| run_start.is_before(at) && at.is_before(turn_start);
            let compactions = self.transcript.compactions.iter();
            let compactions = compactions.map(|compaction| (compaction.at, compaction.usage));
            let limits = run.limits.iter().map(|reached| (reached.at, reached.usage));
            let summaries = compactions.chain(limits).filter(|(at, _)| is_within(*at));
            summaries.for_each(|(_, usage)| tokens += usage.total());
        }
        Amount::new(tokens, calls)
    }

    /// Checks that a call which is intended again, after a crash, keeps its lease.
    fn check_lease_stays(&mut self, key: CallKey, call: &CallTranscript<'a>) {
        let first = call.intents.first().and_then(|intent| intent.lease);
        for again in call.intents.iter().skip(1) {
            let is_same = first.is_none() || again.lease.is_none() || again.lease == first;
            self.require(is_same, again.at, Invariant::Lease, || {
                format!("{key} has a second intent with another lease")
            });
        }
    }

    /// Checks the child that an outcome names.
    fn check_child(&mut self, key: CallKey, call: &CallTranscript<'a>) {
        for ended in &call.outcomes {
            let Some(child) = ended.outcome.child.as_deref() else { continue };
            if ended.notes.duplicate_of.is_some() {
                continue;
            }
            let expected = child_id(self.session, self.transcript, call);
            let is_own = expected.as_ref() == Some(&child.session);
            let is_run = child_run_id(&child.session).as_ref() == Some(&child.run);
            self.require(is_own && is_run, ended.at, Invariant::Lease, || match expected {
                Some(_) => format!("the child of {key} is not the one that its intent determines"),
                None => format!("{key} has a child, and its intent has no lease"),
            });
        }
    }
}

/// Returns what another call of the turn keeps for its child at the time of an intent: its lease while it is open,
/// and what the child has used once it has ended. Returns `None` if that call is not intended before, or has no
/// lease.
fn committed_to_child(other: &CallTranscript<'_>, at: &CallIntent<'_>) -> Option<Amount> {
    let intent = other.intents.first().filter(|intent| intent.at.is_before(at.at))?;
    let AgentLease { tokens, calls } = intent.lease?;
    let leased = Amount::new(tokens.unwrap_or_default(), calls.unwrap_or_default().into());
    let Some(ended) = other.outcome() else { return Some(leased) };
    let used = ended.outcome.child.as_deref().map(amount).unwrap_or_default();
    if ended.at.is_before(at.at) {
        return Some(used);
    }
    // A child may have ended before its call has its outcome. The smaller of the two amounts is counted.
    Some(Amount::new(used.tokens.min(leased.tokens), used.calls.min(leased.calls)))
}
