//! The order of placements.

use sconce_core::device::Device;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Dtype;
use sconce_planner::band::Band;
use sconce_planner::evidence::{Evidence, Findings, Goal};
use sconce_planner::plan::{Constraints, Refusal, plan};

use crate::{CUDA, Cell, METAL, card, decide, order, placement, refusals};

fn loose() -> Constraints {
    Constraints { band: Band::Coarse, ..Constraints::default() }
}

/// Whether the second of two placements, with these errors, ranks first when it takes this share of the first's time.
fn overtakes(first: f64, second: f64, share: f64) -> bool {
    let cells = [
        Cell(Device::Cpu, Dtype::F32, first, [1.0, 10.0]),
        Cell(METAL, Dtype::F32, second, [1.0, 10.0 * share]),
    ];
    order(&decide(&cells, &loose()))[0].contains("metal")
}

#[test]
fn each_step_to_a_looser_band_must_make_up_for_a_tenth() {
    let (exact, half, coarse) = (1e-6, 1e-4, 1e-2);
    for (first, second, share) in [
        (exact, exact, 1.0),
        (half, half, 1.0),
        (coarse, coarse, 1.0),
        (exact, half, 1.0 / 1.1),
        (half, coarse, 1.0 / 1.1),
        (exact, coarse, 1.0 / 1.21),
        (half, exact, 1.1),
        (coarse, half, 1.1),
        (coarse, exact, 1.21),
    ] {
        assert!(overtakes(first, second, share * 0.999), "{first} {second}");
        assert!(!overtakes(first, second, share * 1.001), "{first} {second}");
    }
}

#[test]
fn a_note_says_how_much_slower_a_fallback_is_from_equal_on() {
    let note = |milliseconds: f64| {
        let cells = [
            Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]),
            Cell(METAL, Dtype::F16, 1e-4, [1.0, milliseconds]),
        ];
        decide(&cells, &Constraints::default()).fallbacks[0].note.clone()
    };
    assert_eq!(note(9.9), None, "a little faster, and second for its band");
    for (milliseconds, expected) in [(10.0, 1.0), (30.0, 3.0)] {
        let Some(Obstacle::Slower { than, ratio }) = note(milliseconds) else { panic!("it is slower") };
        assert_eq!(than, placement(Device::Cpu, Dtype::F32));
        assert!((ratio - expected).abs() < 1e-9, "{ratio}");
    }
}

#[test]
fn texts_a_second_are_those_of_the_bulk_shape_whatever_the_goal() {
    for goal in [Goal::Latency, Goal::Throughput] {
        let cells = [Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0])];
        let chosen =
            decide(&cells, &Constraints { goal, ..Constraints::default() }).chosen.expect("it works");
        // Eight texts in ten layers of ten milliseconds.
        assert!((chosen.texts_per_second - 80.0).abs() < 1e-9, "{}", chosen.texts_per_second);
        let seconds = if goal == Goal::Latency { 0.01 } else { 0.1 };
        assert!((chosen.seconds - seconds).abs() < 1e-9, "{}", chosen.seconds);
    }
}

#[test]
fn a_plan_knows_its_chosen_one_and_its_devices() {
    let cells = [Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]), Cell(METAL, Dtype::F32, 0.0, [1.0, 5.0])];
    let plan = decide(&cells, &Constraints::default());
    let (cpu, metal) = (placement(Device::Cpu, Dtype::F32), placement(METAL, Dtype::F32));
    assert!(plan.is_chosen(&metal) && !plan.is_chosen(&cpu));
    assert!(plan.supports(METAL) && plan.supports(Device::Cpu) && !plan.supports(CUDA));
    assert!(plan.explain().starts_with("chosen: "), "{}", plan.explain());
    assert!(plan.slower_accelerator().is_none(), "the accelerator is chosen");
    let none = decide(&[], &Constraints::default());
    assert!(!none.is_chosen(&cpu) && !none.supports(Device::Cpu));
    assert!(none.reference.is_none() && none.explain() == "chosen: none\n");
}

#[test]
fn an_accelerator_is_beaten_only_by_the_processor() {
    let machine = |cpu: f64, metal: f64, cuda: f64| {
        let cells = [
            Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, cpu]),
            Cell(METAL, Dtype::F32, 0.0, [1.0, metal]),
            Cell(CUDA, Dtype::F32, 0.0, [1.0, cuda]),
        ];
        decide(&cells, &Constraints::default()).slower_accelerator().map(|viable| viable.placement.device)
    };
    assert_eq!(machine(1.0, 3.0, 2.0), Some(CUDA), "the first that follows");
    assert_eq!(machine(2.0, 3.0, 1.0), None, "another accelerator is chosen");
    let only =
        [Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 1.0]), Cell(Device::Cpu, Dtype::F16, 1e-4, [1.0, 2.0])];
    assert!(decide(&only, &Constraints::default()).slower_accelerator().is_none(), "there is no accelerator");
}

#[test]
fn what_was_tried_in_part_was_not_tried() {
    let whole = Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]).findings();
    let grid = [(placement(Device::Cpu, Dtype::F32), None)];
    let decide = |findings: Option<Findings>| {
        let evidence: Evidence = findings.into_iter().map(|found| (grid[0].0.clone(), found)).collect();
        plan(&card(), &grid, &evidence, &Constraints::default())
    };
    assert!(decide(Some(whole.clone())).chosen.is_some());
    for findings in [
        None,
        Some(Findings { twin: None, ..whole.clone() }),
        Some(Findings { speed: None, ..whole.clone() }),
    ] {
        assert_eq!(refusals(&decide(findings))[0].1, &Refusal::NotTried);
    }
}

#[test]
fn what_lies_beyond_all_bands_is_not_used_and_a_promise_includes_its_own_band() {
    let beyond = [Cell(Device::Cpu, Dtype::F32, 0.3, [1.0, 10.0])];
    assert!(decide(&beyond, &loose()).chosen.is_none());
    let cells = [
        Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 30.0]),
        Cell(METAL, Dtype::F16, 1e-4, [1.0, 10.0]),
        Cell(CUDA, Dtype::F16, 1e-4, [1.0, 12.0]),
    ];
    let plan = decide(&cells, &Constraints::default());
    assert_eq!(order(&plan), ["metal:0/f16", "cuda:0/f16", "cpu/f32"]);
    assert_eq!(plan.reference, Some(placement(Device::Cpu, Dtype::F32)));
}

#[test]
fn who_retires_is_refused_with_the_reason_and_who_is_not_there_changes_nothing() {
    let cells = [Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]), Cell(METAL, Dtype::F32, 0.0, [1.0, 5.0])];
    let mut plan = decide(&cells, &Constraints::default());
    let why = Obstacle::Quarantined { reason: "a test".to_owned() };
    let before = plan.clone();
    assert_eq!(plan.retire(&placement(CUDA, Dtype::F32), why.clone(), None), None);
    assert_eq!(plan, before);
    let gone = plan.retire(&placement(METAL, Dtype::F32), why.clone(), None).expect("it was there");
    assert_eq!(gone.placement, placement(METAL, Dtype::F32));
    assert_eq!(plan.refused[0].why, Refusal::Obstacle(why));
    let left = plan.chosen.clone().expect("the other");
    assert_eq!((left.note, left.replays), (None, true), "the one that serves is slower than none");
    plan.restore(gone, None);
    assert_eq!(plan, before);
}

#[test]
fn a_looser_one_that_takes_over_replays_what_it_is_asked() {
    let cells = [Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]), Cell(METAL, Dtype::F16, 1e-4, [1.0, 20.0])];
    let mut plan = decide(&cells, &Constraints::default());
    assert_eq!(order(&plan), ["cpu/f32", "(metal:0/f16)"]);
    let why = Obstacle::Quarantined { reason: "a test".to_owned() };
    plan.retire(&placement(Device::Cpu, Dtype::F32), why, None);
    assert_eq!(order(&plan), ["metal:0/f16"]);
    assert_eq!(plan.chosen.and_then(|chosen| chosen.note), None);
}
