//! The way back: a placement that was taken out of service is tried again, each time after twice as long.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use sconce::Placement;
use serde_json::json;

use crate::models::incidents;
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::Host;

/// The longest that a placement waits for its next try.
const LONGEST: Duration = Duration::from_hours(1);
/// How often it is looked whether one is due.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How often each placement was tried, and when it is to be next.
#[derive(Default)]
struct Tries {
    of: HashMap<Placement, Try>,
}

/// The tries of one placement.
struct Try {
    count: u32,
    next: Instant,
    /// Since when it serves again.
    back: Option<Instant>,
}

impl Tries {
    /// Which of `quarantined` are due at `now`; those never seen before are after a first wait. A placement that
    /// returned and fell again waits on from where it was, unless it had served for as long as it last waited.
    fn due(&mut self, quarantined: &[Placement], now: Instant, first: Duration) -> Vec<Placement> {
        self.of.retain(|placement, one| {
            let back = (!quarantined.contains(placement)).then(|| *one.back.get_or_insert(now));
            back.is_none_or(|back| now.saturating_duration_since(back) < wait(first, one.count))
        });
        let mut due = Vec::new();
        for placement in quarantined {
            let fresh = || Try { count: 0, next: now + first, back: None };
            let one = self.of.entry(placement.clone()).or_insert_with(fresh);
            if one.back.take().is_some() {
                one.next = now + wait(first, one.count);
            }
            if one.next <= now {
                one.count += 1;
                one.next = now + wait(first, one.count);
                due.push(placement.clone());
            }
        }
        due
    }
}

/// The wait after so many tries.
fn wait(first: Duration, tries: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(tries)).min(LONGEST)
}

/// Tries what is out of service until the server stops or the model is unloaded. The model is not held meanwhile.
pub(crate) fn watch(app: &Arc<App>, host: &Weak<Host>) {
    let first = app.settings().return_after;
    let mut tries = Tries::default();
    while !app.is_shutting_down() {
        thread::sleep(POLL_INTERVAL.min(first));
        let Some(model) = host.upgrade().map(|host| {
            incidents::report(app, &host.name, &host.model);
            host.model.clone()
        }) else {
            return;
        };
        let due = tries.due(&model.quarantined(), Instant::now(), first);
        let due: Vec<_> = due
            .iter()
            .filter_map(|placement| {
                Some((placement.clone(), model.readmission(placement)?, model.prover_claim(placement)))
            })
            .collect();
        drop(model);
        for (placement, readmission, bytes) in due {
            let fits = app.settings().memory_limit.is_none_or(|limit| app.used() + bytes <= limit);
            let proved = fits.then(|| readmission.prove());
            let Some(host) = host.upgrade() else { return };
            let place = short(&placement);
            let told = [("model", json!(host.name)), ("placement", json!(place))];
            let outcome = match proved {
                None => "no_room",
                Some(Ok(readmitted)) => {
                    host.model.admit(readmitted);
                    app.edge.telemetry.info("placement returned", &told);
                    "returned"
                }
                Some(Err(obstacle)) => {
                    let why = ("why", json!(obstacle.to_string()));
                    app.edge
                        .telemetry
                        .info("placement stays out of service", &[told[0].clone(), told[1].clone(), why]);
                    "refused"
                }
            };
            app.metrics.returns.with_label_values(&[&host.name, &place, outcome]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use sconce::{Device, Dtype, EngineId};

    use super::*;

    const FIRST: Duration = Duration::from_secs(30);

    fn placement() -> Placement {
        Placement {
            engine: EngineId::Candle,
            device: Device::Metal(0),
            weights: "model.safetensors".to_owned(),
            dtype: Dtype::F32,
        }
    }

    /// The seconds of ten minutes at which a placement is tried that is out of service where `out` says so.
    fn tried(out: impl Fn(u64) -> bool) -> Vec<u64> {
        let (mut tries, start) = (Tries::default(), Instant::now());
        let due = |&second: &u64| {
            let quarantined = if out(second) { vec![placement()] } else { Vec::new() };
            !tries.due(&quarantined, start + Duration::from_secs(second), FIRST).is_empty()
        };
        (0..600).filter(due).collect()
    }

    #[test]
    fn a_placement_that_falls_soon_after_its_return_waits_longer() {
        // It returns at its try and falls ten seconds later.
        assert_eq!(tried(|second| !(31..41).contains(&second)), [30, 101, 221, 461]);
    }

    #[test]
    fn a_placement_that_served_as_long_as_it_waited_begins_anew() {
        // After its second try it serves for four minutes, which is longer than its last wait.
        assert_eq!(tried(|second| !(91..331).contains(&second)), [30, 90, 361, 421, 541]);
    }

    #[test]
    fn each_try_waits_twice_as_long_as_the_one_before() {
        let (mut tries, start, first) = (Tries::default(), Instant::now(), FIRST);
        let seconds: Vec<u64> = (0..600)
            .filter(|&second| {
                let now = start + Duration::from_secs(second);
                !tries.due(&[placement()], now, first).is_empty()
            })
            .collect();
        assert_eq!(seconds, [30, 90, 210, 450]);
        assert_eq!(wait(first, 40), LONGEST);
    }
}
