//! Parts of an output.

/// Part of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    /// Text of the answer.
    Text(String),
    /// Text before the answer.
    Reasoning(String),
    /// A call of this tool begins. Calls are numbered from 0.
    Call { index: usize, name: String },
    /// The next part of the arguments, which are JSON.
    Arguments { index: usize, text: String },
}

impl Delta {
    /// Its text, whatever it is part of.
    pub(crate) fn into_text(self) -> String {
        match self {
            Delta::Text(text) | Delta::Reasoning(text) | Delta::Arguments { text, .. } => text,
            Delta::Call { .. } => String::new(),
        }
    }
}
