//! `sconce embed`: texts in, vectors out, in chunks so that a long file needs no more memory than a short one.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sconce::{Account, EmbedOptions, Embeddings, Prompt, SparseEmbeddings, Task, TokenEmbeddings};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::arguments;
use crate::input::{Input, Record};
use crate::npy::NpyWriter;
use crate::opening::open;
use crate::output_file::OutputFile;
use crate::prompt;
use crate::screen::print;
use crate::summary::Summary;

/// Texts that are computed together: some seconds of work, so that a bar moves.
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
    let prompt = match card.task.value {
        Task::Embed | Task::Sparse if arguments.query => prompt::for_queries(card)?,
        Task::Tokens if arguments.prompts.prompt() != Prompt::Default => bail!(
            "a late-interaction model has fixed query and document markers and takes no prompt\n\
             hint: `--query` marks texts as queries"
        ),
        Task::Embed | Task::Sparse | Task::Tokens | Task::Rerank | Task::Classify => {
            arguments.prompts.prompt()
        }
    };
    let mut output = Output::open(format, arguments.output.as_deref())?;
    let options = EmbedOptions {
        prompt,
        dimensions: arguments.dimensions,
        force_dimensions: arguments.force_dimensions,
    };
    let mut summary = Summary::default();
    let started = Instant::now();
    let (bar, all) = (input.bar(), input.count());
    let mut done = 0;
    output.set_progress(done, all);
    for chunk in input.chunks(CHUNK) {
        let chunk = chunk?;
        let texts: Vec<&str> = chunk.iter().map(|record| record.text.as_str()).collect();
        let answers = match model.card().task.value {
            Task::Sparse => Answers::Sparse(model.embed_sparse(&texts, &options)?),
            Task::Tokens if arguments.query => Answers::Tokens(model.embed_queries(&texts)?),
            Task::Tokens => Answers::Tokens(model.embed_tokens(&texts)?),
            Task::Embed | Task::Rerank | Task::Classify => {
                Answers::Vectors(model.embed_with(&texts, &options)?)
            }
        };
        summary.add(chunk.len(), &answers.account());
        bar.inc(chunk.len() as u64);
        done += chunk.len();
        output.set_progress(done, all);
        output.write(chunk, answers)?;
    }
    bar.finish_and_clear();
    output.finish()?;
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json && arguments.output.is_some() {
        print(&format!("{}\n", summary.json(seconds)))?;
    } else {
        summary.tell(seconds, &model, arguments.json);
    }
    Ok(ExitCode::SUCCESS)
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
            Some(_) | None => bail!("the output is `.jsonl` or `.npy`, not: `{}`", path.display()),
        }
    }
}

/// What a model made of some texts.
enum Answers {
    Vectors(Embeddings),
    Sparse(SparseEmbeddings),
    Tokens(TokenEmbeddings),
}

impl Answers {
    fn account(&self) -> Account {
        match self {
            Answers::Vectors(embeddings) => embeddings.account(),
            Answers::Sparse(embeddings) => embeddings.account.clone(),
            Answers::Tokens(embeddings) => embeddings.account.clone(),
        }
    }

    /// Each text's answer by itself.
    fn each(self) -> Box<dyn Iterator<Item = Answer>> {
        match self {
            Answers::Vectors(embeddings) => Box::new(embeddings.into_iter().map(Answer::Embedding)),
            Answers::Sparse(embeddings) => Box::new(embeddings.texts.into_iter().map(|words| {
                let indices = words.iter().map(|word| word.index).collect();
                Answer::Sparse { indices, values: words.iter().map(|word| word.value).collect() }
            })),
            Answers::Tokens(embeddings) => Box::new(
                embeddings
                    .texts
                    .into_iter()
                    .map(|matrix| Answer::Tokens(matrix.rows().map(<[f32]>::to_vec).collect())),
            ),
        }
    }
}

/// What a model made of one text, under the name that it has in a line of output.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Embedding(Vec<f32>),
    Sparse { indices: Vec<u32>, values: Vec<f32> },
    Tokens(Vec<Vec<f32>>),
}

/// A line of output: the fields that came with the text, and what the model made of it.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Cut>,
    class: String,
    #[serde(flatten)]
    answer: Answer,
}

#[derive(Serialize)]
struct Cut {
    tokens: usize,
    used: usize,
}

/// Where vectors go: standard output, or a file.
struct Output {
    writer: Writer,
    file: Option<OutputFile>,
}

enum Writer {
    Lines(Box<dyn Write>),
    Npy(Box<NpyWriter>),
}

impl Output {
    fn open(format: Format, path: Option<&Path>) -> anyhow::Result<Output> {
        let Some(path) = path else {
            let writer = Writer::Lines(Box::new(BufWriter::new(io::stdout())));
            return Ok(Output { writer, file: None });
        };
        let output = OutputFile::create(path)?;
        let file = output.file().with_context(|| format!("`{}` can't be written", path.display()))?;
        let writer = match format {
            Format::Npy => Writer::Npy(Box::new(NpyWriter::new(file))),
            Format::Lines => Writer::Lines(Box::new(BufWriter::new(file))),
        };
        Ok(Output { writer, file: Some(output) })
    }

    /// What a signal reports: the texts that were computed, of how many.
    fn set_progress(&self, done: usize, all: Option<usize>) {
        if let Some(file) = &self.file {
            let of = all.map(|all| format!(" of {all}")).unwrap_or_default();
            file.set_progress(format!("after {done}{of} texts"));
        }
    }

    fn write(&mut self, records: Vec<Record>, answers: Answers) -> anyhow::Result<()> {
        match (&mut self.writer, answers) {
            (Writer::Npy(writer), Answers::Vectors(embeddings)) => {
                for vector in &embeddings {
                    writer.write(vector)?;
                }
            }
            (Writer::Npy(_), Answers::Sparse(_) | Answers::Tokens(_)) => {
                bail!("`.npy` holds one vector a text: write this model's answers to `.jsonl`")
            }
            (Writer::Lines(lines), answers) => {
                let account = answers.account();
                for (index, (record, answer)) in records.into_iter().zip(answers.each()).enumerate() {
                    let mut fields = record.fields;
                    let own = ["embedding", "sparse", "tokens", "truncated", "class"];
                    fields.retain(|field, _| !own.contains(&field.as_str()));
                    let cut = account.truncated.iter().find(|cut| cut.index == index);
                    let truncated = cut.map(|cut| Cut { tokens: cut.tokens, used: cut.used });
                    let class = account.class(index).to_owned();
                    serde_json::to_writer(&mut *lines, &Line { fields, truncated, class, answer })?;
                    lines.write_all(b"\n")?;
                }
                lines.flush()?;
            }
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self.writer {
            Writer::Lines(mut lines) => lines.flush()?,
            Writer::Npy(writer) => writer.finish()?,
        }
        self.file.map_or(Ok(()), OutputFile::commit)
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
