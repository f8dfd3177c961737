//! Texts on which a placement failed that works otherwise: a second placement decides, on a thread of its own, so that
//! batches of other texts go on meanwhile.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use sconce::UnresolvedSequence;

use crate::errors::refusal;
use crate::models::incidents::{note, note_incidents};
use crate::schedule::job::BatchTiming;
use crate::schedule::list::Entry;
use crate::state::app::App;
use crate::state::slot::Host;
use sconce_http::refusal::{Kind, Refusal};

/// Texts that may wait for a second opinion. More are refused.
const WAITING: usize = 256;

/// A text that waits for a second opinion.
pub(crate) struct Pending {
    pub(crate) entry: Entry,
    pub(crate) suspect: UnresolvedSequence,
    /// The batch that it was first computed in.
    pub(crate) batch: BatchTiming,
}

/// The way to the thread that settles suspects, which is started for the first one. It does not keep the model loaded.
pub(crate) struct SecondOpinions {
    app: Arc<App>,
    host: Weak<Host>,
    thread: Mutex<Option<SyncSender<Pending>>>,
}

impl SecondOpinions {
    pub(crate) fn new(app: Arc<App>, host: Weak<Host>) -> SecondOpinions {
        SecondOpinions { app, host, thread: Mutex::new(None) }
    }

    /// Has a suspect settled, or refuses it where too many wait.
    pub(crate) fn send(&self, pending: Pending) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (sender, waiting) = sync_channel(WAITING);
            let (app, host) = (Arc::clone(&self.app), Weak::clone(&self.host));
            let named = thread::Builder::new().name("sconce-second-opinion".to_owned());
            *thread = named.spawn(move || settle_all(&app, &host, &waiting)).ok().map(|_| sender);
        }
        let job = Arc::clone(&pending.entry.job);
        if thread.as_ref().is_none_or(|sender| sender.try_send(pending).is_err()) {
            job.fail(Refusal::new(Kind::Overloaded, "too many texts wait for a second opinion"));
        }
    }
}

fn settle_all(app: &App, host: &Weak<Host>, waiting: &Receiver<Pending>) {
    while let Ok(pending) = waiting.recv() {
        if pending.entry.job.is_gone() {
            continue;
        }
        if let Err(refusal) = settle(app, host, &pending) {
            pending.entry.job.fail(refusal);
        }
    }
}

fn settle(app: &App, host: &Weak<Host>, pending: &Pending) -> Result<(), Refusal> {
    let Pending { entry, suspect, batch } = pending;
    let host = || host.upgrade().ok_or_else(|| Refusal::new(Kind::NotReady, "the model was unloaded"));
    loop {
        let Some(second) = host()?.model.second_to_load(suspect) else { break };
        // Nothing else is to be unloaded for one unusual text.
        let claim = second.claim().map_or(0, |claim| claim.bytes);
        if app.settings().memory_limit.is_some_and(|limit| app.used() + claim > limit) {
            let message = "the result of a text is unusual, and there is no memory for a second opinion";
            return Err(Refusal::new(Kind::Unusual, message));
        }
        let loaded = second.load();
        host()?.model.admit_second(loaded);
    }
    let host = host()?;
    let settled = host.model.resolve(suspect);
    note_incidents(&host, app);
    let computed = settled.map_err(refusal)?;
    note(&host.name, app, &computed);
    let norm = computed.rows.norms.first().copied();
    entry.job.take(&computed, std::iter::once((entry.index, &computed.rows.values[..], norm)), *batch);
    Ok(())
}
