//! Quarantine recovery: a quarantined placement is proved again with exponential backoff.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use sconce::Placement;
use tracing::info;

use crate::models::incidents;
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::LoadedModel;

/// Maximum backoff.
const MAX_BACKOFF: Duration = Duration::from_hours(1);
/// Interval at which due placements are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The backoff of each quarantined placement.
#[derive(Default)]
struct Backoffs {
    backoffs: HashMap<Placement, Backoff>,
}

/// The backoff of one placement.
struct Backoff {
    attempts: u32,
    next: Instant,
    /// When it left quarantine.
    recovered_at: Option<Instant>,
}

impl Backoffs {
    /// The placements of `quarantined` that are due at `now`. A new placement is due after `initial`. A placement that fails
    /// again after recovery keeps its backoff, unless it served for at least as long as its last delay.
    fn due(&mut self, quarantined: &[Placement], now: Instant, initial: Duration) -> Vec<Placement> {
        self.backoffs.retain(|placement, backoff| {
            let recovered_at =
                (!quarantined.contains(placement)).then(|| *backoff.recovered_at.get_or_insert(now));
            let last_delay = delay(initial, backoff.attempts);
            recovered_at.is_none_or(|at| now.saturating_duration_since(at) < last_delay)
        });
        let mut due = Vec::new();
        for placement in quarantined {
            let new = || Backoff { attempts: 0, next: now + initial, recovered_at: None };
            let backoff = self.backoffs.entry(placement.clone()).or_insert_with(new);
            if backoff.recovered_at.take().is_some() {
                backoff.next = now + delay(initial, backoff.attempts);
            }
            if backoff.next <= now {
                backoff.attempts += 1;
                backoff.next = now + delay(initial, backoff.attempts);
                due.push(placement.clone());
            }
        }
        due
    }
}

/// The delay after a number of attempts.
fn delay(initial: Duration, attempts: u32) -> Duration {
    initial.saturating_mul(2u32.saturating_pow(attempts)).min(MAX_BACKOFF)
}

/// Recovers quarantined placements of a model until the server stops or the model is unloaded. Does not keep the model
/// loaded.
pub(crate) fn run(app: &Arc<App>, loaded: &Weak<LoadedModel>) {
    let initial = app.settings().recovery_backoff;
    let mut backoffs = Backoffs::default();
    while !app.is_shutting_down() {
        thread::sleep(POLL_INTERVAL.min(initial));
        let Some(model) = loaded.upgrade().map(|loaded| {
            incidents::report_downgrades(app, &loaded.name, &loaded.model);
            loaded.model.clone()
        }) else {
            return;
        };
        let due = backoffs.due(&model.quarantined(), Instant::now(), initial);
        let due: Vec<_> = due
            .iter()
            .filter_map(|placement| {
                Some((placement.clone(), model.readmission(placement)?, model.prover_claim(placement)))
            })
            .collect();
        drop(model);
        for (placement, readmission, bytes) in due {
            let fits = app.settings().memory_limit.is_none_or(|limit| app.memory_used() + bytes <= limit);
            let proved = fits.then(|| readmission.prove());
            let Some(loaded) = loaded.upgrade() else { return };
            let label = short(&placement);
            let (telemetry, model) = (&app.edge.telemetry, &loaded.name);
            let outcome = match proved {
                None => "no_memory",
                Some(Ok(readmitted)) => {
                    loaded.model.admit(readmitted);
                    telemetry.log(|| info!(model, placement = label, "placement recovered"));
                    "recovered"
                }
                Some(Err(obstacle)) => {
                    telemetry.log(
                        || info!(model, placement = label, why = %obstacle, "placement stays quarantined"),
                    );
                    "failed"
                }
            };
            app.metrics.recoveries.with_label_values(&[&loaded.name, &label, outcome]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use sconce::{Device, Dtype, EngineId};

    use super::*;

    const INITIAL: Duration = Duration::from_secs(30);

    fn placement() -> Placement {
        Placement {
            engine: EngineId::Candle,
            device: Device::Metal(0),
            weights: "model.safetensors".to_owned(),
            dtype: Dtype::F32,
        }
    }

    /// The seconds within ten minutes at which a placement is attempted that is quarantined while `out`.
    fn attempted(out: impl Fn(u64) -> bool) -> Vec<u64> {
        let (mut backoffs, start) = (Backoffs::default(), Instant::now());
        let due = |&second: &u64| {
            let quarantined = if out(second) { vec![placement()] } else { Vec::new() };
            !backoffs.due(&quarantined, start + Duration::from_secs(second), INITIAL).is_empty()
        };
        (0..600).filter(due).collect()
    }

    #[test]
    fn a_placement_that_fails_soon_after_recovery_keeps_its_backoff() {
        // It recovers at its first attempt and fails ten seconds later.
        assert_eq!(attempted(|second| !(31..41).contains(&second)), [30, 101, 221, 461]);
    }

    #[test]
    fn a_placement_that_served_as_long_as_its_last_delay_starts_over() {
        // After its second attempt it serves for four minutes, which is longer than its last delay.
        assert_eq!(attempted(|second| !(91..331).contains(&second)), [30, 90, 361, 421, 541]);
    }

    #[test]
    fn the_backoff_doubles_with_each_attempt() {
        let (mut backoffs, start) = (Backoffs::default(), Instant::now());
        let seconds: Vec<u64> = (0..600)
            .filter(|&second| {
                let now = start + Duration::from_secs(second);
                !backoffs.due(&[placement()], now, INITIAL).is_empty()
            })
            .collect();
        assert_eq!(seconds, [30, 90, 210, 450]);
        assert_eq!(delay(INITIAL, 40), MAX_BACKOFF);
    }
}
