//! Rates of text generation of one placement, as one line of JSON.
//!
//! `generate_speed MODEL ENGINE DTYPE THREADS` computes a prompt of 512 tokens, and decode steps of 1, 8 and 32 sequences
//! with 0 and 512 cached tokens, each several times. Rates are in tokens per second; the best of the rounds counts.

use std::error::Error;
use std::time::Instant;

use sconce::card::Overrides;
use sconce::{Device, ModelSource, Runtime};
use sconce_core::batch::{Batch, CachedSequence, OutputKind};
use sconce_core::generator::Generator;
use sconce_core::placement::Placement;
use serde_json::{Map, json};

const PROMPT: usize = 512;
const STEPS: usize = 16;
const ROUNDS: usize = 3;
const SEQUENCES: [usize; 3] = [1, 8, 32];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, engine, dtype, threads] = arguments.as_slice() else {
        return Err("usage: generate_speed MODEL ENGINE DTYPE THREADS".into());
    };
    let runtime = Runtime::builder().threads(threads.parse()?).offline(true).build();
    let spec = runtime.model_spec(&ModelSource::parse(model, None), &Overrides::default(), &mut |_| {})?;
    let weights = spec.card.weights.first().ok_or("the model has no weights")?.name.clone();
    let placement =
        Placement { engine: engine.parse()?, device: Device::Cpu, weights, dtype: dtype.parse()? };
    let engine = runtime.engines().iter().find(|engine| engine.id() == placement.engine);
    let started = Instant::now();
    let loaded = engine.ok_or("no such engine")?.load(&spec, &placement).map_err(|why| why.to_string())?;
    let load = started.elapsed().as_secs_f64();
    let generator = loaded.generator().ok_or("the model does not generate")?;
    let size = generator.cache_layout().block_size;
    let blocks = (PROMPT + STEPS).div_ceil(size);
    generator.reserve(blocks * SEQUENCES[2])?;
    let mut rates = Map::new();
    let prompt = best(|| step(generator, blocks, 1, 0, PROMPT).map(|()| PROMPT))?;
    rates.insert(format!("prompt {PROMPT}"), json!(prompt));
    for sequences in SEQUENCES {
        for cached in [0, PROMPT] {
            let decode = || -> Result<usize, Box<dyn Error>> {
                for done in 0..STEPS {
                    step(generator, blocks, sequences, cached + done, 1)?;
                }
                Ok(sequences * STEPS)
            };
            rates.insert(format!("decode {sequences} after {cached}"), json!(best(decode)?));
        }
    }
    println!(
        "{}",
        json!({ "placement": placement.to_string(), "load_seconds": load, "resident": sconce::resident(), "rates": rates })
    );
    Ok(())
}

/// Tokens per second of the best round.
fn best(mut round: impl FnMut() -> Result<usize, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let tokens = round()?;
        best = best.max(tokens as f64 / started.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Computes the next `count` tokens of each sequence, and the logits of the last.
fn step(
    generator: &dyn Generator,
    blocks: usize,
    sequences: usize,
    cached: usize,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let mut batch = Batch::new(OutputKind::Logits);
    for sequence in 0..sequences {
        let ids: Vec<u32> =
            (0..count).map(|at| ((cached + at) * 7919 + sequence * 31 + 11) as u32 % 1000).collect();
        let prompt = if count > 1 { cached + count } else { cached };
        let table = (sequence * blocks..(sequence + 1) * blocks).map(|block| block as u32).collect();
        batch.push_cached(&ids, CachedSequence { length: cached, blocks: table, logits: 1, prompt });
    }
    generator.step(&batch)?;
    Ok(())
}
