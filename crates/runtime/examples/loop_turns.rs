//! The step loop of a language model without a server: `benches/serve.py` runs it beside servers.
//!
//! `loop_turns MODEL ENGINE DTYPE THREADS CACHE`, with a KV cache of `CACHE` MB, prints a line of JSON once the model is open,
//! then answers each line of its standard input with one. A turn has `prompts`, which are continued at the same time, and the
//! number of `tokens` of each continuation. The answer is the number of tokens and the seconds they took.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::thread;
use std::time::Instant;

use sconce::planner::plan::Constraints;
use sconce::{GenerateOptions, Model, Runtime};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Turn {
    prompts: Vec<String>,
    tokens: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    sconce::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, engine, dtype, threads, cache] = arguments.as_slice() else {
        return Err("usage: loop_turns MODEL ENGINE DTYPE THREADS CACHE".into());
    };
    let runtime = Runtime::builder().threads(threads.parse()?).offline(true).build();
    let constraints =
        Constraints { engine: Some(engine.parse()?), dtype: Some(dtype.parse()?), ..Constraints::default() };
    let model = Model::builder(model).runtime(&runtime).constraints(constraints);
    let model = model.kv_cache_bytes(cache.parse::<u64>()? << 20).open()?;
    tell(&json!({ "name": model.card().name }))?;
    for line in io::stdin().lock().lines() {
        let turn: Turn = serde_json::from_str(&line?)?;
        tell(&take(&model, &turn)?)?;
    }
    Ok(())
}

fn tell(answer: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{answer}")?;
    out.flush()
}

/// One turn.
fn take(model: &Model, turn: &Turn) -> Result<Value, Box<dyn Error>> {
    let options = GenerateOptions {
        max_tokens: Some(turn.tokens),
        temperature: 0.0,
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let started = Instant::now();
    let failed = thread::scope(|scope| {
        let run = |prompt: &String| -> Result<(), sconce::Error> {
            model.generate(prompt, &options)?.try_for_each(|part| part.map(drop))
        };
        let threads: Vec<_> = turn.prompts.iter().map(|prompt| scope.spawn(move || run(prompt))).collect();
        threads.into_iter().find_map(|thread| match thread.join() {
            Ok(done) => done.err().map(|error| error.to_string()),
            Err(_) => Some("a thread panicked".to_owned()),
        })
    });
    match failed {
        Some(why) => Err(why.into()),
        None => Ok(json!({
            "tokens": turn.prompts.len() * turn.tokens,
            "seconds": started.elapsed().as_secs_f64(),
        })),
    }
}
