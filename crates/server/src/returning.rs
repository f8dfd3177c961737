//! The way back: a placement that was taken out of service is tried again, each time after twice as long.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use sconce::Placement;
use serde_json::json;

use crate::app::App;
use crate::slot::Host;
use crate::worker::short;

/// The longest that a placement waits for its next try.
const LONGEST: Duration = Duration::from_hours(1);
/// How often it is looked whether one is due.
const GLANCE: Duration = Duration::from_millis(250);

/// How often each placement was tried, and when it is to be next.
#[derive(Default)]
struct Tries {
    of: HashMap<Placement, (u32, Instant)>,
}

impl Tries {
    /// Which of `quarantined` are due at `now`; those never seen before are after a first wait. A placement that
    /// returned and fell again waits on from where it was.
    fn due(&mut self, quarantined: Vec<Placement>, now: Instant, first: Duration) -> Vec<Placement> {
        let mut due = Vec::new();
        for placement in quarantined {
            let (tries, next) = self.of.entry(placement.clone()).or_insert((0, now + first));
            if *next <= now {
                *tries += 1;
                *next = now + wait(first, *tries);
                due.push(placement);
            }
        }
        due
    }
}

/// The wait after so many tries.
fn wait(first: Duration, tries: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(tries)).min(LONGEST)
}

/// Tries what is out of service until the server stops or the model is unloaded.
pub(crate) fn watch(app: &Arc<App>, host: &Weak<Host>) {
    let first = app.settings().return_after;
    let mut tries = Tries::default();
    while !app.is_stopping() {
        thread::sleep(GLANCE.min(first));
        let Some(host) = host.upgrade() else { return };
        for placement in tries.due(host.model.quarantined(), Instant::now(), first) {
            let outcome = if host.model.readmit(&placement).is_ok() {
                let told = [("model", json!(host.name)), ("placement", json!(short(&placement)))];
                app.seeing.tell("placement returned", &told);
                "returned"
            } else {
                "refused"
            };
            app.metrics.returns.with_label_values(&[&host.name, &short(&placement), outcome]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use sconce::{Device, Dtype, EngineId};

    use super::*;

    #[test]
    fn each_try_waits_twice_as_long_as_the_one_before() {
        let placement = Placement {
            engine: EngineId::Candle,
            device: Device::Metal(0),
            weights: "model.safetensors".to_owned(),
            dtype: Dtype::F32,
        };
        let (mut tries, start) = (Tries::default(), Instant::now());
        let first = Duration::from_secs(30);
        let seconds: Vec<u64> = (0..600)
            .filter(|&second| {
                let now = start + Duration::from_secs(second);
                !tries.due(vec![placement.clone()], now, first).is_empty()
            })
            .collect();
        assert_eq!(seconds, [30, 90, 210, 450]);
        assert_eq!(wait(first, 40), LONGEST);
    }
}
