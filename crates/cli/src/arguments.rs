//! What can be typed, and its help.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sconce::card::Overrides;
use sconce::planner::evidence::Goal;
use sconce::{Band, Constraints, Device, Dtype, EngineId, PoolingMode, Task};

use crate::bench::server::Address;
use crate::config::{Flags, Show};

/// Run embedding models on the best place that provably works, and see the proof.
#[derive(Parser)]
#[command(name = "sconce", version, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what this machine and this build can do, or what is wrong with another Candle project
    Doctor(Doctor),
    /// Show where a model can run, how well, and why not elsewhere
    Plan(Plan),
    /// Turn texts into vectors
    Embed(Embed),
    /// Sort documents by how well they fit a query
    Rerank(Rerank),
    /// Give texts, or pairs of texts, their labels
    Classify(Classify),
    /// Score how similar a text is to others
    Similarity(Similarity),
    /// Show what a model is made of and which file says so, without fetching its weights
    Inspect(Inspect),
    /// Compare every placement with vectors or scores made by sentence-transformers
    Verify(Verify),
    /// Run the real model on every placement that works, in turns
    Bench(Bench),
    /// Serve models over HTTP, to clients of OpenAI, TEI, Cohere and Jina
    Serve(Flags),
    /// Show the settings of `serve` that hold, and where each came from
    Config(Show),
    /// Watch what a running server does
    Top(Top),
    /// List the models in the hub's cache
    Models(Models),
    /// Put a model into one file, for machines without a network
    Bundle(Bundle),
    /// Print completions for a shell
    Completions(Completions),
    /// Write a page for `man` for every command
    Man(Man),
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that can be typed")]
pub(crate) struct Doctor {
    /// Examine the Cargo project at this path instead: its features, versions and sources of Candle
    #[arg(long, value_name = "PATH")]
    pub(crate) manifest: Option<PathBuf>,
    /// With --manifest: the target to resolve for [default: this machine's, and macOS where Metal is mentioned]
    #[arg(long, requires = "manifest")]
    pub(crate) target: Option<String>,
    /// With --manifest: features of the project to turn on
    #[arg(long, requires = "manifest", value_delimiter = ',')]
    pub(crate) features: Vec<String>,
    /// With --manifest: all features of the project
    #[arg(long, requires = "manifest")]
    pub(crate) all_features: bool,
    /// With --manifest: without the project's default features
    #[arg(long, requires = "manifest")]
    pub(crate) no_default_features: bool,
    /// Forget all evidence and prove everything again
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
    /// Load the real weights on every placement and compare their vectors with the reference's
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that can be typed")]
pub(crate) struct Embed {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The texts
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub(crate) texts: Vec<String>,
    /// Read texts from a file: .jsonl with a `text` field per line, others with one text per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Write vectors to a file, .jsonl or .npy, which appears when it is complete [default: JSON lines on standard
    /// output]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) prompts: PromptArguments,
    /// The texts are search queries: use the model's query prompt, or its query markers with --tokens
    #[arg(long, conflicts_with_all = ["prompt", "prefix"])]
    pub(crate) query: bool,
    /// Compute sparse vectors, a weight per word (SPLADE); the same as `--task sparse`
    #[arg(long)]
    pub(crate) sparse: bool,
    /// Compute one vector per token (late interaction); the same as `--task tokens`
    #[arg(long, conflicts_with = "sparse")]
    pub(crate) tokens: bool,
    /// Truncate vectors to this many dimensions
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<usize>,
    /// Truncate even if the model does not declare that its vectors can be
    #[arg(long, requires = "dimensions")]
    pub(crate) force_dimensions: bool,
    /// Print the closing summary as JSON: on standard output with --output, else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Rerank {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// What is looked for
    #[arg(long)]
    pub(crate) query: String,
    /// The documents
    #[arg(value_name = "DOCUMENT", conflicts_with = "input")]
    pub(crate) documents: Vec<String>,
    /// Read documents from a file: .jsonl with a field `text` a line, any other a text a line, `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Only so many of the best
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Scores as the model gives them, not between 0 and 1
    #[arg(long)]
    pub(crate) raw: bool,
    /// Cut the document alone where a pair is too long [default: the longer of the two]
    #[arg(long)]
    pub(crate) keep_query: bool,
    /// What to look for in words, where the model takes an instruction
    #[arg(long, value_name = "TEXT")]
    pub(crate) instruction: Option<String>,
    /// Rank by the score of this label, where the model is a classifier of pairs
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
    /// Read texts from a file: .jsonl with a field `text` a line, and `pair` where two texts belong together; any
    /// other a text a line, `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// The second text of every pair
    #[arg(long, value_name = "TEXT")]
    pub(crate) pair: Option<String>,
    /// Only so many of the best labels
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Scores as the model gives them, not as probabilities
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
    /// The text that the others are compared with
    pub(crate) text: String,
    /// The others
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
pub(crate) struct Inspect {
    /// The folder of a model, its id on the hub, or a bundle
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) says: Says,
    /// The branch, tag or commit to look at
    #[arg(long, help_heading = "Where it comes from")]
    pub(crate) revision: Option<String>,
    /// Open no socket: folders and the hub's cache only
    #[arg(long, help_heading = "Where it comes from")]
    pub(crate) offline: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Vectors to compare with: .jsonl with `text` and `embedding` a line, .npz with `texts` and `embeddings`, or .npy
    /// beside --input; for rerankers and classifiers `text`, `pair` and raw `scores`, or `texts`, `pairs` and `scores`;
    /// without it the recipe to make them is printed
    #[arg(long, value_name = "FILE")]
    pub(crate) reference: Option<PathBuf>,
    /// The texts of a reference that holds vectors alone: a file as for `embed`
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
    /// Run these texts instead of the built-in ones: a file as for `embed`
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// How often each placement takes its turn; the best counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Plot rates by batch and by length, and the roofline of this machine: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Send the same texts to this server, too, in turns with ours; may be given again
    #[arg(
        long,
        value_name = "tei=URL|openai=URL",
        help_heading = "Other servers",
        conflicts_with = "offline"
    )]
    pub(crate) against: Vec<Address>,
    /// The model to ask an `openai` server for [default: MODEL]; its key is read from `OPENAI_API_KEY`
    #[arg(long, value_name = "NAME", help_heading = "Other servers", requires = "against")]
    pub(crate) against_model: Option<String>,
    /// How long such a server may take for one answer
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
pub(crate) struct Top {
    /// Where it listens; its key is read from `SCONCE_API_KEY`
    #[arg(default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    pub(crate) interval: f64,
    /// Print one table and end
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args)]
pub(crate) struct Models {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Bundle {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The file to write: every command takes it as MODEL
    #[arg(long, short, value_name = "FILE.sconce")]
    pub(crate) output: PathBuf,
    /// What the model is called [default: its id, or its folder's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Load the real weights on every placement first, so that the evidence in the file is of them
    #[arg(long)]
    pub(crate) full: bool,
    /// Print what is in the file as JSON
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
    /// The folder that the pages are written to; it is made where there is none
    pub(crate) folder: PathBuf,
}

/// What goes before every text.
#[derive(Args)]
pub(crate) struct PromptArguments {
    /// Put the model's prompt of this name before every text; `sconce inspect MODEL` lists the names
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Put this literal text before every text; an empty text means no prompt, not even the model's default
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt")]
    pub(crate) prefix: Option<String>,
}

/// Which model, what the user says of it, and where it is to run.
#[derive(Args)]
pub(crate) struct ModelArguments {
    /// The folder of a model, its id on the hub, or a bundle
    pub(crate) model: String,
    /// Only this engine: candle, native, onnx
    #[arg(long, help_heading = "Where it runs")]
    pub(crate) engine: Option<EngineId>,
    /// Only this device: cpu, metal, metal:N, cuda, cuda:N
    #[arg(long, help_heading = "Where it runs")]
    pub(crate) device: Option<Device>,
    /// Only this number format: f32, f16, bf16; int8, int4 of quantised graphs
    #[arg(long, help_heading = "Where it runs")]
    pub(crate) dtype: Option<Dtype>,
    /// Only these weights, by file name
    #[arg(long, help_heading = "Where it runs", value_name = "FILE")]
    pub(crate) weights: Option<String>,
    /// How far from the f32 reference vectors may lie: exact, half, coarse
    #[arg(long, help_heading = "Where it runs", default_value = "half")]
    pub(crate) band: Band,
    /// Choose for one short text soon, instead of many texts a second
    #[arg(long, help_heading = "Where it runs")]
    pub(crate) latency: bool,
    /// Threads on the CPU [default: all cores]
    #[arg(long, help_heading = "Where it runs", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) says: Says,
    /// The branch, tag or commit to fetch
    #[arg(long, help_heading = "Where it comes from")]
    pub(crate) revision: Option<String>,
    /// Open no socket: folders and the hub's cache only
    #[arg(long, help_heading = "Where it comes from")]
    pub(crate) offline: bool,
}

/// What the user says of a model.
#[derive(Args)]
pub(crate) struct Says {
    /// What the model is for: embed, rerank, classify, sparse, tokens
    #[arg(long, help_heading = "What its files do not say")]
    pub(crate) task: Option<Task>,
    /// How token vectors become one: `cls`, `max`, `mean`, `mean_sqrt_len`, `weighted_mean`, `last_token`
    #[arg(long, help_heading = "What its files do not say")]
    pub(crate) pooling: Option<PoolingMode>,
    /// Whether vectors are made one long
    #[arg(
        long,
        help_heading = "What its files do not say",
        value_name = "true|false",
        hide_possible_values = true
    )]
    pub(crate) normalize: Option<bool>,
    /// The most tokens a text may have
    #[arg(long, help_heading = "What its files do not say", value_name = "TOKENS")]
    pub(crate) max_length: Option<usize>,
}

impl Says {
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            task: self.task,
            pooling: self.pooling,
            normalize: self.normalize,
            max_length: self.max_length,
        }
    }
}

impl ModelArguments {
    pub(crate) fn constraints(&self) -> Constraints {
        Constraints {
            engine: self.engine,
            device: self.device,
            dtype: self.dtype,
            weights: self.weights.clone(),
            band: self.band,
            goal: if self.latency { Goal::Latency } else { Goal::Throughput },
        }
    }

    pub(crate) fn overrides(&self) -> Overrides {
        self.says.overrides()
    }

    /// Threads that compute on the CPU.
    pub(crate) fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(all, NonZeroUsize::get)
    }

    pub(crate) fn runtime(&self) -> sconce::Runtime {
        let builder = sconce::Runtime::builder().offline(self.offline);
        match self.threads {
            Some(threads) => builder.threads(threads.get()).build(),
            None => builder.build(),
        }
    }
}
