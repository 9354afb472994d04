//! `POST /v1/ui/vitals`: the measurements that a page of the console reports.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::error::ApiError;
use super::extract::JsonBody;
use super::state::AppState;

/// Maximum of `frames` and of the number of `paint_ms`. The page caps both at this.
const VALUES_MAX: usize = 200;

/// Maximum of a time, in milliseconds. The page caps longer times, such as those of a machine that was
/// asleep.
const TIME_MS_MAX: f64 = 600_000.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VitalsRequest {
    /// The number of long animation frames since the last report.
    frames: u64,
    /// The time for which they blocked the page. Checked but not recorded.
    blocking_ms: f64,
    /// The times from events to their painting, without the shortest delay from the host to the page that was seen.
    paint_ms: Vec<f64>,
}

pub(super) async fn report(
    State(state): State<AppState>,
    JsonBody(vitals): JsonBody<VitalsRequest>,
) -> Result<StatusCode, ApiError> {
    let event_to_paint = vitals.event_to_paint()?;
    state.host.telemetry().metrics().console_measured(vitals.frames, &event_to_paint);
    Ok(StatusCode::NO_CONTENT)
}

impl VitalsRequest {
    /// Checks the values. Returns the times from events to their painting.
    fn event_to_paint(&self) -> Result<Vec<Duration>, ApiError> {
        let invalid = |message: String| ApiError::bad_request("invalid_request", message);
        let max = VALUES_MAX;
        if self.frames > max as u64 {
            return Err(invalid(format!("frames: must be a number from 0 to {max}")));
        }
        if self.paint_ms.len() > max {
            return Err(invalid(format!("paint_ms: must have at most {max} values")));
        }
        let is_time = |time: &f64| (0.0..=TIME_MS_MAX).contains(time);
        for (name, time) in std::iter::once(("blocking_ms", &self.blocking_ms))
            .chain(self.paint_ms.iter().map(|time| ("paint_ms", time)))
        {
            if !is_time(time) {
                let message = format!("{name}: must be from 0 to {TIME_MS_MAX} ms, not {time}");
                return Err(invalid(message));
            }
        }
        let times = self.paint_ms.iter().map(|time| Duration::from_secs_f64(time / 1000.0));
        Ok(times.collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_plausible_values_are_accepted() {
        let parse = |body| serde_json::from_value::<VitalsRequest>(body);
        let good = json!({"frames": 200, "blocking_ms": 12.5, "paint_ms": vec![16.7; 200]});
        let times = parse(good).expect("parse").event_to_paint().expect("valid");
        assert_eq!((times.len(), times[0]), (200, Duration::from_micros(16_700)));
        for bad in [
            json!({"frames": 201, "blocking_ms": 0, "paint_ms": []}),
            json!({"frames": 0, "blocking_ms": -1, "paint_ms": []}),
            json!({"frames": 0, "blocking_ms": 0, "paint_ms": vec![1; 201]}),
            json!({"frames": 0, "blocking_ms": 0, "paint_ms": [1, -0.1]}),
            json!({"frames": 0, "blocking_ms": 0, "paint_ms": [600_001]}),
        ] {
            let error = parse(bad.clone()).expect("parse").event_to_paint().expect_err("refuse");
            assert_eq!(error.status_and_code(), (400, "invalid_request"), "{bad}");
        }
        for bad in [
            json!({"frames": -1, "blocking_ms": 0, "paint_ms": []}),
            json!({"frames": 1.5, "blocking_ms": 0, "paint_ms": []}),
            json!({"frames": 0, "blocking_ms": 0, "paint_ms": [null]}),
            json!({"frames": 0, "blocking_ms": 0}),
            json!({"frames": 0, "blocking_ms": 0, "paint_ms": [], "url": "x"}),
        ] {
            assert!(parse(bad.clone()).is_err(), "{bad}");
        }
    }
}
