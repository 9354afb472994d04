//! Tools that a model's service refuses.
//!
//! A service that does not understand one schema refuses the whole request. If its error names tools, they are set
//! aside for this model, and the request is sent again without them. If it names none, as an engine that cannot compile
//! its grammar, the refused tools are found by halving those that may be the reason: requests with some of them show
//! which part is refused. A request that is accepted before the search is over is dropped at the first delta, and its
//! response is void. At most [`REQUESTS_MAX`] requests follow the refused one; the last one leaves out all tools that
//! are still in question, and the next turn searches on. These attempts use up none of the model's `max_attempts`.

use super::effect::TurnAction;
use super::{Turn, TurnStage};
use callsheet_values::event::Event;
use callsheet_values::types::{ProviderError, ProviderErrorKind, ToolRefusal, excerpt};

/// The number of requests of a search.
const REQUESTS_MAX: u32 = 8;

/// The number of refusals of one turn that name tools.
const NAMED_REFUSALS_MAX: u32 = 64;

/// Maximum length of the reason in the event, in characters.
const REASON_CHARS: usize = 300;

/// The tools that the services of a turn have refused, and the search for those that an error does not name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ToolRefusals {
    /// The number of refusals that named tools.
    named: u32,
    search: Option<ToolSearch>,
}

/// The search for the tools that one model's service refuses without naming them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ToolSearch {
    model_index: usize,
    /// The error of the first refusal.
    reason: String,
    /// The number of requests that may still be sent.
    requests_left: u32,
    /// Tools of which at least one is refused.
    group: Vec<String>,
    /// Further tools that may be refused.
    unknown: Vec<String>,
    /// Tools that are refused for certain.
    found: Vec<String>,
    /// The tools without which a request was accepted last.
    accepted_without: Vec<String>,
    step: SearchStep,
}

/// The request that a search has sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SearchStep {
    /// It has this number of tools of the group, from its start, and none of the unknown ones.
    Half(usize),
    /// It has all tools but those that were found.
    WithoutFound,
    /// It has no tool that is in question.
    WithoutAll,
}

impl ToolRefusals {
    /// Returns whether refused tools are being searched.
    pub(super) fn searches(&self) -> bool {
        self.search.is_some()
    }
}

impl ToolSearch {
    fn new(model_index: usize, reason: String, suspects: Vec<String>) -> Self {
        let mut search = Self {
            model_index,
            reason,
            requests_left: REQUESTS_MAX,
            group: suspects,
            unknown: Vec::new(),
            found: Vec::new(),
            accepted_without: Vec::new(),
            step: SearchStep::WithoutFound,
        };
        search.plan();
        search
    }

    /// Chooses the next request.
    fn plan(&mut self) {
        if self.group.len() == 1 {
            self.found.append(&mut self.group);
        }
        let is_open = !(self.group.is_empty() && self.unknown.is_empty());
        self.step = match self.group.len() {
            _ if self.requests_left <= 1 && is_open => SearchStep::WithoutAll,
            0 => SearchStep::WithoutFound,
            tools => SearchStep::Half(tools / 2),
        };
    }

    /// Returns the tools that the next request leaves out.
    fn left_out(&self) -> Vec<String> {
        let (group, unknown): (&[String], &[String]) = match self.step {
            SearchStep::Half(included) => {
                (self.group.get(included..).unwrap_or_default(), &self.unknown)
            }
            SearchStep::WithoutFound => (&[], &[]),
            SearchStep::WithoutAll => (&self.group, &self.unknown),
        };
        self.found.iter().chain(group).chain(unknown).cloned().collect()
    }

    /// Handles that the request was refused. Returns false if the search cannot go on: the tools are not the reason,
    /// or no request is left.
    fn handle_refused(&mut self) -> bool {
        match self.step {
            SearchStep::Half(included) => {
                let rest = self.group.split_off(included.min(self.group.len()));
                self.unknown.extend(rest);
            }
            SearchStep::WithoutFound if self.unknown.is_empty() => {
                // No tool alone is refused, but all of them together.
                self.group = std::mem::take(&mut self.accepted_without);
                self.group.retain(|tool| !self.found.contains(tool));
                if !self.group.is_empty() {
                    self.requests_left = self.requests_left.min(2);
                }
            }
            SearchStep::WithoutFound => self.group = std::mem::take(&mut self.unknown),
            SearchStep::WithoutAll => return false,
        }
        self.requests_left = self.requests_left.saturating_sub(1);
        let may_go_on = self.requests_left > 0 && !self.group.is_empty();
        self.plan();
        may_go_on
    }

    /// Handles that the request was accepted. Returns true if the search is over: all refused tools are known, and the
    /// request left out no other.
    fn handle_accepted(&mut self) -> bool {
        let before = self.left_out();
        match self.step {
            SearchStep::Half(included) => {
                self.group.drain(..included.min(self.group.len()));
                self.accepted_without.clone_from(&before);
            }
            SearchStep::WithoutFound => return true,
            SearchStep::WithoutAll => {
                // Stores at least one tool as refused. Otherwise each turn would begin with the same search.
                if self.found.is_empty() {
                    self.found = std::mem::take(&mut self.group);
                }
                if self.found.is_empty() {
                    self.found = before;
                }
                return true;
            }
        }
        self.requests_left = self.requests_left.saturating_sub(1);
        self.plan();
        // The response is as good as another one to the same request.
        self.step == SearchStep::WithoutFound && self.left_out() == before
    }
}

impl Turn {
    /// Returns the tools that the next request to a model leaves out. Ends the search for refused tools of another one.
    pub(super) fn left_out_tools(&mut self, model_index: usize) -> Vec<String> {
        let search = &mut self.tool_refusals.search;
        search.take_if(|search| search.model_index != model_index);
        search.as_ref().map(ToolSearch::left_out).unwrap_or_default()
    }

    /// Makes another attempt without tools that the service refuses, if an error says so. The attempt that failed is
    /// void. Returns false if the error is not about tools, or nothing more can be left out.
    pub(super) fn retry_without_tools(&mut self, error: &ProviderError) -> bool {
        let model_index = self.attempt.plan.model_index;
        match error.tool_refusal.clone() {
            None => return false,
            Some(ToolRefusal::Named(tools)) => {
                self.tool_refusals.named += 1;
                if self.tool_refusals.named > NAMED_REFUSALS_MAX || tools.is_empty() {
                    return false;
                }
                self.tool_refusals.search = None;
                self.set_tools_aside(tools, &error.message);
            }
            Some(ToolRefusal::Suspected(suspects)) => match &mut self.tool_refusals.search {
                Some(search) => {
                    if !search.handle_refused() {
                        // The tools without suspect keywords may be the reason.
                        let requests_left = search.requests_left;
                        let is_new = |tool: &String| !search.found.contains(tool);
                        let may_go_on = requests_left > 1 && suspects.iter().all(is_new);
                        self.tool_refusals.search = None;
                        if !may_go_on || suspects.is_empty() {
                            return false;
                        }
                        let mut next =
                            ToolSearch::new(model_index, error.message.clone(), suspects);
                        next.requests_left = requests_left;
                        self.tool_refusals.search = Some(next);
                    }
                }
                None if suspects.is_empty() => return false,
                None => {
                    let search = ToolSearch::new(model_index, error.message.clone(), suspects);
                    self.tool_refusals.search = Some(search);
                }
            },
            Some(ToolRefusal::Accepted) => {
                let Some(search) = &mut self.tool_refusals.search else { return false };
                search.handle_accepted();
            }
        }
        let plan = self.retry.plan_changed_request();
        self.request_again(plan, error.message.clone());
        true
    }

    /// Handles that the service accepts the request of the current attempt. Returns true if the attempt is void,
    /// because it was sent to find refused tools.
    pub(super) fn handle_accepted_request(&mut self) -> bool {
        let Some(search) = &self.tool_refusals.search else { return false };
        if self.stage != TurnStage::AwaitingResponse {
            return false;
        }
        // A replay has only the record of the attempt, so that its error moves the search on.
        let mut next = search.clone();
        if next.handle_accepted() {
            self.tool_refusals.search = None;
            self.set_tools_aside(next.found, &next.reason);
            return false;
        }
        let message = "the service accepts the request without some tools; the search for those that it refuses goes on";
        let mut error = ProviderError::new(ProviderErrorKind::Status, message);
        error.tool_refusal = Some(ToolRefusal::Accepted);
        self.effects.perform(TurnAction::Disconnect);
        self.handle_broken(error);
        true
    }

    /// Sets tools aside for the current model.
    fn set_tools_aside(&mut self, tools: Vec<String>, reason: &str) {
        let model = self.model_name(&self.attempt.plan);
        let reason = excerpt(reason, REASON_CHARS);
        for tool in &tools {
            let (tool_name, model) = (tool.as_str().into(), model.clone());
            self.emit(Event::ToolSetAside { tool_name, model, reason: reason.clone() });
        }
        let model_index = self.attempt.plan.model_index;
        self.effects.perform(TurnAction::SetToolsAside { model_index, tools, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches in one turn after another against a service that refuses requests by the tools that they leave out.
    /// Returns the tools that are set aside when the first request of a turn is accepted.
    fn search(tools: usize, is_refused: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut set_aside: Vec<String> = Vec::new();
        for _ in 0..tools + 2 {
            if !is_refused(&set_aside) {
                return set_aside;
            }
            let all = (0..tools).map(|number| format!("t{number}"));
            let suspects = all.filter(|tool| !set_aside.contains(tool)).collect();
            let mut search = ToolSearch::new(0, String::new(), suspects);
            let requests = (1..).find(|_| {
                let left_out = [set_aside.clone(), search.left_out()].concat();
                match is_refused(&left_out) {
                    true => {
                        assert!(search.handle_refused(), "the turn fails: {search:?}");
                        false
                    }
                    false => search.handle_accepted(),
                }
            });
            assert!(requests.is_some_and(|requests| requests <= REQUESTS_MAX), "{requests:?}");
            assert!(!search.found.is_empty(), "{search:?}");
            set_aside.append(&mut search.found);
        }
        panic!("no request is accepted: {set_aside:?}")
    }

    #[test]
    fn one_refused_tool_is_found_by_halving() {
        for tools in [1, 2, 3, 7, 30, 64] {
            for refused in 0..tools {
                let bad = format!("t{refused}");
                assert_eq!(
                    search(tools, |left_out| !left_out.contains(&bad)),
                    std::slice::from_ref(&bad)
                );
            }
        }
    }

    #[test]
    fn several_refused_tools_are_all_found() {
        for tools in [2, 5, 40] {
            for one in 0..tools {
                for other in 0..one {
                    let bad = [format!("t{one}"), format!("t{other}")];
                    let is_refused =
                        |left_out: &[String]| bad.iter().any(|bad| !left_out.contains(bad));
                    let found = search(tools, is_refused);
                    assert!(bad.iter().all(|bad| found.contains(bad)), "{bad:?}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn tools_that_are_refused_only_together_are_left_out_until_the_request_is_accepted() {
        for (tools, accepted) in [(64, 58), (40, 12), (8, 7), (3, 1)] {
            let found = search(tools, |left_out| tools - left_out.len() > accepted);
            assert!(tools - found.len() <= accepted, "{found:?} of {tools}");
        }
    }

    #[test]
    fn a_service_that_refuses_the_request_without_the_tools_too_ends_the_search() {
        let suspects = ["a", "b", "c"].map(str::to_owned).into();
        let mut search = ToolSearch::new(0, String::new(), suspects);
        let requests = (1..).find(|_| !search.handle_refused());
        assert!(requests.is_some_and(|requests| requests <= REQUESTS_MAX), "{requests:?}");
    }
}
