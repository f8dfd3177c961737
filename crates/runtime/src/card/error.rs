//! Why a folder can't be read as a model.

use std::path::PathBuf;

/// Why a folder can't be read as a model.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// There is no such folder.
    #[error("no folder `{}`{}", folder.display(), meant(similar.as_deref()))]
    NoFolder {
        /// The folder.
        folder: PathBuf,
        /// A folder or bundle beside it with a similar name.
        similar: Option<String>,
    },
    /// A file that every model has is not there.
    #[error("`{file}` is missing in `{}`", folder.display())]
    Missing {
        /// The file.
        file: String,
        /// The folder.
        folder: PathBuf,
    },
    /// What no file says and the user could.
    #[error("`{file}` {lack}, so nothing says {what}\nhint: say it with {flags}")]
    HalfConfigured {
        /// The file that would say it.
        file: String,
        /// Why it does not.
        lack: &'static str,
        /// What it would say.
        what: &'static str,
        /// The flags by which the user can.
        flags: &'static str,
    },
    /// The config does not name its architecture.
    #[error(
        "`config.json` has no `model_type`\nhint: add the line that its family has, as in `\"model_type\": \"bert\"`"
    )]
    NoModelType,
    /// Weights in a format that can run code.
    #[error(
        "only `{file}` is there, which can run code when it is read and so never is\n\
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
    /// No weights at all.
    #[error("no weights in `{}`: looked for `model*.safetensors` and `model.safetensors.index.json`", .0.display())]
    NoWeights(PathBuf),
    /// A weight file can't be read.
    #[error(transparent)]
    Weights(#[from] sconce_engines::weights::WeightsError),
    /// A file is not what it was when it was hashed, although its size and its times are the same.
    #[error(
        "the content of `{file}` differs from the SHA-256 under which it is known\n\
         hint: restore the file; `sconce plan MODEL --full` hashes and proves it as it is now"
    )]
    ContentChanged {
        /// The file.
        file: String,
    },
    /// A file can't be read.
    #[error("`{file}` can't be read")]
    Io {
        /// Which.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is not JSON.
    #[error("`{file}` is not valid JSON")]
    Json {
        /// Which.
        file: String,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// A module of sentence-transformers that this version does not run.
    #[error("`modules.json` names a module that this version does not run: {0}")]
    UnknownModule(String),
    /// No description of the head that a task needs.
    #[error(
        "no description of the head for `{task}` in the architecture `{architecture}`\n\
         hint: those known have the architectures {}; `--task embed` uses the model without its head",
        known.join(", ")
    )]
    NoHead {
        /// The architecture.
        architecture: String,
        /// The task.
        task: sconce_core::card::Task,
        /// The architectures whose heads are known.
        known: Vec<&'static str>,
    },
    /// A reranker with several scores, of which none is the one to rank by.
    #[error(
        "`--task rerank` needs one score a pair, and `config.json` has {0} labels\n\
         hint: without `--task`, `sconce rerank --label NAME` ranks by one of them"
    )]
    SeveralLabels(usize),
    /// A value that this version does not know.
    #[error("`{file}` says `{key}`: `{value}`, which this version does not know")]
    UnknownValue {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// A name that leads out of the folder.
    #[error("`{file}` names a path outside of the model's folder: `{path}`")]
    PathEscapes {
        /// The file.
        file: String,
        /// The path.
        path: String,
    },
    /// A longer text than the model can take was asked for.
    #[error("the model has positions for 1 to {positions} tokens; asked for `--max-length`: {asked}")]
    MaxLength {
        /// What was asked for.
        asked: usize,
        /// What there is.
        positions: usize,
    },
    /// A model larger than its weights.
    #[error("`config.json` promises {promised} numbers or more, and the weights have {held} bytes")]
    Sizes {
        /// Numbers that a model of these sizes has at least.
        promised: u128,
        /// Bytes of the largest set of weight files.
        held: u64,
    },
    /// A size that no model has.
    #[error(
        "`config.json` says `{}`: {}, and at most {} is read\n\
         hint: fetch the file again from where the model was published",
        .0.key, .0.value, .0.most
    )]
    TooLarge(sconce_engines::families::TooLarge),
    /// Modules that do not fit together.
    #[error("`{folder}` takes {takes} numbers and is given {given}")]
    Width {
        /// The module.
        folder: String,
        /// What it takes.
        takes: usize,
        /// What it is given.
        given: usize,
    },
}

fn meant(similar: Option<&str>) -> String {
    similar.map(|name| format!("\nhint: did you mean `{name}`?")).unwrap_or_default()
}
