//! Failures of rerankers, classifiers and sparse models at run time: no wrong score is returned, and the batch is replayed.

use std::time::Duration;

use sconce::{ClassifyOptions, Device, EmbedOptions, Error, Model, RerankOptions};
use sconce_testkit::fake::{BatchFault, Fault};
use sconce_testkit::goldens;
use serde_json::{Value, json};

use crate::fakes::{METAL, Stage, TEXTS, candle, obstacle};

const MODELS: [&str; 4] =
    ["tiny-bert-rerank", "tiny-bert-classify", "tiny-bert-sparse", "tiny-bert-tokens-filled"];

fn open(name: &str, fault: Option<Fault>) -> Model {
    let engine = fault.map_or_else(candle, |fault| candle().with(METAL, fault));
    let stage = Stage { timeout: Duration::from_millis(400), ..Stage::new(engine) };
    let runtime = stage.in_process().build();
    Model::builder(&goldens::folder(name).to_string_lossy())
        .runtime(&runtime)
        .open()
        .expect("something serves")
}

/// What the model answers by its task, and on which devices.
fn answer(model: &Model) -> Result<(Value, Vec<Device>), Error> {
    let (numbers, account) = match model.card().task.value {
        sconce::Task::Rerank => {
            let ranking = model.rerank("a lamp", &TEXTS, &RerankOptions::default())?;
            (json!(ranking.ranked), ranking.metadata)
        }
        sconce::Task::Classify => {
            let classified = model.classify(&TEXTS, &ClassifyOptions::default())?;
            (json!(classified.texts), classified.metadata)
        }
        sconce::Task::Sparse => {
            let embedded = model.embed_sparse(&TEXTS, &EmbedOptions::default())?;
            (json!(embedded.texts), embedded.metadata)
        }
        sconce::Task::Tokens | sconce::Task::Embed | sconce::Task::Generate => {
            let embedded = model.embed_tokens(&TEXTS)?;
            (json!(embedded.texts), embedded.metadata)
        }
    };
    Ok((numbers, account.placements.iter().map(|placement| placement.device).collect()))
}

#[test]
fn a_fault_at_any_batch_is_replayed_whatever_the_task() {
    for name in MODELS {
        let (want, devices) = answer(&open(name, None)).expect("nothing is wrong");
        assert_eq!(devices, [METAL], "{name}");
        for mishap in
            [BatchFault::Error, BatchFault::Nan, BatchFault::Norm, BatchFault::Rows, BatchFault::Panic]
        {
            let model = open(name, Some(Fault::FromBatch(2, mishap)));
            for batch in 1..=3 {
                let (got, devices) =
                    answer(&model).unwrap_or_else(|error| panic!("{name} {mishap:?}: {error}"));
                assert_eq!(devices, [if batch < 2 { METAL } else { Device::Cpu }], "{name} {mishap:?}");
                assert_eq!(got, want, "{name} {mishap:?} at batch {batch}");
            }
            let plan = model.plan();
            let found = obstacle(&plan, METAL).unwrap_or_else(|| panic!("{name} {mishap:?} serves still"));
            assert_eq!(found.code(), "quarantined", "{name}: {found}");
        }
    }
}

#[test]
fn real_weights_that_are_wrong_are_seen_by_the_canary_of_every_task() {
    for name in MODELS {
        for fault in [Fault::WrongWeights, Fault::NanWeights] {
            let model = open(name, Some(fault));
            let plan = model.plan();
            let found = obstacle(&plan, METAL).unwrap_or_else(|| panic!("{name} {fault:?} was not seen"));
            assert_eq!(found.code(), "model_wrong", "{name}: {found}");
            assert_eq!(answer(&model).expect("the next serves").1, [Device::Cpu], "{name}");
        }
    }
}
