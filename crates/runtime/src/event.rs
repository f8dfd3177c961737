//! What a long piece of work tells while it runs, for whoever wants to draw it.

use sconce_core::placement::Placement;

use crate::hub::Progress;

/// What is going on.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A placement is being tried.
    Proving {
        /// Which.
        placement: &'a Placement,
        /// Cases answered.
        done: usize,
        /// Cases asked.
        total: usize,
    },
    /// A model is coming from the hub.
    Hub(Progress<'a>),
}
