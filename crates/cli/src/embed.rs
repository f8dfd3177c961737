//! `sconce embed`: embeds texts in chunks, so that memory does not grow with the input.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sconce::{EmbedOptions, Embeddings, OutputMetadata, Prompt, SparseEmbeddings, Task, TokenEmbeddings};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::arguments::{self, TextRole};
use crate::input::{Input, Record};
use crate::npy::NpyWriter;
use crate::open_model::open;
use crate::output_file::OutputFile;
use crate::prompt;
use crate::summary::Summary;
use crate::terminal::{eprint_line, print};

/// Texts per chunk: a few seconds of work between updates of the progress bar.
const CHUNK: usize = 512;

pub(crate) fn run(arguments: &arguments::Embed) -> anyhow::Result<ExitCode> {
    let input = match &arguments.input {
        Some(path) => Input::open(path)?,
        None if arguments.texts.is_empty() => Input::open(Path::new("-"))?,
        None => Input::texts(arguments.texts.clone()),
    };
    let format = Format::of(arguments.output.as_deref())?;
    let task = if arguments.sparse {
        Some(Task::Sparse)
    } else if arguments.tokens {
        Some(Task::Tokens)
    } else {
        None
    };
    let model = open(&arguments.model, task)?;
    let card = model.card();
    let role = if arguments.query { Some(TextRole::Query) } else { arguments.role };
    let prompt = match card.task.value {
        Task::Embed | Task::Sparse if role == Some(TextRole::Query) => prompt::for_queries(card)?,
        Task::Embed | Task::Sparse if role == Some(TextRole::Document) => Prompt::Document,
        Task::Tokens if arguments.prompts.prompt() != Prompt::Default => bail!(
            "a late-interaction model has fixed query and document markers and takes no prompt\n\
             hint: mark texts as queries with `--as query`"
        ),
        Task::Embed | Task::Sparse | Task::Tokens | Task::Rerank | Task::Classify | Task::Generate => {
            arguments.prompts.prompt()
        }
    };
    let width = arguments.dimensions.unwrap_or(card.width());
    let mut output = Sink::open(format, arguments.output.as_deref(), width)?;
    let options = EmbedOptions {
        prompt,
        dimensions: arguments.dimensions,
        force_dimensions: arguments.force_dimensions,
        normalize: None,
    };
    let mut summary = Summary::default();
    let started = Instant::now();
    let (bar, all) = (input.bar(), input.count());
    let mut done = 0;
    output.set_progress(done, all);
    for chunk in input.chunks(CHUNK) {
        let chunk = chunk?;
        let texts: Vec<&str> = chunk.iter().map(|record| record.text.as_str()).collect();
        if let Some(warning) = model.take_prompt_warning(&options.prompt, &texts) {
            // With `--json`, standard error may be the summary.
            if arguments.json {
                summary.warn(warning);
            } else {
                eprint_line(&format!("warning: {warning}\n{}", prompt::HINT));
            }
        }
        let outputs = match model.card().task.value {
            Task::Sparse => ChunkOutput::Sparse(model.embed_sparse(&texts, &options)?),
            Task::Tokens if role == Some(TextRole::Query) => {
                ChunkOutput::Tokens(model.embed_queries(&texts)?)
            }
            Task::Tokens => ChunkOutput::Tokens(model.embed_tokens(&texts)?),
            Task::Embed | Task::Rerank | Task::Classify | Task::Generate => {
                ChunkOutput::Vectors(model.embed_with(&texts, &options)?)
            }
        };
        summary.add(chunk.len(), &outputs.account());
        bar.inc(chunk.len() as u64);
        done += chunk.len();
        output.set_progress(done, all);
        output.write(chunk, outputs)?;
    }
    bar.finish_and_clear();
    output.finish()?;
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json && arguments.output.is_some() {
        print(&format!("{}\n", summary.json(seconds)))?;
    } else {
        summary.print(seconds, &model, arguments.json);
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy)]
enum Format {
    JsonLines,
    Npy,
}

impl Format {
    fn of(path: Option<&Path>) -> anyhow::Result<Format> {
        let Some(path) = path else { return Ok(Format::JsonLines) };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Ok(Format::Npy),
            Some("jsonl") => Ok(Format::JsonLines),
            Some(_) | None => {
                bail!("unsupported output format, expected `.jsonl` or `.npy`: `{}`", path.display())
            }
        }
    }
}

/// The model's output for a chunk of texts.
enum ChunkOutput {
    Vectors(Embeddings),
    Sparse(SparseEmbeddings),
    Tokens(TokenEmbeddings),
}

impl ChunkOutput {
    fn account(&self) -> OutputMetadata {
        match self {
            ChunkOutput::Vectors(embeddings) => embeddings.metadata(),
            ChunkOutput::Sparse(embeddings) => embeddings.metadata.clone(),
            ChunkOutput::Tokens(embeddings) => embeddings.metadata.clone(),
        }
    }

    /// The output of each text.
    fn into_texts(self) -> Box<dyn Iterator<Item = TextOutput>> {
        match self {
            ChunkOutput::Vectors(embeddings) => Box::new(embeddings.into_iter().map(TextOutput::Embedding)),
            ChunkOutput::Sparse(embeddings) => Box::new(embeddings.texts.into_iter().map(|words| {
                let indices = words.iter().map(|word| word.index).collect();
                TextOutput::Sparse { indices, values: words.iter().map(|word| word.value).collect() }
            })),
            ChunkOutput::Tokens(embeddings) => Box::new(
                embeddings
                    .texts
                    .into_iter()
                    .map(|matrix| TextOutput::Tokens(matrix.rows().map(<[f32]>::to_vec).collect())),
            ),
        }
    }
}

/// The output of one text, under its field name in an output line.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum TextOutput {
    Embedding(Vec<f32>),
    Sparse { indices: Vec<u32>, values: Vec<f32> },
    Tokens(Vec<Vec<f32>>),
}

/// An output line: the input fields of the text, and the model's output.
#[derive(Serialize)]
struct OutputLine {
    #[serde(flatten)]
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Truncation>,
    class: String,
    #[serde(flatten)]
    output: TextOutput,
}

#[derive(Serialize)]
struct Truncation {
    tokens: usize,
    used: usize,
}

/// The destination of vectors: standard output or a file.
struct Sink {
    writer: Writer,
    file: Option<OutputFile>,
}

enum Writer {
    JsonLines(Box<dyn Write>),
    Npy(Box<NpyWriter>),
}

impl Sink {
    /// Vectors have `width` values.
    fn open(format: Format, path: Option<&Path>, width: usize) -> anyhow::Result<Sink> {
        let Some(path) = path else {
            let writer = Writer::JsonLines(Box::new(BufWriter::new(io::stdout())));
            return Ok(Sink { writer, file: None });
        };
        let output = OutputFile::create(path)?;
        let file = output.file().with_context(|| format!("could not write: `{}`", path.display()))?;
        let writer = match format {
            Format::Npy => Writer::Npy(Box::new(NpyWriter::new(file, width))),
            Format::JsonLines => Writer::JsonLines(Box::new(BufWriter::new(file))),
        };
        Ok(Sink { writer, file: Some(output) })
    }

    /// Sets the progress that is printed after a signal.
    fn set_progress(&self, done: usize, all: Option<usize>) {
        if let Some(file) = &self.file {
            let of = all.map(|all| format!(" of {all}")).unwrap_or_default();
            file.set_progress(format!("after {done}{of} texts"));
        }
    }

    fn write(&mut self, records: Vec<Record>, outputs: ChunkOutput) -> anyhow::Result<()> {
        match (&mut self.writer, outputs) {
            (Writer::Npy(writer), ChunkOutput::Vectors(embeddings)) => {
                for vector in &embeddings {
                    writer.write(vector)?;
                }
            }
            (Writer::Npy(_), ChunkOutput::Sparse(_) | ChunkOutput::Tokens(_)) => {
                bail!(
                    "`.npy` holds one vector per text, and this model has sparse or token vectors\n\
                     hint: write to a `.jsonl` file"
                )
            }
            (Writer::JsonLines(lines), outputs) => {
                let account = outputs.account();
                for (index, (record, output)) in records.into_iter().zip(outputs.into_texts()).enumerate() {
                    let mut fields = record.fields;
                    let own = ["embedding", "sparse", "tokens", "truncated", "class"];
                    fields.retain(|field, _| !own.contains(&field.as_str()));
                    let cut = account.truncated.iter().find(|cut| cut.index == index);
                    let truncated = cut.map(|cut| Truncation { tokens: cut.tokens, used: cut.used });
                    let class = account.class(index).to_owned();
                    serde_json::to_writer(&mut *lines, &OutputLine { fields, truncated, class, output })?;
                    lines.write_all(b"\n")?;
                }
                lines.flush()?;
            }
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self.writer {
            Writer::JsonLines(mut lines) => lines.flush()?,
            Writer::Npy(writer) => writer.finish()?,
        }
        self.file.map_or(Ok(()), OutputFile::commit)
    }
}

impl Input {
    /// A progress bar over the texts, or a spinner if their number is unknown.
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
