//! Calls whose children wait for people: the clocks of the call and of the run.

use super::started_calls::replace_owner;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Starts a turn with these calls, in a run that has 60 seconds left. A call of `agent` may take 40 seconds.
fn calling(names: &[&str]) -> Driver {
    calling_within(60 * SECOND, names)
}

/// Starts a turn with these calls, in a run that has this time left.
fn calling_within(time: Duration, names: &[&str]) -> Driver {
    let mut spec = spec(rules(PARALLEL));
    spec.run_time_left = Some(time);
    let mut driver = Driver::new(spec);
    driver.receive((0..).zip(names).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.end_well();
    driver
}

impl Driver {
    fn child_waits(&mut self, seconds: u64, index: u32, waits: bool) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self.turn.handle_child_waits(self.now, self.key(index), waits);
        self.perform_effects();
        self
    }

    fn next_timeout(&self) -> Option<u64> {
        self.turn.poll_timeout().map(|at| at.as_secs())
    }
}

#[test]
fn the_clocks_of_the_call_and_the_run_stand_still_while_the_child_waits() {
    let mut driver = calling(&["agent"]);
    assert_eq!(driver.next_timeout(), Some(40));
    driver.child_waits(10, 0, true);
    assert!(driver.turn.waits_only_for_people());
    assert_eq!(driver.next_timeout(), None);
    driver.child_waits(100, 0, false);
    // The call has 30 seconds left, and the run 50.
    assert_eq!(driver.next_timeout(), Some(130));
    driver.child_waits(110, 0, true).child_waits(200, 0, false);
    assert_eq!(driver.next_timeout(), Some(220));
    driver.now = 205 * SECOND;
    driver.finish_call(0, "done").assert_results(&[("agent", OK, None, "done")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[0].duration, 25 * SECOND);
    assert_eq!((record.times.people, record.times.tools), (180 * SECOND, 25 * SECOND));
}

#[test]
fn the_time_of_the_run_goes_on_while_another_call_works() {
    let mut driver = calling(&["agent", "agent"]);
    driver.child_waits(10, 0, true);
    assert!(!driver.turn.waits_only_for_people());
    // The other call has 30 seconds left.
    assert_eq!(driver.next_timeout(), Some(40));
    driver.child_waits(20, 1, true);
    assert!(driver.turn.waits_only_for_people());
    assert_eq!(driver.next_timeout(), None);
    driver.child_waits(100, 1, false);
    // The run has counted 20 seconds, and the other call too.
    assert_eq!(driver.next_timeout(), Some(120));
}

#[test]
fn a_cancelled_call_waits_for_its_child_and_not_for_people() {
    let mut driver = calling(&["agent"]);
    driver.child_waits(10, 0, true).cancel();
    assert_eq!(driver.aborted, [0]);
    assert!(!driver.turn.waits_only_for_people());
    driver.child_waits(20, 0, true);
    assert!(!driver.turn.waits_only_for_people());
    driver.finish_call(0, "late");
    assert_eq!(driver.commit.as_ref().unwrap().results[0].outcome.status, ToolStatus::Cancelled);
}

#[test]
fn only_calls_of_agents_have_children() {
    let mut driver = calling(&["effect"]);
    driver.child_waits(10, 0, true);
    assert!(!driver.turn.waits_only_for_people());
    driver.finish_call(0, "done");
}

#[test]
fn another_owner_continues_the_wait_of_a_child() {
    let mut driver = calling(&["agent"]);
    driver.child_waits(10, 0, true);
    replace_owner(&mut driver, 10 * SECOND, None);
    assert!(driver.turn.waits_only_for_people());
    assert_eq!(driver.next_timeout(), None);
    driver.child_waits(50, 0, false);
    assert_eq!(driver.next_timeout(), Some(80));
    driver.finish_call(0, "done").assert_results(&[("agent", OK, None, "done")]);
}
