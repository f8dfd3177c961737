//! One batch in so many goes to the reference as well, on a thread of its own: nobody waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use sconce::core::batch::Batch;
use sconce::{BatchOutput, Model, Verdict};
use serde_json::json;

use crate::state::app::App;
use crate::state::label::short;

/// Counts batches, and sends those whose turn it is to the thread that checks them.
pub(crate) struct Checks {
    app: Arc<App>,
    name: String,
    model: Model,
    count: AtomicU64,
    thread: Mutex<Option<(SyncSender<Answered>, JoinHandle<()>)>>,
}

/// A batch, and what came of it.
type Answered = (Batch, BatchOutput);

impl Checks {
    pub(crate) fn new(app: Arc<App>, name: String, model: Model) -> Checks {
        Checks { app, name, model, count: AtomicU64::new(0), thread: Mutex::new(None) }
    }

    /// Whether this batch is one that is checked.
    pub(crate) fn take(&self) -> bool {
        let every = self.app.settings().shadow_every;
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        every > 0 && count.is_multiple_of(every)
    }

    /// Has a batch checked; one that comes while another is under way is not.
    pub(crate) fn send(&self, batch: Batch, computed: BatchOutput) {
        let mut at_work = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if at_work.is_none() {
            let (sender, checks) = sync_channel(1);
            let (app, name, model) = (Arc::clone(&self.app), self.name.clone(), self.model.clone());
            let thread = thread::Builder::new().name("sconce-shadow".to_owned());
            let started = thread.spawn(move || check(&app, &name, &model, &checks));
            *at_work = started.ok().map(|thread| (sender, thread));
        }
        if let Some((sender, _)) = &*at_work {
            let _ = sender.try_send((batch, computed));
        }
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn check(app: &App, name: &str, model: &Model, checks: &Receiver<Answered>) {
    let metrics = &app.metrics;
    while let Ok((batch, computed)) = checks.recv() {
        let place = short(&computed.placement);
        if !has_room(app, model) {
            metrics.shadow_checks.with_label_values(&[name, &place, "no_room"]).inc();
            continue;
        }
        let outcome = match model.shadow(&batch, &computed) {
            Ok(None) => continue,
            Ok(Some(shadow)) => {
                for cosine in shadow.cosines {
                    metrics.shadow_cosine.with_label_values(&[name, &place]).observe(cosine);
                }
                match shadow.verdict {
                    Verdict::Agrees => "agrees",
                    Verdict::Drifts => "drifts",
                    Verdict::Demoted(why) => {
                        let told = [("model", json!(name)), ("placement", json!(place)), ("why", json!(why))];
                        app.edge.telemetry.warn("placement demoted", &told);
                        metrics.trips.with_label_values(&[name, &place, "drift"]).inc();
                        "demoted"
                    }
                }
            }
            Err(error) => {
                let told = [("model", json!(name)), ("why", json!(error.to_string()))];
                app.edge.telemetry.warn("shadow check failed", &told);
                "failed"
            }
        };
        metrics.shadow_checks.with_label_values(&[name, &place, outcome]).inc();
    }
}

/// Whether the reference is loaded, or fits into what the process may have.
fn has_room(app: &App, model: &Model) -> bool {
    match (app.settings().memory_limit, model.reference_to_load()) {
        (Some(limit), Some(claim)) => app.used() + claim.bytes <= limit,
        (None, _) | (_, None) => true,
    }
}
