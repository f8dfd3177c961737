//! A language model on one placement, loaded and waiting for its turn: `benches/generate.py` runs it beside llama.cpp.
//!
//! `generate_turns MODEL ENGINE DTYPE THREADS` prints a line of JSON once the model is loaded, then answers each line of
//! its standard input with one:
//! - `prompt TOKENS`: computes a prompt.
//! - `decode SEQUENCES CACHED STEPS`: computes one token of each sequence a step, after CACHED tokens.
//! - `perplexity ID…`: computes a text as a prompt; `generated_perplexity ID…` computes it as generated tokens.
//!
//! The answer is the number of tokens and the seconds they took, or their negative log-likelihood. The option
//! `--kv-cache-dtype DTYPE` is that of the command.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use sconce::card::Overrides;
use sconce::{Device, ModelSource, Peak, Placement, Runtime, StepTimer};
use sconce_core::batch::{Batch, CachedSequence, OutputKind};
use sconce_core::generator::Generator;
use serde_json::{Value, json};

/// Longest sequence, and the largest number of them.
const CONTEXT: usize = 768;
const SEQUENCES: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ([model, engine, dtype, threads], cache) = match arguments.split_first_chunk() {
        Some((required, [])) => (required, None),
        Some((required, [flag, cache])) if flag == "--kv-cache-dtype" => (required, Some(cache.parse()?)),
        _ => return Err("usage: generate_turns MODEL ENGINE DTYPE THREADS [--kv-cache-dtype DTYPE]".into()),
    };
    let overrides = Overrides { kv_cache_dtype: cache, ..Overrides::default() };
    let threads = threads.parse()?;
    let peak = Peak::measure(threads);
    let runtime = Runtime::builder().threads(threads).offline(true).build();
    let spec = runtime.model_spec(&ModelSource::parse(model, None), &overrides, &mut |_| {})?;
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
        let line = line?;
        let answer = match line.split_once(' ') {
            Some(("perplexity", ids)) => perplexity(generator, &token_ids(ids)?, true)?,
            Some(("generated_perplexity", ids)) => perplexity(generator, &token_ids(ids)?, false)?,
            _ => take(&timer, &line)?,
        };
        tell(&answer)?;
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

fn token_ids(text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// The negative log-likelihood of all tokens but the first, computed as a prompt or as generated tokens.
fn perplexity(generator: &dyn Generator, ids: &[u32], is_prompt: bool) -> Result<Value, Box<dyn Error>> {
    let block_size = generator.cache_layout().block_size;
    let blocks: Vec<u32> = (0..ids.len().div_ceil(block_size) as u32).collect();
    let (mut sum, mut done) = (0.0, 0);
    // Logits of a few tokens at a time: they are as wide as the vocabulary.
    for part in ids.chunks(64) {
        let mut step = Batch::new(OutputKind::Logits);
        let prompt = if is_prompt { ids.len() } else { 1 };
        step.push_cached(
            part,
            CachedSequence { length: done, blocks: blocks.clone(), logits: part.len(), prompt },
        );
        let rows = generator.step(&step)?.into_rows();
        for (logits, next) in rows.iter().zip(&ids[done + 1..]) {
            let largest = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
            let total: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
            let logit = logits.get(*next as usize).ok_or("a token id outside of the vocabulary")?;
            sum += total.ln() - f64::from(logit - largest);
        }
        done += part.len();
    }
    Ok(json!({ "tokens": ids.len() - 1, "nll": sum }))
}
