//! Two racing managers place models on workers that die, return and get cut off, on a simulated clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_pool::place::{Action, Bid, Desired, Replica, place};
use sconce_pool::random::Random;
use sconce_pool::vanish::VanishGuard;
use sconce_registry::{BootId, Heartbeat, Load, MemberMap, Rates, Registration, WorkerState};

const STEP: Duration = Duration::from_millis(500);
const WORKERS: usize = 8;
const MODELS: usize = 8;

/// A worker: it alone decides whether a model fits.
struct Worker {
    id: String,
    memory: u64,
    rate: f64,
    boot: u64,
    sequence: u64,
    /// When it is alive again.
    dead_until: Option<Instant>,
    /// No heartbeat arrives until then.
    cut_until: Option<Instant>,
    /// Bytes of each loaded model.
    models: BTreeMap<String, u64>,
}

impl Worker {
    fn free(&self) -> u64 {
        self.memory - self.models.values().sum::<u64>()
    }

    fn load(&mut self, model: &str, bytes: u64) {
        if self.dead_until.is_none() && !self.models.contains_key(model) && bytes <= self.free() {
            self.models.insert(model.to_owned(), bytes);
        }
    }

    fn beat(&mut self, map: &mut MemberMap, now: Instant) {
        let boot_id = BootId::at(self.boot);
        // The random part of a boot id is of no use here: one map sees one registration of a boot.
        let known = map.get(&self.id).map(|member| (member.registration.boot_id, member.heartbeat.sequence));
        let is_known = known.is_some_and(|(known, _)| known.to_string()[..12] == boot_id.to_string()[..12]);
        let boot_id = if is_known { known.map_or(boot_id, |(known, _)| known) } else { boot_id };
        if !is_known {
            let (worker_id, url, version) = (self.id.clone(), String::new(), String::new());
            let registration = Registration {
                worker_id,
                boot_id,
                url,
                version,
                ttl_ms: 3000,
                models: Vec::new(),
                failure: None,
            };
            map.register(Arc::new(registration), now);
        }
        self.sequence += 1;
        let heartbeat = Heartbeat {
            boot_id,
            sequence: self.sequence,
            state: WorkerState::Ready,
            load: Load::default(),
            rates: Rates::default(),
            free_memory: BTreeMap::new(),
        };
        map.heartbeat(&self.id, heartbeat, now);
    }
}

/// One of several managers, with its own view.
#[derive(Default)]
struct Manager {
    map: MemberMap,
    guard: VanishGuard,
    /// What it saw of workers that do not answer now.
    seen: BTreeMap<String, Vec<String>>,
}

struct World {
    now: Instant,
    random: Random,
    workers: Vec<Worker>,
    managers: [Manager; 2],
    /// Bytes of each model.
    sizes: Vec<u64>,
    desired: Vec<Desired>,
    /// Actions of the last round that changed something.
    actions: usize,
    /// Actions that the guard held back.
    held: usize,
}

fn name(model: usize) -> String {
    format!("m{model}")
}

impl World {
    fn new(seed: u64) -> World {
        let (now, mut random) = (Instant::now(), Random::seeded(seed));
        let workers = (0..WORKERS)
            .map(|at| Worker {
                id: format!("w{at}"),
                memory: [20, 40, 60, 80, 120][at % 5],
                rate: [1.0, 5.0, 40.0][at % 3],
                boot: 1,
                sequence: 0,
                dead_until: None,
                cut_until: None,
                models: BTreeMap::new(),
            })
            .collect();
        let sizes: Vec<u64> = (0..MODELS).map(|_| 5 + random.bits() % 50).collect();
        let desired = (0..MODELS)
            .map(|model| {
                let min_replicas = (random.bits() % 3) as u32;
                let max_replicas = min_replicas + (random.bits() % 2) as u32;
                let source = String::new();
                Desired { model: name(model), source, min_replicas, max_replicas, demand: 0, pin: None }
            })
            .collect();
        let mut managers: [Manager; 2] = Default::default();
        for manager in &mut managers {
            manager.map.connect(now);
        }
        World { now, random, workers, managers, sizes, desired, actions: 0, held: 0 }
    }

    /// One round: heartbeats, then each manager places from its view. Actions take effect after both have decided.
    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        for worker in &mut self.workers {
            if worker.dead_until.is_some_and(|until| until <= now) {
                worker.dead_until = None;
                worker.boot += 1;
                worker.sequence = 0;
            }
            if worker.dead_until.is_none() && worker.cut_until.is_none_or(|until| until <= now) {
                for manager in &mut self.managers {
                    worker.beat(&mut manager.map, now);
                }
            }
        }
        let mut decided = Vec::new();
        for at in 0..self.managers.len() {
            self.managers[at].map.expire(now);
            let manager = &mut self.managers[at];
            manager.guard.update(&manager.map, now);
            let actions = self.decide(at);
            if self.managers[at].guard.is_holding(now) {
                self.held += actions.len();
            } else {
                decided.extend(actions);
            }
        }
        self.actions = decided.len();
        for action in decided {
            self.apply(&action);
        }
        for worker in &self.workers {
            assert!(worker.models.values().sum::<u64>() <= worker.memory, "{} is oversold", worker.id);
        }
    }

    fn decide(&mut self, at: usize) -> Vec<Action> {
        let manager = &mut self.managers[at];
        let (mut bids, mut replicas) = (Vec::new(), Vec::new());
        for worker in &self.workers {
            let is_member = manager.map.get(&worker.id).is_some();
            if !is_member && !manager.guard.has_just_vanished(&worker.id, self.now) {
                continue;
            }
            let is_reachable = is_member && worker.dead_until.is_none();
            if is_reachable {
                manager.seen.insert(worker.id.clone(), worker.models.keys().cloned().collect());
            }
            let seen = manager.seen.get(&worker.id).into_iter().flatten();
            replicas.extend(seen.map(|model| Replica {
                worker: worker.id.clone(),
                model: model.clone(),
                class: None,
                rate: worker.rate,
                is_managed: true,
            }));
            let models = (0..MODELS).filter(|_| is_reachable);
            bids.extend(models.filter(|model| !worker.models.contains_key(&name(*model))).map(|model| Bid {
                worker: worker.id.clone(),
                model: name(model),
                bytes: self.sizes[model],
                free_bytes: worker.free(),
                rate: worker.rate,
                load_seconds: 1.0,
                class: None,
                obstacles: Vec::new(),
            }));
        }
        place(&bids, &replicas, &self.desired)
    }

    fn apply(&mut self, action: &Action) {
        let (Action::Load { worker, model, .. } | Action::Unload { worker, model }) = action;
        let bytes = self.sizes[model[1..].parse::<usize>().unwrap()];
        let Some(worker) = self.workers.iter_mut().find(|known| known.id == *worker) else { return };
        match action {
            Action::Load { .. } => worker.load(model, bytes),
            Action::Unload { .. } => drop(worker.models.remove(model)),
        }
    }

    fn replicas(&self, model: &str) -> u32 {
        self.workers.iter().filter(|worker| worker.models.contains_key(model)).count() as u32
    }

    /// After quiet rounds: nothing moves, and what fits runs.
    fn check_settled(&mut self, seed: u64) {
        for _ in 0..20 {
            self.step();
        }
        self.step();
        assert_eq!(self.actions, 0, "seed {seed}: placement settles");
        for desired in &self.desired {
            let count = self.replicas(&desired.model);
            assert!(count <= desired.max_replicas, "seed {seed}: {count} replicas of {desired:?}");
            let bytes = self.sizes[desired.model[1..].parse::<usize>().unwrap()];
            let fits = self.workers.iter().any(|worker| {
                worker.dead_until.is_none()
                    && !worker.models.contains_key(&desired.model)
                    && bytes <= worker.free()
            });
            assert!(count >= desired.min_replicas || !fits, "seed {seed}: {desired:?} fits and does not run");
        }
    }
}

#[test]
fn racing_managers_oversell_no_worker_and_settle() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
            let at = (world.random.bits() % WORKERS as u64) as usize;
            match world.random.bits() % 30 {
                0 => {
                    world.workers[at].dead_until = Some(world.now + 10 * STEP);
                    world.workers[at].models.clear();
                }
                1 => world.workers[at].cut_until = Some(world.now + 10 * STEP),
                2 => {
                    let desired = &mut world.desired[at];
                    desired.demand = (world.random.bits() % 4) as u32;
                }
                3 => world.desired[at].max_replicas = world.desired[at].min_replicas,
                _ => {}
            }
        }
        // Many may have vanished at once.
        world.now += Duration::from_mins(2);
        for _ in 0..20 {
            world.step();
        }
        world.now += Duration::from_secs(70);
        world.check_settled(seed);
    }
}

#[test]
fn nothing_moves_while_many_workers_are_cut_off() {
    let mut held = 0;
    for seed in 0..50 {
        let mut world = World::new(seed);
        world.check_settled(seed);
        let before: Vec<BTreeMap<String, u64>> = world.workers.iter().map(|one| one.models.clone()).collect();
        let start = world.now;
        // Their last heartbeats are of different times.
        for at in 0..4 {
            world.workers[at].cut_until = Some(start + Duration::from_secs(15));
            world.step();
            assert_eq!(world.actions, 0, "seed {seed}");
        }
        while world.now < start + Duration::from_mins(1) {
            world.step();
            assert_eq!(world.actions, 0, "seed {seed}, after {:?}", world.now.duration_since(start));
        }
        let after: Vec<BTreeMap<String, u64>> = world.workers.iter().map(|one| one.models.clone()).collect();
        assert_eq!(before, after, "seed {seed}");
        held += u32::from(world.held > 0);
    }
    assert!(held > 25, "without the guard, models would move: {held} of 50 seeds");
}
