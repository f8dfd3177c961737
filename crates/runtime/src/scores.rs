//! Reranking and classifying: texts and pairs in, scores out.

use sconce_core::card::Task;
use sconce_core::head::Scoring;
use serde::Serialize;

use crate::answers::Account;
use crate::error::Error;
use crate::instruct;
use crate::late::maxsim;
use crate::model::Model;
use crate::pairs::Cut;
use crate::prompt::Prompt;
use crate::tokens::Tokenized;

/// How documents are to be ranked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankOptions {
    /// What becomes of raw scores; by default what the model says.
    pub scoring: Option<Scoring>,
    /// Which of a pair is cut where it is too long.
    pub cut: Cut,
    /// Only so many of the best.
    pub top: Option<usize>,
    /// What the model is told to look for, where it takes an instruction.
    pub instruction: Option<String>,
    /// The label whose score ranks documents, where the model is a classifier of pairs.
    pub label: Option<String>,
}

/// Documents, best first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranking {
    /// The documents.
    pub ranked: Vec<Ranked>,
    /// How it came about; texts are counted as they were given.
    #[serde(flatten)]
    pub account: Account,
}

/// A document's score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ranked {
    /// Which document, as they were given.
    pub index: usize,
    /// How well it fits the query.
    pub score: f32,
}

/// How texts are to be classified.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassifyOptions {
    /// What becomes of raw scores; by default what the model says.
    pub scoring: Option<Scoring>,
    /// Which of a pair is cut where it is too long.
    pub cut: Cut,
}

/// Scores of labels, one list a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Classifications {
    /// For each text its labels, the best first.
    pub texts: Vec<Vec<Labelled>>,
    /// How it came about.
    #[serde(flatten)]
    pub account: Account,
}

/// A label's score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Labelled {
    /// The label.
    pub label: String,
    /// Its score: a probability, unless raw scores were asked for.
    pub score: f32,
}

impl Model {
    /// `documents` by how well they fit `query`, best first: by the scores of a cross-encoder, by a label of a
    /// classifier of pairs, or by the best matches of tokens.
    pub fn rerank<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
        options: &RerankOptions,
    ) -> Result<Ranking, Error> {
        let (scores, account) = if self.check_rerank(options)? == Task::Tokens {
            self.best_matches(query, documents)?
        } else {
            let (raw, account) = self.scores(&self.encode_ranking(query, documents, options)?)?;
            (raw.iter().map(|row| self.relevance(row, options)).collect(), account)
        };
        Ok(Ranking { ranked: ranked(&scores, options.top), account })
    }

    /// The task by which the model ranks documents as `options` ask, where it does.
    pub fn check_rerank(&self, options: &RerankOptions) -> Result<Task, Error> {
        let task = match &options.label {
            None => self.expect("rerank", &[Task::Rerank, Task::Tokens])?,
            Some(label) => {
                let task = self.expect("rerank by a label", &[Task::Classify])?;
                if !self.label_names().contains(label) {
                    let known = self.label_names().join("`, `");
                    return Err(Error::Request(format!("the labels are `{known}`; asked for: `{label}`")));
                }
                task
            }
        };
        if options.instruction.is_some() && self.card().head.template.is_none() {
            return Err(Error::Request(
                "this model takes no instruction; asked for: `instruction`".to_owned(),
            ));
        }
        Ok(task)
    }

    /// Each document with the query, as a cross-encoder takes them.
    pub fn encode_ranking<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
        options: &RerankOptions,
    ) -> Result<Vec<Tokenized>, Error> {
        let (card, instruction) = (self.card(), options.instruction.as_deref());
        self.tokenize(documents, |tokens, document| {
            tokens.pair(card, query, document, options.cut, instruction)
        })
    }

    /// A cross-encoder's row as the score that `options` ask for.
    pub fn relevance(&self, row: &[f32], options: &RerankOptions) -> f32 {
        let head = &self.card().head;
        let scoring = options.scoring.or(head.scoring.as_ref().map(|said| said.value));
        let answer = match row {
            [no, yes] if head.template.is_some() => &[instruct::relevance(*no, *yes)],
            row => row,
        };
        let asked = |label: &String| self.label_names().iter().position(|name| name == label);
        let place = options.label.as_ref().and_then(asked).unwrap_or(0);
        scored(answer, scoring.unwrap_or(Scoring::Raw)).get(place).copied().unwrap_or(f32::NAN)
    }

    /// The names of a classifier's scores, in their order.
    fn label_names(&self) -> &[String] {
        self.card().head.labels.as_ref().map_or(&[], |said| &said.value)
    }

    /// The labels of each text.
    pub fn classify<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &ClassifyOptions,
    ) -> Result<Classifications, Error> {
        self.expect("classify", &[Task::Classify])?;
        let texts = self.encode_texts(&Prompt::NONE, texts)?;
        self.labelled(&texts, options)
    }

    /// The labels of each pair of texts.
    pub fn classify_pairs<T: AsRef<str>>(
        &self,
        pairs: &[(T, T)],
        options: &ClassifyOptions,
    ) -> Result<Classifications, Error> {
        self.expect("classify", &[Task::Classify])?;
        self.labelled(&self.encode_pairs(pairs, options.cut)?, options)
    }

    /// Each pair of texts as one sequence.
    pub fn encode_pairs<T: AsRef<str>>(&self, pairs: &[(T, T)], cut: Cut) -> Result<Vec<Tokenized>, Error> {
        let encode =
            |(first, second): &(T, T)| self.tokens().encode_pair(first.as_ref(), second.as_ref(), cut);
        pairs.iter().map(|pair| Ok(encode(pair)?)).collect()
    }

    fn labelled(&self, texts: &[Tokenized], options: &ClassifyOptions) -> Result<Classifications, Error> {
        let (raw, account) = self.scores(texts)?;
        Ok(Classifications { texts: raw.iter().map(|row| self.labels(row, options)).collect(), account })
    }

    /// A classifier's row as labels with their scores, the best first.
    pub fn labels(&self, row: &[f32], options: &ClassifyOptions) -> Vec<Labelled> {
        let head = &self.card().head;
        let scoring =
            options.scoring.or(head.scoring.as_ref().map(|said| said.value)).unwrap_or(Scoring::Softmax);
        let scores = scored(row, scoring);
        let labelled = self
            .label_names()
            .iter()
            .zip(scores)
            .map(|(label, score)| Labelled { label: label.clone(), score });
        let mut labelled: Vec<_> = labelled.collect();
        labelled.sort_by(|a, b| b.score.total_cmp(&a.score));
        labelled
    }

    /// The raw scores of each sequence.
    fn scores(&self, texts: &[Tokenized]) -> Result<(Vec<Vec<f32>>, Account), Error> {
        let mut rows = vec![Vec::new(); texts.len()];
        let account = self.answer(texts, |index, row| rows[index] = row.to_vec())?;
        Ok((rows, account))
    }

    /// How well the tokens of each document match those of the query.
    pub(crate) fn best_matches<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
    ) -> Result<(Vec<f32>, Account), Error> {
        let queries = self.embed_queries(&[query])?;
        let documents = self.embed_tokens(documents)?;
        let query = &queries.texts[0];
        let scores = documents.texts.iter().map(|document| maxsim(query, document)).collect();
        let mut account = documents.account;
        // The query's own account; a query that was cut is counted after the documents.
        account.add(queries.account, documents.texts.len());
        Ok((scores, account))
    }
}

/// Documents by their scores, best first, those of the same score as they were given.
pub fn ranked(scores: &[f32], top: Option<usize>) -> Vec<Ranked> {
    let mut ranked: Vec<Ranked> =
        scores.iter().enumerate().map(|(index, &score)| Ranked { index, score }).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.truncate(top.unwrap_or(usize::MAX));
    ranked
}

/// Raw scores as they are given out.
pub fn scored(raw: &[f32], scoring: Scoring) -> Vec<f32> {
    match scoring {
        Scoring::Raw => raw.to_vec(),
        Scoring::Sigmoid => raw.iter().map(|&x| (1.0 / (1.0 + f64::from(-x).exp())) as f32).collect(),
        Scoring::Softmax => {
            let top = raw.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let parts: Vec<f64> = raw.iter().map(|&x| f64::from(x - top).exp()).collect();
            let sum: f64 = parts.iter().sum();
            parts.into_iter().map(|part| (part / sum) as f32).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_probabilities_without_overflow() {
        assert_eq!(scored(&[1.5, -2.0], Scoring::Raw), [1.5, -2.0]);
        let sigmoid = scored(&[0.0, 200.0, -200.0], Scoring::Sigmoid);
        assert!((sigmoid[0] - 0.5).abs() < 1e-7 && sigmoid[1] > 0.999 && sigmoid[2] < 1e-30);
        let softmax = scored(&[1000.0, 1000.0, -1000.0], Scoring::Softmax);
        assert_eq!(softmax, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn the_best_comes_first_and_equals_keep_their_order() {
        let order = |top| ranked(&[0.5, 0.9, 0.5, -1.0], top).iter().map(|r| r.index).collect::<Vec<_>>();
        assert_eq!(order(None), [1, 0, 2, 3]);
        assert_eq!(order(Some(2)), [1, 0]);
        assert_eq!(order(Some(0)), [] as [usize; 0]);
    }
}
