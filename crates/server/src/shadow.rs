//! One batch in so many goes to the reference as well, on a thread of its own: nobody waits for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use sconce::core::batch::Batch;
use sconce::{Computed, Model, Verdict};

use crate::app::App;
use crate::metrics::Metrics;
use crate::worker::short;

/// Counts batches, and sends those whose turn it is to the thread that checks them.
pub(crate) struct Checks {
    app: Arc<App>,
    name: String,
    model: Model,
    count: u64,
    thread: Option<(SyncSender<Answered>, JoinHandle<()>)>,
}

/// A batch, and what came of it.
type Answered = (Batch, Computed);

impl Checks {
    pub(crate) fn new(app: Arc<App>, name: String, model: Model) -> Checks {
        Checks { app, name, model, count: 0, thread: None }
    }

    /// Whether this batch is one that is checked.
    pub(crate) fn take(&mut self) -> bool {
        let every = self.app.settings().shadow_every;
        self.count += 1;
        every > 0 && self.count.is_multiple_of(every)
    }

    /// Has a batch checked; one that comes while another is under way is not.
    pub(crate) fn send(&mut self, batch: Batch, computed: Computed) {
        if self.thread.is_none() {
            let (sender, checks) = sync_channel(1);
            let (app, name, model) = (Arc::clone(&self.app), self.name.clone(), self.model.clone());
            let thread = thread::Builder::new().name("sconce-shadow".to_owned());
            let started = thread.spawn(move || check(&app.metrics, &name, &model, &checks));
            self.thread = started.ok().map(|thread| (sender, thread));
        }
        if let Some((sender, _)) = &self.thread {
            let _ = sender.try_send((batch, computed));
        }
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn check(metrics: &Metrics, name: &str, model: &Model, checks: &Receiver<Answered>) {
    while let Ok((batch, computed)) = checks.recv() {
        let place = short(&computed.placement);
        let outcome = match model.shadow(batch, &computed) {
            Ok(None) => continue,
            Ok(Some(shadow)) => {
                for cosine in shadow.cosines {
                    metrics.shadow_cosine.with_label_values(&[name, &place]).observe(cosine);
                }
                match shadow.verdict {
                    Verdict::Agrees => "agrees",
                    Verdict::Drifts => "drifts",
                    Verdict::Demoted(_) => {
                        metrics.trips.with_label_values(&[name, &place, "drift"]).inc();
                        "demoted"
                    }
                }
            }
            Err(_) => "failed",
        };
        metrics.shadow_checks.with_label_values(&[name, &place, outcome]).inc();
    }
}
