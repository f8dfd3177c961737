//! Obstacles that are known before probing.

use sconce_core::card::{Format, ModelCard, Weights};
use sconce_core::device::{Device, DeviceKind};
use sconce_core::hardware::{Gpu, Hardware};
use sconce_core::obstacle::{BuildPart, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_planner::grid::{Candidate, devices, does_not_fit, grid, obstacle, reference, twin_reference};

fn gpu(kind: Option<DeviceKind>, index: u32, memory: Option<u64>, driver: Option<&str>) -> Gpu {
    Gpu {
        kind,
        index,
        name: format!("card {index}"),
        memory,
        driver: driver.map(str::to_owned),
        seen_by: "a test".to_owned(),
    }
}

fn machine(os: &str, memory: u64, gpus: Vec<Gpu>) -> Hardware {
    Hardware { os: os.to_owned(), memory, gpus, ..Hardware::default() }
}

#[test]
fn every_device_is_asked_about_and_the_first_of_each_kind_even_where_there_is_none() {
    let none = machine("linux 6.1", 1, vec![gpu(None, 0, None, None)]);
    assert_eq!(devices(&none), [Device::Cpu, Device::Metal(0), Device::Cuda(0)]);
    let cuda = |index| gpu(Some(DeviceKind::Cuda), index, None, Some("1"));
    let two = machine("linux 6.1", 1, vec![cuda(0), cuda(1), gpu(Some(DeviceKind::Metal), 0, None, None)]);
    assert_eq!(devices(&two), [Device::Cpu, Device::Metal(0), Device::Cuda(0), Device::Cuda(1)]);
}

fn not_built(what: &str) -> Result<(), Obstacle> {
    Err(Obstacle::NotBuilt { part: BuildPart::Device, what: what.to_owned(), feature: None })
}

/// The detection result for a device that the machine lacks.
fn lacks(device: Device, build: Result<(), Obstacle>, hardware: &Hardware) -> String {
    match obstacle(device, build, hardware) {
        Some(Obstacle::NoSuchDevice { device: of, found }) if of == device => found,
        other => panic!("{device}: {other:?}"),
    }
}

#[test]
fn a_missing_device_comes_before_missing_support() {
    let linux = machine("linux 6.1", 1, Vec::new());
    let mac = machine("macos 15.5", 1, Vec::new());
    for build in [Ok(()), not_built("CUDA"), not_built("Metal")] {
        assert_eq!(lacks(Device::Metal(0), build.clone(), &linux), "this is linux 6.1, not macOS");
        let found = lacks(Device::Metal(0), build.clone(), &mac);
        assert_eq!(found, "system_profiler lists no GPU with Metal");
        let found = lacks(Device::Cuda(0), build, &linux);
        assert_eq!(found, "neither the PCI bus nor nvidia-smi shows an NVIDIA GPU");
    }
    // No device would help a missing engine.
    let engine = Err(Obstacle::engine_not_in_this_version(EngineId::Onnx));
    assert_eq!(obstacle(Device::Cuda(0), engine.clone(), &linux), engine.err());
}

#[test]
fn the_processor_is_always_there_and_only_the_build_speaks_against_it() {
    let bare = machine("linux 6.1", 1, Vec::new());
    assert_eq!(obstacle(Device::Cpu, Ok(()), &bare), None);
    assert_eq!(obstacle(Device::Cpu, not_built("CUDA"), &bare), not_built("CUDA").err());
}

#[test]
fn a_gpu_needs_a_driver_that_answers_where_it_is_nvidias() {
    let cuda = |index, driver| gpu(Some(DeviceKind::Cuda), index, None, driver);
    let metal = gpu(Some(DeviceKind::Metal), 0, None, None);
    let hardware = machine("macos 15.5", 1, vec![metal, cuda(0, Some("550")), cuda(1, None)]);
    assert_eq!(obstacle(Device::Metal(0), Ok(()), &hardware), None, "Metal has no driver of its own");
    assert_eq!(obstacle(Device::Cuda(0), Ok(()), &hardware), None);
    assert_eq!(obstacle(Device::Cuda(0), not_built("CUDA"), &hardware), not_built("CUDA").err());
    let found = lacks(Device::Cuda(1), Ok(()), &hardware);
    assert_eq!(found, "card 1 is in the machine (a test), but its driver does not answer");
    lacks(Device::Cuda(2), Ok(()), &hardware);
    lacks(Device::Metal(1), Ok(()), &hardware);
}

fn model(stored: Dtype, bytes: u64) -> ModelCard {
    let weights = Weights {
        name: "w".to_owned(),
        format: Format::Safetensors,
        stored,
        bytes,
        values: None,
        identity: String::new(),
    };
    ModelCard { weights: vec![weights], ..crate::card() }
}

fn placement(device: Device, dtype: Dtype) -> Placement {
    Placement { engine: EngineId::Candle, device, weights: "w".to_owned(), dtype }
}

#[test]
fn weights_that_are_larger_than_the_memory_do_not_fit() {
    let gpus = vec![
        gpu(Some(DeviceKind::Cuda), 0, Some(384), Some("1")),
        gpu(Some(DeviceKind::Cuda), 1, Some(383), Some("1")),
        gpu(Some(DeviceKind::Cuda), 2, None, Some("1")),
        gpu(Some(DeviceKind::Cuda), 3, Some(0), Some("1")),
    ];
    let hardware = machine("linux", 800, gpus);
    let fits = |device, dtype, bytes| {
        does_not_fit(&model(Dtype::F16, bytes), &placement(device, dtype), &hardware, 0)
    };
    let lacks = |need, have| Some(Obstacle::DoesNotFit { need: Some(need), have: Some(have) });
    // Stored as 16-bit floats, and twice as large in f32.
    assert_eq!(fits(Device::Cpu, Dtype::F32, 400), None);
    assert_eq!(fits(Device::Cpu, Dtype::F32, 416), lacks(832, 800));
    assert_eq!(fits(Device::Cpu, Dtype::F16, 416), None);
    assert_eq!(fits(Device::Cuda(0), Dtype::F32, 192), None);
    assert_eq!(fits(Device::Cuda(1), Dtype::F32, 192), lacks(384, 383));
    for (device, why) in [(Device::Cuda(2), "untold"), (Device::Cuda(3), "none"), (Device::Cuda(4), "absent")]
    {
        assert_eq!(fits(device, Dtype::F32, 1 << 40), None, "memory that is {why} says nothing");
    }
    let other = Placement { weights: "others".to_owned(), ..placement(Device::Cpu, Dtype::F32) };
    assert_eq!(does_not_fit(&model(Dtype::F16, 1 << 40), &other, &hardware, 0), None);
    let beside =
        |bytes| does_not_fit(&model(Dtype::F16, 320), &placement(Device::Cpu, Dtype::F32), &hardware, bytes);
    assert_eq!((beside(160), beside(161)), (None, lacks(801, 800)));
}

#[test]
fn a_chair_without_dtypes_has_no_cells_and_one_with_an_obstacle_keeps_it() {
    let candidate = |format, dtypes: &[Dtype], obstacle: Option<Obstacle>| Candidate {
        engine: EngineId::Candle,
        device: Device::Cpu,
        formats: crate::only(format),
        dtypes: dtypes.to_vec(),
        obstacle,
    };
    let card = model(Dtype::F32, 1);
    assert!(
        grid(&card, &[candidate(Format::Safetensors, &[], None), candidate(Format::Onnx, &[], None)])
            .is_empty()
    );
    let absent = not_built("it").err();
    let cells = grid(&card, &[candidate(Format::Safetensors, &[Dtype::F32, Dtype::F16], absent.clone())]);
    assert_eq!(
        cells,
        [
            (placement(Device::Cpu, Dtype::F32), absent.clone()),
            (placement(Device::Cpu, Dtype::F16), absent.clone())
        ]
    );
    // An engine without weights in its format reports that first.
    let cells = grid(&card, &[candidate(Format::Onnx, &[Dtype::F32], absent)]);
    assert_eq!(cells.len(), 1);
    assert_eq!(cells[0].0.weights, "onnx/model.onnx");
    assert_eq!(cells[0].1, Some(Obstacle::NoWeights { format: Format::Onnx }));
    // A graph has no cells on a device that its engine does not support.
    let graph = Weights { format: Format::Onnx, ..card.weights[0].clone() };
    let graph = ModelCard { weights: vec![graph], ..card };
    assert!(grid(&graph, &[candidate(Format::Onnx, &[], None)]).is_empty());
}

#[test]
fn the_reference_is_the_first_of_the_widest_on_the_processor() {
    let set = |name: &str, format, stored| Weights {
        name: name.to_owned(),
        format,
        stored,
        bytes: 1,
        values: None,
        identity: String::new(),
    };
    let card = ModelCard {
        weights: vec![
            set("half", Format::Safetensors, Dtype::F16),
            set("whole", Format::Safetensors, Dtype::F32),
            set("graph", Format::Onnx, Dtype::F32),
        ],
        ..crate::card()
    };
    let at = |engine, device, weights: &str, dtype| Placement {
        engine,
        device,
        weights: weights.to_owned(),
        dtype,
    };
    let (candle, native, onnx) = (EngineId::Candle, EngineId::Native, EngineId::Onnx);
    let of = |placements: &[Placement]| reference(&card, placements).cloned();
    let whole = at(candle, Device::Cpu, "whole", Dtype::F32);
    let half = at(candle, Device::Cpu, "half", Dtype::F32);
    let graph = at(onnx, Device::Cpu, "graph", Dtype::F32);
    let same = at(native, Device::Cpu, "whole", Dtype::F32);
    assert_eq!(of(&[half.clone(), whole.clone(), same]), Some(whole));
    assert_eq!(of(&[graph.clone(), half.clone()]), Some(half), "tensors before any graph");
    let narrow = [Dtype::Int4, Dtype::F16, Dtype::Bf16].map(|dtype| at(candle, Device::Cpu, "whole", dtype));
    assert_eq!(of(&narrow), Some(narrow[1].clone()), "without f32, the first of the widest");
    let stored = [Dtype::Bf16, Dtype::F16].map(|dtype| at(candle, Device::Cpu, "half", dtype));
    assert_eq!(of(&stored), Some(stored[1].clone()), "without f32, the dtype of the file");
    assert_eq!(of(&[at(candle, Device::Cuda(0), "whole", Dtype::F32)]), None, "not on the processor");
    assert_eq!(of(&[at(onnx, Device::Cuda(0), "graph", Dtype::F32)]), None, "not on the processor");
    assert_eq!(of(std::slice::from_ref(&graph)), Some(graph));
    assert_eq!(of(&[]), None);
}

#[test]
fn a_model_whose_f32_does_not_fit_has_a_narrower_reference_and_twins_in_f32() {
    let card = model(Dtype::Int4, 1 << 20);
    let lacks = Obstacle::DoesNotFit { need: None, have: None };
    let cell = |dtype, obstacle: Option<&Obstacle>| (placement(Device::Cpu, dtype), obstacle.cloned());
    let grid = [cell(Dtype::F32, Some(&lacks)), cell(Dtype::Bf16, None), cell(Dtype::Int4, None)];
    let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
    assert_eq!(reference(&card, open), Some(&grid[2].0));
    assert_eq!(twin_reference(&card, &grid), Some(&grid[0].0));
}
