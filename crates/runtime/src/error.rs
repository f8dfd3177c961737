//! What can go wrong, whose fault it is, and whether trying again helps.

use sconce_core::card::Task;
use sconce_planner::explain::unmet;
use sconce_planner::plan::{Constraints, Plan};

use crate::attribution::SequenceError;
use crate::bundle::BundleError;
use crate::card::CardError;
use crate::hub::HubError;
use crate::vocabulary::VocabularyError;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model could not be found or fetched.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The name is neither a folder here nor a model that the hub gives.
    #[error("{}", not_found(name, *is_path, similar.as_deref(), hub))]
    NotFound {
        /// The name.
        name: String,
        /// Whether it may be meant as a folder.
        is_path: bool,
        /// A folder here or a model in the cache with a similar name.
        similar: Option<String>,
        /// Why the hub does not give it.
        hub: Box<HubError>,
    },
    /// A bundle could not be made or used.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The model's files do not say enough, or something else than is known.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The model's tokenizer could not be had, or failed.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Nothing that was wished for works here; the plan says why.
    #[error("{}", unmet(plan, constraints).trim_end())]
    NoPlacement {
        /// Every placement with its reason.
        plan: Box<Plan>,
        /// What was asked for.
        constraints: Box<Constraints>,
    },
    /// The model is not for this.
    #[error(
        "`{asked}` needs another model: this one {}, as {by} says\n\
         hint: {}; `--task` says what a model is for where its files do not",
        has.does(), instead(*has)
    )]
    WrongTask {
        /// What was asked for.
        asked: &'static str,
        /// What the model is for.
        has: Task,
        /// Who says so.
        by: String,
    },
    /// The request can't be computed as it stands.
    #[error("{0}")]
    Request(String),
    /// One sequence can't be computed, though the placement works.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// This machine lacks something that the work needs, such as threads or memory.
    #[error("{0}")]
    Machine(String),
}

fn not_found(name: &str, is_path: bool, similar: Option<&str>, hub: &HubError) -> String {
    let mut from_hub = hub.to_string();
    let mut source = std::error::Error::source(hub);
    while let Some(cause) = source {
        from_hub = format!("{from_hub}: {cause}");
        source = cause.source();
    }
    let similar = similar.map(|name| format!("\nhint: did you mean `{name}`?")).unwrap_or_default();
    if is_path {
        format!("no folder `{name}` here, and from the hub: {from_hub}{similar}")
    } else {
        format!("{from_hub}{similar}")
    }
}

/// What to do with a model instead.
fn instead(task: Task) -> &'static str {
    match task {
        Task::Embed => "use `embed` or `similarity`",
        Task::Rerank => "use `rerank`",
        Task::Classify => "use `classify`, or `rerank --label` for pairs",
        Task::Sparse => "use `embed --sparse`",
        Task::Tokens => "use `rerank` or `embed --tokens`",
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Whoever asked.
    Caller,
    /// The model's files.
    Model,
    /// This machine, its devices or its network.
    Machine,
}

/// Whether trying again helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It does not.
    Never,
    /// Here, after a while.
    Later,
    /// On another machine.
    Elsewhere,
}

impl Error {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Error::Card(_) | Error::Vocabulary(_) | Error::Bundle(_) => Fault::Model,
            Error::Hub(_) | Error::NotFound { .. } | Error::NoPlacement { .. } | Error::Machine(_) => {
                Fault::Machine
            }
            Error::Request(_) | Error::Sequence(_) | Error::WrongTask { .. } => Fault::Caller,
        }
    }

    /// Whether trying again helps.
    pub fn retry(&self) -> Retry {
        match self {
            Error::Hub(error) if error.may_pass() => Retry::Later,
            Error::NotFound { hub, .. } if hub.may_pass() => Retry::Later,
            Error::Machine(_) => Retry::Later,
            Error::Hub(_)
            | Error::NotFound { .. }
            | Error::Bundle(_)
            | Error::Card(_)
            | Error::Vocabulary(_)
            | Error::Request(_)
            | Error::Sequence(_)
            | Error::WrongTask { .. } => Retry::Never,
            Error::NoPlacement { .. } => Retry::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_lacks_something_is_not_the_callers_fault() {
        let lacking = Error::Machine("the system gives no thread".to_owned());
        assert_eq!((lacking.fault(), lacking.retry()), (Fault::Machine, Retry::Later));
        let sequence = Error::from(SequenceError::Malformed("no such id".to_owned()));
        assert_eq!((sequence.fault(), sequence.retry()), (Fault::Caller, Retry::Never));
        let request = Error::Request("no".to_owned());
        assert_eq!((request.fault(), request.retry()), (Fault::Caller, Retry::Never));
    }
}
