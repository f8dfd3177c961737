//! Commands, flags and their help.

mod model;
mod models;
mod pool;
mod pool_models;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sconce::GenerateOptions;

use crate::config::Flags;
use crate::model_name::ModelName;
use crate::server_spec::ServerSpec;

pub(crate) use model::{ModelArguments, ModelOverrides};
pub(crate) use models::{Models, Pull, Remove};
pub(crate) use pool::{Pool, PoolAgent, PoolCommand, PoolStatus, PoolUp, PoolWorker};
pub(crate) use pool_models::{PoolLoad, PoolUnload};

/// Run embedding, reranking and language models on the fastest placement that is proven correct.
#[derive(Parser)]
#[command(name = "sconce", version, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check this machine and this build, or diagnose another Candle project
    Doctor(Doctor),
    /// Show where a model can run, how fast and how accurately, and why not elsewhere
    Plan(Plan),
    /// Embed texts
    Embed(Embed),
    /// Rank documents by relevance to a query
    Rerank(Rerank),
    /// Classify texts, or pairs of texts
    Classify(Classify),
    /// Score the similarity of a text to others
    Similarity(Similarity),
    /// Continue a text with a language model
    Generate(Generate),
    /// Talk with a language model in the terminal
    #[command(alias = "run")]
    Chat(Chat),
    /// Show a model's card and the file each fact comes from, without downloading weights
    Inspect(Inspect),
    /// Compare every placement with vectors or scores of sentence-transformers
    Verify(Verify),
    /// Benchmark the model on every viable placement, in alternating rounds
    Bench(Bench),
    /// Serve models over HTTP with the APIs of OpenAI, Anthropic, Ollama, TEI, Cohere and Jina
    Serve(Flags),
    /// Show the effective settings of `serve` and the origin of each
    Config(Config),
    /// Run workers on many machines under one address, and watch and steer them
    Pool(Pool),
    /// Monitor a running server
    Top(Top),
    /// List the models in the hub's cache, or the catalogue
    #[command(alias = "list")]
    Models(Models),
    /// Download models into the hub's cache
    Pull(Pull),
    /// Remove models from the hub's cache
    Rm(Remove),
    /// Pack a model into one file, for machines without a network
    Bundle(Bundle),
    /// Print shell completions
    Completions(Completions),
    /// Write man pages
    Man(Man),
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a command-line flag")]
pub(crate) struct Doctor {
    /// Diagnose the Cargo project at this path: features, versions and sources of Candle
    #[arg(long, value_name = "PATH")]
    pub(crate) manifest: Option<PathBuf>,
    /// With --manifest: target triple [default: the host, and macOS if the manifest mentions Metal]
    #[arg(long, requires = "manifest")]
    pub(crate) target: Option<String>,
    /// With --manifest: features of the project to enable
    #[arg(long, requires = "manifest", value_delimiter = ',')]
    pub(crate) features: Vec<String>,
    /// With --manifest: enable all features of the project
    #[arg(long, requires = "manifest")]
    pub(crate) all_features: bool,
    /// With --manifest: disable the project's default features
    #[arg(long, requires = "manifest")]
    pub(crate) no_default_features: bool,
    /// Delete all evidence and prove everything again
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Run the canary on every placement: load the real weights and compare outputs with the reference
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a command-line flag")]
pub(crate) struct Embed {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The texts
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub(crate) texts: Vec<String>,
    /// Read texts from a file: .jsonl with a `text` field, otherwise one text per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Write vectors to a .jsonl or .npy file, atomically [default: JSON lines on standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) prompts: PromptArguments,
    /// What the texts are: use the model's prompt for queries or documents, or its markers with --tokens
    #[arg(long = "as", value_name = "query|document", conflicts_with_all = ["prompt", "prefix"], hide_possible_values = true)]
    pub(crate) role: Option<TextRole>,
    /// Same as `--as query`
    #[arg(long, conflicts_with_all = ["prompt", "prefix", "role"])]
    pub(crate) query: bool,
    /// Compute sparse vectors, one weight per vocabulary token (SPLADE); same as `--task sparse`
    #[arg(long)]
    pub(crate) sparse: bool,
    /// Compute one vector per token (late interaction); same as `--task tokens`
    #[arg(long, conflicts_with = "sparse")]
    pub(crate) tokens: bool,
    /// Truncate vectors to this many dimensions
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<usize>,
    /// Truncate even if the model does not declare Matryoshka dimensions
    #[arg(long, requires = "dimensions")]
    pub(crate) force_dimensions: bool,
    /// Print the summary as JSON: on standard output with --output, otherwise on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Rerank {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The search query
    #[arg(long)]
    pub(crate) query: String,
    /// The documents
    #[arg(value_name = "DOCUMENT", conflicts_with = "input")]
    pub(crate) documents: Vec<String>,
    /// Read documents from a file: .jsonl with a `text` field, otherwise one per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Return only the N best documents
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Print logits instead of scores between 0 and 1
    #[arg(long)]
    pub(crate) raw: bool,
    /// Truncate only the document if a pair is too long [default: the longer text]
    #[arg(long)]
    pub(crate) keep_query: bool,
    /// The instruction, for models that take one
    #[arg(long, value_name = "TEXT")]
    pub(crate) instruction: Option<String>,
    /// Rank by the score of this label, for classifiers of pairs
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Classify {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The texts
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub(crate) texts: Vec<String>,
    /// Read texts from a file: .jsonl with a `text` field and an optional `pair` field, otherwise one text per line;
    /// `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// The second text of every pair
    #[arg(long, value_name = "TEXT")]
    pub(crate) pair: Option<String>,
    /// Print only the N best labels
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Print logits instead of probabilities
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Similarity {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The text to compare
    pub(crate) text: String,
    /// The texts to compare it with
    #[arg(required = true, value_name = "OTHER")]
    pub(crate) others: Vec<String>,
    #[command(flatten)]
    pub(crate) prompts: PromptArguments,
    /// TEXT is a search query and OTHER are documents: use the model's prompt for each
    #[arg(long, conflicts_with_all = ["prompt", "prefix"])]
    pub(crate) query: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Generate {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The text to continue [default: standard input]
    pub(crate) prompt: Option<String>,
    /// Generate at most N tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_tokens: usize,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    /// Generate JSON that is valid by this JSON schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|JSON", group = "structure")]
    pub(crate) json_schema: Option<String>,
    /// Generate a JSON object
    #[arg(long, group = "structure")]
    pub(crate) json_object: bool,
    /// Generate a text that this regular expression matches as a whole
    #[arg(long, value_name = "EXPRESSION", group = "structure")]
    pub(crate) regex: Option<String>,
    /// Generate a text of the grammar in this file, in Lark's syntax
    #[arg(long, value_name = "FILE", group = "structure")]
    pub(crate) grammar: Option<PathBuf>,
    /// Print JSON at the end instead of text as it arrives
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The instructions of the conversation; `/system` changes them
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Generate at most N tokens for an answer [default: to the end of the context]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    /// Set a variable of the chat template, such as `enable_thinking=false`; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = template_variable)]
    pub(crate) set: Vec<(String, serde_json::Value)>,
}

/// A variable of a chat template: JSON, or else a text.
fn template_variable(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name.to_owned(), value))
}

/// How tokens are drawn, and where a text ends.
#[derive(Args)]
pub(crate) struct Sampling {
    /// Divide the logits by T; 0 is greedy decoding [default: 0; 0.7 in a chat]
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Sample from the K most likely tokens
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities sum to P
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Sample from tokens that are at least P times as likely as the most likely one
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Discourage tokens of the prompt and the output; 1 is off
    #[arg(long, value_name = "X")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Seed of the draws [default: random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End at this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl Sampling {
    /// The options, with a temperature for users that set none.
    pub(crate) fn options(&self, temperature: f32, max_tokens: Option<usize>) -> GenerateOptions {
        let default = GenerateOptions::default();
        GenerateOptions {
            max_tokens,
            temperature: self.temperature.unwrap_or(temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            seed: self.seed,
            stop: self.stop.clone(),
            ..default
        }
    }
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// A short name (`sconce models --recommended`), a folder, a GGUF file, an id on the Hugging Face Hub, or a bundle
    #[arg(value_parser = ModelName, hide_possible_values = true)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) overrides: ModelOverrides,
    /// Branch, tag or commit
    #[arg(long, help_heading = "Source")]
    pub(crate) revision: Option<String>,
    /// Open no socket: use folders and the hub cache only
    #[arg(long, help_heading = "Source")]
    pub(crate) offline: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The reference vectors: .jsonl with `text` and `embedding`, .npz with `texts` and `embeddings`, or .npy with
    /// --input; for rerankers and classifiers `text`, `pair` and `scores` (logits), or `texts`, `pairs` and `scores`;
    /// without it, print a script that creates them
    #[arg(long, value_name = "FILE")]
    pub(crate) reference: Option<PathBuf>,
    /// The texts of a .npy reference: a file as for `embed`
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Use these texts instead of the built-in ones: a file as for `embed`
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Number of rounds, of which the fastest counts; of `--task chat`, chats per client
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Plot throughput by batch size and text length, and the roofline of this machine; of a language model, throughput and
    /// latency by concurrency: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Numbers of sequences that are generated at the same time
    #[arg(
        long,
        value_name = "N,N",
        help_heading = "Language models",
        value_delimiter = ',',
        default_value = "1,8,32",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) concurrency: Vec<u16>,
    /// Tokens of each prompt, without the chat template [default: 512; of `--task chat`, 256]
    #[arg(
        long,
        value_name = "N",
        help_heading = "Language models",
        value_parser = clap::value_parser!(u32).range(8..)
    )]
    pub(crate) input_tokens: Option<u32>,
    /// Tokens of each answer of `--task chat`
    #[arg(
        long,
        value_name = "N",
        help_heading = "Language models",
        default_value = "128",
        value_parser = clap::value_parser!(u32).range(2..)
    )]
    pub(crate) output_tokens: u32,
    /// Also benchmark this server with the same texts; repeatable
    #[arg(
        long,
        value_name = "tei=URL|openai=URL",
        help_heading = "Other servers",
        conflicts_with = "offline"
    )]
    pub(crate) against: Vec<ServerSpec>,
    /// Model name for an `openai` server [default: MODEL]; its API key is read from `OPENAI_API_KEY`
    #[arg(long, value_name = "NAME", help_heading = "Other servers", requires = "against")]
    pub(crate) against_model: Option<String>,
    /// Timeout of one request to another server
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Other servers",
        default_value = "60",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) timeout: u16,
}

#[derive(Args)]
pub(crate) struct Config {
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// Print a configuration file with every key, its description and its default
    #[arg(long)]
    pub(crate) template: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Top {
    /// URL of the server; its API key is read from `SCONCE_API_KEY`
    #[arg(default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Refresh interval in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    pub(crate) interval: f64,
    /// Print one table and exit
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args)]
pub(crate) struct Bundle {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The bundle to write; every command accepts it as MODEL
    #[arg(long, short, value_name = "FILE.sconce")]
    pub(crate) output: PathBuf,
    /// Name of the model [default: its id, or its folder name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Run the canary on every placement first, so that the bundle contains its evidence
    #[arg(long)]
    pub(crate) full: bool,
    /// Print the bundle's file list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args)]
pub(crate) struct Man {
    /// Output folder; created if it does not exist
    pub(crate) folder: PathBuf,
}

/// What a text is in a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TextRole {
    Query,
    Document,
}

/// The prompt of every text.
#[derive(Args)]
pub(crate) struct PromptArguments {
    /// Prepend the model's prompt of this name; `sconce inspect MODEL` lists the names
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Prepend this text; an empty text disables the model's default prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt")]
    pub(crate) prefix: Option<String>,
}
