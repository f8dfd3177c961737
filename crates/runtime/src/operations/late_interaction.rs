//! Late interaction (ColBERT): token vectors of queries and documents, compared by MaxSim.

use sconce_core::card::ModelCard;
use sconce_core::head::LateInteraction;
use serde::Serialize;

use super::context::ModelContext;
use super::metadata::OutputMetadata;
use super::output::SequenceOutput;
use crate::error::Error;
use crate::tokenize::TokenSequence;

/// Token vectors of each text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenEmbeddings {
    /// For each text a matrix with one row per token.
    pub texts: Vec<Matrix>,
    /// Metadata.
    #[serde(flatten)]
    pub metadata: OutputMetadata,
}

/// A row-major matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Matrix {
    /// Values per row.
    pub width: usize,
    /// Values of all rows.
    pub values: Vec<f32>,
}

impl Matrix {
    /// Iterates over the rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }
}

/// The sequence of a document.
pub fn document_sequence(model: ModelContext<'_>, text: &str) -> Result<TokenSequence, Error> {
    let sides = sides(model.card);
    let limit = sides.document_length.unwrap_or(usize::MAX);
    Ok(model.tokenizer.encode_within(limit, &sides.document, text)?)
}

/// The sequence of a query, with query expansion if the model uses it.
pub fn query_sequence(model: ModelContext<'_>, text: &str) -> Result<TokenSequence, Error> {
    Ok(model.tokenizer.encode_query(&sides(model.card), text)?)
}

/// The token vectors of a query.
pub fn query_matrix(card: &ModelCard, rows: &[f32]) -> Matrix {
    Matrix { width: card.width(), values: rows.to_vec() }
}

/// The token vectors of a document, without tokens of the model's skip list.
pub fn document_matrix(model: ModelContext<'_>, sequence: &TokenSequence, rows: &[f32]) -> Matrix {
    let width = model.card.width();
    let skip = model.card.head.late_interaction.as_ref().map_or(&[][..], |said| &said.value.skip);
    let skipped: Vec<u32> = skip.iter().filter_map(|token| model.tokenizer.id(token)).collect();
    let kept = rows.chunks_exact(width.max(1)).zip(&sequence.ids).filter(|(_, id)| !skipped.contains(id));
    Matrix { width, values: kept.flat_map(|(row, _)| row).copied().collect() }
}

/// The token vectors of all documents.
pub fn document_matrices(
    model: ModelContext<'_>,
    sequences: &[TokenSequence],
    outputs: &[SequenceOutput],
) -> Vec<Matrix> {
    let rows = sequences.iter().zip(outputs);
    rows.map(|(sequence, output)| document_matrix(model, sequence, output.values())).collect()
}

/// MaxSim scores of documents. The first sequence is the query, the others are the documents.
pub fn scores(model: ModelContext<'_>, sequences: &[TokenSequence], outputs: &[SequenceOutput]) -> Vec<f32> {
    let [query, outputs @ ..] = outputs else { return Vec::new() };
    let query = query_matrix(model.card, query.values());
    let documents = sequences.iter().skip(1).zip(outputs);
    documents
        .map(|(sequence, output)| maxsim(&query, &document_matrix(model, sequence, output.values())))
        .collect()
}

/// Estimated work of [`scores`] as bytes read, for sequences with the query first: each query token meets each document
/// token.
pub fn scoring_bytes(card: &ModelCard, sequences: &[TokenSequence]) -> usize {
    let tokens: usize = sequences.iter().map(|sequence| sequence.ids.len()).sum();
    sequences.first().map_or(0, |query| query.ids.len()) * tokens * card.width()
}

/// MaxSim of a query and a document: the best match of each query token, summed.
pub fn maxsim(query: &Matrix, document: &Matrix) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let best =
        |token: &[f32]| document.rows().map(|other| dot(token, other)).fold(f64::NEG_INFINITY, f64::max);
    if document.values.is_empty() {
        return 0.0;
    }
    query.rows().map(best).sum::<f64>() as f32
}

/// The error for a prompt on a late-interaction model.
pub(super) fn no_prompts() -> Error {
    Error::Request(
        "a late-interaction model has fixed query and document markers and takes no prompt\n\
         hint: `--query` marks texts as queries"
            .to_owned(),
    )
}

fn sides(card: &ModelCard) -> LateInteraction {
    card.head.late_interaction.as_ref().map(|said| said.value.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_of_the_query_finds_its_best_match() {
        let query = Matrix { width: 2, values: vec![1.0, 0.0, 0.0, 1.0] };
        let document = Matrix { width: 2, values: vec![0.6, 0.8, 1.0, 0.0, -1.0, 0.0] };
        assert!((maxsim(&query, &document) - 1.8).abs() < 1e-6);
        assert!(maxsim(&query, &Matrix::default()).abs() < 1e-6);
        assert!((maxsim(&document, &query) - (0.8 + 1.0 + 0.0)).abs() < 1e-6);
    }
}
