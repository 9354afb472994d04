//! Questions of running tools: clocks, hibernation, withdrawal, and the deaths of actors.

use super::approvals::{decide, pass, question};
use super::recovery::{ACCUMULATOR, kill};
use super::*;
use callsheet_tools::{Answer, Question};
use callsheet_values::types::{ApprovalVerdict, RunEnd, WaitPhase};

const HOUR: Duration = Duration::from_secs(3600);

fn sign_in() -> Question {
    Question::url("Sign in.", "https://example.com/in")
}

/// Returns a tool that asks, and whose result is the answer.
fn asking() -> Closure {
    tool(spec("ask"), |context| async move {
        let answer = context.ask(sign_in()).await?;
        Ok(format!("{answer:?}").into())
    })
}

#[tokio::test]
async fn clocks_stop_and_the_session_stays_awake_while_a_question_is_open() {
    let provider = Provider::calling(&[("ask", "{}")]).await;
    let host = host(&provider, registry([asking()]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let asked = question(&mut run.events).await;
    assert_eq!(asked.phase, WaitPhase::Input);
    // The timeout of a tool is 30 s, that of a run 10 min.
    pass(20 * HOUR).await;
    drop(run.events);
    session.hibernate();
    // The reply comes after the message.
    let open = session.approvals().await.unwrap();
    assert_eq!(open[0].approval.question, Some(sign_in()));
    assert_eq!(host.counts().awake, 1);
    decide(&session, &asked, ApprovalVerdict::Approved).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(results(&report)["ask"], ("success", "Accepted(Null)"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_question_expires_after_a_day() {
    let provider = Provider::calling(&[("ask", "{}")]).await;
    let host = host(&provider, registry([asking()]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    question(&mut run.events).await;
    pass(24 * HOUR).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["ask"], ("success", "Expired"));
    assert_eq!(report.run_end, RunEnd::Answered);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_tool_that_stops_waiting_withdraws_its_question() {
    let provider = Provider::calling(&[("ask", "{}")]).await;
    let gate = Arc::new(tokio::sync::Notify::new());
    let waits = Arc::clone(&gate);
    let ask = tool(spec("ask"), move |context| {
        let gate = Arc::clone(&waits);
        async move {
            tokio::select! {
                answer = context.ask(sign_in()) => Ok(format!("{answer:?}").into()),
                () = gate.notified() => {
                    let second = context.ask(Question::url("Again.", "https://example.com")).await?;
                    Ok(format!("second {second:?}").into())
                }
            }
        }
    });
    let host = host(&provider, registry([ask]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let first = question(&mut run.events).await;
    gate.notify_one();
    let second = question(&mut run.events).await;
    assert_ne!(first.arguments_sha256, second.arguments_sha256);
    decide(&session, &second, ApprovalVerdict::Rejected).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["ask"], ("success", "second Declined(None)"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_question_survives_the_owner_of_its_turn() {
    let provider = Provider::calling(&[("ask", "{}")]).await;
    let host = host(&provider, registry([asking()]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let asked = question(&mut run.events).await;
    kill(&session, ACCUMULATOR).await;
    let open = session.approvals().await.unwrap();
    assert_eq!(open[0].approval.arguments_sha256, asked.arguments_sha256);
    decide(&session, &asked, ApprovalVerdict::Approved).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["ask"], ("success", "Accepted(Null)"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_question_ends_with_its_call_and_a_call_asks_only_so_many() {
    let provider = Provider::calling(&[("ask", "{}")]).await;
    let ask = tool(spec("ask"), |context| async move {
        let mut asked = 0;
        while let Answer::Accepted(_) = context.ask(sign_in()).await? {
            asked += 1;
        }
        Ok(format!("{asked} {:?}", context.ask(sign_in()).await?).into())
    });
    let host = host(&provider, registry([ask]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    for _ in 0..100 {
        let asked = question(&mut run.events).await;
        decide(&session, &asked, ApprovalVerdict::Approved).await;
    }
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    let expected = "100 Declined(Some(\"a call may ask at most 100 questions\"))";
    assert_eq!(results(&report)["ask"], ("success", expected));
    nothing_left(&host).await;
}
