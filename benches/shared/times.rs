//! Medians and quantiles of measurements.

use std::time::Duration;

/// Returns the quantile of the times, such as 0.99.
pub(crate) fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * part).round() as usize]
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    quantile(&mut times, 0.5)
}
