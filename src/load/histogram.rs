//! Times in buckets of a fixed number, each less than one percent wide.

use std::time::Duration;

/// Two to this are the buckets in each doubling.
const STEPS_BITS: u32 = 7;

/// Everything from 0 to `u64::MAX` nanoseconds.
const BUCKETS: usize = ((64 - STEPS_BITS as usize) + 1) << STEPS_BITS;

/// How often which time was seen.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, max: Duration::ZERO }
    }

    pub(super) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get_mut(bucket(nanos)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(time);
    }

    /// The longest.
    pub(super) fn max(&self) -> Option<Duration> {
        (self.count > 0).then_some(self.max)
    }

    /// The time that so many hundredths of all do not exceed; none if nothing was recorded.
    pub(super) fn percentile(&self, percent: u64) -> Option<Duration> {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Duration::from_nanos(middle(found)).min(self.max))
    }
}

/// At first a bucket holds one number; above, each doubling has as many of them.
fn bucket(nanos: u64) -> usize {
    let doublings = (u64::BITS - nanos.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    let place = (u64::from(doublings) << STEPS_BITS) + (nanos >> doublings);
    usize::try_from(place).unwrap_or(usize::MAX)
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let doublings = (bucket >> STEPS_BITS).saturating_sub(1);
    let first = (bucket - (doublings << STEPS_BITS)) << doublings;
    first + ((1 << doublings) >> 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_of_what_was_recorded() {
        let mut times = Histogram::new();
        assert_eq!((times.percentile(50), times.max()), (None, None));
        for micros in (1..=1000).rev() {
            times.record(Duration::from_micros(micros));
        }
        let near = |percent, micros: f64| {
            let found = times.percentile(percent).unwrap().as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.01, "p{percent} is {found}");
        };
        near(50, 500.0);
        near(90, 900.0);
        near(99, 990.0);
        assert_eq!(times.max(), Some(Duration::from_micros(1000)));
        assert_eq!(times.percentile(100), times.max());
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_middle_and_is_narrow(nanos: u64) {
            let at = bucket(nanos);
            prop_assert!(at < BUCKETS);
            let middle = middle(at);
            prop_assert_eq!(bucket(middle), at);
            prop_assert!(middle.abs_diff(nanos) as f64 <= nanos as f64 / 100.0);
        }

        #[test]
        fn a_longer_time_is_in_no_earlier_bucket(a: u64, b: u64) {
            prop_assert!(bucket(a.min(b)) <= bucket(a.max(b)));
        }
    }
}
