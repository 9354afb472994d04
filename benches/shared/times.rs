//! Medians and quantiles of what was measured.

use std::time::Duration;

/// The part of the times that is not longer than this.
pub(crate) fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * part).round() as usize]
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    quantile(&mut times, 0.5)
}
