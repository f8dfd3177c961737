//! The placement manager of a gateway, with stand-ins for workers that arbitrate their memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sconce_http::Keys;
use sconce_pool::gateway::{Backend, GatewaySettings};
use sconce_pool::random::Random;
use sconce_registry::{DesiredModel, DesiredState, InProcess};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fleet::{FleetWorker, OPERATOR_KEY, Sizes};
use crate::harness::Gateway;

const MODELS: u64 = 8;
const LIMITS: [u64; 5] = [20, 40, 60, 80, 120];
/// A limit for what should take milliseconds.
const SOON: Duration = Duration::from_mins(1);

/// A pool of workers and gateways in one process.
pub(crate) struct Fleet {
    pub(crate) registry: Arc<InProcess>,
    workers: Vec<Arc<FleetWorker>>,
    pub(crate) gateways: Vec<Gateway>,
    sizes: Sizes,
}

fn name(model: u64) -> String {
    format!("m{model}")
}

fn source(model: &str) -> String {
    format!("org/{model}")
}

/// A model with a range of replicas.
pub(crate) fn desired(model: &str, min_replicas: u32, max_replicas: u32) -> DesiredModel {
    DesiredModel { model: model.to_owned(), source: source(model), min_replicas, max_replicas, class: None }
}

impl Fleet {
    /// Starts workers with these memory limits, and gateways.
    pub(crate) async fn start(limits: &[u64], gateways: usize, sizes: &[(&str, u64)]) -> Fleet {
        let registry = Arc::new(InProcess::new());
        let sizes: BTreeMap<String, u64> =
            sizes.iter().map(|(model, bytes)| (source(model), *bytes)).collect();
        let sizes = Sizes::new(sizes.into());
        let mut fleet = Fleet { registry, workers: Vec::new(), gateways: Vec::new(), sizes };
        for (at, limit) in limits.iter().enumerate() {
            let rate = [100.0, 500.0, 4000.0][at % 3];
            let id = format!("w{at}");
            let worker = FleetWorker::start(&fleet.registry, &id, *limit, rate, &fleet.sizes).await;
            fleet.workers.push(worker);
        }
        for _ in 0..gateways {
            let operator_key = Some(OPERATOR_KEY.to_owned());
            let settings = GatewaySettings { operator_key, ..GatewaySettings::default() };
            let registry = Arc::clone(&fleet.registry) as Arc<dyn Backend>;
            let gateway = Gateway::start(registry, settings).await;
            gateway.wait_for_members(limits.len()).await;
            fleet.gateways.push(gateway);
        }
        fleet
    }

    pub(crate) async fn set(&self, desired: DesiredModel) {
        self.registry.set_desired(desired).await.unwrap();
    }

    fn replicas(&self, model: &str) -> usize {
        self.workers
            .iter()
            .filter(|worker| worker.held().get(model).is_some_and(|held| held.is_loaded))
            .count()
    }

    fn total(&self, count: impl Fn(&FleetWorker) -> usize) -> usize {
        self.workers.iter().map(|worker| count(worker)).sum()
    }

    fn loads(&self) -> usize {
        self.total(|worker| worker.loads.load(Ordering::SeqCst))
    }

    /// Why the workers do not run what is desired; `None` if they do.
    fn unsettled(&self) -> Option<String> {
        let models = self.registry.watch_desired().models().unwrap();
        for worker in &self.workers {
            assert!(worker.used() <= worker.limit, "{} is oversold", worker.id);
            for (model, held) in worker.held() {
                if !held.is_loaded {
                    return Some(format!("{} loads {model}", worker.id));
                }
                if !models.contains_key(&model) {
                    return Some(format!("{} runs {model}, which is not desired", worker.id));
                }
            }
        }
        for one in models.values() {
            let count = self.replicas(&one.model) as u32;
            let bytes = self.sizes.lock().unwrap()[&one.source];
            let fits =
                |worker: &Arc<FleetWorker>| !worker.held().contains_key(&one.model) && bytes <= worker.free();
            if count > one.max_replicas || (count < one.min_replicas && self.workers.iter().any(fits)) {
                return Some(format!("{count} replicas of {one:?}"));
            }
        }
        None
    }

    /// Waits until the workers run what is desired.
    pub(crate) async fn settle(&self, what: &str) {
        let start = Instant::now();
        while let Some(reason) = self.unsettled() {
            assert!(start.elapsed() < SOON, "{what}: {reason}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn wait_for(&self, what: &str, condition: impl Fn(&Fleet) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < SOON, "{what}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn report(&self) -> Value {
        self.gateways[0].client.get("/v1/report").await.json()["placement"].clone()
    }
}

/// Random changes of the desired state.
async fn sequences(seeds: std::ops::Range<u64>) {
    let fleet = Fleet::start(&LIMITS, 1, &[]).await;
    for seed in seeds {
        let mut random = Random::seeded(seed);
        for model in 0..MODELS {
            fleet.sizes.lock().unwrap().insert(source(&name(model)), 5 + random.bits() % 50);
        }
        for change in 0..3 {
            for _ in 0..=random.bits() % 6 {
                let model = name(random.bits() % MODELS);
                if random.bits().is_multiple_of(4) {
                    fleet.registry.remove_desired(&model).await.unwrap();
                    continue;
                }
                let min = (random.bits() % 3) as u32;
                let max = (min + (random.bits() % 2) as u32).max(1);
                fleet.set(desired(&model, min, max)).await;
            }
            fleet.settle(&format!("seed {seed}, change {change}")).await;
        }
        for model in 0..MODELS {
            fleet.registry.remove_desired(&name(model)).await.unwrap();
        }
        fleet
            .wait_for("all is unloaded", |fleet| fleet.workers.iter().all(|worker| worker.held().is_empty()))
            .await;
    }
    assert_eq!(fleet.total(|worker| worker.refusals.load(Ordering::SeqCst)), 0, "no load was more than fits");
    assert!(fleet.loads() > 100, "{}", fleet.loads());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_desired_runs_where_it_fits_over_200_random_sequences() {
    let tasks = [0..50, 50..100, 100..150, 150..200].map(|seeds| tokio::spawn(sequences(seeds)));
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_for_a_cold_model_cause_one_load() {
    let fleet = Fleet::start(&[100, 100, 100], 2, &[("cold", 10)]).await;
    for worker in &fleet.workers {
        *worker.load_time.lock().unwrap() = Duration::from_millis(300);
    }
    fleet.set(desired("cold", 0, 2)).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(fleet.loads(), 0, "nobody asks for it");
    let listed = fleet.gateways[1].client.get("/v1/models/cold").await;
    assert_eq!((listed.status, &listed.json()["ready"]), (200, &json!(false)), "it is listed");
    let requests: Vec<_> = (0..100)
        .map(|number: usize| {
            let client = fleet.gateways[number % 2].client.clone();
            tokio::spawn(async move {
                let body = json!({ "model": "cold", "input": "a text" }).to_string();
                client.post("/v1/embeddings", &[], &body).await
            })
        })
        .collect();
    for request in requests {
        let answer = request.await.unwrap();
        assert!(answer.is_ok(), "{answer:?}");
    }
    assert_eq!(fleet.loads(), 1);
    assert_eq!(fleet.total(|worker| worker.requests.load(Ordering::SeqCst)), 100);
    let mut ordered = 0;
    for gateway in &fleet.gateways {
        ordered += gateway.metric("sconce_gateway_model_loads_total{outcome=\"ok\"}").await;
    }
    assert_eq!(ordered, 1);
    let report = fleet.report().await;
    assert_eq!((&report["desired"][0]["loaded"], &report["desired"][0]["target"]), (&json!(1), &json!(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_model_that_fits_nowhere_is_refused_with_the_reason_and_a_time() {
    let fleet = Fleet::start(&[10, 20], 2, &[("large", 50 << 20)]).await;
    fleet.set(desired("large", 0, 1)).await;
    for gateway in &fleet.gateways {
        let body = r#"{"model": "large", "input": "a text"}"#;
        let answer = gateway.client.post("/v1/embeddings", &[], body).await;
        assert_eq!((answer.status, answer.header("x-sconce-code")), (503, "not_ready"), "{answer:?}");
        assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
        assert!(answer.text().contains("50 MiB are needed, 0 are free"), "{}", answer.text());
        assert!(
            answer.took < Duration::from_secs(30),
            "it does not wait for its deadline: {:?}",
            answer.took
        );
    }
    assert!(fleet.report().await["desired"][0]["problem"].as_str().unwrap().contains("50 MiB"));
    // Where it fits once another model is gone, it is loaded.
    fleet.sizes.lock().unwrap().insert(source("large"), 15);
    fleet.wait_for("it is loaded", |fleet| fleet.replicas("large") == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_a_cold_model_no_longer_than_its_deadline() {
    let fleet = Fleet::start(&[100], 1, &[("slow", 10)]).await;
    *fleet.workers[0].load_time.lock().unwrap() = Duration::from_secs(5);
    fleet.set(desired("slow", 0, 1)).await;
    let body = r#"{"model": "slow", "input": "a text"}"#;
    let client = &fleet.gateways[0].client;
    let answer = client.post("/v1/embeddings", &[("x-sconce-deadline-ms", "300")], body).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "5"), "{answer:?}");
    assert!(answer.took < Duration::from_secs(4), "{:?}", answer.took);
    let answer = client.post("/v1/embeddings", &[], body).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(fleet.loads(), 1, "the load went on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_fails_is_tried_elsewhere_and_a_dead_worker_is_replaced() {
    let fleet = Fleet::start(&[100, 100, 100], 1, &[("m", 10)]).await;
    // The fastest worker is asked first.
    fleet.workers[2].fails.store(true, Ordering::SeqCst);
    fleet.set(desired("m", 1, 1)).await;
    fleet.wait_for("it is loaded elsewhere", |fleet| fleet.replicas("m") == 1).await;
    assert!(fleet.workers[1].held().contains_key("m"), "the second fastest");
    assert_eq!(fleet.workers[2].loads.load(Ordering::SeqCst), 1);
    fleet.workers[1].kill();
    fleet
        .wait_for("it is replaced", |fleet| {
            [0, 2].iter().any(|at| fleet.workers[*at].held().get("m").is_some_and(|held| held.is_loaded))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_moves_when_most_workers_vanish() {
    let fleet = Fleet::start(&[100; 5], 1, &[("m", 10), ("n", 10)]).await;
    fleet.set(desired("m", 3, 3)).await;
    fleet.settle("three replicas").await;
    let before = fleet.loads();
    let running: Vec<_> = fleet.workers.iter().filter(|worker| !worker.held().is_empty()).collect();
    for worker in running {
        worker.kill();
    }
    fleet.gateways[0].wait_for_members(2).await;
    let start = Instant::now();
    while fleet.report().await["held"] != true {
        assert!(start.elapsed() < SOON, "placement is not held");
        sleep(Duration::from_millis(20)).await;
    }
    fleet.set(desired("n", 1, 1)).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(fleet.loads(), before, "nothing is loaded while many workers are away");
    assert_eq!(fleet.gateways[0].metric("sconce_gateway_placement_held ").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_gateway_takes_over() {
    let mut fleet = Fleet::start(&[100], 2, &[("m", 10), ("n", 10)]).await;
    fleet.set(desired("m", 1, 1)).await;
    fleet.settle("m runs").await;
    let mut leaders = Vec::new();
    for gateway in &fleet.gateways {
        leaders.push(gateway.metric("sconce_gateway_placement_leader ").await);
    }
    assert_eq!(leaders.iter().sum::<usize>(), 1, "one gateway acts: {leaders:?}");
    let leader = leaders.iter().position(|leads| *leads == 1).unwrap();
    drop(fleet.gateways.remove(leader));
    let start = Instant::now();
    while fleet.gateways[0].metric("sconce_gateway_placement_leader ").await == 0 {
        assert!(start.elapsed() < SOON, "no gateway took over");
        sleep(Duration::from_millis(50)).await;
    }
    fleet.set(desired("n", 1, 1)).await;
    fleet.settle("n runs").await;
    assert_eq!((fleet.replicas("m"), fleet.replicas("n")), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_source_of_the_same_name_replaces_the_first() {
    let fleet = Fleet::start(&[100], 1, &[("m", 10), ("n", 10)]).await;
    fleet.set(desired("m", 1, 1)).await;
    fleet.settle("m runs").await;
    fleet.set(DesiredModel { source: source("n"), ..desired("m", 1, 1) }).await;
    fleet
        .wait_for("the new source is loaded", |fleet| {
            fleet.workers[0].held().get("m").is_some_and(|held| held.is_loaded && held.source == source("n"))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_change_the_desired_state_by_routes_of_a_gateway() {
    let registry = Arc::new(InProcess::new());
    let keys = Keys::read("one\ntwo operator\n").unwrap();
    let http = sconce_http::Settings { keys, ..sconce_http::Settings::default() };
    let gateway = Gateway::start(
        Arc::clone(&registry) as Arc<dyn Backend>,
        GatewaySettings { http, ..GatewaySettings::default() },
    )
    .await;
    let (one, two) = ([("x-api-key", "one")], [("x-api-key", "two")]);
    let models = || registry.watch_desired().models().unwrap();
    let post = async |key: &[(&str, &str)], body: Value| {
        let answer = gateway.client.post("/v1/models", key, &body.to_string()).await;
        (answer.status, answer.json())
    };
    let (status, body) = post(&one, json!({ "source": "org/m" })).await;
    assert_eq!((status, &body["error"]["code"]), (403, &json!("forbidden")));
    let (status, body) = post(&two, json!({ "source": "org/m" })).await;
    assert_eq!((status, &body["model"], &body["max_replicas"]), (202, &json!("org/m"), &json!(1)));
    let body =
        json!({ "source": "org/m", "name": "m", "min_replicas": 0, "max_replicas": 3, "class": "aa-half" });
    assert_eq!(post(&two, body).await.0, 202);
    assert_eq!(models().keys().collect::<Vec<_>>(), ["m", "org/m"]);
    assert_eq!((models()["m"].min_replicas, models()["m"].class.as_deref()), (0, Some("aa-half")));
    for wrong in [
        json!({}),
        json!({ "source": "" }),
        json!({ "source": "a", "min_replicas": 2, "max_replicas": 1 }),
        json!({ "source": "a", "class": "wrong" }),
        json!({ "source": "a", "replica": 1 }),
    ] {
        assert_eq!(post(&two, wrong.clone()).await.0, 400, "{wrong}");
    }
    let delete =
        async |key: &[(&str, &str)], path: &str| gateway.client.request("DELETE", path, key, "").await.status;
    assert_eq!(delete(&one, "/v1/models/m").await, 403);
    assert_eq!(delete(&two, "/v1/models/m").await, 200);
    assert_eq!(delete(&two, "/v1/models/m").await, 404);
    assert_eq!(delete(&two, "/v1/models/org/m").await, 200);
    assert!(models().is_empty());
}
