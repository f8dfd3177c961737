//! What can go wrong, whose fault it is, and whether trying again helps.

use sconce_planner::explain::explain;
use sconce_planner::plan::Plan;

use crate::card::CardError;
use crate::hub::HubError;
use crate::vocabulary::VocabularyError;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model could not be found or fetched.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model's files do not say enough, or something else than is known.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The model's tokenizer could not be had, or failed.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Nothing that was wished for works here; the plan says why.
    #[error("no placement works for this model\n{}", explain(.plan).trim_end())]
    NoPlacement {
        /// Every placement with its reason.
        plan: Box<Plan>,
    },
    /// The request can't be computed as it stands.
    #[error("{0}")]
    Request(String),
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
            Error::Card(_) | Error::Vocabulary(_) => Fault::Model,
            Error::Hub(_) | Error::NoPlacement { .. } => Fault::Machine,
            Error::Request(_) => Fault::Caller,
        }
    }

    /// Whether trying again helps.
    pub fn retry(&self) -> Retry {
        match self {
            Error::Hub(error) if error.may_pass() => Retry::Later,
            Error::Hub(_) | Error::Card(_) | Error::Vocabulary(_) | Error::Request(_) => Retry::Never,
            Error::NoPlacement { .. } => Retry::Elsewhere,
        }
    }
}
