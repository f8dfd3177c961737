//! A language model on one placement, loaded and waiting for its turn: `benches/generate.py` runs it beside llama.cpp.
//!
//! `generate_turns MODEL ENGINE DTYPE THREADS` prints a line of JSON once the model is loaded, then answers each line of
//! its standard input with one:
//! - `prompt TOKENS`: computes a prompt.
//! - `decode SEQUENCES CACHED STEPS`: computes one token of each sequence a step, after CACHED tokens.
//!
//! The answer is the number of tokens and the seconds they took.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use sconce::card::Overrides;
use sconce::{Device, ModelSource, Peak, Placement, Runtime, StepTimer};
use serde_json::{Value, json};

/// Longest sequence, and the largest number of them.
const CONTEXT: usize = 768;
const SEQUENCES: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, engine, dtype, threads] = arguments.as_slice() else {
        return Err("usage: generate_turns MODEL ENGINE DTYPE THREADS".into());
    };
    let threads = threads.parse()?;
    let peak = Peak::measure(threads);
    let runtime = Runtime::builder().threads(threads).offline(true).build();
    let spec = runtime.model_spec(&ModelSource::parse(model, None), &Overrides::default(), &mut |_| {})?;
    let weights = spec.card.weights.first().ok_or("the model has no weights")?.name.clone();
    let placement =
        Placement { engine: engine.parse()?, device: Device::Cpu, weights, dtype: dtype.parse()? };
    let engine = runtime.engines().iter().find(|engine| engine.id() == placement.engine);
    let started = Instant::now();
    let loaded = engine.ok_or("no such engine")?.load(&spec, &placement).map_err(|why| why.to_string())?;
    let load_seconds = started.elapsed().as_secs_f64();
    let resident = sconce::resident();
    let generator = loaded.generator().ok_or("the model does not generate")?;
    let timer = StepTimer::new(generator, SEQUENCES, CONTEXT)?;
    tell(&json!({
        "name": placement.to_string(),
        "load_seconds": load_seconds,
        "resident_bytes": resident,
        "bandwidth_gb_s": peak.bandwidth_gb_s,
        "gflops": peak.bf16_gflops.unwrap_or(peak.f32_gflops),
    }))?;
    for line in io::stdin().lock().lines() {
        tell(&take(&timer, &line?)?)?;
    }
    Ok(())
}

fn tell(answer: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{answer}")?;
    out.flush()
}

/// One turn.
fn take(timer: &StepTimer<'_>, line: &str) -> Result<Value, Box<dyn Error>> {
    let mut words = line.split_whitespace();
    let what = words.next().unwrap_or("");
    let numbers: Vec<usize> = words.map(str::parse).collect::<Result<_, _>>()?;
    let (tokens, time) = match (what, numbers.as_slice()) {
        ("prompt", &[tokens]) => (tokens, timer.prompt(tokens)?),
        ("decode", &[sequences, cached, steps]) => {
            (sequences * steps, timer.decode(sequences, cached, steps)?)
        }
        _ => return Err(format!("unknown turn: `{line}`").into()),
    };
    Ok(json!({ "tokens": tokens, "seconds": time.as_secs_f64() }))
}
