//! One placement of a model, loaded and waiting for its turn: `benches/compare.py` runs it beside other runtimes.
//!
//! `turns MODEL ENGINE DTYPE THREADS TEXTS.jsonl` says `{"tokens", "placement"}` once it is warm, then answers each
//! line of its standard input with one of JSON:
//! - `bulk`: all texts in one call; `arrival N`: N consecutive texts a call; `sorted N`: the same, shortest first.
//!   The answer is the seconds that took, from text to vectors.
//! - `short N`: the median of N calls with one short text.
//! - `save FILE`: the vectors of the last call that had all texts, in f32, in the order of the file.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use sconce::{Model, Runtime};
use serde_json::{Value, json};

/// Twelve tokens in the vocabulary of BERT.
const SHORT: &str = "how do I place a model on the right device?";

fn main() -> Result<(), Box<dyn Error>> {
    sconce::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, engine, dtype, threads, texts] = arguments.as_slice() else {
        return Err("usage: turns MODEL ENGINE DTYPE THREADS TEXTS.jsonl".into());
    };
    let runtime = Runtime::builder().threads(threads.parse()?).offline(true).build();
    let builder = Model::builder(model).runtime(&runtime).engine(engine.parse()?).dtype(dtype.parse()?);
    let model = builder.open()?;
    let texts = read(texts)?;
    let mut turns = Turns { model, texts, vectors: Vec::new() };
    let tokens = turns.model.embed(&turns.texts[..turns.texts.len().min(64)])?.tokens;
    tell(&json!({ "tokens_of_64": tokens, "placement": turns.model.placement() }))?;
    for line in io::stdin().lock().lines() {
        tell(&turns.take(&line?)?)?;
    }
    Ok(())
}

struct Turns {
    model: Model,
    texts: Vec<String>,
    vectors: Vec<Vec<f32>>,
}

impl Turns {
    fn take(&mut self, line: &str) -> Result<Value, Box<dyn Error>> {
        let (what, argument) = line.split_once(' ').unwrap_or((line, ""));
        let mut order: Vec<usize> = (0..self.texts.len()).collect();
        match what {
            "bulk" => self.timed(&order, order.len()),
            "arrival" => self.timed(&order, argument.parse()?),
            "sorted" => {
                order.sort_by_key(|&text| self.texts[text].len());
                self.timed(&order, argument.parse()?)
            }
            "short" => {
                let mut times = Vec::new();
                for _ in 0..argument.parse::<usize>()?.max(1) {
                    let started = Instant::now();
                    self.model.embed(&[SHORT])?;
                    times.push(started.elapsed().as_secs_f64());
                }
                times.sort_by(f64::total_cmp);
                Ok(json!({ "seconds": times[times.len() / 2] }))
            }
            "save" => {
                let bytes: Vec<u8> = self.vectors.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
                fs::write(argument, bytes)?;
                Ok(json!({ "texts": self.vectors.len() }))
            }
            _ => Err(format!("no turn is called `{what}`").into()),
        }
    }

    /// Every text once, in this order, so many a call.
    fn timed(&mut self, order: &[usize], many: usize) -> Result<Value, Box<dyn Error>> {
        let mut vectors = vec![Vec::new(); order.len()];
        let mut tokens = 0;
        let calls: Vec<Vec<&str>> = order
            .chunks(many.max(1))
            .map(|call| call.iter().map(|&text| self.texts[text].as_str()).collect())
            .collect();
        let started = Instant::now();
        for (call, members) in calls.iter().zip(order.chunks(many.max(1))) {
            let embeddings = self.model.embed(call)?;
            tokens += embeddings.tokens;
            for (&member, vector) in members.iter().zip(embeddings) {
                vectors[member] = vector;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        self.vectors = vectors;
        Ok(json!({ "seconds": seconds, "tokens": tokens }))
    }
}

fn read(path: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let lines = fs::read_to_string(path)?;
    let text = |line: &str| -> Result<String, Box<dyn Error>> {
        let value: Value = serde_json::from_str(line)?;
        Ok(value["text"].as_str().ok_or("a line without `text`")?.to_owned())
    };
    lines.lines().filter(|line| !line.trim().is_empty()).map(text).collect()
}

fn tell(value: &Value) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{value}")?;
    output.flush()
}
