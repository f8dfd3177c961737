//! Second opinions: a suspect text, on which an otherwise healthy placement failed, is decided by a second placement on
//! a separate thread, so that other batches are not delayed.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use sconce::UnresolvedSequence;

use crate::errors::refusal;
use crate::models::incidents::{count_fallbacks, report_incidents};
use crate::schedule::job::BatchTiming;
use crate::schedule::list::Entry;
use crate::state::app::App;
use crate::state::slot::LoadedModel;
use sconce_http::refusal::{Kind, Refusal};

/// Maximum number of texts that wait for a second opinion.
const MAX_PENDING: usize = 256;

/// A suspect text.
pub(crate) struct Pending {
    pub(crate) entry: Entry,
    pub(crate) suspect: UnresolvedSequence,
    /// The batch on which the first placement failed.
    pub(crate) batch: BatchTiming,
}

/// The handle of the thread that settles suspects, which starts with the first one. It does not keep the model loaded.
pub(crate) struct SecondOpinions {
    app: Arc<App>,
    loaded: Weak<LoadedModel>,
    thread: Mutex<Option<SyncSender<Pending>>>,
}

impl SecondOpinions {
    pub(crate) fn new(app: Arc<App>, loaded: Weak<LoadedModel>) -> SecondOpinions {
        SecondOpinions { app, loaded, thread: Mutex::new(None) }
    }

    /// Queues a suspect, or refuses it if too many are pending.
    pub(crate) fn send(&self, pending: Pending) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (sender, pending) = sync_channel(MAX_PENDING);
            let (app, loaded) = (Arc::clone(&self.app), Weak::clone(&self.loaded));
            let builder = thread::Builder::new().name("sconce-second-opinion".to_owned());
            *thread = builder.spawn(move || settle_all(&app, &loaded, &pending)).ok().map(|_| sender);
        }
        let job = Arc::clone(&pending.entry.job);
        if thread.as_ref().is_none_or(|sender| sender.try_send(pending).is_err()) {
            job.fail(Refusal::new(Kind::Overloaded, "too many texts are waiting for a second opinion"));
        }
    }
}

fn settle_all(app: &App, loaded: &Weak<LoadedModel>, receiver: &Receiver<Pending>) {
    while let Ok(pending) = receiver.recv() {
        if pending.entry.job.is_cancelled() {
            continue;
        }
        if let Err(refusal) = settle(app, loaded, &pending) {
            pending.entry.job.fail(refusal);
        }
    }
}

fn settle(app: &App, loaded: &Weak<LoadedModel>, pending: &Pending) -> Result<(), Refusal> {
    let Pending { entry, suspect, batch } = pending;
    let loaded = || loaded.upgrade().ok_or_else(|| Refusal::new(Kind::NotReady, "the model was unloaded"));
    loop {
        let Some(second) = loaded()?.model.second_to_load(suspect) else { break };
        // No model is evicted for one unusual text.
        let claim = second.claim().map_or(0, |claim| claim.bytes);
        if app.settings().memory_limit.is_some_and(|limit| app.memory_used() + claim > limit) {
            let message =
                "the result of a text is unusual, and the memory limit does not allow a second opinion";
            return Err(Refusal::new(Kind::Unusual, message));
        }
        let second = second.load();
        loaded()?.model.admit_second(second);
    }
    let loaded = loaded()?;
    let settled = loaded.model.resolve(suspect);
    report_incidents(&loaded, app);
    let computed = settled.map_err(refusal)?;
    count_fallbacks(&loaded.name, app, &computed);
    let norm = computed.rows.norms.first().copied();
    entry.job.add_rows(&computed, std::iter::once((entry.index, &computed.rows.values[..], norm)), *batch);
    Ok(())
}
