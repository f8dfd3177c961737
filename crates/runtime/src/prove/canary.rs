//! Canary texts as a batch for the model's task.

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::{ModelCard, Task};

use crate::tokenize::{ModelTokenizer, TokenizerError, TruncationStrategy};

/// `texts` as one batch: single texts or pairs, as the task requires; queries and documents alternate for
/// late-interaction models.
pub(crate) fn batch(
    tokenizer: &ModelTokenizer,
    card: &ModelCard,
    texts: impl IntoIterator<Item = &'static str>,
) -> Result<Batch, TokenizerError> {
    let mut batch = Batch::new(output_kind(card.task.value));
    let texts: Vec<&str> = texts.into_iter().collect();
    let others = texts.iter().cycle().skip(1);
    for (index, (text, other)) in texts.iter().zip(others).enumerate() {
        let paired = match card.task.value {
            Task::Rerank => true,
            Task::Classify => index % 2 == 1,
            Task::Embed | Task::Sparse | Task::Tokens | Task::Generate => false,
        };
        let sequence = match &card.head.late_interaction {
            _ if paired => tokenizer.pair(card, other, text, TruncationStrategy::LongestFirst, None)?,
            // Queries may end with masked tokens.
            Some(sides) if index % 2 == 1 => tokenizer.encode_query(&sides.value, text)?,
            Some(_) | None => tokenizer.encode("", text)?,
        };
        batch.push_masked(&sequence.ids, &sequence.type_ids, 0, sequence.masked);
    }
    Ok(batch)
}

/// The output that a task needs from an engine.
pub(crate) fn output_kind(task: Task) -> OutputKind {
    match task {
        Task::Embed | Task::Rerank | Task::Classify | Task::Sparse => OutputKind::Pooled,
        Task::Tokens => OutputKind::Projected,
        Task::Generate => OutputKind::Tokens,
    }
}
