//! A model's place in the server: open or not, who holds it, and how far it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sconce::hub::Progress;
use sconce::{Event, Model, Task};
use serde::Serialize;
use tokio::sync::watch;

use crate::schedule::queue::Queue;
use crate::state::label::short;
use sconce::core::report::{Footprint, ModelMemory};

/// After this long a model that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// When a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// At once, if there is room.
    #[default]
    Start,
    /// When it is first asked.
    Demand,
}

/// A model's place in the server, whether it is open or not.
pub(crate) struct Slot {
    /// What answers call it.
    pub(crate) name: String,
    /// What else it may be called.
    pub(crate) aliases: Vec<String>,
    /// Whether requests may send token ids.
    pub(crate) token_ids: bool,
    phase: watch::Sender<Phase>,
    state: Mutex<State>,
    /// Whether it is loaded at the start.
    when: When,
    /// Whether its first load is still to come or under way.
    awaited: AtomicBool,
    /// Whether it could not be opened the last time.
    broken: AtomicBool,
    born: Instant,
    /// When it was last asked, in milliseconds since it was born.
    asked: AtomicU64,
}

#[derive(Default)]
struct State {
    host: Option<Arc<Host>>,
    memory: Option<ModelMemory>,
    ability: Ability,
    /// Why the last load failed.
    failure: Option<String>,
}

/// What a model can do, by its card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ability {
    /// The card has not been read yet.
    #[default]
    Unread,
    /// The card can't be read.
    Unreadable,
    /// Its task.
    Task(Task),
}

/// A model that is open.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) model: Model,
    /// Whether requests may send token ids.
    pub(crate) token_ids: bool,
    pub(crate) queue: Arc<Queue>,
    /// Since when.
    pub(crate) since: Instant,
    /// How many workers take batches at once, the spare one not counted.
    pub(crate) concurrency: usize,
    pub(crate) workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Host {
    fn workers_guard(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps hold of a worker.
    pub(crate) fn add_worker(&self, worker: JoinHandle<()>) {
        self.workers_guard().push(worker);
    }

    /// Waits until its workers have ended.
    pub(crate) fn join(&self) {
        let workers = std::mem::take(&mut *self.workers_guard());
        for worker in workers {
            let _ = worker.join();
        }
    }

    /// Whether anybody but its workers, its slot if `shown` there, and whoever asks here holds it.
    pub(crate) fn is_busy(self: &Arc<Host>, shown: bool) -> bool {
        Arc::strong_count(self) > 1 + self.workers_guard().len() + usize::from(shown)
    }
}

/// How far a model is.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Its files are looked for and read.
    Opening,
    /// A file of it is coming in.
    Fetching { file: String, bytes: u64, of: u64 },
    /// A file of it is hashed for the first time.
    Hashing { file: String, bytes: u64, of: u64 },
    /// A placement is tried.
    Proving { placement: String, cases: usize, of: usize },
    /// It computes batches of so many texts to see how long they take.
    WarmingUp { texts: usize },
    /// It serves.
    Ready,
    /// It can't be opened.
    Failed {
        why: String,
        #[serde(skip)]
        at: Instant,
    },
    /// Nobody needs it now: the next request has it loaded.
    Asleep,
    /// Somebody asked for it, and others are loaded first.
    Queued,
    /// It waits until others may be unloaded.
    WaitingForRoom,
}

impl Phase {
    /// What an event tells.
    pub(crate) fn of(event: &Event<'_>) -> Phase {
        match event {
            Event::Proving { placement, done, total } => {
                Phase::Proving { placement: short(placement), cases: *done, of: *total }
            }
            Event::Hub(Progress::File { name, done, total }) => {
                Phase::Fetching { file: (*name).to_owned(), bytes: *done, of: *total }
            }
            Event::Hashing { file, done, total } => {
                Phase::Hashing { file: (*file).to_owned(), bytes: *done, of: *total }
            }
            Event::Hub(_) | Event::Retrying { .. } => Phase::Opening,
        }
    }

    /// The same without the text of an error, which may name paths of this machine.
    pub(crate) fn without_details(self) -> Phase {
        if let Phase::Failed { at, .. } = self {
            return Phase::Failed { why: "the log of the server says why".to_owned(), at };
        }
        self
    }

    /// The phase in words.
    pub(crate) fn reason(&self) -> String {
        match self {
            Phase::Opening => "its files are being read".to_owned(),
            Phase::Fetching { file, bytes, of } => {
                format!("`{file}` is being fetched: {bytes} of {of} bytes")
            }
            Phase::Hashing { file, bytes, of } => format!("`{file}` is being hashed: {bytes} of {of} bytes"),
            Phase::Proving { placement, cases, of } => {
                format!("{placement} is being proved: {cases} of {of} cases")
            }
            Phase::WarmingUp { texts } => format!("it is warming up, with batches of {texts} texts"),
            Phase::Ready => "it serves".to_owned(),
            // Hints are for operators, who find them in the log.
            Phase::Failed { why, .. } => {
                format!("it can't be opened: {}", why.split("\nhint:").next().unwrap_or(why))
            }
            Phase::Asleep => "it is not loaded, and the next request has it loaded".to_owned(),
            Phase::Queued => "it is loaded as soon as its turn comes".to_owned(),
            Phase::WaitingForRoom => {
                "it waits until others have gone, for the memory that it takes".to_owned()
            }
        }
    }
}

impl Slot {
    pub(crate) fn new(name: String, aliases: Vec<String>, when: When, token_ids: bool) -> Slot {
        let phase = match when {
            When::Start => Phase::Opening,
            When::Demand => Phase::Asleep,
        };
        Slot {
            name,
            aliases,
            token_ids,
            phase: watch::Sender::new(phase),
            state: Mutex::default(),
            when,
            awaited: AtomicBool::new(when == When::Start),
            broken: AtomicBool::new(false),
            born: Instant::now(),
            asked: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Every phase from now on.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Opens the model to requests.
    pub(crate) fn fill(&self, host: Arc<Host>, predicted: Footprint, measured: Footprint, took: Duration) {
        let memory = ModelMemory { predicted, measured, load_seconds: took.as_secs_f64() };
        let ability = Ability::Task(host.model.card().task.value);
        *self.lock() = State { host: Some(host), memory: Some(memory), ability, failure: None };
        self.broken.store(false, Ordering::Relaxed);
        self.excuse();
        self.touch();
        self.enter(Phase::Ready);
    }

    /// Closes the door and hands out what was behind it.
    pub(crate) fn take(&self) -> Option<Arc<Host>> {
        let host = self.lock().host.take();
        self.enter(Phase::Asleep);
        host
    }

    /// Notes that it can't be opened; whether the reason is another than the last time.
    pub(crate) fn fail(&self, why: String) -> bool {
        self.broken.store(true, Ordering::Relaxed);
        let before = self.lock().failure.replace(why.clone());
        let is_new = before.as_ref() != Some(&why);
        self.enter(Phase::Failed { why, at: Instant::now() });
        is_new
    }

    /// The model, if it is open.
    pub(crate) fn host(&self) -> Option<Arc<Host>> {
        self.lock().host.clone()
    }

    /// The same for somebody who has work for it.
    pub(crate) fn visit(&self) -> Option<Arc<Host>> {
        self.touch();
        self.host()
    }

    fn touch(&self) {
        self.asked.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// When it was last asked.
    pub(crate) fn asked(&self) -> Instant {
        self.born + Duration::from_millis(self.asked.load(Ordering::Relaxed))
    }

    /// What it can do.
    pub(crate) fn ability(&self) -> Ability {
        self.lock().ability
    }

    /// Stores what its card says.
    pub(crate) fn learn(&self, ability: Ability) {
        self.lock().ability = ability;
    }

    /// What it took when it was last loaded.
    pub(crate) fn memory(&self) -> Option<ModelMemory> {
        self.lock().memory
    }

    /// Puts it down as wanted; whether somebody must be told.
    pub(crate) fn want(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let stale = match phase {
                Phase::Asleep => true,
                Phase::Failed { at, .. } => at.elapsed() > AGAIN,
                Phase::Opening
                | Phase::Fetching { .. }
                | Phase::Hashing { .. }
                | Phase::Proving { .. }
                | Phase::WarmingUp { .. }
                | Phase::Ready
                | Phase::Queued
                | Phase::WaitingForRoom => false,
            };
            if stale {
                *phase = Phase::Queued;
            }
            stale
        })
    }

    /// From now on the server does not wait for it to be ready.
    pub(crate) fn excuse(&self) {
        self.awaited.store(false, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Failed { .. })
    }

    /// Whether it could not be opened the last time, though it may be tried again by now.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether the server is not ready because of it: it is to be loaded at the start, and its first load is not done
    /// or its last one failed. A model that was unloaded, or had no room at the start, is loaded by the next request.
    pub(crate) fn blocks_readiness(&self) -> bool {
        self.when == When::Start && (self.awaited.load(Ordering::Relaxed) || self.is_broken())
    }

    /// Whether it is on its way up for the first time.
    pub(crate) fn is_starting(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) && !self.has_failed()
    }

    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(when: When) -> Slot {
        Slot::new("own".to_owned(), vec!["other".to_owned()], when, false)
    }

    fn failed_before(time: Duration) -> Phase {
        Phase::Failed {
            why: "why".to_owned(),
            at: Instant::now().checked_sub(time).expect("the machine is older"),
        }
    }

    #[test]
    fn a_slot_goes_by_its_name_and_its_aliases() {
        let slot = slot(When::Start);
        assert!(slot.is_called("own") && slot.is_called("other"));
        assert!(!slot.is_called("ow") && !slot.is_called(""));
    }

    #[test]
    fn only_what_sleeps_or_failed_some_time_ago_is_wanted_anew() {
        let slot = slot(When::Demand);
        assert!(slot.want(), "it sleeps");
        assert!(matches!(slot.phase(), Phase::Queued));
        assert!(!slot.want(), "once is enough");
        for phase in [
            Phase::Opening,
            Phase::WarmingUp { texts: 1 },
            Phase::Ready,
            Phase::WaitingForRoom,
            Phase::Proving { placement: "a".to_owned(), cases: 0, of: 1 },
            Phase::Fetching { file: "a".to_owned(), bytes: 0, of: 1 },
            failed_before(Duration::ZERO),
        ] {
            slot.enter(phase.clone());
            assert!(!slot.want(), "{phase:?}");
        }
        slot.enter(failed_before(AGAIN + Duration::from_secs(1)));
        assert!(slot.want());
    }

    #[test]
    fn a_model_of_the_start_blocks_readiness_until_it_is_open_and_whenever_it_fails() {
        let start = slot(When::Start);
        assert!(start.is_starting() && start.blocks_readiness());
        assert!(start.fail("why".to_owned()), "that is news");
        assert!(!start.fail("why".to_owned()) && start.fail("another why".to_owned()));
        assert!(!start.is_starting() && start.blocks_readiness() && start.is_broken() && start.has_failed());
        start.enter(Phase::Queued);
        assert!(start.blocks_readiness() && start.is_broken() && !start.has_failed(), "it is tried again");
        let excused = slot(When::Start);
        excused.excuse();
        assert!(!excused.is_starting() && !excused.blocks_readiness(), "there was no room for it");
        let demand = slot(When::Demand);
        assert!(!demand.is_starting() && !demand.blocks_readiness());
        demand.fail("why".to_owned());
        assert!(demand.is_broken() && !demand.blocks_readiness());
    }

    #[test]
    fn what_a_model_can_do_is_stored_and_when_it_was_asked() {
        let slot = slot(When::Demand);
        assert_eq!(slot.ability(), Ability::Unread);
        slot.learn(Ability::Task(Task::Rerank));
        assert_eq!(slot.ability(), Ability::Task(Task::Rerank));
        assert!(slot.memory().is_none() && slot.host().is_none());
        let before = slot.asked();
        std::thread::sleep(Duration::from_millis(5));
        assert!(slot.host().is_none());
        assert_eq!(slot.asked(), before, "to look is not to ask");
        assert!(slot.visit().is_none());
        assert!(slot.asked() >= before + Duration::from_millis(5));
    }

    #[test]
    fn a_reason_says_how_far_it_is() {
        for (phase, words) in [
            (Phase::Fetching { file: "f".to_owned(), bytes: 3, of: 9 }, "`f` is being fetched: 3 of 9 bytes"),
            (
                Phase::Proving { placement: "p".to_owned(), cases: 2, of: 5 },
                "p is being proved: 2 of 5 cases",
            ),
            (Phase::WarmingUp { texts: 8 }, "it is warming up, with batches of 8 texts"),
            (Phase::Ready, "it serves"),
            (
                Phase::Failed { why: "no file\nhint: make one".to_owned(), at: Instant::now() },
                "it can't be opened: no file",
            ),
        ] {
            assert_eq!(phase.reason(), words);
        }
    }
}
