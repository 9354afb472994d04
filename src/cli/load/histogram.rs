//! Distributions of times.

use std::time::Duration;

use hdrhistogram::Histogram;

/// A histogram of durations in nanoseconds, with three significant digits.
#[derive(Clone, Debug)]
pub(super) struct DurationHistogram {
    nanos: Histogram<u64>,
}

impl DurationHistogram {
    #[expect(clippy::expect_used, reason = "three significant digits are valid")]
    pub(super) fn new() -> Self {
        Self { nanos: Histogram::new(3).expect("a histogram") }
    }

    pub(super) fn record(&mut self, duration: Duration) {
        // The histogram resizes up to about 146 years. A longer duration is dropped.
        let _ = self.nanos.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the longest duration, rounded to three significant digits; `None` if nothing was recorded.
    pub(super) fn max(&self) -> Option<Duration> {
        self.percentile(100)
    }

    /// Returns a percentile of the durations; `None` if nothing was recorded.
    pub(super) fn percentile(&self, percent: u32) -> Option<Duration> {
        let nanos = self.nanos.value_at_percentile(f64::from(percent));
        (!self.nanos.is_empty()).then(|| Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_recorded_durations() {
        let mut times = DurationHistogram::new();
        assert_eq!((times.percentile(50), times.max()), (None, None));
        for micros in (1..=1000).rev() {
            times.record(Duration::from_micros(micros));
        }
        for (percent, micros) in [(50, 500.0), (90, 900.0), (99, 990.0), (100, 1000.0)] {
            let found = times.percentile(percent).unwrap().as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.01, "p{percent} is {found}");
        }
    }
}
