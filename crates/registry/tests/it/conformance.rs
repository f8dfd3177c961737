//! What every registry does.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sconce_registry::{
    BootId, DesiredModel, DesiredModels, DesiredWatcher, MemberMap, ModelRecord, RegistryError, WorkerState,
};
use tokio::time::sleep;

use crate::pool::{Pool, Worker, wait_for};

const TTL: Duration = Duration::from_secs(2);
/// A limit for what should take milliseconds.
const SOON: Duration = Duration::from_secs(5);

/// Tests that a registry made by `$pool` passes each case of this file.
macro_rules! conformance {
    ($pool:path; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::conformance::$case($pool().await).await;
            }
        )*
    };
    ($pool:path) => {
        crate::conformance::conformance! { $pool;
            a_registration_is_seen
            a_registration_is_updated
            a_heartbeat_is_updated
            a_late_watcher_sees_all_members
            a_silent_worker_expires
            a_silent_worker_returns
            a_worker_deregisters
            a_stale_boot_is_refused
            an_older_boot_can_register_once_the_newer_one_is_silent
            invalid_records_are_refused
            one_of_16_acquires_a_lease
            a_lease_excludes_others
            a_lease_expires_and_is_taken_over
            a_released_lease_expires_again
            a_renewed_lease_stays
            a_name_keeps_its_first_value
            one_of_16_binds_a_name
            messages_reach_all_subscribers_of_their_topic
            desired_models_are_set_replaced_and_removed
            a_late_watcher_sees_the_desired_models
            one_of_16_writes_of_a_desired_model_wins
        }
    };
}
pub(crate) use conformance;

fn sequence(map: &MemberMap, id: &str) -> Option<u64> {
    Some(map.get(id)?.heartbeat.sequence)
}

pub(crate) async fn a_registration_is_seen(pool: Pool) {
    let mut watcher = pool.handle(1).watch();
    let mut worker = Worker::new(pool.handle(0), "Büro 7/links.*", TTL);
    worker.register().await.unwrap();
    wait_for(&mut watcher, "the worker is a member", SOON, |map| map.len() == 1).await;
    watcher.read(|map| {
        let member = map.get(worker.id()).unwrap();
        assert_eq!(**member.registration, worker.registration);
        assert_eq!(member.heartbeat.state, WorkerState::Ready);
    });
    assert!(watcher.is_connected());
}

pub(crate) async fn a_registration_is_updated(pool: Pool) {
    let mut watcher = pool.handle(1).watch();
    let mut worker = Worker::new(pool.handle(0), "seven", TTL);
    worker.register().await.unwrap();
    worker.registration.models.push(ModelRecord {
        model: "minilm".to_owned(),
        aliases: Vec::new(),
        task: "embed".to_owned(),
        max_length: 256,
        managed: false,
        placements: Vec::new(),
    });
    worker.register().await.unwrap();
    let models = |map: &MemberMap| map.get("seven").map_or(0, |member| member.registration.models.len());
    wait_for(&mut watcher, "the model is listed", SOON, |map| models(map) == 1).await;
}

pub(crate) async fn a_heartbeat_is_updated(pool: Pool) {
    let mut watcher = pool.handle(1).watch();
    let mut worker = Worker::new(pool.handle(0), "seven", TTL);
    worker.register().await.unwrap();
    for _ in 0..20 {
        worker.beat().await.unwrap();
    }
    wait_for(&mut watcher, "the last heartbeat arrives", SOON, |map| sequence(map, "seven") == Some(21))
        .await;
    // A heartbeat that was overtaken by later ones.
    worker.sequence = 9;
    let _ = worker.beat().await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(watcher.read(|map| sequence(map, "seven")), Some(21));
}

pub(crate) async fn a_late_watcher_sees_all_members(pool: Pool) {
    let mut workers: Vec<Worker> =
        (0..10).map(|index| Worker::new(pool.handle(index), &format!("w{index}"), TTL * 5)).collect();
    for worker in &mut workers {
        worker.register().await.unwrap();
    }
    // The registration of the first is newer than its heartbeat.
    workers[0].register().await.unwrap();
    let mut watcher = pool.handle(2).watch();
    wait_for(&mut watcher, "ten members", SOON, |map| map.len() == 10).await;
}

pub(crate) async fn a_silent_worker_expires(pool: Pool) {
    let mut watcher = pool.handle(1).watch();
    let mut worker = Worker::new(pool.handle(0), "seven", TTL);
    worker.register().await.unwrap();
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        sleep(TTL / 5).await;
        worker.beat().await.unwrap();
        let last = worker.sequence;
        wait_for(&mut watcher, "it stays a member", SOON, |map| sequence(map, "seven") == Some(last)).await;
    }
    let took = wait_for(&mut watcher, "it expires", TTL + Duration::from_secs(1), MemberMap::is_empty).await;
    println!("expired {took:?} after the last heartbeat, with a time to live of {TTL:?}");
    assert!(took > TTL.mul_f32(0.9), "{took:?}");
}

pub(crate) async fn a_silent_worker_returns(pool: Pool) {
    let mut watcher = pool.handle(1).watch();
    let mut worker = Worker::new(pool.handle(0), "seven", TTL);
    worker.register().await.unwrap();
    wait_for(&mut watcher, "it is a member", SOON, |map| map.len() == 1).await;
    wait_for(&mut watcher, "it expires", TTL + Duration::from_secs(1), MemberMap::is_empty).await;
    sleep(Duration::from_secs(1)).await;
    worker.beat().await.unwrap();
    wait_for(&mut watcher, "it returns", SOON, |map| map.len() == 1).await;
}

pub(crate) async fn a_worker_deregisters(pool: Pool) {
    let mut watcher = pool.handle(1).watch();
    let mut worker = Worker::new(pool.handle(0), "seven", TTL * 10);
    let mut other = Worker::new(pool.handle(2), "eight", TTL * 10);
    worker.register().await.unwrap();
    other.register().await.unwrap();
    wait_for(&mut watcher, "both are members", SOON, |map| map.len() == 2).await;
    worker.deregister().await.unwrap();
    let took = wait_for(&mut watcher, "one is left", SOON, |map| map.len() == 1).await;
    assert!(took < TTL, "{took:?}");
    assert!(watcher.read(|map| map.get("eight").is_some()));
    // A heartbeat after the end is refused, and a restart is welcome.
    assert!(matches!(worker.beat().await, Err(RegistryError::NotRegistered { .. })));
    let mut again = Worker::new(pool.handle(2), "seven", TTL);
    again.register().await.unwrap();
    wait_for(&mut watcher, "it is back", SOON, |map| map.len() == 2).await;
    // The end of an old process does not remove the new one.
    worker.deregister().await.unwrap();
    again.beat().await.unwrap();
    assert_eq!(watcher.read(MemberMap::len), 2);
}

pub(crate) async fn a_stale_boot_is_refused(pool: Pool) {
    let mut watcher = pool.handle(2).watch();
    let mut old = Worker::of_boot(pool.handle(0), "seven", TTL * 5, BootId::at(1_000));
    let mut new = Worker::of_boot(pool.handle(1), "seven", TTL * 5, BootId::at(2_000));
    let boot = |map: &MemberMap| map.get("seven").map(|member| member.registration.boot_id);
    old.register().await.unwrap();
    wait_for(&mut watcher, "the old boot is a member", SOON, |map| boot(map) == Some(old.boot())).await;
    new.register().await.unwrap();
    wait_for(&mut watcher, "the new boot replaces it", SOON, |map| boot(map) == Some(new.boot())).await;
    for _ in 0..3 {
        for outcome in [old.beat().await, old.register().await] {
            let Err(RegistryError::Superseded { newer, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(newer, new.boot());
        }
        new.beat().await.unwrap();
    }
    old.deregister().await.unwrap();
    let last = new.sequence;
    wait_for(&mut watcher, "the new boot stays", SOON, |map| sequence(map, "seven") == Some(last)).await;
    assert_eq!(watcher.read(boot), Some(new.boot()));
}

pub(crate) async fn an_older_boot_can_register_once_the_newer_one_is_silent(pool: Pool) {
    let mut watcher = pool.handle(2).watch();
    let mut new = Worker::of_boot(pool.handle(1), "seven", TTL, BootId::at(2_000));
    new.register().await.unwrap();
    // A process that started after the clock was set back.
    let mut set_back = Worker::of_boot(pool.handle(0), "seven", TTL, BootId::at(1_000));
    assert!(matches!(set_back.register().await, Err(RegistryError::Superseded { .. })));
    sleep(TTL + Duration::from_millis(500)).await;
    set_back.register().await.unwrap();
    let boot = |map: &MemberMap| map.get("seven").map(|member| member.registration.boot_id);
    let expected = set_back.boot();
    set_back.keep_alive(TTL / 5);
    wait_for(&mut watcher, "it is a member", TTL, |map| boot(map) == Some(expected)).await;
}

pub(crate) async fn invalid_records_are_refused(pool: Pool) {
    let mut nameless = Worker::new(pool.handle(0), "", TTL);
    assert!(matches!(nameless.register().await, Err(RegistryError::Record(_))));
    let mut worker = Worker::new(pool.handle(0), "seven", TTL);
    assert!(matches!(worker.beat().await, Err(RegistryError::NotRegistered { .. })));
    let mut heartbeat = worker.next_heartbeat();
    heartbeat.rates.small = f32::NAN;
    let outcome = pool.handle(0).register(worker.registration.clone(), heartbeat).await;
    assert!(matches!(outcome, Err(RegistryError::Record(_))));
    for (name, ttl) in [("", TTL), ("place", Duration::ZERO), ("place", Duration::MAX)] {
        let outcome = pool.handle(0).acquire(name, "me", ttl).await;
        assert!(matches!(outcome, Err(RegistryError::Record(_))), "{outcome:?}");
    }
}

pub(crate) async fn one_of_16_acquires_a_lease(pool: Pool) {
    let mut last_fence = 0;
    for round in 0..20 {
        let tasks: Vec<_> = (0..16)
            .map(|index| {
                let handle = pool.handle(index);
                tokio::spawn(async move { handle.acquire("place", &format!("h{index}"), TTL * 5).await })
            })
            .collect();
        let mut grants = Vec::new();
        for task in tasks {
            grants.extend(task.await.unwrap().unwrap());
        }
        assert_eq!(grants.len(), 1, "in round {round}");
        let grant = grants.remove(0);
        assert!(grant.fence() > last_fence, "fencing tokens grow");
        assert!(grant.is_held());
        last_fence = grant.fence();
        pool.handle(round).release(grant).await.unwrap();
    }
}

pub(crate) async fn a_lease_excludes_others(pool: Pool) {
    let (inside, fences) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(HashSet::new())));
    let tasks: Vec<_> = (0..16)
        .map(|index| {
            let (handle, inside, fences) = (pool.handle(index), Arc::clone(&inside), Arc::clone(&fences));
            tokio::spawn(async move {
                let mut wins = 0;
                while wins < 3 {
                    let Some(grant) = handle.acquire("a name", "me", TTL * 5).await.unwrap() else {
                        sleep(Duration::from_millis(5)).await;
                        continue;
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    assert!(fences.lock().unwrap().insert(grant.fence()));
                    sleep(Duration::from_millis(3)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    handle.release(grant).await.unwrap();
                    wins += 1;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(fences.lock().unwrap().len(), 48);
}

pub(crate) async fn a_lease_expires_and_is_taken_over(pool: Pool) {
    let (first, second) = (pool.handle(0), pool.handle(1));
    let mut lost = first.acquire("place", "first", TTL).await.unwrap().unwrap();
    let start = Instant::now();
    let mut taken = loop {
        if let Some(grant) = second.acquire("place", "second", TTL).await.unwrap() {
            break grant;
        }
        assert!(start.elapsed() < TTL + Duration::from_secs(1), "the lease does not expire");
        sleep(Duration::from_millis(20)).await;
    };
    println!("taken over after {:?}, with a time to live of {TTL:?}", start.elapsed());
    assert!(start.elapsed() > TTL.mul_f32(0.9), "{:?}", start.elapsed());
    assert!(!lost.is_held() && taken.is_held() && taken.fence() > lost.fence());
    // Who lost the lease neither renews nor frees it.
    let outcome = first.renew(&mut lost).await;
    assert!(matches!(outcome, Err(RegistryError::LeaseLost { .. })), "{outcome:?}");
    first.release(lost).await.unwrap();
    assert!(first.acquire("place", "first", TTL).await.unwrap().is_none());
    second.renew(&mut taken).await.unwrap();
}

pub(crate) async fn a_released_lease_expires_again(pool: Pool) {
    let handle = pool.handle(0);
    let grant = handle.acquire("place", "first", TTL).await.unwrap().unwrap();
    handle.release(grant).await.unwrap();
    let mut grant = handle.acquire("place", "second", TTL).await.unwrap().unwrap();
    sleep(TTL + Duration::from_secs(1)).await;
    // Nobody else acquired it, yet it is lost.
    assert!(matches!(handle.renew(&mut grant).await, Err(RegistryError::LeaseLost { .. })));
    assert!(handle.acquire("place", "third", TTL).await.unwrap().is_some());
}

pub(crate) async fn a_renewed_lease_stays(pool: Pool) {
    let (first, second) = (pool.handle(0), pool.handle(1));
    let mut grant = first.acquire("place", "first", TTL).await.unwrap().unwrap();
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        sleep(TTL / 4).await;
        first.renew(&mut grant).await.unwrap();
        assert!(grant.is_held());
        assert!(second.acquire("place", "second", TTL).await.unwrap().is_none());
    }
    first.release(grant).await.unwrap();
    assert!(second.acquire("place", "second", TTL).await.unwrap().is_some());
}

pub(crate) async fn a_name_keeps_its_first_value(pool: Pool) {
    let (first, second) = (pool.handle(0), pool.handle(1));
    assert_eq!(first.bound("Büro 7/*.>").await.unwrap(), None);
    assert_eq!(first.bind("Büro 7/*.>", "aaa-half").await.unwrap(), "aaa-half");
    assert_eq!(second.bind("Büro 7/*.>", "bbb-half").await.unwrap(), "aaa-half");
    assert_eq!(second.bound("Büro 7/*.>").await.unwrap().as_deref(), Some("aaa-half"));
    assert_eq!(second.bind("another", "bbb-half").await.unwrap(), "bbb-half");
    for (name, value) in [("", "a"), ("a", ""), (&*"a".repeat(1000), "a")] {
        let outcome = first.bind(name, value).await;
        assert!(matches!(outcome, Err(RegistryError::Record(_))), "{outcome:?}");
    }
}

pub(crate) async fn one_of_16_binds_a_name(pool: Pool) {
    for round in 0..10 {
        let tasks: Vec<_> = (0..16)
            .map(|index| {
                let handle = pool.handle(index);
                tokio::spawn(async move { handle.bind(&format!("n{round}"), &format!("v{index}")).await })
            })
            .collect();
        let mut values = HashSet::new();
        for task in tasks {
            values.insert(task.await.unwrap().unwrap());
        }
        assert_eq!(values.len(), 1, "in round {round}: {values:?}");
    }
}

pub(crate) async fn messages_reach_all_subscribers_of_their_topic(pool: Pool) {
    let (first, second) = (pool.handle(0), pool.handle(1));
    let mut subscriptions =
        [first.subscribe("usage.*").await.unwrap(), second.subscribe("usage.*").await.unwrap()];
    let mut other = second.subscribe("other").await.unwrap();
    // NATS answers in the order of requests, but the subscriptions are of several connections.
    sleep(Duration::from_millis(200)).await;
    for number in 0..50_u8 {
        pool.handle(usize::from(number) % 2).publish("usage.*", vec![number]).await.unwrap();
    }
    for subscription in &mut subscriptions {
        let mut numbers = HashSet::new();
        for _ in 0..50 {
            let message = tokio::time::timeout(SOON, subscription.next()).await.unwrap().unwrap();
            numbers.insert(message[0]);
        }
        assert_eq!(numbers.len(), 50);
    }
    first.publish("other", b"end".to_vec()).await.unwrap();
    let message = tokio::time::timeout(SOON, other.next()).await.unwrap();
    assert_eq!(message.as_deref(), Some(&b"end"[..]), "messages of another topic do not arrive");
}

/// A model that a pool should run.
pub(crate) fn desired(model: &str, min_replicas: u32) -> DesiredModel {
    let (source, class) = (format!("org/{model}"), Some("aa-half".to_owned()));
    DesiredModel { model: model.to_owned(), source, min_replicas, max_replicas: 3, class }
}

/// Waits until `condition` holds for the desired models.
pub(crate) async fn wait_for_desired(
    watcher: &mut DesiredWatcher,
    what: &str,
    condition: impl Fn(&DesiredModels) -> bool,
) {
    let wait = async {
        while !watcher.models().is_some_and(|models| condition(&models)) && watcher.changed().await {}
    };
    let outcome = tokio::time::timeout(SOON, wait).await;
    assert!(outcome.is_ok(), "{what}: {:?}", watcher.models());
}

pub(crate) async fn desired_models_are_set_replaced_and_removed(pool: Pool) {
    let (first, second) = (pool.handle(0), pool.handle(1));
    let mut watcher = second.watch_desired();
    wait_for_desired(&mut watcher, "none at first", DesiredModels::is_empty).await;
    let name = "Büro 7/*.>";
    first.set_desired(desired(name, 0)).await.unwrap();
    wait_for_desired(&mut watcher, "it is set", |models| {
        models.get(name).is_some_and(|one| **one == desired(name, 0))
    })
    .await;
    second.set_desired(desired(name, 2)).await.unwrap();
    first.set_desired(desired("other", 1)).await.unwrap();
    wait_for_desired(&mut watcher, "it is replaced", |models| {
        models.get(name).is_some_and(|one| one.min_replicas == 2) && models.len() == 2
    })
    .await;
    assert!(second.remove_desired(name).await.unwrap());
    assert!(!first.remove_desired(name).await.unwrap(), "it was removed before");
    wait_for_desired(&mut watcher, "it is removed", |models| models.keys().map(String::as_str).eq(["other"]))
        .await;
    first.set_desired(desired(name, 1)).await.unwrap();
    wait_for_desired(&mut watcher, "it is set again", |models| models.len() == 2).await;
    let outcome = first.set_desired(DesiredModel { max_replicas: 0, ..desired(name, 0) }).await;
    assert!(matches!(outcome, Err(RegistryError::Record(_))), "{outcome:?}");
    assert!(matches!(first.remove_desired("").await, Err(RegistryError::Record(_))));
}

pub(crate) async fn a_late_watcher_sees_the_desired_models(pool: Pool) {
    for number in 0..20 {
        pool.handle(number).set_desired(desired(&format!("m{number}"), 1)).await.unwrap();
    }
    pool.handle(1).remove_desired("m7").await.unwrap();
    let mut watcher = pool.handle(2).watch_desired();
    wait_for_desired(&mut watcher, "19 models", |models| models.len() == 19 && !models.contains_key("m7"))
        .await;
}

pub(crate) async fn one_of_16_writes_of_a_desired_model_wins(pool: Pool) {
    let tasks: Vec<_> = (0..16)
        .map(|index| {
            let (handle, max_replicas) = (pool.handle(index), 3 + index as u32);
            let desired = DesiredModel { max_replicas, ..desired("m", 1) };
            tokio::spawn(async move { handle.set_desired(desired).await })
        })
        .collect();
    let mut written = 0;
    for task in tasks {
        // A writer that always comes second gives up.
        written += usize::from(task.await.unwrap().is_ok());
    }
    assert!(written > 0);
    let watchers = [pool.handle(0).watch_desired(), pool.handle(1).watch_desired()];
    let mut seen = HashSet::new();
    for mut watcher in watchers {
        wait_for_desired(&mut watcher, "one model", |models| models.len() == 1).await;
        seen.insert(watcher.models().unwrap()["m"].max_replicas);
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}
