//! The thread that loads models when they are wanted, within the memory there is, and unloads them when they are not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use sconce::core::obstacle::bytes;
use sconce::{Claim, Error, ModelBuilder, Runtime, peak, resident};
use serde_json::json;

use crate::app::App;
use crate::ledger::{Bytes, Ledger, Load};
use crate::opening::open;
use crate::room::{Guest, Room, room, too_much};
use crate::slot::{Phase, Slot};
use crate::worker::short;

/// How often it looks around.
const GLANCE: Duration = Duration::from_millis(250);
/// How often it looks whether a model that is to go is still at work.
const MOMENT: Duration = Duration::from_millis(1);

/// When a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// At once, if there is room.
    #[default]
    Start,
    /// When it is first asked.
    Demand,
}

/// A model as it can be opened again and again.
pub(crate) struct Kept {
    builder: ModelBuilder,
    runtime: Runtime,
}

impl Kept {
    pub(crate) fn new(mut builder: ModelBuilder) -> Kept {
        let runtime = builder.own_runtime();
        Kept { builder, runtime }
    }
}

/// Loads and unloads.
pub(crate) struct Keeper {
    app: Arc<App>,
    models: Vec<Kept>,
    ledger: Ledger,
    /// What the process takes without any model.
    empty: u64,
    /// Whether any model ever served.
    served: bool,
}

impl Keeper {
    pub(crate) fn new(app: Arc<App>, models: Vec<Kept>) -> Keeper {
        let path = models.first().map(|kept| kept.runtime.evidence().0.join("memory.ledger"));
        let ledger = path.map_or_else(Ledger::default, |path| Ledger::open(&path));
        for slot in &app.slots {
            app.metrics.listed(&slot.name);
        }
        Keeper { app, models, ledger, empty: resident().unwrap_or(0), served: false }
    }

    /// Works until the server stops. Where no model at all can be opened it ends with the reason of the first.
    pub(crate) fn keep(mut self, wanted: &Receiver<usize>) -> Result<(), Error> {
        let slots = &self.app.slots;
        let first = (0..slots.len()).filter(|&at| slots[at].is_starting());
        // Those that are loaded at the start do not make others go that were, too.
        let mut waiting: VecDeque<(usize, bool)> = first.map(|at| (at, false)).collect();
        let mut failure = None;
        while !self.app.is_stopping() {
            if let Some((at, makes_room)) = waiting.pop_front() {
                if let Err(error) = self.load(at, makes_room) {
                    let (slot, why) = (&self.app.slots[at], error.to_string());
                    let told = [("model", json!(slot.name)), ("why", json!(why))];
                    self.app.seeing.warn("model can't be opened", &told);
                    slot.fail(why);
                    failure.get_or_insert(error);
                }
                if self.app.slots.iter().all(|slot| slot.has_failed())
                    && let Some(error) = failure.take_if(|_| !self.served)
                {
                    return Err(error);
                }
            }
            waiting.extend(wanted.try_iter().map(|at| (at, true)));
            if waiting.is_empty() {
                match wanted.recv_timeout(GLANCE) {
                    Ok(at) => waiting.push_back((at, true)),
                    Err(RecvTimeoutError::Timeout) => self.sweep(),
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    fn limit(&self) -> Option<u64> {
        self.app.settings().memory_limit
    }

    /// The models that are loaded.
    fn guests(&self) -> Vec<Guest> {
        let guest = |(slot, place): (usize, &Arc<Slot>)| {
            place.host().map(|host| Guest { slot, since: host.since, asked: place.asked() })
        };
        self.app.slots.iter().enumerate().filter_map(guest).collect()
    }

    /// Loads a model; where it may not make room and there is none, it is left for when it is asked.
    fn load(&mut self, at: usize, makes_room: bool) -> Result<(), Error> {
        let (app, kept) = (Arc::clone(&self.app), &self.models[at]);
        let slot = &app.slots[at];
        if slot.host().is_some() {
            return Ok(());
        }
        let began = Instant::now();
        slot.enter(Phase::Opening);
        let claim = kept.builder.claim(&mut |event| slot.enter(Phase::of(&event)))?;
        let guess = self.ledger.guess(&load(&claim));
        if !self.make_room(at, guess, makes_room)? {
            slot.excuse();
            slot.enter(Phase::Asleep);
            return Ok(());
        }
        let kept = &self.models[at];
        kept.runtime.give_back();
        let before = resident().unwrap_or(0);
        let _ = peak();
        let host = open(&app, slot, kept.builder.clone())?;
        kept.runtime.give_back();
        let after = resident().unwrap_or(0);
        let grown = |bytes: u64| bytes.saturating_sub(before);
        let truth = Bytes { stays: grown(after), peak: grown(peak().unwrap_or(after).max(after)) };
        self.ledger.note(load(&host.model.claim().unwrap_or(claim)), guess, truth);
        app.metrics.loaded(&slot.name, guess, truth);
        slot.fill(host, guess, truth, began.elapsed());
        self.served = true;
        self.keep_within(at)
    }

    /// Unloads others until a model that takes so much has room; whether it has.
    fn make_room(&mut self, at: usize, guess: Bytes, makes_room: bool) -> Result<bool, Error> {
        loop {
            let (limit, now) = (self.limit(), Instant::now());
            let resident = resident().unwrap_or(0);
            match room(limit, resident, self.empty, guess.peak, &self.guests(), now) {
                Room::Enough => return Ok(true),
                Room::Unload(_) | Room::Wait(_) if !makes_room => return Ok(false),
                Room::Unload(other) => self.unload(other, "room"),
                Room::Wait(_) if self.app.is_stopping() => {
                    return Err(Error::Machine("the server is stopping".to_owned()));
                }
                Room::Wait(time) => {
                    self.app.slots[at].enter(Phase::WaitingForRoom);
                    thread::sleep(time.min(GLANCE));
                }
                Room::Never => return Err(self.does_not_fit(guess.peak)),
            }
        }
    }

    fn does_not_fit(&self, need: u64) -> Error {
        Error::Machine(format!(
            "it takes about {}, the server without models {}, and the limit is {}\n\
             hint: raise `memory_limit`, or name a narrower `dtype`",
            bytes(need),
            bytes(self.empty),
            bytes(self.limit().unwrap_or(0))
        ))
    }

    /// The check after loading: where more is in use than may be, others go, and if nobody else is left, it goes.
    fn keep_within(&mut self, at: usize) -> Result<(), Error> {
        while let Some(other) = too_much(self.limit(), resident().unwrap_or(0), &self.guests()) {
            self.unload(other, "limit");
            if other == at {
                break;
            }
        }
        let now = resident().unwrap_or(0);
        if self.limit().is_some_and(|limit| now > limit) && self.app.slots[at].host().is_some() {
            self.unload(at, "limit");
            return Err(self.does_not_fit(now.saturating_sub(self.empty)));
        }
        Ok(())
    }

    /// Unloads who has been idle for long, and somebody where too much is in use.
    fn sweep(&mut self) {
        let (idle, now) = (self.app.settings().idle_unload, Instant::now());
        for guest in self.guests() {
            let rests = idle.is_some_and(|idle| now.saturating_duration_since(guest.asked) > idle);
            if rests && self.app.slots[guest.slot].host().is_some_and(|host| !host.is_busy(true)) {
                self.unload(guest.slot, "idle");
            }
        }
        // Elsewhere than on Linux it takes a process to ask how much is in use.
        let over =
            self.limit().and_then(|limit| too_much(Some(limit), resident().unwrap_or(0), &self.guests()));
        if let Some(slot) = over {
            self.unload(slot, "limit");
        }
    }

    /// Closes the door, waits for those inside, and gives the memory back.
    fn unload(&mut self, at: usize, why: &str) {
        let slot = &self.app.slots[at];
        let Some(host) = slot.take() else { return };
        self.app.metrics.unloaded(&slot.name, why);
        self.app.seeing.tell("model unloaded", &[("model", json!(slot.name)), ("why", json!(why))]);
        let began = Instant::now();
        while host.is_busy(false) && began.elapsed() < self.app.settings().time_limit {
            thread::sleep(MOMENT);
        }
        host.queue.close();
        host.join();
        drop(host);
        self.models[at].runtime.give_back();
    }
}

/// A load for the ledger.
fn load(claim: &Claim) -> Load {
    Load {
        identity: claim.identity.clone(),
        placement: claim.placement.to_string(),
        manner: short(&claim.placement),
        weights: claim.bytes,
    }
}
