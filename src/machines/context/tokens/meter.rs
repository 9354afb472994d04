//! The tokens of a session's next request, from the service's count of the last one.

use super::ModelTokens;

/// The ratio before the first count: the estimate is used unchanged.
pub(super) const INITIAL_RATIO_MILLI: u64 = 1000;

/// A request of this many estimated tokens, or the growth of a request by them, weighs as much in the ratio as
/// everything learnt before it. A count that is higher than expected changes the ratio quickly, because a request
/// above the window is refused: less quickly for a whole request (`WHOLE_WEIGHT`) than for growth, because its count
/// has tokens that the host does not see, such as the template of a chat.
const WHOLE_WEIGHT: u64 = 300;
const UPWARD_WEIGHT: u64 = 20;
const DOWNWARD_WEIGHT: u64 = 3_000;

/// Added to the ratio after the first count, because the texts of one session differ, in thousandths.
const MARGIN_MILLI: u64 = 100;

/// The limits of the ratio, in thousandths. An estimate is rarely wrong by so much, but a count may be: some services
/// leave the cached tokens out.
pub(super) const RATIO_MILLI_MIN: u64 = 400;
pub(super) const RATIO_MILLI_MAX: u64 = 5_000;

/// Counts the tokens of the requests of one session.
///
/// The service counts each request after it was sent. For the next request, the meter adds the estimate of
/// what is new, corrected by the ratio of the service's counts to the estimates so far.
///
/// It has integers only, so it can be part of a state that is compared and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenMeter {
    /// The last request that the service counted.
    last: Option<CountedRequest>,
    /// The service's tokens for each 1,000 estimated ones.
    ratio_milli: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CountedRequest {
    estimated: u64,
    /// The service's count, minus an estimate of what was removed since.
    tokens: u64,
    /// True if some of its messages are no part of the next request.
    is_reduced: bool,
}

impl Default for TokenMeter {
    fn default() -> Self {
        Self { last: None, ratio_milli: INITIAL_RATIO_MILLI }
    }
}

impl TokenMeter {
    /// Records the service's count of a request. `estimated_request` is the estimate of the same request:
    /// its tools, its system text and its messages. A count of 0 means that the service does not count.
    ///
    /// A count below 0.4 of the estimate is raised to 0.4 of it, because it is not of the whole request.
    pub fn handle_usage(&mut self, estimated_request: u64, input_tokens: u64) {
        if input_tokens == 0 {
            return;
        }
        let tokens = input_tokens.max(scale(estimated_request, RATIO_MILLI_MIN));
        let new = CountedRequest { estimated: estimated_request, tokens, is_reduced: false };
        let before = self.last.replace(new);
        // The growth since the last count says more about the next texts than the whole request, unless
        // messages were removed since: their tokens are only an estimate.
        let (estimated, tokens, upward_weight) = match before {
            Some(before) if !before.is_reduced && new.estimated >= before.estimated => (
                new.estimated - before.estimated,
                new.tokens.saturating_sub(before.tokens),
                UPWARD_WEIGHT,
            ),
            Some(_) | None => (new.estimated, new.tokens, WHOLE_WEIGHT),
        };
        let is_higher = tokens > scale(estimated, self.ratio_milli);
        let weight = if is_higher { upward_weight } else { DOWNWARD_WEIGHT };
        let sum =
            self.ratio_milli.saturating_mul(weight).saturating_add(tokens.saturating_mul(1000));
        let ratio = sum / weight.saturating_add(estimated);
        self.ratio_milli = ratio.clamp(RATIO_MILLI_MIN, RATIO_MILLI_MAX);
    }

    /// Handles the removal of messages with this estimate from the next request. The ratio of their tokens to their
    /// estimate is assumed to be that of the whole request.
    pub fn handle_removal(&mut self, estimated: u64) {
        if let Some(last) = &mut self.last {
            let left = last.estimated.saturating_sub(estimated);
            last.tokens = last.tokens.saturating_mul(left) / last.estimated.max(1);
            last.estimated = left;
            last.is_reduced |= estimated > 0;
        }
    }

    /// Returns the meter with the ratio of the model, as long as no request was counted.
    #[must_use]
    pub fn with_ratio_of(self, model: &ModelTokens) -> Self {
        match self.last {
            Some(_) => self,
            None => Self { ratio_milli: model.ratio_milli(), ..self },
        }
    }

    /// Returns about the number of tokens of a request, from its estimate.
    #[must_use]
    pub fn tokens(&self, estimated_request: u64) -> u64 {
        match self.last {
            Some(last) if estimated_request >= last.estimated => {
                let growth = estimated_request - last.estimated;
                last.tokens.saturating_add(self.part(growth))
            }
            Some(_) | None => self.part(estimated_request),
        }
    }

    /// Returns about the number of tokens of a part of a request, from its estimate.
    #[must_use]
    pub fn part(&self, estimated: u64) -> u64 {
        let margin = if self.last.is_some() { MARGIN_MILLI } else { 0 };
        scale(estimated, self.ratio_milli + margin)
    }

    /// Returns about the estimate of a part that has this number of tokens.
    #[must_use]
    pub fn estimate_of(&self, tokens: u64) -> u64 {
        let margin = if self.last.is_some() { MARGIN_MILLI } else { 0 };
        tokens.saturating_mul(1000) / (self.ratio_milli + margin).max(1)
    }

    /// Returns the service's count of the last request, minus an estimate of what was removed since.
    #[must_use]
    pub fn counted(&self) -> Option<u64> {
        self.last.map(|last| last.tokens)
    }
}

/// Returns `tokens * ratio_milli / 1000`, rounded up.
fn scale(tokens: u64, ratio_milli: u64) -> u64 {
    tokens.saturating_mul(ratio_milli).div_ceil(1000)
}
