//! Tests of placement.

use proptest::prelude::*;

use super::*;

fn desired(model: &str, min_replicas: u32, max_replicas: u32) -> Desired {
    let source = format!("hub/{model}");
    Desired { model: model.to_owned(), source, min_replicas, max_replicas, demand: 0, pin: None }
}

fn bid(worker: &str, model: &str, bytes: u64, free_bytes: u64, rate: f64) -> Bid {
    Bid {
        worker: worker.to_owned(),
        model: model.to_owned(),
        bytes,
        free_bytes,
        rate,
        load_seconds: 1.0,
        class: None,
        obstacles: Vec::new(),
    }
}

fn replica(worker: &str, model: &str, rate: f64) -> Replica {
    Replica { worker: worker.to_owned(), model: model.to_owned(), class: None, rate, is_managed: true }
}

fn load(worker: &str, model: &str) -> Action {
    Action::Load { worker: worker.to_owned(), model: model.to_owned(), source: format!("hub/{model}") }
}

fn unload(worker: &str, model: &str) -> Action {
    Action::Unload { worker: worker.to_owned(), model: model.to_owned() }
}

#[test]
fn the_fastest_bid_that_fits_wins() {
    let mut blocked = bid("blocked", "m", 10, 100, 9e9);
    blocked.obstacles.push("no_disk".to_owned());
    let bids = [
        blocked,
        bid("full", "m", 10, 9, 1e6),
        bid("slow", "m", 10, 100, 1.0),
        bid("fast", "m", 10, 10, 5.0),
    ];
    assert_eq!(place(&bids, &[], &[desired("m", 1, 3)]), [load("fast", "m")]);
    assert_eq!(place(&bids, &[], &[desired("m", 3, 3)]), [load("fast", "m"), load("slow", "m")]);
    assert_eq!(place(&bids[..2], &[], &[desired("m", 1, 1)]), []);
}

#[test]
fn ties_are_broken_by_load_time_free_memory_and_name() {
    let quick = Bid { load_seconds: 0.5, ..bid("c", "m", 1, 10, 5.0) };
    let bids = [bid("b", "m", 1, 20, 5.0), quick, bid("a", "m", 1, 10, 5.0), bid("d", "m", 1, 10, 5.0)];
    let expected = ["c", "b", "a", "d"].map(|worker| load(worker, "m"));
    assert_eq!(place(&bids, &[], &[desired("m", 4, 4)]), expected);
}

#[test]
fn demand_is_met_within_the_limits() {
    let bids: Vec<Bid> = (0..6).map(|at| bid(&format!("w{at}"), "m", 1, 10, 1.0)).collect();
    for (demand, count) in [(0, 1), (1, 1), (3, 3), (9, 4)] {
        let desired = Desired { demand, ..desired("m", 1, 4) };
        assert_eq!(place(&bids, &[], &[desired]).len(), count, "{demand}");
    }
    let cold = desired("m", 0, 2);
    assert_eq!(place(&bids, &[], std::slice::from_ref(&cold)), []);
    let asked = Desired { demand: 1, ..cold };
    assert_eq!(place(&bids, &[], std::slice::from_ref(&asked)).len(), 1);
    assert_eq!(place(&bids, &[replica("w3", "m", 0.0)], &[asked]), [], "it is being loaded");
}

#[test]
fn what_runs_is_not_moved() {
    let bids = [bid("fast", "m", 1, 10, 100.0), bid("slow", "m", 1, 10, 1.0)];
    let running = [replica("slow", "m", 1.0)];
    assert_eq!(place(&bids, &running, &[desired("m", 1, 2)]), []);
    let running = [replica("slow", "m", 1.0), replica("fast", "m", 9.0)];
    assert_eq!(
        place(&bids, &running, &[desired("m", 1, 2)]),
        [],
        "between minimum and maximum nothing changes"
    );
}

#[test]
fn the_slowest_excess_replicas_of_the_pool_are_unloaded() {
    let mut running: Vec<Replica> =
        [("a", 5.0), ("b", 1.0), ("c", 3.0)].map(|(worker, rate)| replica(worker, "m", rate)).into();
    assert_eq!(place(&[], &running, &[desired("m", 1, 2)]), [unload("b", "m")]);
    assert_eq!(place(&[], &running, &[desired("m", 0, 1)]), [unload("b", "m"), unload("c", "m")]);
    assert_eq!(place(&[], &running, &[]).len(), 3, "the model is not desired any more");
    running[1].is_managed = false;
    assert_eq!(place(&[], &running, &[desired("m", 1, 2)]), [unload("c", "m")]);
    assert_eq!(place(&[], &running, &[]), [unload("c", "m"), unload("a", "m")]);
}

#[test]
fn replicas_and_bids_of_another_class_do_not_count() {
    let class = |text: &str| Some(text.parse::<NumericsClass>().unwrap());
    let pin = Some(Pin { class: class("aa-half").unwrap(), allow_tighter: false });
    let desired = Desired { pin, ..desired("m", 1, 1) };
    let other = Replica { class: class("aa-exact"), ..replica("b", "m", 9.0) };
    let bids = [
        Bid { class: class("aa-coarse"), ..bid("a", "m", 1, 10, 9.0) },
        Bid { class: class("aa-half"), ..bid("c", "m", 1, 10, 1.0) },
        bid("d", "m", 1, 10, 5.0),
    ];
    assert_eq!(place(&bids, std::slice::from_ref(&other), std::slice::from_ref(&desired)), [load("c", "m")]);
    let right = Replica { class: class("aa-half"), ..replica("c", "m", 1.0) };
    assert_eq!(
        place(&bids, &[other.clone(), right], std::slice::from_ref(&desired)),
        [unload("b", "m")],
        "faster, but of another class"
    );
    let unknown = [bids[0].clone(), bids[2].clone()];
    assert_eq!(
        place(&unknown, &[], std::slice::from_ref(&desired)),
        [load("d", "m")],
        "it may be the right one"
    );
    let loading = replica("d", "m", 0.0);
    assert_eq!(place(&bids, &[loading], std::slice::from_ref(&desired)), [], "its class is not known yet");
}

#[test]
fn every_model_gets_a_replica_before_any_gets_a_second_and_large_ones_first() {
    let bids = [
        bid("big", "small", 4, 10, 9.0),
        bid("big", "large", 8, 10, 9.0),
        bid("tiny", "small", 4, 5, 1.0),
        bid("tiny", "large", 8, 5, 1.0),
    ];
    let wanted = [desired("small", 2, 2), desired("large", 1, 1)];
    assert_eq!(place(&bids, &[], &wanted), [load("big", "large"), load("tiny", "small")]);
}

/// Bids of five workers for eight models, what runs, and what is desired.
fn pools() -> impl Strategy<Value = (Vec<Bid>, Vec<Replica>, Vec<Desired>)> {
    let models = prop::collection::vec((1u64..40, 0u32..3, 0u32..4, 0u32..6), 8);
    let frees = prop::collection::vec(0u64..100, 5);
    let details = prop::collection::vec((0u8..10, 1u32..1000, any::<bool>(), any::<bool>()), 40);
    (models, frees, details).prop_map(|(models, frees, details)| {
        let (mut bids, mut replicas) = (Vec::new(), Vec::new());
        for (at, (kind, rate, fits, is_managed)) in details.into_iter().enumerate() {
            let (worker, model) = (format!("w{}", at / 8), format!("m{}", at % 8));
            if kind < 2 {
                replicas.push(Replica { is_managed, ..replica(&worker, &model, f64::from(rate)) });
            } else {
                let mut bid = bid(&worker, &model, models[at % 8].0, frees[at / 8], f64::from(rate));
                bid.obstacles.extend((!fits && kind == 2).then(|| "no_disk".to_owned()));
                bids.push(bid);
            }
        }
        let desired = models.iter().enumerate().map(|(at, (_, min, more, demand))| Desired {
            demand: *demand,
            ..desired(&format!("m{at}"), *min, min + more)
        });
        (bids, replicas, desired.collect())
    })
}

proptest! {
    #[test]
    fn placement_keeps_limits_is_stable_and_refuses_nothing_that_fits(
        (bids, replicas, desired) in pools(), seed: u64,
    ) {
        let actions = place(&bids, &replicas, &desired);
        // The order of the inputs does not matter.
        let mut draws = sconce_testkit::draws::Draws(seed);
        let (mut other_bids, mut other_replicas, mut other_desired) =
            (bids.clone(), replicas.clone(), desired.clone());
        for _ in 0..50 {
            let at = draws.below(other_bids.len().max(1));
            if !other_bids.is_empty() {
                other_bids.swap(0, at);
            }
            let (a, b) = (draws.below(8), draws.below(8));
            other_desired.swap(a, b);
            other_replicas.reverse();
        }
        prop_assert_eq!(&place(&other_bids, &other_replicas, &other_desired), &actions);

        // The state after the actions.
        let mut free: BTreeMap<&str, u64> = bids.iter().map(|bid| (bid.worker.as_str(), bid.free_bytes)).collect();
        let mut after = replicas.clone();
        for action in &actions {
            match action {
                Action::Load { worker, model, .. } => {
                    let bid = bids.iter().find(|bid| bid.worker == *worker && bid.model == *model).unwrap();
                    prop_assert!(bid.obstacles.is_empty());
                    prop_assert!(!after.iter().any(|one| one.worker == *worker && one.model == *model));
                    let left = free[worker.as_str()].checked_sub(bid.bytes);
                    prop_assert!(left.is_some(), "{} is oversold", worker);
                    free.insert(worker.as_str(), left.unwrap());
                    after.push(replica(worker, model, bid.rate));
                }
                Action::Unload { worker, model } => {
                    let at = after.iter().position(|one| one.worker == *worker && one.model == *model).unwrap();
                    prop_assert!(after.swap_remove(at).is_managed);
                }
            }
        }
        for one in &desired {
            let count = |list: &[Replica]| list.iter().filter(|have| have.model == one.model).count() as u32;
            let (before, now) = (count(&replicas), count(&after));
            let loaded = actions.iter().any(|action| matches!(action, Action::Load { model, .. } if *model == one.model));
            let unloaded =
                actions.iter().any(|action| matches!(action, Action::Unload { model, .. } if *model == one.model));
            prop_assert!(!(loaded && unloaded), "{} is moved", one.model);
            prop_assert!(!unloaded || now >= one.max_replicas.min(before));
            prop_assert!(!loaded || now <= one.target());
            if now < one.target() {
                let fits = bids.iter().find(|bid| {
                    bid.model == one.model
                        && bid.obstacles.is_empty()
                        && bid.bytes <= free[bid.worker.as_str()]
                        && !after.iter().any(|have| have.worker == bid.worker && have.model == one.model)
                });
                prop_assert!(fits.is_none(), "{} fits: {:?}", one.model, fits);
            }
        }
        // A second round has nothing to do.
        let left: Vec<Bid> = bids
            .iter()
            .filter(|bid| !after.iter().any(|one| one.worker == bid.worker && one.model == bid.model))
            .map(|bid| Bid { free_bytes: free[bid.worker.as_str()], ..bid.clone() })
            .collect();
        prop_assert_eq!(place(&left, &after, &desired), []);
    }
}
