//! Progress of loading weights.

use std::cell::RefCell;
use std::fs;

use sconce::{Device, Dtype, Event, Placement};
use sconce_testkit::goldens;

use crate::fakes::{Stage, builder, candle};
use crate::support::{INTERPRETERS, spec};

#[test]
fn a_model_that_is_opened_reports_how_much_of_its_weights_is_loaded() {
    let stage = Stage::new(candle());
    let mut reports = Vec::new();
    let model = builder(&stage.in_process().build()).open_with_progress(&mut |event| {
        if let Event::Loading { placement, done, total } = event {
            reports.push((placement.clone(), done, total));
        }
    });
    let bytes = spec("tiny-bert").card.weights[0].bytes;
    let placement = model.expect("it serves").placement().expect("a placement is active");
    assert_eq!(reports, [(placement, bytes, bytes)]);
}

#[test]
fn engines_report_each_tensor_until_all_are_read() {
    let spec = spec("tiny-bert");
    let weights = &spec.card.weights[0].name;
    let size = fs::metadata(goldens::folder("tiny-bert").join("model.safetensors")).expect("the file").len();
    for engine in sconce_engines::all(2).iter().filter(|engine| INTERPRETERS.contains(&engine.id())) {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let placement =
                Placement { engine: engine.id(), device: Device::Cpu, weights: weights.clone(), dtype };
            let reports = RefCell::new(Vec::new());
            let report = |done: u64, total: u64| reports.borrow_mut().push((done, total));
            engine.load_with_progress(&spec, &placement, &report).expect("it loads");
            let reports = reports.into_inner();
            assert!(reports.len() > 20 && reports.is_sorted(), "{placement}: {reports:?}");
            assert!(reports.iter().all(|(_, total)| *total == size), "{placement}: {reports:?}");
            // The header is a part of the file.
            let (done, _) = reports[reports.len() - 1];
            assert!(done > size / 2, "{placement}: {done} of {size}");
        }
    }
}
