//! Plans and their text.

mod accuracy;
mod cases;
mod evidence;
mod grids;
mod judging;
mod orders;

use std::collections::BTreeMap;

use sconce_core::card::{Format, GenerationCard, ModelCard, Pooling, PoolingMode, Sizes, Task, Weights};
use sconce_core::device::Device;
use sconce_core::head::{OutputHead, Step};
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::sourced::Sourced;
use sconce_planner::accuracy::{AccuracyMetric, AccuracyReport};
use sconce_planner::band::Band;
use sconce_planner::evidence::{Agreement, Canary, Evidence, Findings, Goal, SpeedPoint};
use sconce_planner::explain::{grouped, unmet};
use sconce_planner::grid::{Candidate, grid, reference};
use sconce_planner::plan::{Constraints, Downgrade, Plan, Refusal, plan};

const METAL: Device = Device::Metal(0);
const CUDA: Device = Device::Cuda(0);

fn card() -> ModelCard {
    let by = "a test";
    let sizes = Sizes { layers: 10, hidden: 32, heads: 4, intermediate: 64, vocabulary: 256, positions: 512 };
    ModelCard {
        name: "a model".to_owned(),
        architecture: Sourced::new("bert".to_owned(), by),
        task: Sourced::new(Task::Embed, by),
        sizes: Sourced::new(sizes, by),
        config: serde_json::Value::Null,
        max_length: Sourced::new(512, by),
        pooling: Sourced::new(Pooling { modes: vec![PoolingMode::Mean], include_prompt: true }, by),
        steps: Sourced::new(vec![Step::Normalize], by),
        head: OutputHead::default(),
        generation: GenerationCard::default(),
        prompts: Sourced::new(BTreeMap::new(), by),
        default_prompt: None,
        dimensions: None,
        weights: vec![Weights {
            name: "w".to_owned(),
            format: Format::Safetensors,
            stored: Dtype::F32,
            bytes: 1,
            values: None,
            identity: String::new(),
        }],
    }
}

fn placement(device: Device, dtype: Dtype) -> Placement {
    Placement { engine: EngineId::Candle, device, weights: "w".to_owned(), dtype }
}

/// A placement as a plan prints it, without its weights.
fn short(placement: &Placement) -> String {
    format!("{}/{}", placement.device, placement.dtype)
}

/// One cell of a test's grid: device, dtype, distance from the reference, and milliseconds of one layer for one text
/// and for eight.
struct Cell(Device, Dtype, f64, [f64; 2]);

impl Cell {
    fn findings(&self) -> Findings {
        let Cell(_, _, error, [one, eight]) = *self;
        let point = |batch, length, milliseconds: f64| SpeedPoint {
            batch,
            length,
            cached: None,
            seconds: milliseconds / 1e3,
            layers: 1,
        };
        Findings {
            twin: Some(Ok(Agreement { error: Distance(Some(error)), cases: 1 })),
            speed: Some(Ok(vec![point(1, 16, one), point(8, 128, eight), point(32, 256, 9.0 * eight)])),
            canary: None,
        }
    }
}

fn decide(cells: &[Cell], constraints: &Constraints) -> Plan {
    let mut evidence = Evidence::new();
    let mut grid = Vec::new();
    for cell in cells {
        let placement = placement(cell.0, cell.1);
        evidence.insert(placement.clone(), cell.findings());
        grid.push((placement, None));
    }
    plan(&card(), &grid, &evidence, constraints)
}

/// The chosen placement, then the fallbacks; those that may not replay in brackets.
fn order(plan: &Plan) -> Vec<String> {
    let name = |viable: &sconce_planner::plan::Viable| {
        let name = short(&viable.placement);
        if viable.replays { name } else { format!("({name})") }
    };
    plan.viable().map(name).collect()
}

fn refusals(plan: &Plan) -> Vec<(String, &Refusal)> {
    plan.refused.iter().map(|refused| (short(&refused.placement), &refused.why)).collect()
}

fn looser(band: Band, error: f64, accuracy: Option<AccuracyReport>) -> Refusal {
    Refusal::Band { band, error: Distance(Some(error)), accuracy }
}

fn a_machine() -> Vec<Cell> {
    vec![
        Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]),
        Cell(Device::Cpu, Dtype::Bf16, 2e-4, [0.8, 5.0]),
        Cell(METAL, Dtype::F32, 1e-7, [4.0, 2.0]),
        Cell(METAL, Dtype::F16, 1e-6, [3.0, 1.0]),
    ]
}

#[test]
fn the_fastest_within_the_constraints_is_chosen_and_the_others_follow() {
    let any = Constraints::default();
    for (constraints, expected) in [
        (any.clone(), vec!["metal:0/f16", "metal:0/f32", "cpu/bf16", "cpu/f32"]),
        (
            Constraints { goal: Goal::Latency, ..any.clone() },
            vec!["cpu/bf16", "cpu/f32", "metal:0/f16", "metal:0/f32"],
        ),
        (Constraints { band: Band::Exact, ..any.clone() }, vec!["metal:0/f32", "cpu/f32"]),
        (
            Constraints { band: Band::Exact, goal: Goal::Latency, ..any.clone() },
            vec!["cpu/f32", "metal:0/f32"],
        ),
        (Constraints { device: Some(Device::Cpu), ..any.clone() }, vec!["cpu/bf16", "cpu/f32"]),
        (Constraints { dtype: Some(Dtype::F32), ..any.clone() }, vec!["metal:0/f32", "cpu/f32"]),
        (Constraints { device: Some(METAL), dtype: Some(Dtype::F32), ..any.clone() }, vec!["metal:0/f32"]),
        (Constraints { engine: Some(EngineId::Onnx), ..any.clone() }, vec![]),
        (Constraints { weights: Some("others".to_owned()), ..any.clone() }, vec![]),
        (Constraints { weights: Some("w".to_owned()), device: Some(CUDA), ..any }, vec![]),
    ] {
        let plan = decide(&a_machine(), &constraints);
        assert_eq!(order(&plan), expected, "{constraints:?}");
        assert_eq!(plan.viable().count() + plan.refused.len(), 4, "every placement is told of");
    }
}

#[test]
fn what_is_not_used_keeps_its_reason() {
    let constraints = Constraints { band: Band::Exact, device: Some(METAL), ..Constraints::default() };
    let plan = decide(&a_machine(), &constraints);
    assert_eq!(
        refusals(&plan),
        [
            ("cpu/f32".to_owned(), &Refusal::NotRequested),
            ("cpu/bf16".to_owned(), &Refusal::NotRequested),
            ("metal:0/f16".to_owned(), &looser(Band::Half, 1e-6, None)),
        ]
    );
}

#[test]
fn an_obstacle_comes_before_the_constraints_and_a_known_one_before_all() {
    let wrong = Obstacle::ModelWrong { case: "a case".into(), error: Distance(None), tolerance: 1e-5 };
    let absent = Obstacle::NoSuchDevice { device: CUDA, found: "nothing".to_owned() };
    let found = Findings { twin: Some(Err(wrong.clone())), ..Findings::default() };
    let slow = Findings {
        speed: Some(Err(Obstacle::TimedOut { case: "speed".into(), seconds: 1.0 })),
        ..Cell(METAL, Dtype::F16, 0.0, [1.0, 1.0]).findings()
    };
    let grid = [
        (placement(METAL, Dtype::F32), None),
        (placement(METAL, Dtype::F16), None),
        (placement(METAL, Dtype::Bf16), None),
        (placement(CUDA, Dtype::F32), Some(absent.clone())),
    ];
    let evidence = Evidence::from([
        (placement(METAL, Dtype::F32), found.clone()),
        (placement(METAL, Dtype::F16), slow),
        (placement(CUDA, Dtype::F32), found),
    ]);
    let plan = plan(&card(), &grid, &evidence, &Constraints::default());
    assert!(plan.chosen.is_none() && plan.fallbacks.is_empty());
    let codes: Vec<&str> = grouped(&plan).iter().map(|group| group.code).collect();
    assert_eq!(codes, ["model_wrong", "timed_out", "not_tried", "no_such_device"]);
    assert_eq!(plan.refused[0].why, Refusal::Obstacle(wrong));
    assert_eq!(plan.refused[3].why, Refusal::Obstacle(absent));

    let elsewhere = Constraints { device: Some(Device::Cpu), ..Constraints::default() };
    let plan = sconce_planner::plan::plan(&card(), &grid, &evidence, &elsewhere);
    assert_eq!(grouped(&plan)[0].code, "model_wrong");
}

#[test]
fn a_half_dtype_is_exact_only_once_real_weights_said_so() {
    let exact = Constraints { band: Band::Exact, ..Constraints::default() };
    let mut findings = Cell(METAL, Dtype::F16, 1e-9, [1.0, 1.0]).findings();
    let grid = [(placement(METAL, Dtype::F16), None)];
    let decide = |findings: &Findings| {
        plan(&card(), &grid, &Evidence::from([(grid[0].0.clone(), findings.clone())]), &exact)
    };
    assert_eq!(refusals(&decide(&findings))[0].1, &looser(Band::Half, 1e-9, None));
    let accuracy = Some(AccuracyReport {
        texts: 8,
        metric: AccuracyMetric::Vectors { min_cosine: 0.99, mean_cosine: 0.995 },
        rank_correlation: 0.9,
    });
    let canary = |error| {
        Some(Ok(Canary {
            error: Distance(Some(error)),
            accuracy,
            tokens_per_second: 1.0,
            memory: None,
            norms: [1.0; 2],
            nodes: BTreeMap::new(),
        }))
    };
    findings.canary = canary(1e-6);
    assert_eq!(order(&decide(&findings)), ["metal:0/f16"]);
    findings.canary = canary(1e-2);
    let refused = decide(&findings);
    assert_eq!(refusals(&refused)[0].1, &looser(Band::Coarse, 1e-2, accuracy));
    let words = refused.explain();
    let figures = "1.0e-2 from the reference's, cosine 0.9900 at least and 0.9950 on average over 8 texts";
    assert!(words.contains(&format!("its accuracy is coarse: {figures}")), "{words}");
}

#[test]
fn a_twin_of_a_quantized_language_model_need_not_be_within_half_of_the_reference() {
    let quantized = [Dtype::Int8, Dtype::Int4].map(|dtype| placement(Device::Cpu, dtype));
    let float = placement(Device::Cpu, Dtype::Bf16);
    for placement in &quantized {
        assert_eq!(Band::of_twin(placement, true), Band::Coarse);
        assert_eq!(Band::of_twin(placement, false), Band::expected(placement));
    }
    assert_eq!(Band::of_twin(&float, true), Band::Half);

    let decide = |placement: &Placement, error, generates: bool| {
        let mut findings = Cell(Device::Cpu, placement.dtype, error, [1.0, 1.0]).findings();
        if let Some(Ok(points)) = &mut findings.speed
            && generates
        {
            for point in points {
                point.cached = Some(128);
            }
        }
        let evidence = Evidence::from([(placement.clone(), findings)]);
        plan(&card(), &[(placement.clone(), None)], &evidence, &Constraints::default())
    };
    let int4 = &Placement { engine: EngineId::Native, ..placement(Device::Cpu, Dtype::Int4) };
    assert_eq!(decide(int4, 3e-3, true).chosen.map(|chosen| chosen.band), Some(Band::Half));
    assert_eq!(decide(int4, 1e-9, true).chosen.map(|chosen| chosen.band), Some(Band::Half));
    let encoder = decide(int4, 3e-3, false);
    assert_eq!(refusals(&encoder)[0].1, &looser(Band::Coarse, 3e-3, None));
    assert_eq!(refusals(&decide(&float, 3e-3, true))[0].1, &looser(Band::Coarse, 3e-3, None));
    assert_eq!(refusals(&decide(int4, 0.5, true))[0].1, &Refusal::NotTried);
}

#[test]
fn a_looser_placement_must_be_a_tenth_faster_and_is_not_called_slower() {
    let machine =
        |half| [Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]), Cell(METAL, Dtype::F16, 1e-4, [1.0, half])];
    assert_eq!(order(&decide(&machine(9.0), &Constraints::default())), ["metal:0/f16", "cpu/f32"]);
    let near = decide(&machine(9.5), &Constraints::default());
    assert_eq!(order(&near), ["cpu/f32", "(metal:0/f16)"]);
    assert_eq!(near.fallbacks[0].note, None);
    assert!(near.slower_accelerator().is_none());
    assert!(!near.explain().contains("slower"), "{}", near.explain());
}

#[test]
fn a_band_ends_where_the_model_is_no_longer_the_same() {
    for (distance, band) in [
        (Some(0.0), Some(Band::Exact)),
        (Some(1e-5), Some(Band::Exact)),
        (Some(1e-4), Some(Band::Half)),
        (Some(1e-2), Some(Band::Coarse)),
        (Some(0.5), None),
        (Some(f64::NAN), None),
        (None, None),
    ] {
        assert_eq!(Band::of(Distance(distance)), band, "{distance:?}");
    }
    assert!([Band::Exact, Band::Half, Band::Coarse].iter().all(|band| band.tolerance().is_finite()));
}

#[test]
fn who_retires_makes_room_for_the_next_that_keeps_the_promise() {
    let why = || Obstacle::Quarantined { reason: "a test".to_owned() };
    let start = || decide(&a_machine(), &Constraints { dtype: None, ..Constraints::default() });
    for (retired, promised, expected) in [
        (vec![(METAL, Dtype::F16)], None, vec!["metal:0/f32", "(cpu/bf16)", "cpu/f32"]),
        (vec![(METAL, Dtype::F16)], Some(Band::Half), vec!["metal:0/f32", "cpu/bf16", "cpu/f32"]),
        (vec![(METAL, Dtype::F16), (METAL, Dtype::F32)], Some(Band::Half), vec!["cpu/bf16", "cpu/f32"]),
        (vec![(METAL, Dtype::F16), (METAL, Dtype::F32)], Some(Band::Exact), vec!["cpu/f32", "(cpu/bf16)"]),
        (vec![(Device::Cpu, Dtype::F32)], Some(Band::Half), vec!["metal:0/f16", "metal:0/f32", "cpu/bf16"]),
        (vec![(CUDA, Dtype::F32)], None, vec!["metal:0/f16", "metal:0/f32", "cpu/bf16", "cpu/f32"]),
    ] {
        let mut plan = start();
        for (device, dtype) in &retired {
            plan.retire(&placement(*device, *dtype), why(), promised);
        }
        assert_eq!(order(&plan), expected, "{retired:?} {promised:?}");
        assert_eq!(plan.viable().count() + plan.refused.len(), 4);
    }
    let mut plan = start();
    let mut gone = Vec::new();
    for cell in a_machine() {
        gone.extend(plan.retire(&placement(cell.0, cell.1), why(), None));
    }
    assert!(plan.chosen.is_none() && plan.fallbacks.is_empty());
    assert_eq!(plan.refused.len(), 4);
    // A restored placement takes its former rank.
    for viable in gone {
        plan.restore(viable, None);
    }
    assert_eq!(order(&plan), order(&start()));
    assert!(plan.refused.is_empty());
}

#[test]
fn who_returns_takes_over_only_where_the_promise_is_kept() {
    let mut plan = decide(&a_machine(), &Constraints { dtype: None, ..Constraints::default() });
    let why = Obstacle::Quarantined { reason: "a test".to_owned() };
    let gone = plan.retire(&placement(METAL, Dtype::F16), why, None).expect("it was there");
    plan.restore(gone, Some(Band::Exact));
    assert_eq!(order(&plan)[..2], ["metal:0/f32", "(metal:0/f16)"]);
}

#[test]
fn a_plan_in_words_says_what_comes_next_and_who_loses() {
    let words =
        decide(&a_machine(), &Constraints { goal: Goal::Latency, ..Constraints::default() }).explain();
    for line in [
        "chosen: candle/cpu/bf16 w (half, about 160 texts/s)",
        "next: candle/cpu/f32 w (exact, 1.2x slower than candle/cpu/bf16)",
        "next: candle/metal:0/f16 w (half, 3.8x slower than candle/cpu/bf16)",
        "metal:0 works here and is slower than the processor",
    ] {
        assert!(words.lines().any(|said| said == line), "`{line}` is missing in:\n{words}");
    }
    let exact = decide(&a_machine(), &Constraints { band: Band::Exact, ..Constraints::default() }).explain();
    assert!(
        exact.contains(
            "refused: candle/metal:0/f16 w [band] its accuracy is half: 1.0e-6 from the reference's\n  \
             hint: allow it with `--band half`"
        ),
        "{exact}"
    );
    assert!(!exact.contains("slower than the processor"), "{exact}");
    let none = decide(&a_machine(), &Constraints { device: Some(CUDA), ..Constraints::default() }).explain();
    assert!(none.starts_with("chosen: none\n"), "{none}");
}

#[test]
fn refusals_of_one_device_with_one_reason_are_one_line() {
    let absent = |device| Some(Obstacle::NoSuchDevice { device, found: "nothing".to_owned() });
    let crashed = Some(Obstacle::Crashed { case: "a case".to_owned(), cause: "signal 6".to_owned() });
    let grid = [
        (placement(METAL, Dtype::F32), absent(METAL)),
        (placement(METAL, Dtype::F16), absent(METAL)),
        (placement(METAL, Dtype::Bf16), crashed),
        (placement(CUDA, Dtype::F32), absent(CUDA)),
        (Placement { engine: EngineId::Onnx, ..placement(METAL, Dtype::F32) }, absent(METAL)),
    ];
    let plan = plan(&card(), &grid, &Evidence::new(), &Constraints::default());
    let groups = grouped(&plan);
    let labels: Vec<&str> = groups.iter().map(|group| group.label.as_str()).collect();
    assert_eq!(
        labels,
        ["candle/metal:0/*", "candle/metal:0/bf16 w", "candle/cuda:0/f32 w", "onnx/metal:0/f32 w"]
    );
    assert_eq!(groups[0].placements.len(), 2);
    assert!(groups.iter().all(|group| group.remedy.is_some()));
    let words = plan.explain();
    assert_eq!(words.matches("hint:").count(), 4, "{words}");
}

/// A card with these weights.
fn card_with(sets: &[(&str, Format, Dtype)]) -> ModelCard {
    let weights = sets.iter().map(|&(name, format, stored)| Weights {
        name: name.to_owned(),
        format,
        stored,
        bytes: 1,
        values: None,
        identity: name.to_owned(),
    });
    ModelCard { weights: weights.collect(), ..card() }
}

/// This format alone.
fn only(format: Format) -> &'static [Format] {
    match format {
        Format::Safetensors => &[Format::Safetensors],
        Format::Gguf => &[Format::Gguf],
        Format::Onnx => &[Format::Onnx],
    }
}

fn candidate(engine: EngineId, format: Format) -> Candidate {
    Candidate {
        engine,
        device: Device::Cpu,
        formats: only(format),
        dtypes: vec![Dtype::F32, Dtype::F16],
        obstacle: None,
    }
}

fn cells(sets: &[(&str, Format, Dtype)]) -> Vec<String> {
    let candidates =
        [candidate(EngineId::Candle, Format::Safetensors), candidate(EngineId::Onnx, Format::Onnx)];
    let cell = |(placement, obstacle): &(Placement, Option<Obstacle>)| {
        let why = obstacle.as_ref().map(|obstacle| format!(" [{}]", obstacle.code())).unwrap_or_default();
        format!("{placement}{why}")
    };
    grid(&card_with(sets), &candidates).iter().map(cell).collect()
}

#[test]
fn an_engine_takes_the_weights_of_all_its_formats() {
    let formats = &[Format::Safetensors, Format::Gguf];
    let candidate = Candidate { formats, ..candidate(EngineId::Candle, Format::Safetensors) };
    let card = card_with(&[("a", Format::Gguf, Dtype::Int8), ("b", Format::Onnx, Dtype::F32)]);
    let cells: Vec<String> = grid(&card, &[candidate]).iter().map(|(cell, _)| cell.to_string()).collect();
    assert_eq!(cells, ["candle/cpu/f32 a", "candle/cpu/f16 a"]);
}

#[test]
fn an_engine_takes_the_weights_of_its_format_and_a_graph_its_own_dtype() {
    let (tensors, graph) = (Format::Safetensors, Format::Onnx);
    assert_eq!(
        cells(&[("a", tensors, Dtype::F32), ("b", tensors, Dtype::F16), ("q", graph, Dtype::Int8)]),
        ["candle/cpu/f32 a", "candle/cpu/f16 a", "candle/cpu/f32 b", "candle/cpu/f16 b", "onnx/cpu/int8 q"]
    );
    assert_eq!(
        cells(&[("q", graph, Dtype::Int8), ("g", graph, Dtype::F32)]),
        ["candle/cpu/f32 model.safetensors [no_weights]", "onnx/cpu/int8 q", "onnx/cpu/f32 g"]
    );
}

#[test]
fn the_reference_is_f32_by_description_and_else_the_widest_graph() {
    let candidates =
        [candidate(EngineId::Onnx, Format::Onnx), candidate(EngineId::Candle, Format::Safetensors)];
    let (tensors, graph) = (Format::Safetensors, Format::Onnx);
    for (sets, expected) in [
        (vec![("g", graph, Dtype::F32), ("h", tensors, Dtype::F16)], "candle/cpu/f32 h"),
        (vec![("h", tensors, Dtype::F16), ("a", tensors, Dtype::F32)], "candle/cpu/f32 a"),
        (
            vec![("q", graph, Dtype::Int8), ("h", graph, Dtype::F16), ("n", graph, Dtype::Int4)],
            "onnx/cpu/f16 h",
        ),
        (vec![("q", graph, Dtype::Int8)], "onnx/cpu/int8 q"),
    ] {
        let card = card_with(&sets);
        let grid = grid(&card, &candidates);
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        assert_eq!(reference(&card, open).map(ToString::to_string).as_deref(), Some(expected), "{sets:?}");
        let plan = plan(&card, &grid, &Evidence::new(), &Constraints::default());
        assert_eq!(plan.reference.map(|placement| placement.to_string()).as_deref(), Some(expected));
    }
}

/// A plan for graphs of these dtypes, at these distances from the widest one.
fn decide_graphs(sets: &[(&str, Dtype, f64)], constraints: &Constraints) -> Plan {
    let card =
        card_with(&sets.iter().map(|&(name, dtype, _)| (name, Format::Onnx, dtype)).collect::<Vec<_>>());
    let grid = grid(&card, &[candidate(EngineId::Onnx, Format::Onnx)]);
    let evidence = grid.iter().zip(sets).map(|((placement, _), &(_, dtype, error))| {
        let canary = Canary {
            error: Distance(Some(error)),
            accuracy: None,
            tokens_per_second: 1.0,
            memory: None,
            norms: [1.0; 2],
            nodes: BTreeMap::new(),
        };
        let findings = Cell(Device::Cpu, dtype, error, [1.0, 1.0]).findings();
        (placement.clone(), Findings { twin: None, canary: Some(Ok(canary)), ..findings })
    });
    plan(&card, &grid, &evidence.collect(), constraints)
}

#[test]
fn a_reference_that_is_not_f32_leaves_bands_unknown() {
    let bands = |plan: &Plan| {
        plan.viable().map(|viable| (viable.placement.weights.clone(), viable.band)).collect::<Vec<_>>()
    };
    let coarse = Constraints { band: Band::Coarse, ..Constraints::default() };
    let alone = decide_graphs(&[("q", Dtype::Int8, 0.0)], &Constraints::default());
    assert_eq!(bands(&alone), [("q".to_owned(), Band::Unknown)]);
    assert!(alone.chosen.as_ref().is_some_and(|chosen| chosen.is_own_reference));
    assert_eq!(
        alone.explain(),
        "chosen: onnx/cpu/int8 q (band unknown, reference: itself, about 800 texts/s)\n"
    );
    assert_eq!(serde_json::to_value(&alone).expect("JSON")["chosen"]["band"], "unknown");

    let two = decide_graphs(&[("h", Dtype::F16, 0.0), ("q", Dtype::Int8, 1e-2)], &coarse);
    assert_eq!(bands(&two), [("h".to_owned(), Band::Unknown), ("q".to_owned(), Band::Coarse)]);
    assert!(!two.fallbacks[0].is_own_reference);
    let near = decide_graphs(&[("h", Dtype::F16, 0.0), ("q", Dtype::Int8, 1e-6)], &coarse);
    assert_eq!(bands(&near)[1], ("q".to_owned(), Band::Unknown), "near to what is not f32 says nothing");
    let explained = near.explain();
    assert!(explained.contains("band unknown, the reference is not f32"), "{explained}");
    let wide = decide_graphs(&[("g", Dtype::F32, 0.0), ("q", Dtype::Int8, 1e-2)], &coarse);
    assert_eq!(bands(&wide), [("g".to_owned(), Band::Exact), ("q".to_owned(), Band::Coarse)]);
    assert!(wide.viable().all(|viable| !viable.is_own_reference));
}

#[test]
fn an_unknown_band_satisfies_every_request_but_exact() {
    for (band, serves) in [(Band::Exact, false), (Band::Half, true), (Band::Coarse, true)] {
        let plan = decide_graphs(&[("q", Dtype::Int8, 0.0)], &Constraints { band, ..Constraints::default() });
        assert_eq!(plan.chosen.is_some(), serves, "{band}");
        if !serves {
            let words = plan.explain();
            assert!(words.contains("[band] its accuracy against f32 is unknown"), "{words}");
            assert!(words.contains("`--band half`"), "{words}");
        }
    }
    assert!("unknown".parse::<Band>().is_err(), "nobody can ask for it");
}

#[test]
fn what_failed_by_trying_is_a_downgrade_and_what_is_not_there_is_none() {
    let killed = || Obstacle::Killed { case: "a case".to_owned(), cause: "signal: 9".to_owned() };
    let absent = Obstacle::NoSuchDevice { device: CUDA, found: "nothing".to_owned() };
    let mut evidence = Evidence::new();
    let grid = [
        (placement(Device::Cpu, Dtype::F32), None),
        (placement(METAL, Dtype::F16), None),
        (placement(CUDA, Dtype::F16), Some(absent)),
    ];
    evidence.insert(grid[0].0.clone(), Cell(Device::Cpu, Dtype::F32, 0.0, [1.0, 10.0]).findings());
    evidence.insert(grid[1].0.clone(), Findings { twin: Some(Err(killed())), ..Findings::default() });
    let plan_by = |constraints: &Constraints| plan(&card(), &grid, &evidence, constraints);
    let mut found = plan_by(&Constraints::default());
    let downgrade = Downgrade { from: grid[1].0.clone(), to: Some(grid[0].0.clone()), why: killed() };
    assert_eq!(found.downgrades, [downgrade]);
    let wished = Constraints { device: Some(Device::Cpu), ..Constraints::default() };
    assert!(plan_by(&wished).downgrades.is_empty(), "what was not wished for is no loss");

    let why = Obstacle::Quarantined { reason: "a test".to_owned() };
    let viable = found.retire(&grid[0].0, why, None).expect("it was there");
    assert_eq!(found.downgrades.len(), 2);
    assert_eq!(found.downgrades[1].to, None, "nothing is left");
    found.restore(viable, None);
    assert_eq!(found.downgrades.len(), 1);
}

#[test]
fn a_graph_that_was_timed_whole_is_not_multiplied_by_its_layers() {
    let point = |layers| SpeedPoint { batch: 8, length: 128, cached: None, seconds: 1.0, layers };
    let seconds = |layers| {
        let speed = Some(Ok(vec![point(layers); 3]));
        let findings = Findings { speed, ..Findings::default() };
        findings.estimate(Goal::Throughput, 10).expect("it was timed").seconds
    };
    assert!((seconds(1) - 10.0).abs() < 1e-9 && (seconds(10) - 1.0).abs() < 1e-9);
}

#[test]
fn unmet_constraints_are_explained_with_flags_obstacles_and_alternatives() {
    let absent = |device, found: &str| Some(Obstacle::NoSuchDevice { device, found: found.to_owned() });
    let no_weights = Some(Obstacle::NoWeights { format: Format::Onnx });
    let graph = |device| Placement { engine: EngineId::Onnx, ..placement(device, Dtype::F32) };
    let grid = [
        (placement(Device::Cpu, Dtype::F32), None),
        (placement(METAL, Dtype::F32), absent(METAL, "not macOS")),
        (placement(METAL, Dtype::F16), absent(METAL, "not macOS")),
        (placement(CUDA, Dtype::F32), absent(CUDA, "no GPU")),
        (graph(Device::Cpu), no_weights.clone()),
        (graph(METAL), no_weights),
    ];
    let told =
        |constraints: &Constraints| unmet(&plan(&card(), &grid, &Evidence::new(), constraints), constraints);
    let any = Constraints::default();
    assert_eq!(
        told(&Constraints { device: Some(METAL), ..any.clone() }),
        "no placement works for this model with `--device metal:0`: no device `metal:0`: not macOS\n\
         hint: use `--device cpu`\n"
    );
    assert_eq!(
        told(&Constraints { dtype: Some(Dtype::Int8), ..any.clone() }),
        "this model has no placement with `--dtype int8`\nhint: use `--dtype f32`\n"
    );
    let onnx = told(&Constraints { engine: Some(EngineId::Onnx), ..any.clone() });
    assert!(onnx.contains("with `--engine onnx`: the model has no ONNX weights\nhint: put"), "{onnx}");
    assert!(onnx.ends_with("hint: use `--engine candle`\n"), "{onnx}");
    let all = told(&any);
    for part in ["no placement works for this model\n", "not macOS", "no GPU", "[no_weights]", "[not_tried]"]
    {
        assert!(all.contains(part), "no `{part}` in: {all}");
    }
}
