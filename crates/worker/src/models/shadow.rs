//! Shadow checks: one batch in N is computed again on the reference, on a separate thread and off the request path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use sconce::core::batch::Batch;
use sconce::{BatchOutput, Model, Verdict};
use tracing::warn;

use crate::state::app::App;
use crate::state::label::short;

/// Samples batches and sends them to the thread that checks them.
pub(crate) struct ShadowChecks {
    app: Arc<App>,
    name: String,
    model: Model,
    count: AtomicU64,
    thread: Mutex<Option<(SyncSender<ComputedBatch>, JoinHandle<()>)>>,
}

/// A batch and its result.
type ComputedBatch = (Batch, BatchOutput);

impl ShadowChecks {
    pub(crate) fn new(app: Arc<App>, name: String, model: Model) -> ShadowChecks {
        ShadowChecks { app, name, model, count: AtomicU64::new(0), thread: Mutex::new(None) }
    }

    /// Counts a batch and returns whether it is sampled.
    pub(crate) fn is_due(&self) -> bool {
        let every = self.app.settings().shadow_every;
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        every > 0 && count.is_multiple_of(every)
    }

    /// Sends a batch to be checked. Drops it if a check is in progress.
    pub(crate) fn send(&self, batch: Batch, computed: BatchOutput) {
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let (sender, checks) = sync_channel(1);
            let (app, name, model) = (Arc::clone(&self.app), self.name.clone(), self.model.clone());
            let thread = thread::Builder::new().name("sconce-shadow".to_owned());
            let started = thread.spawn(move || check(&app, &name, &model, &checks));
            *running = started.ok().map(|thread| (sender, thread));
        }
        if let Some((sender, _)) = &*running {
            let _ = sender.try_send((batch, computed));
        }
    }
}

impl Drop for ShadowChecks {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn check(app: &App, name: &str, model: &Model, checks: &Receiver<ComputedBatch>) {
    let metrics = &app.metrics;
    while let Ok((batch, computed)) = checks.recv() {
        let placement = short(&computed.placement);
        if !reference_fits(app, model) {
            metrics.shadow_checks.with_label_values(&[name, &placement, "no_memory"]).inc();
            continue;
        }
        let outcome = match model.shadow(&batch, &computed) {
            Ok(None) => continue,
            Ok(Some(shadow)) => {
                for cosine in shadow.cosines {
                    metrics.shadow_cosine.with_label_values(&[name, &placement]).observe(cosine);
                }
                match shadow.verdict {
                    Verdict::Agrees => "agrees",
                    Verdict::Drifts => "drifts",
                    Verdict::Demoted(why) => {
                        let log = || warn!(model = name, placement, why, "placement demoted");
                        app.edge.telemetry.log(log);
                        metrics.trips.with_label_values(&[name, &placement, "drift"]).inc();
                        "demoted"
                    }
                }
            }
            Err(error) => {
                app.edge.telemetry.log(|| warn!(model = name, why = %error, "shadow check failed"));
                "failed"
            }
        };
        metrics.shadow_checks.with_label_values(&[name, &placement, outcome]).inc();
    }
}

/// Whether the reference is loaded or fits into the memory limit.
fn reference_fits(app: &App, model: &Model) -> bool {
    match (app.settings().memory_limit, model.reference_to_load()) {
        (Some(limit), Some(claim)) => app.memory_used() + claim.bytes <= limit,
        (None, _) | (_, None) => true,
    }
}
