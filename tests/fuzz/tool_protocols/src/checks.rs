//! The properties that the reading of every response must have.

use std::sync::Arc;

use callsheet::types::{FinishKind, ToolProtocol};
use callsheet::wire::ToolDefinition;

use crate::generate::protected;
use crate::random::Random;
use crate::reading::{Reading, characters, cut, read};

/// A property that does not hold: what it is, and the details.
pub(crate) type Failure = (&'static str, String);

/// Reads a response in several cuts, and checks what holds for every text.
pub(crate) fn check_text(
    random: &mut Random,
    protocol: ToolProtocol,
    tools: &Arc<[ToolDefinition]>,
    text: &str,
) -> Result<Reading, Failure> {
    let whole = read(protocol, tools, &[text], FinishKind::Stop);
    for finish in [FinishKind::Stop, FinishKind::Length] {
        let reference = read(protocol, tools, &[text], finish);
        let mut cuts = vec![characters(text), cut(random, text), cut(random, text)];
        if text.len() < 200 && random.has_chance(5) {
            let places = (0..text.len()).filter(|at| text.is_char_boundary(*at));
            cuts.extend(places.map(|at| vec![&text[..at], &text[at..]]));
        }
        for pieces in cuts {
            let reading = read(protocol, tools, &pieces, finish);
            if reading != reference {
                return Err((
                    "the cut changes the response",
                    format!("{pieces:?}\n{reading:?}\n{reference:?}"),
                ));
            }
        }
    }
    check_prefix(random, protocol, tools, text, &whole)?;
    check_leaks(protocol, tools, text, &whole)?;
    check_protected(random, protocol, tools, text)?;
    Ok(whole)
}

/// Checks that what was emitted before the response was cut off is the beginning of the whole.
fn check_prefix(
    random: &mut Random,
    protocol: ToolProtocol,
    tools: &Arc<[ToolDefinition]>,
    text: &str,
    whole: &Reading,
) -> Result<(), Failure> {
    let prefix = &text[..random.position(text)];
    let reading = read(protocol, tools, &[prefix], FinishKind::Length);
    let details = || format!("{prefix:?}\n{reading:?}\n{whole:?}");
    // White space at the end is text if no more text and no call follows.
    if !whole.text().starts_with(reading.text().trim_end()) {
        // A single held character is text, since nothing else can become of it.
        let text = reading.text();
        let mut without_last = text.chars();
        without_last.next_back();
        if !whole.text().starts_with(without_last.as_str().trim_end()) {
            return Err(("a response that is cut off has other text", details()));
        }
    }
    let sealed: Vec<_> = reading.calls.iter().filter(|call| call.is_sealed).collect();
    let all: Vec<_> = whole.calls.iter().filter(|call| call.is_sealed).take(sealed.len()).collect();
    if sealed != all {
        return Err(("a response that is cut off has other sealed calls", details()));
    }
    Ok(())
}

/// Checks that no call is left in the text.
fn check_leaks(
    protocol: ToolProtocol,
    tools: &Arc<[ToolDefinition]>,
    text: &str,
    whole: &Reading,
) -> Result<(), Failure> {
    for run in &whole.texts {
        // A mark that was removed may join what stood around it.
        if run.is_empty() || !text.contains(run.as_str()) {
            continue;
        }
        // At a line's start, not at the response's.
        let again = read(protocol, tools, &[&format!("x\n{run}~")], FinishKind::Length);
        if again.calls.iter().any(|call| call.is_sealed) {
            return Err(("a call is left in the text", format!("{run:?}\n{whole:?}")));
        }
        // The reader removes these from text, except in code, quotes and reasoning.
        let marks: &[&str] = match protocol {
            ToolProtocol::Hermes | ToolProtocol::Xml => &["</tool_call>"],
            ToolProtocol::Pythonic => &[
                "<|python_tag|>",
                "<|python_start|>",
                "<|python_end|>",
                "<|eom_id|>",
                "<|eot_id|>",
            ],
            _ => &[],
        };
        // The text around a removed mark may be another one.
        let joins = |mark: &&str| {
            let rest = text.replace(*mark, "");
            let is_new = |other| rest.matches(other).count() > text.matches(other).count();
            rest.contains(*mark) || marks.iter().any(|other| is_new(*other))
        };
        if marks.iter().any(joins) {
            continue;
        }
        let has_protection = ["`", "~~~", ">", "<think", "<tool_response"];
        let has_protection = match protocol {
            // Tags have such a bracket too.
            ToolProtocol::Hermes | ToolProtocol::Xml | ToolProtocol::Pythonic => {
                let quoted = run.lines().any(|line| line.trim_start().starts_with('>'));
                quoted || has_protection.iter().any(|mark| *mark != ">" && run.contains(mark))
            }
            _ => has_protection.iter().any(|mark| run.contains(mark)),
        };
        if let Some(mark) = marks.iter().find(|mark| run.contains(**mark))
            && !has_protection
        {
            return Err(("syntax is left in the text", format!("{mark} in {run:?}\n{whole:?}")));
        }
    }
    Ok(())
}

/// Checks that nothing in code, in quotes or in reasoning is a call.
fn check_protected(
    random: &mut Random,
    protocol: ToolProtocol,
    tools: &Arc<[ToolDefinition]>,
    text: &str,
) -> Result<(), Failure> {
    let Some(protected) = protected(random, text) else { return Ok(()) };
    let reading = read(protocol, tools, &[&protected], FinishKind::Stop);
    if !reading.calls.is_empty() || reading.text() != protected {
        return Err(("protected text is read", format!("{protected:?}\n{reading:?}")));
    }
    Ok(())
}
