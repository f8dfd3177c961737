//! Errors of reading a model card.

use std::path::PathBuf;

use sconce_core::card::Task;

/// Error of reading a model folder.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The folder does not exist.
    #[error("no folder `{}`{}", folder.display(), meant(similar.as_deref()))]
    NoFolder {
        /// The folder.
        folder: PathBuf,
        /// A sibling folder or bundle with a similar name.
        similar: Option<String>,
    },
    /// A required file is missing.
    #[error("`{file}` is missing in `{}`", folder.display())]
    Missing {
        /// The file.
        file: String,
        /// The folder.
        folder: PathBuf,
    },
    /// No file declares a fact that the user can set.
    #[error("`{file}` {lack}, so {what} is unknown\nhint: set it with {flags}")]
    HalfConfigured {
        /// The file that should declare it.
        file: String,
        /// Why the file does not declare it.
        lack: &'static str,
        /// The fact.
        what: &'static str,
        /// Flags that set it.
        flags: &'static str,
    },
    /// The config has no `model_type`.
    #[error(
        "`config.json` has no `model_type`\nhint: add the line that its family has, as in `\"model_type\": \"bert\"`"
    )]
    NoModelType,
    /// Weights exist only as pickle, which can run code.
    #[error(
        "only `{file}` exists, a pickle, which can run code when it is loaded\n\
         hint: convert it once: python -c \"from sentence_transformers import SentenceTransformer; \
         SentenceTransformer('{0}').save_pretrained('{0}')\"",
        folder.display()
    )]
    OnlyPickle {
        /// The file.
        file: String,
        /// The folder.
        folder: PathBuf,
    },
    /// The folder has several GGUF models.
    #[error(
        "several models in `{}`: {}\nhint: name one of them, as in `{}`",
        folder.display(),
        names.join(", "),
        folder.join(&names[0]).display()
    )]
    SeveralGguf {
        /// The folder.
        folder: PathBuf,
        /// The files, at least two.
        names: Vec<String>,
    },
    /// GGUF files are read for embedding and generation only.
    #[error("GGUF files are read for the tasks `embed` and `generate`, and not for `{0}`")]
    GgufTask(Task),
    /// The folder has no weights.
    #[error("no weights in `{}`: looked for `model*.safetensors`, `model.safetensors.index.json` and `*.gguf`", .0.display())]
    NoWeights(PathBuf),
    /// A weight file can't be read.
    #[error(transparent)]
    Weights(#[from] sconce_engines::weights::WeightsError),
    /// The content differs from the recorded hash, with the same size and times.
    #[error(
        "the content of `{file}` differs from its recorded SHA-256\n\
         hint: restore the file; `sconce plan MODEL --full` hashes and proves it as it is now"
    )]
    ContentChanged {
        /// The file.
        file: String,
    },
    /// A file can't be read.
    #[error("`{file}` can't be read")]
    Io {
        /// The file.
        file: String,
        /// I/O error.
        #[source]
        source: std::io::Error,
    },
    /// A file is not JSON.
    #[error("`{file}` is not valid JSON")]
    Json {
        /// The file.
        file: String,
        /// Parse error.
        #[source]
        source: serde_json::Error,
    },
    /// Unsupported sentence-transformers module.
    #[error("`modules.json` names an unsupported module: {0}")]
    UnknownModule(String),
    /// No description of the head for the task.
    #[error(
        "no description of the head for `{task}` in the architecture `{architecture}`\n\
         hint: supported architectures: {}; `--task embed` uses the model without its head",
        known.join(", ")
    )]
    NoHead {
        /// The architecture.
        architecture: String,
        /// The task.
        task: sconce_core::card::Task,
        /// Architectures with a known head.
        known: Vec<&'static str>,
    },
    /// A reranker with several scores.
    #[error(
        "`--task rerank` needs one score per pair, and `config.json` has {0} labels\n\
         hint: without `--task`, `sconce rerank --label NAME` ranks by one of them"
    )]
    SeveralLabels(usize),
    /// Unsupported value.
    #[error("unsupported value in `{file}`: `{key}`: `{value}`")]
    UnknownValue {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// A path escapes the model folder.
    #[error("`{file}` names a path outside of the model folder: `{path}`")]
    PathEscapes {
        /// The file.
        file: String,
        /// The path.
        path: String,
    },
    /// `--max-length` is out of range.
    #[error("`--max-length` must be 1 to {positions}; requested: {asked}")]
    MaxLength {
        /// The requested length.
        asked: usize,
        /// Number of positions.
        positions: usize,
    },
    /// The config has more parameters than the weights.
    #[error("`config.json` declares at least {promised} parameters, and the weights have {held} bytes")]
    Sizes {
        /// Minimum number of parameters for the config.
        promised: u128,
        /// Size of the largest set of weights in bytes.
        held: u64,
    },
    /// A size in the config exceeds its limit.
    #[error(
        "`config.json` sets `{}` to {}, and the limit is {}\n\
         hint: fetch the file again from where the model was published",
        .0.key, .0.value, .0.most
    )]
    TooLarge(sconce_engines::families::TooLarge),
    /// Input and output widths of modules do not match.
    #[error("`{folder}` has input width {takes}, and the module before it has output width {given}")]
    Width {
        /// The module.
        folder: String,
        /// Its input width.
        takes: usize,
        /// Output width of the module before it.
        given: usize,
    },
}

fn meant(similar: Option<&str>) -> String {
    similar.map(|name| format!("\nhint: did you mean `{name}`?")).unwrap_or_default()
}
