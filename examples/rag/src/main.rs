//! Answers questions about a folder of texts, with citations: files, chunks, vectors, hybrid search, reranking, answer.
//!
//! ```sh
//! cargo run --release --bin rag -- docs --ask "What is a numerics class?"
//! ```

mod answer;
mod chunks;
mod index;
mod progress;
mod store;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use sconce::{Model, RerankOptions};
use serde::Deserialize;

use crate::index::Update;
use crate::store::{Found, Store};

/// Answers questions about texts, with citations.
#[derive(Parser)]
struct Arguments {
    /// Folders and files to index
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The question
    #[arg(long, value_name = "QUESTION")]
    ask: Option<String>,
    /// JSON lines with `question` and `page`: prints how often the page is among the sources
    #[arg(long, value_name = "FILE", conflicts_with = "ask")]
    questions: Option<PathBuf>,
    /// The index
    #[arg(long, value_name = "FILE", default_value = "rag.sqlite")]
    index: PathBuf,
    /// Embedding model
    #[arg(long, value_name = "MODEL", default_value = "minilm")]
    embedder: String,
    /// Reranker
    #[arg(long, value_name = "MODEL", default_value = "minilm-reranker")]
    reranker: String,
    /// Ranks by the search alone
    #[arg(long)]
    no_rerank: bool,
    /// Language model
    #[arg(long, value_name = "MODEL", default_value = "smollm2-1.7b")]
    generator: String,
    /// Answers with a sentence of the sources, word for word: small models invent nothing then
    #[arg(long)]
    quote: bool,
    /// Prints the sources alone
    #[arg(long)]
    no_answer: bool,
    /// Number of sources of an answer
    #[arg(long, value_name = "N", default_value_t = 3)]
    sources: usize,
}

/// A question with the page that answers it.
#[derive(Deserialize)]
struct Question {
    question: String,
    page: String,
}

/// Index and models.
struct Rag {
    store: Store,
    embedder: Model,
    reranker: Option<Model>,
    generator: Option<Model>,
    quote: bool,
    sources: usize,
}

fn main() -> anyhow::Result<()> {
    sconce::init();
    let arguments = Arguments::parse();
    let embedder = progress::open(&arguments.embedder)?;
    let class = embedder.class().context("the embedding model has no placement")?;
    let dimensions = embedder.embed_query("a text")?.len();
    let mut store = Store::open(&arguments.index, &class, dimensions)?;
    let Update { changed, unchanged, removed, embedded } =
        index::update(&mut store, &embedder, &class, &arguments.paths)?;
    eprintln!(
        "files: {changed} changed, {unchanged} unchanged, {removed} removed; chunks: {embedded} embedded of {}",
        store.len()?
    );
    if arguments.ask.is_none() && arguments.questions.is_none() {
        return Ok(());
    }
    let reranker = (!arguments.no_rerank).then(|| progress::open(&arguments.reranker)).transpose()?;
    let generator = (!arguments.no_answer).then(|| progress::open(&arguments.generator)).transpose()?;
    let Arguments { quote, sources, .. } = arguments;
    let rag = Rag { store, embedder, reranker, generator, quote, sources };
    if let Some(question) = &arguments.ask {
        rag.ask(question)?;
    }
    if let Some(file) = &arguments.questions {
        rag.check(file)?;
    }
    Ok(())
}

impl Rag {
    /// The best chunks for a question: hybrid search, then the reranker's order.
    fn find(&self, question: &str) -> anyhow::Result<Vec<Found>> {
        let vector = self.embedder.embed_query(question)?;
        let mut found = self.store.search(question, &vector)?;
        if let Some(reranker) = &self.reranker {
            let passages: Vec<String> = found.iter().map(|found| found.chunk.passage()).collect();
            let ranking = reranker.rerank(question, &passages, &RerankOptions::default())?;
            found = ranking.ranked.iter().map(|ranked| found[ranked.index].clone()).collect();
        }
        found.truncate(self.sources);
        Ok(found)
    }

    /// Prints the answer and its sources.
    fn ask(&self, question: &str) -> anyhow::Result<Vec<Found>> {
        let sources = self.find(question)?;
        if let Some(generator) = &self.generator {
            let mut out = io::stdout();
            if !self.quote || !answer::quote(generator, question, &sources, &mut out)? {
                answer::answer(generator, &self.embedder, question, &sources, &mut out)?;
            }
            println!();
        }
        for (number, Found { path, chunk }) in (1..).zip(&sources) {
            println!("[{number}] {path}:{}  {}", chunk.line, chunk.heading);
        }
        Ok(sources)
    }

    /// Asks the questions of a file and counts those whose page is among the sources.
    fn check(&self, file: &Path) -> anyhow::Result<()> {
        let lines = fs::read_to_string(file).with_context(|| format!("can't read `{}`", file.display()))?;
        let (mut asked, mut found, mut first) = (0, 0, 0);
        for line in lines.lines() {
            let Question { question, page } = serde_json::from_str(line)?;
            println!("{question}");
            let sources = self.ask(&question)?;
            let rank = sources.iter().position(|found| found.path == page);
            println!(
                "{}: {page}\n",
                rank.map_or("not cited".to_owned(), |rank| format!("cited as [{}]", rank + 1))
            );
            asked += 1;
            found += usize::from(rank.is_some());
            first += usize::from(rank == Some(0));
        }
        println!("{found} of {asked} questions cite the right page, {first} of them first");
        Ok(())
    }
}
