//! The window and the token ratio of a model, learnt from the responses of its service.

use serde::{Deserialize, Serialize};

use super::meter::{INITIAL_RATIO_MILLI, RATIO_MILLI_MAX, RATIO_MILLI_MIN};
use callsheet_values::types::ContextOverflow;

/// A request of this many estimated tokens weighs as much in the ratio as everything learnt before it.
const RATIO_WEIGHT: u64 = 20_000;

/// The window and the token ratio of one model, learnt from the requests of all sessions.
///
/// The window is unknown until a refusal. It is the number that a refusal names. Until one names it, it is a guess:
/// nine tenths of the largest accepted request, or of the refused one if that is less; none before a request was
/// accepted. A larger accepted request raises it. A response that shows that its request was too large counts as a
/// refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelTokens {
    /// The window in tokens, if a refusal has shown it.
    window: Option<u64>,
    /// True if a refusal has named the window. A guess does not replace it then.
    is_window_named: bool,
    /// The tokens of the largest request that was accepted, at most the window.
    accepted: u64,
    /// The service's tokens for each 1,000 estimated ones.
    ratio_milli: u64,
    /// True if a refusal has shown that the service counts the requested length of the answer too.
    counts_output: bool,
}

impl Default for ModelTokens {
    fn default() -> Self {
        Self {
            window: None,
            is_window_named: false,
            accepted: 0,
            ratio_milli: INITIAL_RATIO_MILLI,
            counts_output: false,
        }
    }
}

impl ModelTokens {
    /// Returns the window in tokens, if a refusal has shown it.
    #[must_use]
    pub fn window(&self) -> Option<u64> {
        self.window
    }

    /// Returns whether a refusal has named the window. Otherwise it is a guess, and may be too small.
    #[must_use]
    pub fn is_window_named(&self) -> bool {
        self.is_window_named
    }

    /// Returns whether the service refuses a request whose input and requested length of the answer are together above
    /// the window.
    #[must_use]
    pub fn counts_output(&self) -> bool {
        self.counts_output
    }

    /// Returns the service's tokens for each 1,000 estimated ones.
    #[must_use]
    pub fn ratio_milli(&self) -> u64 {
        self.ratio_milli.clamp(RATIO_MILLI_MIN, RATIO_MILLI_MAX)
    }

    /// Learns from the service's count of a request that it has accepted, and the estimate of the same
    /// request. A count of 0 means that the service does not count.
    pub fn handle_usage(&mut self, estimated_request: u64, input_tokens: u64) {
        if input_tokens == 0 {
            return;
        }
        self.accepted = self.accepted.max(input_tokens);
        self.window = self.window.map(|window| window.max(input_tokens));
        let sum = self
            .ratio_milli()
            .saturating_mul(RATIO_WEIGHT)
            .saturating_add(input_tokens.saturating_mul(1000));
        let ratio = sum / RATIO_WEIGHT.saturating_add(estimated_request);
        self.ratio_milli = ratio.clamp(RATIO_MILLI_MIN, RATIO_MILLI_MAX);
    }

    /// Learns the window from a refusal. `request_tokens` are those of the request by estimate, and
    /// `accepted` the service's count of the session's request before, if there is one.
    pub fn handle_overflow(
        &mut self,
        overflow: ContextOverflow,
        request_tokens: u64,
        accepted: Option<u64>,
    ) {
        // A refusal of the request's bytes says nothing about the window.
        if overflow.of_body {
            return;
        }
        self.handle_answer_refusal(overflow);
        let nine_tenths = |tokens: u64| tokens / 10 * 9;
        // The window of a service may have become smaller since the largest request.
        let below = nine_tenths(overflow.request_tokens.unwrap_or(request_tokens));
        let accepted = self.accepted.max(accepted.unwrap_or_default());
        let guess = nine_tenths(accepted).min(below);
        self.is_window_named |= overflow.window.is_some();
        let guess = Some(guess).filter(|guess| *guess > 0 && !self.is_window_named);
        self.window = overflow.window.or(guess).or(self.window);
        self.accepted = accepted.min(self.window.unwrap_or(accepted));
    }

    /// Learns from a refusal of a request whose input fits into the window, and whose answer was to be too long.
    pub fn handle_answer_refusal(&mut self, overflow: ContextOverflow) {
        if overflow.output_room.is_some() {
            self.counts_output = true;
            self.window = overflow.window.or(self.window);
            self.is_window_named |= overflow.window.is_some();
        }
    }

    /// Returns whether the numbers differ so much from the stored ones that they are stored again.
    #[must_use]
    pub fn differs_from(&self, stored: &Self) -> bool {
        let (ratio, old) = (self.ratio_milli(), stored.ratio_milli());
        (self.window, self.is_window_named, self.counts_output)
            != (stored.window, stored.is_window_named, stored.counts_output)
            || ratio.abs_diff(old) > old / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(window: Option<u64>) -> ContextOverflow {
        ContextOverflow::of_window(window, None)
    }

    #[test]
    fn the_services_number_wins_and_else_nine_tenths_of_the_largest_accepted_request() {
        let mut model = ModelTokens::default();
        model.handle_overflow(refusal(None), 9_000, None);
        assert_eq!(model.window(), None, "nothing was accepted");
        model.handle_usage(5_000, 5_000);
        model.handle_overflow(refusal(None), 9_000, Some(2_000));
        assert_eq!(model.window(), Some(4_500));
        model.handle_overflow(refusal(Some(8_192)), 9_000, Some(5_000));
        assert_eq!(model.window(), Some(8_192));
        model.handle_overflow(ContextOverflow::of_body(), 3_000, Some(3_000));
        assert_eq!(model.window(), Some(8_192), "the bytes of a request are not its tokens");
    }

    #[test]
    fn a_named_window_is_replaced_by_another_named_one_and_not_by_a_guess() {
        let mut model = ModelTokens::default();
        model.handle_usage(5_000, 5_000);
        model.handle_overflow(refusal(Some(8_192)), 9_000, Some(5_000));
        let named = model;
        // A refusal without a number follows, or a response shows that its request was too large.
        model.handle_overflow(refusal(None), 6_000, Some(5_000));
        model.handle_overflow(ContextOverflow::of_window(None, Some(7_000)), 7_000, None);
        assert_eq!(model, named);
        // It is named over a restart of the host.
        let stored = serde_json::to_string(&model).unwrap();
        let mut model: ModelTokens = serde_json::from_str(&stored).unwrap();
        model.handle_overflow(refusal(None), 6_000, Some(5_000));
        assert_eq!(model.window(), Some(8_192));
        model.handle_overflow(refusal(Some(4_096)), 6_000, Some(5_000));
        assert_eq!(model.window(), Some(4_096));
        model.handle_usage(6_000, 6_000);
        assert_eq!(model.window(), Some(6_000), "a larger request was accepted");
        // The service names the number that was guessed.
        let mut model = ModelTokens::default();
        model.handle_usage(5_000, 5_000);
        model.handle_overflow(refusal(None), 9_000, None);
        let guessed = model;
        model.handle_overflow(refusal(Some(4_500)), 9_000, None);
        assert_eq!((model.window(), model.differs_from(&guessed)), (guessed.window(), true));
    }

    #[test]
    fn a_larger_accepted_request_raises_the_window_and_a_smaller_refused_one_lowers_it() {
        let mut model = ModelTokens::default();
        model.handle_usage(1_000, 1_000);
        model.handle_overflow(refusal(None), 50_000, None);
        assert_eq!(model.window(), Some(900));
        model.handle_usage(30_000, 30_000);
        assert_eq!(model.window(), Some(30_000));
        // The service was restarted with a smaller window.
        model.handle_overflow(refusal(None), 10_000, Some(8_000));
        assert_eq!(model.window(), Some(9_000));
        model.handle_overflow(refusal(None), 8_000, Some(6_000));
        assert_eq!(model.window(), Some(7_200));
    }

    #[test]
    fn the_ratio_follows_the_counts_and_small_changes_are_not_stored() {
        let stored = ModelTokens::default();
        let mut model = stored;
        model.handle_usage(0, 0);
        assert_eq!(model, stored, "a service that does not count");
        model.handle_usage(1_000, 1_100);
        assert!(!model.differs_from(&stored), "{model:?}");
        for _ in 0..30 {
            model.handle_usage(10_000, 15_000);
        }
        assert!((1_490..=1_500).contains(&model.ratio_milli()), "{model:?}");
        assert!(model.differs_from(&stored));
        model.handle_usage(u64::MAX, 1);
        assert_eq!(model.ratio_milli(), RATIO_MILLI_MIN);
        // A stored number out of range is clamped.
        let wrong: ModelTokens = serde_json::from_str("{\"ratio_milli\": 0}").unwrap();
        assert_eq!(wrong.ratio_milli(), RATIO_MILLI_MIN);
    }
}
