//! Embeddings: one vector per text.

use sconce_core::card::{Dimensions, ModelCard, Task};

use super::context::{Input, ModelContext, expect_task};
use super::output::SequenceOutput;
use super::prompt::Prompt;
use crate::error::Error;
use crate::tokenize::TokenSequence;

/// Options of an embedding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// Prompt before every text.
    pub prompt: Prompt,
    /// Truncates vectors to this number of dimensions, and normalizes them again.
    pub dimensions: Option<usize>,
    /// Allows `dimensions` that the model does not declare.
    pub force_dimensions: bool,
    /// Whether vectors are L2-normalized; by default as the model does.
    pub normalize: Option<bool>,
}

/// Checks that the model computes embeddings with these options.
pub fn check(card: &ModelCard, options: &EmbedOptions) -> Result<(), Error> {
    if let Some(dimensions) = options.dimensions {
        check_dimensions(card, dimensions, options.force_dimensions)?;
    }
    expect_task(card, "embed", &[Task::Embed]).map(|_| ())
}

/// The sequence of an input.
pub fn sequence(model: ModelContext<'_>, prompt: &Prompt, input: Input<'_>) -> Result<TokenSequence, Error> {
    model.encode(prompt, input)
}

/// The vectors of all inputs.
pub fn vectors(card: &ModelCard, outputs: Vec<SequenceOutput>, options: &EmbedOptions) -> Vec<Vec<f32>> {
    outputs.into_iter().map(|output| vector_of(card, output, options)).collect()
}

fn vector_of(card: &ModelCard, output: SequenceOutput, options: &EmbedOptions) -> Vec<f32> {
    match output {
        SequenceOutput::Dense { values, .. } if is_row(options) => values,
        SequenceOutput::Dense { values, norm } => vector(card, &values, norm, options),
        SequenceOutput::Sparse(_) => Vec::new(),
    }
}

/// Whether the vector is the row as the model computes it.
pub(crate) fn is_row(options: &EmbedOptions) -> bool {
    options.dimensions.is_none() && options.normalize.is_none()
}

/// The vector of a row: truncated to `dimensions`, and normalized or not as `options` say. `norm` is the norm of the row
/// before normalization.
pub fn vector(card: &ModelCard, row: &[f32], norm: Option<f32>, options: &EmbedOptions) -> Vec<f32> {
    let truncated = &row[..options.dimensions.unwrap_or(row.len()).min(row.len())];
    match (card.normalizes(), options.normalize.unwrap_or(card.normalizes())) {
        (true, false) => truncated.iter().map(|x| x * norm.unwrap_or(1.0)).collect(),
        (true, true) if truncated.len() == row.len() => row.to_vec(),
        (true | false, true) => normalized(truncated),
        (false, false) => truncated.to_vec(),
    }
}

/// A vector scaled to unit length. Zero stays zero.
pub(super) fn normalized(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
    let scale = if norm > 0.0 { 1.0 / norm } else { 1.0 };
    vector.iter().map(|x| x * scale).collect()
}

fn check_dimensions(card: &ModelCard, dimensions: usize, forced: bool) -> Result<(), Error> {
    let width = card.width();
    if dimensions == 0 || dimensions > width {
        return Err(Error::Request(format!(
            "vectors of this model have 1 to {width} dimensions; requested: {dimensions}"
        )));
    }
    let declared = card.dimensions.as_ref().map(|said| &said.value);
    let allowed = match declared {
        Some(Dimensions::Any) => true,
        Some(Dimensions::Only(lengths)) => lengths.contains(&dimensions),
        None => false,
    };
    if allowed || forced || dimensions == width {
        return Ok(());
    }
    let says = match declared {
        Some(Dimensions::Only(lengths)) => {
            let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            format!("the model declares only the dimensions {}", lengths.join(", "))
        }
        Some(Dimensions::Any) | None => "the model declares no smaller dimensions".to_owned(),
    };
    Err(Error::Request(format!(
        "{says}; requested `dimensions`: {dimensions}\n\
         hint: `--force-dimensions` truncates vectors anyway"
    )))
}

#[cfg(test)]
mod tests {
    use sconce_core::head::Step;
    use sconce_core::sourced::Sourced;

    use super::*;

    fn card(normalizes: bool) -> ModelCard {
        let mut card = crate::card::sample().card;
        card.steps = Sourced::new(if normalizes { vec![Step::Normalize] } else { Vec::new() }, "test");
        card
    }

    #[test]
    fn truncated_vectors_are_normalized_only_if_the_model_normalizes() {
        let options = EmbedOptions { dimensions: Some(2), ..EmbedOptions::default() };
        assert_eq!(vector(&card(true), &[3.0, 4.0, 5.0], None, &options), [0.6, 0.8]);
        assert_eq!(vector(&card(false), &[3.0, 4.0, 5.0], None, &options), [3.0, 4.0]);
        assert_eq!(
            vector(&card(true), &[0.0, 0.0, 1.0], None, &options),
            [0.0, 0.0],
            "zeros have no direction"
        );
    }

    #[test]
    fn normalization_can_be_added_and_undone() {
        let normalize = |normalize| EmbedOptions { normalize: Some(normalize), ..EmbedOptions::default() };
        assert_eq!(vector(&card(true), &[0.6, 0.8], Some(5.0), &normalize(true)), [0.6, 0.8]);
        assert_eq!(vector(&card(true), &[0.6, 0.8], Some(5.0), &normalize(false)), [3.0, 4.0]);
        assert_eq!(vector(&card(false), &[3.0, 4.0], None, &normalize(true)), [0.6, 0.8]);
        assert_eq!(vector(&card(false), &[3.0, 4.0], None, &normalize(false)), [3.0, 4.0]);
    }
}
