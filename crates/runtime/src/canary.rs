//! The texts that real weights are tried on, as the model's task takes them.

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::{ModelCard, Task};

use crate::error::Error;
use crate::pairs::Cut;
use crate::tokens::Tokens;

/// `texts` as one batch: alone, in pairs, or some of both; where queries differ from documents, some of both too.
pub(crate) fn batch(
    tokens: &Tokens,
    card: &ModelCard,
    texts: impl IntoIterator<Item = &'static str>,
) -> Result<Batch, Error> {
    let mut batch = Batch::new(output_kind(card.task.value));
    let texts: Vec<&str> = texts.into_iter().collect();
    let others = texts.iter().cycle().skip(1);
    for (index, (text, other)) in texts.iter().zip(others).enumerate() {
        let paired = match card.task.value {
            Task::Rerank => true,
            Task::Classify => index % 2 == 1,
            Task::Embed | Task::Sparse | Task::Tokens => false,
        };
        let tokenized = match &card.head.sides {
            _ if paired => tokens.pair(card, other, text, Cut::Longest, None)?,
            // Queries may be filled up with tokens that no other sees.
            Some(sides) if index % 2 == 1 => tokens.query(&sides.value, text)?,
            Some(_) | None => tokens.encode("", text)?,
        };
        batch.push_filled(&tokenized.ids, &tokenized.types, 0, tokenized.unseen);
    }
    Ok(batch)
}

/// What is asked of an engine for a task.
pub(crate) fn output_kind(task: Task) -> OutputKind {
    match task {
        Task::Embed | Task::Rerank | Task::Classify | Task::Sparse => OutputKind::Pooled,
        Task::Tokens => OutputKind::Projected,
    }
}
