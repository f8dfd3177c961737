//! Tests of the choice on made-up members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sconce_registry::{BootId, Heartbeat, ModelRecord, PlacementRecord, Rates, Registration, WorkerState};

use super::*;
use crate::choose::Prefix;
use crate::class::{NumericsClass, Pin};
use crate::random::mix;
use crate::size::SizeClass;

/// A worker of a test.
#[derive(Clone, Debug)]
struct Made {
    state: WorkerState,
    rates: Rates,
    tokens: u64,
    models: Vec<ModelRecord>,
}

fn model(name: &str, task: &str, class: Option<&str>) -> ModelRecord {
    ModelRecord {
        model: name.to_owned(),
        aliases: vec![format!("{name}-alias")],
        task: task.to_owned(),
        max_length: 512,
        managed: false,
        placements: vec![PlacementRecord {
            placement: "native/cpu/f32".to_owned(),
            active: true,
            class: class.map(str::to_owned),
            band: None,
            obstacle: None,
        }],
    }
}

fn made(rate: f32) -> Made {
    let rates = Rates { small: rate, medium: rate, large: rate };
    let models = vec![model("minilm", "embed", Some("aa-exact"))];
    Made { state: WorkerState::Ready, rates, tokens: 0, models }
}

/// Workers `w0`, `w1`, and so on.
struct Pool {
    map: MemberMap,
    balancer: Balancer,
    boot: BootId,
    now: Instant,
    sequence: u64,
}

impl Pool {
    fn of(workers: &[Made]) -> Pool {
        let (now, boot) = (Instant::now(), BootId::at(1));
        let mut map = MemberMap::default();
        map.connect(now);
        let balancer = Balancer::default();
        let mut pool = Pool { map, balancer, boot, now, sequence: 0 };
        for (at, worker) in workers.iter().enumerate() {
            pool.register(at, worker);
        }
        pool.balancer.update(&pool.map);
        pool
    }

    fn register(&mut self, at: usize, worker: &Made) {
        let registration = Registration {
            worker_id: format!("w{at}"),
            boot_id: self.boot,
            url: format!("http://w{at}:8080"),
            version: "0.1.0".to_owned(),
            ttl_ms: 3000,
            models: worker.models.clone(),
            failure: None,
        };
        self.map.register(Arc::new(registration), self.now);
        self.beat(at, worker);
    }

    fn beat(&mut self, at: usize, worker: &Made) {
        self.sequence += 1;
        let heartbeat = Heartbeat {
            boot_id: self.boot,
            sequence: self.sequence,
            state: worker.state,
            load: Load { requests: 0, tokens: worker.tokens, latency: 0.0 },
            rates: worker.rates,
            free_memory: BTreeMap::new(),
        };
        self.map.heartbeat(&format!("w{at}"), heartbeat, self.now);
    }

    fn choose(&self, request: &Request<'_>) -> Result<Choice, NoWorker> {
        self.balancer.choose(request, self.now, &mut Random::seeded(3))
    }

    /// How many of 10,000 choices each of `count` workers gets.
    fn counts(&self, count: usize, request: &Request<'_>) -> Vec<usize> {
        let (mut random, mut counts) = (Random::seeded(5), vec![0; count]);
        for _ in 0..10_000 {
            let choice = self.balancer.choose(request, self.now, &mut random).unwrap();
            counts[choice.worker_id()[1..].parse::<usize>().unwrap()] += 1;
        }
        counts
    }

    fn send(&mut self, worker: &str, outcome: Outcome) {
        let mut random = Random::seeded(9);
        for _ in 0..100_000 {
            let choice = self.balancer.choose(&Request::new("minilm", 10), self.now, &mut random).unwrap();
            if choice.worker_id() == worker {
                let ticket = self.balancer.start(&choice, self.now).unwrap();
                return self.balancer.finish(ticket, outcome, self.now);
            }
        }
        panic!("{worker} is never chosen");
    }
}

fn request(model: &str) -> Request<'_> {
    Request::new(model, 100)
}

fn pin(class: &str, allow_tighter: bool) -> Pin {
    Pin { class: class.parse::<NumericsClass>().unwrap(), allow_tighter }
}

#[test]
fn a_model_is_found_by_name_and_alias() {
    let pool = Pool::of(&[made(100.0)]);
    assert_eq!(pool.choose(&request("minilm")).unwrap().url(), "http://w0:8080");
    assert_eq!(pool.choose(&request("minilm-alias")).unwrap().worker_id(), "w0");
    assert_eq!(pool.choose(&request("other")).unwrap_err(), NoWorker::UnknownModel);
}

#[test]
fn a_model_has_its_task() {
    let pool = Pool::of(&[made(100.0)]);
    let tasks = |tasks| pool.choose(&Request { tasks, ..request("minilm") }).map(|choice| choice.slot);
    assert_eq!(tasks(&["embed"]), Ok(0));
    assert_eq!(tasks(&["rerank", "embed"]), Ok(0));
    assert_eq!(tasks(&["rerank"]), Err(NoWorker::WrongTask));
}

#[test]
fn a_model_whose_task_is_unknown_is_not_ready_instead_of_wrong() {
    let models = vec![ModelRecord { placements: Vec::new(), ..model("minilm", "", None) }];
    let mut worker = Made { state: WorkerState::Starting, models, ..made(100.0) };
    let embed = Request { tasks: &["embed"], ..request("minilm") };
    let pool = Pool::of(&[worker.clone()]);
    assert!(!pool.balancer.is_ready());
    assert_eq!(pool.choose(&embed).unwrap_err(), NoWorker::NoneReady);
    worker.state = WorkerState::Ready;
    let pool = Pool::of(&[worker]);
    assert!(pool.balancer.is_ready());
    assert!(!pool.choose(&embed).unwrap().is_loaded);
}

#[test]
fn only_ready_and_degraded_workers_get_requests() {
    for (state, expected) in [
        (WorkerState::Starting, Err(NoWorker::NoneReady)),
        (WorkerState::Paused, Err(NoWorker::NoneReady)),
        (WorkerState::Draining, Err(NoWorker::NoneReady)),
        (WorkerState::Ready, Ok(())),
        (WorkerState::Degraded, Ok(())),
    ] {
        let mut pool = Pool::of(&[Made { state, ..made(100.0) }]);
        assert_eq!(pool.choose(&request("minilm")).map(drop), expected, "{state:?}");
        pool.beat(0, &made(100.0));
        pool.balancer.update(&pool.map);
        assert!(pool.choose(&request("minilm")).is_ok(), "{state:?} to ready");
        pool.beat(0, &Made { state, ..made(100.0) });
        pool.balancer.update(&pool.map);
        assert_eq!(pool.choose(&request("minilm")).map(drop), expected, "ready to {state:?}");
    }
}

#[test]
fn a_pin_selects_workers_of_its_class() {
    let of = |class| Made { models: vec![model("minilm", "embed", class)], ..made(100.0) };
    let workers = ["aa-exact", "aa-half", "bb-half"].map(|class| of(Some(class)));
    let pool = Pool::of(&[&workers[..], &[of(None)]].concat());
    for (class, allow_tighter, expected) in [
        ("aa-exact", true, &[0][..]),
        ("aa-half", false, &[1]),
        ("aa-half", true, &[0, 1]),
        ("aa-coarse", true, &[0, 1]),
        ("bb-half", true, &[2]),
    ] {
        let counts = pool.counts(4, &Request { pin: Some(&pin(class, allow_tighter)), ..request("minilm") });
        let chosen: Vec<usize> = (0..4).filter(|at| counts[*at] > 0).collect();
        assert_eq!(chosen, expected, "{class} {allow_tighter}: {counts:?}");
    }
    for (class, allow_tighter) in [("aa-coarse", false), ("bb-exact", true), ("cc-half", true)] {
        let none = pool.choose(&Request { pin: Some(&pin(class, allow_tighter)), ..request("minilm") });
        assert_eq!(none.unwrap_err(), NoWorker::ClassUnavailable, "{class}");
    }
    assert!(pool.counts(4, &request("minilm")).iter().all(|count| *count > 0), "without a pin, all serve");
}

#[test]
fn a_worker_whose_active_placements_differ_satisfies_no_pin_to_one_of_them() {
    let mut mixed = made(100.0);
    let second =
        PlacementRecord { class: Some("aa-half".to_owned()), ..mixed.models[0].placements[0].clone() };
    mixed.models[0].placements.push(second);
    let mut fallback = mixed.clone();
    fallback.models[0].placements[1].active = false;
    let pool = Pool::of(&[mixed, fallback]);
    let chosen = |pin: &Pin| pool.choose(&Request { pin: Some(pin), ..request("minilm") });
    assert_eq!(chosen(&pin("aa-exact", false)).unwrap().worker_id(), "w1", "a fallback does not serve yet");
    assert_eq!(chosen(&pin("aa-half", false)).unwrap_err(), NoWorker::ClassUnavailable);
    assert!(chosen(&pin("aa-half", true)).is_ok());
}

#[test]
fn load_follows_the_measured_rate() {
    let mut pool = Pool::of(&[made(100.0), made(500.0), made(4000.0)]);
    let (mut random, mut tickets) = (Random::seeded(1), Vec::new());
    let mut sent = [0.0; 3];
    for _ in 0..4600 {
        let choice = pool.balancer.choose(&Request::new("minilm", 10), pool.now, &mut random).unwrap();
        sent[choice.slot as usize] += 10.0;
        tickets.push(pool.balancer.start(&choice, pool.now).unwrap());
    }
    let seconds: Vec<f64> = sent.iter().zip([100.0, 500.0, 4000.0]).map(|(sent, rate)| sent / rate).collect();
    assert!(seconds.iter().all(|seconds| (9.0..11.0).contains(seconds)), "{seconds:?}");
}

#[test]
fn rates_are_those_of_the_size() {
    let rates =
        [Rates { small: 9.0, medium: 1.0, large: 5.0 }, Rates { small: 1.0, medium: 9.0, large: 5.0 }];
    let pool = Pool::of(&rates.map(|rates| Made { rates, ..made(0.0) }));
    for (tokens, range) in [(10, 0..1000), (1000, 9000..10_000), (10_000, 4800..5200)] {
        let second = pool.counts(2, &Request::new("minilm", tokens))[1];
        assert!(range.contains(&second), "{tokens} tokens: {second}");
    }
}

#[test]
fn an_unknown_rate_is_the_median_of_the_known_ones() {
    let pool = Pool::of(&[made(100.0), made(0.0), made(-1.0), made(10_000.0), made(1000.0)]);
    let groups = pool.balancer.index.groups("minilm").unwrap();
    let rates: Vec<f64> = groups[0].members(SizeClass::Small).map(|(_, rate)| rate).collect();
    assert_eq!(rates, [100.0, 1000.0, 1000.0, 10_000.0, 1000.0]);
    let unknown = Pool::of(&[made(0.0), made(0.0)]).counts(2, &request("minilm"));
    assert!(unknown.iter().all(|count| *count > 4000), "{unknown:?}");
}

#[test]
fn the_shorter_queue_of_a_heartbeat_is_preferred() {
    let mut pool = Pool::of(&[made(100.0), Made { tokens: 1000, ..made(100.0) }]);
    let counts = pool.counts(2, &request("minilm"));
    assert!((7300..7700).contains(&counts[0]), "unless both draws are of the longer one: {counts:?}");
    pool.beat(1, &made(100.0));
    pool.balancer.update(&pool.map);
    assert!(pool.counts(2, &request("minilm"))[0] < 5300, "the next heartbeat counts");
}

#[test]
fn requests_in_flight_count_until_they_finish() {
    let mut pool = Pool::of(&[made(100.0), made(100.0)]);
    let first = pool.choose(&Request::new("minilm", 1000)).unwrap();
    let predicted = |pool: &Pool| {
        let exclude = [if first.slot == 0 { "w1" } else { "w0" }];
        pool.choose(&Request { exclude: &exclude, ..request("minilm") }).unwrap().predicted.as_secs_f64()
    };
    assert!((predicted(&pool) - 1.0).abs() < 1e-6);
    let ticket = pool.balancer.start(&first, pool.now).unwrap();
    assert!((predicted(&pool) - 11.0).abs() < 1e-6);
    let beat = Made { tokens: 400, ..made(100.0) };
    pool.beat(first.slot as usize, &beat);
    pool.balancer.update(&pool.map);
    assert!((predicted(&pool) - 11.0).abs() < 1e-6, "at least the own requests are queued");
    pool.balancer.finish(ticket, Outcome::Success, pool.now);
    assert!((predicted(&pool) - 5.0).abs() < 1e-6, "the heartbeat remains");
    let ticket = pool.balancer.start(&first, pool.now).unwrap();
    pool.balancer.observe_load(&ticket, Load { requests: 1, tokens: 5000, latency: 0.25 });
    assert!((predicted(&pool) - 51.25).abs() < 1e-6, "the answer's load and latency");
    pool.balancer.finish(ticket, Outcome::Success, pool.now);
}

#[test]
fn the_reported_queue_is_served_meanwhile() {
    let mut pool = Pool::of(&[Made { tokens: 1000, ..made(100.0) }]);
    let predicted = |pool: &Pool| pool.choose(&request("minilm")).unwrap().predicted.as_secs_f64();
    assert!((predicted(&pool) - 11.0).abs() < 0.1);
    pool.now += Duration::from_secs(4);
    assert!((predicted(&pool) - 7.0).abs() < 0.1);
    pool.now += Duration::from_secs(40);
    assert!((predicted(&pool) - 1.0).abs() < 0.1);
}

#[test]
fn an_excluded_worker_is_not_chosen_again() {
    let pool = Pool::of(&[made(1.0), made(1_000_000.0)]);
    for seed in 0..100 {
        let other = Request { exclude: &["w1"], ..request("minilm") };
        let choice = pool.balancer.choose(&other, pool.now, &mut Random::seeded(seed)).unwrap();
        assert_eq!(choice.worker_id(), "w0");
    }
    let all = Request { exclude: &["w0", "w1"], ..request("minilm") };
    assert_eq!(pool.choose(&all).unwrap_err(), NoWorker::NoOther);
}

#[test]
fn open_circuits_get_one_probe_after_the_backoff() {
    let mut pool = Pool::of(&[made(100.0)]);
    (0..5).for_each(|_| pool.send("w0", Outcome::Failure));
    let retry_after = BreakerOptions::default().backoff;
    assert_eq!(pool.choose(&request("minilm")).unwrap_err(), NoWorker::AllOpen { retry_after });
    pool.now += retry_after;
    let probe = pool.choose(&request("minilm")).unwrap();
    let ticket = pool.balancer.start(&probe, pool.now).unwrap();
    assert!(matches!(pool.choose(&request("minilm")), Err(NoWorker::AllOpen { .. })));
    pool.balancer.finish(ticket, Outcome::Success, pool.now);
    assert!(pool.choose(&request("minilm")).is_ok());
}

#[test]
fn a_retry_avoids_workers_that_failed_last() {
    let mut pool = Pool::of(&[made(100.0), made(100_000.0), made(100.0)]);
    pool.send("w1", Outcome::Failure);
    let retry = Request { exclude: &["w2"], ..request("minilm") };
    assert_eq!(pool.counts(3, &retry), [10_000, 0, 0]);
    assert!(pool.counts(3, &request("minilm"))[1] > 9000, "a first attempt does not");
    let other = Request { exclude: &["w0", "w2"], ..retry };
    assert_eq!(pool.counts(3, &other), [0, 10_000, 0], "unless there is no other");
    pool.send("w1", Outcome::Success);
    assert!(pool.counts(3, &retry)[1] > 9000);
}

#[test]
fn a_fast_worker_that_fails_gets_no_load() {
    let mut pool = Pool::of(&[made(100.0), made(100_000.0)]);
    (0..5).for_each(|_| pool.send("w1", Outcome::Failure));
    assert_eq!(pool.counts(2, &request("minilm")), [10_000, 0]);
}

#[test]
fn busy_workers_are_spared_and_the_smallest_retry_after_is_told() {
    let mut pool = Pool::of(&[made(100.0), made(100.0)]);
    pool.send("w0", Outcome::Busy { retry_after: Duration::from_secs(7) });
    assert_eq!(pool.counts(2, &request("minilm")), [0, 10_000]);
    pool.send("w1", Outcome::Busy { retry_after: Duration::from_secs(3) });
    let retry_after = Duration::from_secs(3);
    assert_eq!(pool.choose(&request("minilm")).unwrap_err(), NoWorker::AllBusy { retry_after });
    pool.now += Duration::from_millis(100);
    assert!(pool.choose(&request("minilm")).is_ok(), "queues empty before the client comes back");
}

#[test]
fn a_worker_that_returns_from_a_pause_is_not_busy() {
    let mut pool = Pool::of(&[made(100.0)]);
    pool.send("w0", Outcome::Busy { retry_after: Duration::from_secs(7) });
    assert!(pool.choose(&request("minilm")).is_err());
    for state in [WorkerState::Paused, WorkerState::Ready] {
        pool.beat(0, &Made { state, ..made(100.0) });
        pool.balancer.update(&pool.map);
    }
    assert!(pool.choose(&request("minilm")).is_ok());
}

#[test]
fn a_restart_closes_the_circuit_and_ends_requests_in_flight() {
    let mut pool = Pool::of(&[made(100.0)]);
    let choice = pool.choose(&request("minilm")).unwrap();
    let ticket = pool.balancer.start(&choice, pool.now).unwrap();
    (0..5).for_each(|_| pool.send("w0", Outcome::Failure));
    pool.boot = BootId::at(2);
    pool.register(0, &made(100.0));
    pool.balancer.update(&pool.map);
    let fresh = pool.choose(&request("minilm")).unwrap();
    assert!((fresh.predicted.as_secs_f64() - 1.0).abs() < 1e-6, "the queue is empty");
    assert!(pool.balancer.start(&choice, pool.now).is_none(), "the choice is outdated");
    let second = pool.balancer.start(&fresh, pool.now).unwrap();
    pool.balancer.finish(ticket, Outcome::Failure, pool.now);
    let after = pool.choose(&request("minilm")).unwrap();
    assert!((after.predicted.as_secs_f64() - 2.0).abs() < 1e-6, "the old request changes nothing");
    pool.balancer.finish(second, Outcome::Success, pool.now);
}

#[test]
fn workers_that_leave_are_not_chosen() {
    let mut pool = Pool::of(&[made(100.0), made(100.0)]);
    let choice = pool.choose(&Request { exclude: &["w1"], ..request("minilm") }).unwrap();
    pool.map.deregister("w0");
    pool.register(7, &made(100.0));
    pool.balancer.update(&pool.map);
    assert!(pool.balancer.start(&choice, pool.now).is_none(), "its slot has another worker");
    let counts = pool.counts(8, &request("minilm"));
    assert!(counts[0] == 0 && counts[1] > 0 && counts[7] > 0, "{counts:?}");
}

#[test]
fn a_model_that_is_not_loaded_is_requested_from_one_worker() {
    let mut cold = made(100.0);
    cold.models[0].placements[0].active = false;
    let mut pool = Pool::of(&vec![cold; 20]);
    let counts = pool.counts(20, &request("minilm"));
    assert_eq!(counts.iter().filter(|count| **count > 0).count(), 1);
    assert!(!pool.choose(&request("minilm")).unwrap().is_loaded);
    pool.register(4, &made(1.0));
    pool.balancer.update(&pool.map);
    assert_eq!(pool.counts(20, &request("minilm"))[4], 10_000, "a worker that has loaded it");
}

#[test]
fn a_prefix_stays_with_its_worker_while_that_pays() {
    let mut pool = Pool::of(&vec![made(1000.0); 10]);
    let prefix = Some(Prefix { hash: 77, tokens: 500 });
    let chat = Request { prefix, ..Request::new("minilm", 600) };
    let preferred = pool.choose(&chat).unwrap();
    assert!(preferred.by_prefix);
    assert_eq!(pool.counts(10, &chat)[preferred.slot as usize], 10_000);
    let spread = (0..1000).map(|hash| {
        let prefix = Some(Prefix { hash: mix(hash), tokens: 500 });
        pool.choose(&Request { prefix, ..chat }).unwrap().slot
    });
    let mut counts = [0; 10];
    spread.for_each(|slot| counts[slot as usize] += 1);
    assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
    // 0.5 s of prefill are saved.
    for (tokens, is_kept) in [(400, true), (600, false)] {
        pool.beat(preferred.slot as usize, &Made { tokens, ..made(1000.0) });
        pool.balancer.update(&pool.map);
        assert_eq!(pool.choose(&chat).unwrap().by_prefix, is_kept, "{tokens} queued");
    }
    pool.map.deregister(if preferred.slot == 0 { "w1" } else { "w0" });
    pool.beat(preferred.slot as usize, &made(1000.0));
    pool.balancer.update(&pool.map);
    assert_eq!(pool.choose(&chat).unwrap().worker_id(), preferred.worker_id(), "another worker left");
}

fn workers() -> impl Strategy<Value = Vec<Made>> {
    let states = prop::sample::select(vec![
        WorkerState::Ready,
        WorkerState::Degraded,
        WorkerState::Paused,
        WorkerState::Starting,
    ]);
    let classes = prop::sample::select(vec![None, Some("aa-exact"), Some("aa-half"), Some("bb-exact")]);
    let tasks = prop::sample::select(vec!["embed", "rerank"]);
    let rates = prop_oneof![Just(0.0f32), 1.0f32..1e6];
    let worker = (states, classes, tasks, rates, 0u64..100_000, any::<bool>(), any::<bool>());
    let worker = worker.prop_map(|(state, class, task, rate, tokens, has_model, active)| {
        let mut model = model(if has_model { "minilm" } else { "other" }, task, class);
        model.placements[0].active = active;
        Made { state, tokens, models: vec![model], ..made(rate) }
    });
    prop::collection::vec(worker, 0..12)
}

proptest! {
    /// The choice satisfies every condition, and there is one whenever a worker does.
    #[test]
    fn a_choice_is_suitable_and_missing_only_if_none_is(
        workers in workers(), pinned in prop::option::of((0usize..3, any::<bool>())), task in any::<bool>(),
        failing in prop::collection::vec(0usize..12, 0..4), excluded in 0usize..12, seed: u64,
        prefix in prop::option::of((any::<u64>(), 0u64..5000)),
    ) {
        let mut pool = Pool::of(&workers);
        for at in &failing {
            let mut random = Random::seeded(seed);
            for _ in 0..200 {
                let Ok(choice) = pool.balancer.choose(&request("minilm"), pool.now, &mut random) else { break };
                let ticket = pool.balancer.start(&choice, pool.now).unwrap();
                let fails = choice.worker_id() == format!("w{at}");
                pool.balancer.finish(ticket, if fails { Outcome::Failure } else { Outcome::Success }, pool.now);
            }
        }
        let pinned = pinned.map(|(at, tighter)| pin(["aa-exact", "aa-half", "bb-exact"][at], tighter));
        let exclude = format!("w{excluded}");
        let exclude = [exclude.as_str()];
        let tasks: &[&str] = if task { &["embed"] } else { &[] };
        let prefix = prefix.map(|(hash, tokens)| Prefix { hash, tokens });
        let request = Request { tasks, pin: pinned.as_ref(), exclude: &exclude, prefix, ..request("minilm") };

        let is_suitable = |at: usize, loaded: bool| {
            let id = format!("w{at}");
            suits(&workers[at], &request, loaded)
                && (loaded || !workers.iter().any(|other| suits(other, &request, true)))
                && id != exclude[0]
                && pool.balancer.circuit(&id, pool.now) == Some(Circuit::Closed)
        };
        let first = pool.balancer.choose(&request, pool.now, &mut Random::seeded(seed));
        let again = pool.balancer.choose(&request, pool.now, &mut Random::seeded(seed));
        match first {
            Ok(choice) => {
                let again = again.unwrap();
                prop_assert_eq!(again.worker_id(), choice.worker_id());
                let at = choice.worker_id()[1..].parse().unwrap();
                prop_assert!(is_suitable(at, choice.is_loaded), "{:?}", choice);
            }
            Err(reason) => {
                prop_assert_eq!(again.unwrap_err(), reason);
                let suitable = (0..workers.len()).find(|at| is_suitable(*at, true) || is_suitable(*at, false));
                prop_assert!(suitable.is_none(), "{:?} but {:?}", reason, suitable);
            }
        }
    }
}

/// Whether a worker has the model, loaded or not, and can answer the request, available or not.
fn suits(worker: &Made, request: &Request<'_>, loaded: bool) -> bool {
    let model = &worker.models[0];
    let class = model.placements[0].class.as_ref().map(|class| class.parse().unwrap());
    model.model == request.model
        && model.placements[0].active == loaded
        && matches!(worker.state, WorkerState::Ready | WorkerState::Degraded)
        && (request.tasks.is_empty() || request.tasks.contains(&model.task.as_str()))
        && request.pin.is_none_or(|pin| class.as_ref().is_some_and(|class| pin.admits(class)))
}
