//! The error type of the library, with its cause and whether a retry helps.

use sconce_core::card::Task;
use sconce_core::placement::Placement;
use sconce_planner::explain::unmet;
use sconce_planner::plan::{Constraints, Plan};

use crate::card::CardError;
use crate::source::SourceError;
use crate::template::TemplateError;
use crate::tokenize::TokenizerError;

/// Error of the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model could not be found or fetched.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The model's files are incomplete or invalid.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The tokenizer could not be loaded, or failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template did not render the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No placement satisfies the constraints. The plan has the reasons.
    #[error("{}", unmet(plan, constraints).trim_end())]
    NoPlacement {
        /// The plan, with the reason for each placement.
        plan: Box<Plan>,
        /// The requested constraints.
        constraints: Box<Constraints>,
    },
    /// The model has another task.
    #[error(
        "`{asked}` needs another model: this one {}, according to {by}\n\
         hint: {}; `--task` overrides the task of a model",
        has.does(), operations_for(*has)
    )]
    WrongTask {
        /// The requested operation.
        asked: &'static str,
        /// The model's task.
        has: Task,
        /// The file or flag that sets the task.
        by: String,
    },
    /// Invalid request.
    #[error("{0}")]
    Request(String),
    /// One sequence can't be computed on a working placement.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The machine lacks a resource, such as threads or memory.
    #[error("{0}")]
    Machine(String),
}

/// Error of one sequence on a working placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The sequence does not fit into device memory.
    #[error(
        "a text of {tokens} tokens does not fit in the memory of {placement}\n\
         hint: send it in shorter pieces, or serve the model with `--device cpu`"
    )]
    DoesNotFit {
        /// Length in tokens.
        tokens: usize,
        /// The placement.
        placement: Placement,
    },
    /// Placements disagree on the result.
    #[error("no reliable result for a text of {tokens} tokens: {why}\nhint: send the other texts without it")]
    Unusual {
        /// Length in tokens.
        tokens: usize,
        /// Results of the placements.
        why: String,
    },
    /// The engine rejected the sequence.
    #[error("{0}")]
    Malformed(String),
}

/// Operations for a task.
fn operations_for(task: Task) -> &'static str {
    match task {
        Task::Embed => "use `embed` or `similarity`",
        Task::Rerank => "use `rerank`",
        Task::Classify => "use `classify`, or `rerank --label` for pairs",
        Task::Sparse => "use `embed --sparse`",
        Task::Tokens => "use `rerank` or `embed --tokens`",
        Task::Generate => "use `generate` or `chat`",
    }
}

/// What caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCause {
    /// The request.
    Request,
    /// The model's files.
    Model,
    /// This machine, its devices or its network.
    Machine,
}

/// Whether a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No.
    Never,
    /// On this machine, later.
    Later,
    /// On another machine.
    Elsewhere,
}

impl Error {
    /// What caused the error.
    pub fn cause(&self) -> ErrorCause {
        match self {
            Error::Request(_)
            | Error::Sequence(_)
            | Error::WrongTask { .. }
            | Error::Tokenizer(TokenizerError::ControlToken(_))
            | Error::Template(
                // A conversation that the template can't render.
                TemplateError::Missing
                | TemplateError::Unknown { .. }
                | TemplateError::Raised(_)
                | TemplateError::Failed { .. }
                | TemplateError::Steps(_)
                | TemplateError::Bytes(_)
                | TemplateError::Depth(_),
            ) => ErrorCause::Request,
            Error::Source(SourceError::Hub(_) | SourceError::NotFound { .. })
            | Error::Template(TemplateError::Thread(_))
            | Error::NoPlacement { .. }
            | Error::Machine(_) => ErrorCause::Machine,
            Error::Card(_)
            | Error::Tokenizer(_)
            | Error::Template(TemplateError::Syntax(_))
            | Error::Source(SourceError::Bundle(_)) => ErrorCause::Model,
        }
    }

    /// Whether a retry may succeed.
    pub fn retry(&self) -> Retry {
        match self {
            Error::Source(error) if error.is_transient() => Retry::Later,
            Error::Machine(_) | Error::Template(TemplateError::Thread(_)) => Retry::Later,
            Error::Source(_)
            | Error::Card(_)
            | Error::Tokenizer(_)
            | Error::Template(_)
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
        assert_eq!((lacking.cause(), lacking.retry()), (ErrorCause::Machine, Retry::Later));
        let sequence = Error::from(SequenceError::Malformed("no such id".to_owned()));
        assert_eq!((sequence.cause(), sequence.retry()), (ErrorCause::Request, Retry::Never));
        let request = Error::Request("no".to_owned());
        assert_eq!((request.cause(), request.retry()), (ErrorCause::Request, Retry::Never));
    }
}
