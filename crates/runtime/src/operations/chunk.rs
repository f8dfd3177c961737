//! Chunking: a long text is embedded in chunks, and its vector is their mean weighted by tokens.

use sconce_core::card::ModelCard;

use super::context::ModelContext;
use super::embed::{self, EmbedOptions, normalized};
use super::output::SequenceOutput;
use super::prompt::{self, Prompt};
use crate::error::Error;

/// A part of a text that fits into one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The text of the chunk.
    pub text: String,
    /// Number of its tokens, without prompt and special tokens.
    pub tokens: usize,
}

/// Splits a text into chunks that fit into one sequence after `prompt`. A short text is one chunk.
pub fn chunks(model: ModelContext<'_>, prompt: &Prompt, text: &str) -> Result<Vec<Chunk>, Error> {
    let chunks = model.tokenizer.chunks(prompt::text(model.card, prompt)?, text)?;
    Ok(chunks.into_iter().map(|(text, tokens)| Chunk { text, tokens }).collect())
}

/// The vectors of chunked texts. `tokens` has the tokens of each chunk of each text, and `outputs` has the chunks of all
/// texts in this order.
pub fn vectors(
    card: &ModelCard,
    outputs: &[SequenceOutput],
    tokens: &[Vec<usize>],
    options: &EmbedOptions,
) -> Vec<Vec<f32>> {
    let normalize = options.normalize.unwrap_or(card.normalizes());
    let mut outputs = outputs.iter();
    let mean = |tokens: &Vec<usize>| {
        let parts = tokens.iter().zip(&mut outputs).map(|(&tokens, output)| match output {
            SequenceOutput::Dense { values, norm } => {
                (embed::vector(card, values, *norm, options), tokens as f32)
            }
            SequenceOutput::Sparse(_) => (Vec::new(), 0.0),
        });
        weighted_mean(&parts.collect::<Vec<_>>(), normalize)
    };
    tokens.iter().map(mean).collect()
}

/// The weighted mean of vectors, L2-normalized if `normalize`. A single vector is returned unchanged.
fn weighted_mean(parts: &[(Vec<f32>, f32)], normalize: bool) -> Vec<f32> {
    let [(first, _), rest @ ..] = parts else { return Vec::new() };
    if rest.is_empty() {
        return first.clone();
    }
    let total: f32 = parts.iter().map(|(_, weight)| weight).sum();
    let mut mean = vec![0.0; first.len()];
    for (vector, weight) in parts {
        mean.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x * weight / total.max(1.0));
    }
    if normalize { normalized(&mean) } else { mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_counts_each_vector_by_its_weight() {
        let parts = [(vec![1.0, 0.0], 1.0), (vec![0.0, 1.0], 3.0)];
        assert_eq!(weighted_mean(&parts, false), [0.25, 0.75]);
        let unit = weighted_mean(&parts, true);
        let length = 0.625_f32.sqrt();
        assert!((unit[0] - 0.25 / length).abs() < 1e-6 && (unit[1] - 0.75 / length).abs() < 1e-6, "{unit:?}");
        assert_eq!(weighted_mean(&parts[..1], true), [1.0, 0.0]);
        assert_eq!(weighted_mean(&[(vec![3.0, 4.0], 7.0)], true), [3.0, 4.0], "a single vector is unchanged");
        assert_eq!(weighted_mean(&[], true), [] as [f32; 0]);
    }

    #[test]
    fn chunks_of_several_texts_are_averaged_by_text() {
        let card = crate::card::sample().card;
        let output = |values: &[f32]| SequenceOutput::new(values, None, false);
        let outputs = [output(&[1.0, 0.0]), output(&[0.0, 1.0]), output(&[0.6, 0.8])];
        let options = EmbedOptions { normalize: Some(true), ..EmbedOptions::default() };
        let vectors = vectors(&card, &outputs, &[vec![3, 4], vec![9]], &options);
        assert!((vectors[0][0] - 0.6).abs() < 1e-6 && (vectors[0][1] - 0.8).abs() < 1e-6, "{vectors:?}");
        assert_eq!(vectors[1], [0.6, 0.8]);
    }
}
