//! `sconce embed`: texts in, vectors out, in chunks so that a long file needs no more memory than a short one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use sconce::{EmbedOptions, Embeddings, Model};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::arguments;
use crate::input::{Input, Record};
use crate::npy::NpyWriter;
use crate::screen::{Bars, counted};

/// Texts that are computed together: some seconds of work, so that a bar moves.
const CHUNK: usize = 512;

pub(crate) fn run(arguments: &arguments::Embed) -> anyhow::Result<ExitCode> {
    let input = match &arguments.input {
        Some(path) => Input::open(path)?,
        None if arguments.texts.is_empty() => Input::open(Path::new("-"))?,
        None => Input::texts(arguments.texts.clone()),
    };
    let format = Format::of(arguments.output.as_deref())?;
    let mut bars = Bars::default();
    let runtime = arguments.model.runtime();
    let mut builder = Model::builder(&arguments.model.model)
        .runtime(&runtime)
        .wish(arguments.model.wish())
        .overrides(arguments.model.overrides());
    if let Some(revision) = &arguments.model.revision {
        builder = builder.revision(revision);
    }
    let model = builder.open_telling(&mut |event| bars.draw(&event))?;
    bars.clear();
    let mut output = Output::open(format, arguments.output.as_deref())?;
    let options = EmbedOptions {
        prompt: arguments.prompt.clone(),
        dimensions: arguments.dimensions,
        force_dimensions: arguments.force_dimensions,
    };
    let mut summary = Summary::default();
    let started = Instant::now();
    let bar = input.bar();
    for chunk in input.chunks(CHUNK) {
        let chunk = chunk?;
        let texts: Vec<&str> = chunk.iter().map(|record| record.text.as_str()).collect();
        let embeddings = model.embed_with(&texts, &options)?;
        summary.add(&embeddings);
        bar.inc(chunk.len() as u64);
        output.write(chunk, embeddings)?;
    }
    bar.finish_and_clear();
    output.finish()?;
    summary.tell(started.elapsed().as_secs_f64(), &model, arguments.json);
    Ok(ExitCode::SUCCESS)
}

#[derive(Default)]
struct Summary {
    texts: usize,
    tokens: usize,
    truncated: usize,
    placements: Vec<String>,
    classes: Vec<String>,
}

impl Summary {
    fn add(&mut self, embeddings: &Embeddings) {
        self.texts += embeddings.len();
        self.tokens += embeddings.tokens;
        self.truncated += embeddings.truncated.len();
        for placement in embeddings.placements.iter().map(ToString::to_string) {
            if !self.placements.contains(&placement) {
                self.placements.push(placement);
            }
        }
        for class in &embeddings.classes {
            if !self.classes.contains(class) {
                self.classes.push(class.clone());
            }
        }
    }

    fn tell(&self, seconds: f64, model: &Model, as_json: bool) {
        let texts_per_second = self.texts as f64 / seconds.max(1e-9);
        if as_json {
            eprintln!(
                "{}",
                json!({
                    "texts": self.texts, "tokens": self.tokens, "truncated": self.truncated, "seconds": seconds,
                    "texts_per_s": texts_per_second, "placements": self.placements, "classes": self.classes,
                })
            );
            return;
        }
        let Summary { texts, tokens, truncated, .. } = self;
        if *texts == 0 {
            eprintln!("no texts");
            return;
        }
        let (texts, tokens) = (counted(*texts, "text"), counted(*tokens, "token"));
        let places = self.placements.join(", then ");
        eprintln!("{texts}, {tokens} in {seconds:.2} s ({texts_per_second:.1} texts/s) on {places}");
        if *truncated > 0 {
            let most = model.card().max_length.value;
            let (is, was) = if *truncated == 1 { ("is", "was") } else { ("are", "were") };
            let cut = counted(*truncated, "text");
            eprintln!("note: {cut} {is} longer than the model's {most} tokens and {was} cut");
        }
        for refused in model.plan().refused.iter().filter_map(|refused| match &refused.why {
            sconce::planner::plan::Refusal::Obstacle(obstacle @ sconce::Obstacle::Quarantined { .. }) => {
                Some(format!("{}: {obstacle}", refused.placement))
            }
            sconce::planner::plan::Refusal::Obstacle(_)
            | sconce::planner::plan::Refusal::Band(_)
            | sconce::planner::plan::Refusal::NotWished
            | sconce::planner::plan::Refusal::NotTried => None,
        }) {
            eprintln!("note: {refused}");
        }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Lines,
    Npy,
}

impl Format {
    fn of(path: Option<&Path>) -> anyhow::Result<Format> {
        let Some(path) = path else { return Ok(Format::Lines) };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Ok(Format::Npy),
            Some("jsonl") => Ok(Format::Lines),
            Some(_) | None => anyhow::bail!("the output is `.jsonl` or `.npy`, not: `{}`", path.display()),
        }
    }
}

/// A line of output: the fields that came with the text, and its vector.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Cut>,
    embedding: Vec<f32>,
}

#[derive(Serialize)]
struct Cut {
    tokens: usize,
    used: usize,
}

enum Output {
    Lines(Box<dyn Write>),
    Npy(Box<NpyWriter>),
}

impl Output {
    fn open(format: Format, path: Option<&Path>) -> anyhow::Result<Output> {
        let Some(path) = path else { return Ok(Output::Lines(Box::new(BufWriter::new(io::stdout())))) };
        let file = File::create(path).with_context(|| format!("`{}` can't be written", path.display()))?;
        Ok(match format {
            Format::Npy => Output::Npy(Box::new(NpyWriter::new(file))),
            Format::Lines => Output::Lines(Box::new(BufWriter::new(file))),
        })
    }

    fn write(&mut self, records: Vec<Record>, embeddings: Embeddings) -> anyhow::Result<()> {
        let truncated = embeddings.truncated.clone();
        match self {
            Output::Npy(writer) => {
                for vector in &embeddings {
                    writer.write(vector)?;
                }
            }
            Output::Lines(lines) => {
                for (index, (record, embedding)) in records.into_iter().zip(embeddings).enumerate() {
                    let mut fields = record.fields;
                    fields.retain(|name, _| name != "embedding" && name != "truncated");
                    let cut = truncated.iter().find(|cut| cut.index == index);
                    let truncated = cut.map(|cut| Cut { tokens: cut.tokens, used: cut.used });
                    serde_json::to_writer(&mut *lines, &Line { fields, truncated, embedding })?;
                    lines.write_all(b"\n")?;
                }
                lines.flush()?;
            }
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Output::Lines(mut lines) => Ok(lines.flush()?),
            Output::Npy(writer) => Ok(writer.finish()?),
        }
    }
}

impl Input {
    /// A bar over the texts, where their number is known and somebody looks.
    fn bar(&self) -> ProgressBar {
        let bar = match self.count() {
            Some(count) if count > CHUNK => ProgressBar::new(count as u64),
            Some(_) => ProgressBar::hidden(),
            None => ProgressBar::new_spinner(),
        };
        let template = "embedding {wide_bar} {pos}/{len} texts, {per_sec}, {eta} left";
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style.progress_chars("=> ")),
            Err(_) => bar,
        }
    }
}
