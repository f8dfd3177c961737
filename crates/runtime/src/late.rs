//! Texts as one vector for each token, and how well two such texts match.

use sconce_core::card::{ModelCard, Task};
use sconce_core::head::Sides;
use serde::Serialize;

use crate::answers::Account;
use crate::error::Error;
use crate::model::Model;
use crate::tokens::{Tokenized, Tokens};
use crate::vocabulary::VocabularyError;

/// Vectors of tokens, one matrix a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenEmbeddings {
    /// For each text a vector for each of its tokens.
    pub texts: Vec<Matrix>,
    /// How it came about.
    #[serde(flatten)]
    pub account: Account,
}

/// Rows of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Matrix {
    /// Numbers a row.
    pub width: usize,
    /// The rows, one after the other.
    pub values: Vec<f32>,
}

impl Matrix {
    /// The rows one by one.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }
}

/// How well a document's tokens match a query's: for each token of the query its best match, summed.
pub fn maxsim(query: &Matrix, document: &Matrix) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let best =
        |token: &[f32]| document.rows().map(|other| dot(token, other)).fold(f64::NEG_INFINITY, f64::max);
    if document.values.is_empty() {
        return 0.0;
    }
    query.rows().map(best).sum::<f64>() as f32
}

impl Model {
    /// A vector for each token of each document.
    pub fn embed_tokens<T: AsRef<str> + Sync>(&self, documents: &[T]) -> Result<TokenEmbeddings, Error> {
        self.expect("embed_tokens", &[Task::Tokens])?;
        let texts = self.encode_documents(documents)?;
        let mut matrices = vec![Matrix::default(); texts.len()];
        let account =
            self.answer(&texts, |index, rows| matrices[index] = self.document_matrix(&texts[index], rows))?;
        Ok(TokenEmbeddings { texts: matrices, account })
    }

    /// A vector for each token of each query, filled up as the model does it.
    pub fn embed_queries<T: AsRef<str> + Sync>(&self, queries: &[T]) -> Result<TokenEmbeddings, Error> {
        self.expect("embed_queries", &[Task::Tokens])?;
        let texts = self.encode_queries(queries)?;
        let mut matrices = vec![Matrix::default(); texts.len()];
        let account = self.answer(&texts, |index, rows| matrices[index] = self.query_matrix(rows))?;
        Ok(TokenEmbeddings { texts: matrices, account })
    }

    /// Documents as tokens, in the way of models that compare tokens.
    pub fn encode_documents<T: AsRef<str> + Sync>(&self, documents: &[T]) -> Result<Vec<Tokenized>, Error> {
        let sides = sides(self.card());
        let limit = sides.document_length.unwrap_or(usize::MAX);
        self.tokenize(documents, |tokens, text| tokens.encode_within(limit, &sides.document, text))
    }

    /// Queries as tokens, in the way of models that compare tokens.
    pub fn encode_queries<T: AsRef<str> + Sync>(&self, queries: &[T]) -> Result<Vec<Tokenized>, Error> {
        let sides = sides(self.card());
        self.tokenize(queries, |tokens, text| tokens.query(&sides, text))
    }

    /// The rows of a query's tokens: all count.
    pub fn query_matrix(&self, rows: &[f32]) -> Matrix {
        Matrix { width: self.card().width(), values: rows.to_vec() }
    }

    /// The rows of a document's tokens, without those that the model leaves out.
    pub fn document_matrix(&self, text: &Tokenized, rows: &[f32]) -> Matrix {
        let width = self.card().width();
        let skip = self.card().head.sides.as_ref().map_or(&[][..], |said| &said.value.skip);
        let left_out: Vec<u32> = skip.iter().filter_map(|word| self.tokens().id(word)).collect();
        let kept = rows.chunks_exact(width.max(1)).zip(&text.ids).filter(|(_, id)| !left_out.contains(id));
        Matrix { width, values: kept.flat_map(|(row, _)| row).copied().collect() }
    }
}

/// The error for a prompt on a late-interaction model.
pub(crate) fn no_prompts() -> Error {
    Error::Request(
        "a late-interaction model has fixed query and document markers and takes no prompt\n\
         hint: `--query` marks texts as queries"
            .to_owned(),
    )
}

fn sides(card: &ModelCard) -> Sides {
    card.head.sides.as_ref().map(|said| said.value.clone()).unwrap_or_default()
}

impl Tokens {
    /// A query with its marker, filled up with mask tokens where the model does so.
    pub(crate) fn query(&self, sides: &Sides, text: &str) -> Result<Tokenized, VocabularyError> {
        let length = sides.expansion.map(|expansion| expansion.to).or(sides.query_length);
        let mut query = self.encode_within(length.unwrap_or(usize::MAX), &sides.query, text)?;
        if let Some(expansion) = sides.expansion.filter(|expansion| expansion.to > query.ids.len()) {
            let mask = ["[MASK]", "<mask>"].into_iter().find_map(|mask| self.id(mask));
            let mask = mask.ok_or_else(|| VocabularyError::NoSuchToken("[MASK]".to_owned()))?;
            query.unseen = if expansion.attended { 0 } else { expansion.to - query.ids.len() };
            query.ids.resize(expansion.to, mask);
            query.types.resize(expansion.to, 0);
            query.whole = expansion.to;
        }
        Ok(query)
    }
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
