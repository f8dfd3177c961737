//! Embeddings: dense, sparse, of tokens, and of chunks.

use std::ops::Range;
use std::sync::Arc;

use sconce::core::batch::OutputKind;
use sconce::tokenize::TokenSequence;
use sconce::{Chunk, EmbedOptions, Error, Matrix, Model, Prompt, Task, TokenWeight};

use crate::errors::refusal;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::enqueue::{Rows, compute};
use crate::operations::inputs::Inputs;
use crate::operations::response::Deferred;
use crate::schedule::job::{Collected, Job};
use crate::state::slot::Host;
use sconce_http::refusal::Refusal;

/// How vectors are asked for.
pub(crate) struct Vectors {
    pub(crate) truncates: bool,
    pub(crate) prompt: Option<String>,
    pub(crate) dimensions: Option<usize>,
    /// Made one long or not; none leaves it to the model.
    pub(crate) normalize: Option<bool>,
}

/// Bytes of a value and of a sparse weight as JSON, at least.
const NUMBER: usize = 12;
const WEIGHT: usize = 24;

impl Rows {
    /// An answer that is built of the rows.
    pub(super) fn defer<T: 'static>(
        self,
        build: impl FnOnce(Vec<Collected>, &Job) -> T + Send + 'static,
    ) -> Deferred<T> {
        let Rows { job, collected: kept, work } = self;
        let size = |kept: &Collected| match kept {
            Collected::Nothing => 0,
            Collected::Rows(values, _) => NUMBER * values.len(),
            Collected::Words(words) => WEIGHT * words.len(),
        };
        let bytes = kept.iter().map(size).sum();
        Deferred::new(work, bytes, move || build(kept, &job))
    }
}

/// One vector for each input.
pub(crate) async fn embed(
    context: &RequestContext,
    host: &Arc<Host>,
    inputs: Arc<Inputs>,
    asked: Vectors,
) -> Result<Deferred<Vec<Vec<f32>>>, Refusal> {
    let prompt = prompt(host, asked.prompt, &inputs)?;
    let options = EmbedOptions {
        prompt: prompt.into(),
        dimensions: asked.dimensions,
        force_dimensions: false,
        normalize: None,
    };
    host.model.check_embed(&options).map_err(refusal)?;
    if context.chunks {
        return embed_chunks(context, host, inputs, options, asked.normalize).await;
    }
    let answered =
        encode(context, host, inputs, options.prompt.clone(), OutputKind::Pooled, asked.truncates).await?;
    let (host, normalize) = (Arc::clone(host), asked.normalize);
    let finish = move |kept: &Collected| match kept {
        Collected::Rows(row, norm) => vector(&host, row, *norm, &options, normalize),
        Collected::Nothing | Collected::Words(_) => Vec::new(),
    };
    Ok(answered.defer(move |kept, _| kept.iter().map(finish).collect()))
}

/// One vector for each text, the mean of those of its pieces, each by its tokens.
async fn embed_chunks(
    context: &RequestContext,
    host: &Arc<Host>,
    inputs: Arc<Inputs>,
    options: EmbedOptions,
    normalize: Option<bool>,
) -> Result<Deferred<Vec<Vec<f32>>>, Refusal> {
    only_texts(&inputs, "token ids are used as they are: no `x-sconce-truncate: chunk`")?;
    let bytes = inputs.bytes();
    context.check_sizes(&bytes, 0)?;
    let (own, prompt) = (Arc::clone(host), options.prompt.clone());
    let cut = move |range: Range<usize>| {
        let one = |text: &String| own.model.chunks(&prompt, text);
        Ok(inputs.texts()[range].iter().map(one).collect::<Result<Vec<_>, _>>().map_err(refusal)?)
    };
    let most = context.app.settings().max_inputs;
    // The pieces of all texts, and for each text the tokens of its pieces.
    let gather = move |parts: Vec<Vec<Vec<Chunk>>>| {
        let texts: Vec<Vec<Chunk>> = parts.into_iter().flatten().collect();
        let count = texts.iter().map(Vec::len).sum::<usize>();
        if count > most {
            return Err(invalid(format!("the texts make {count} pieces, and a request has at most {most}")));
        }
        let tokens = texts.iter().map(|pieces| pieces.iter().map(|piece| piece.tokens).collect()).collect();
        Ok((texts.into_iter().flatten().map(|piece| piece.text).collect(), tokens))
    };
    let (pieces, tokens): (Vec<String>, Vec<Vec<usize>>) =
        context.on_text_threads(&bytes, cut, gather).await?;
    let (count, inputs) = (pieces.len(), Arc::new(Inputs::Texts(pieces)));
    let answered = encode(context, host, inputs, options.prompt.clone(), OutputKind::Pooled, true).await?;
    let host = Arc::clone(host);
    let mut deferred = answered.defer(move |kept, _| {
        let mut rows = kept.iter();
        let mean = |tokens: &Vec<usize>| {
            let parts = tokens.iter().zip(&mut rows).map(|(&tokens, kept)| match kept {
                Collected::Rows(row, norm) => (vector(&host, row, *norm, &options, normalize), tokens as f32),
                Collected::Nothing | Collected::Words(_) => (Vec::new(), 0.0),
            });
            weighted(&parts.collect::<Vec<_>>(), normalize.unwrap_or(host.model.card().normalizes()))
        };
        tokens.iter().map(mean).collect()
    });
    deferred.work.chunks = Some(count);
    Ok(deferred)
}

/// The mean of vectors by their weights, made one long where they are; one alone stays as it is.
fn weighted(parts: &[(Vec<f32>, f32)], unit: bool) -> Vec<f32> {
    let [(first, _), rest @ ..] = parts else { return Vec::new() };
    if rest.is_empty() {
        return first.clone();
    }
    let all: f32 = parts.iter().map(|(_, weight)| weight).sum();
    let mut mean = vec![0.0; first.len()];
    for (vector, weight) in parts {
        mean.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x * weight / all.max(1.0));
    }
    if unit {
        let length = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
        for x in &mut mean {
            *x /= length.max(f32::MIN_POSITIVE);
        }
    }
    mean
}

/// A row as the vector that was asked for.
fn vector(
    host: &Host,
    row: &[f32],
    norm: Option<f32>,
    options: &EmbedOptions,
    normalize: Option<bool>,
) -> Vec<f32> {
    let normalizes = host.model.card().normalizes();
    let cut = &row[..options.dimensions.unwrap_or(row.len()).min(row.len())];
    match normalize.unwrap_or(normalizes) {
        wanted if wanted == normalizes => host.model.vector(row, options),
        true => {
            let length = cut.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
            cut.iter().map(|x| x / length.max(f32::MIN_POSITIVE)).collect()
        }
        // The guard has seen the length that was taken off.
        false => cut.iter().map(|x| x * norm.unwrap_or(1.0)).collect(),
    }
}

/// One vector for each token of each input.
pub(crate) async fn embed_all(
    context: &RequestContext,
    host: &Arc<Host>,
    inputs: Inputs,
    named: Option<String>,
    truncates: bool,
) -> Result<Deferred<Vec<Vec<Vec<f32>>>>, Refusal> {
    context.refuse_chunks()?;
    let task = host.model.expect_task("embed_all", &[Task::Embed, Task::Tokens]).map_err(refusal)?;
    if task == Task::Tokens {
        only_texts(&inputs, "a model that compares tokens takes texts, not token ids")?;
        if named.is_some() {
            return Err(invalid("a model that compares tokens has prompts of its own: no `prompt_name`"));
        }
        let bytes = inputs.bytes();
        context.check_sizes(&bytes, 0)?;
        let encode = move |model: &Model, at: usize| one(model.encode_documents(&inputs.texts()[at..=at]));
        let answered = compute(context, host, &bytes, OutputKind::Projected, truncates, encode).await?;
        let host = Arc::clone(host);
        return Ok(answered.defer(move |kept, job| {
            let matrices = matrices(&host, &kept, job, false);
            matrices.map(|matrix| matrix.rows().map(<[f32]>::to_vec).collect()).collect()
        }));
    }
    let prompt = prompt(host, named, &inputs)?;
    let width = host.model.card().sizes.value.hidden.max(1);
    let answered =
        encode(context, host, Arc::new(inputs), prompt.into(), OutputKind::Tokens, truncates).await?;
    let rows = move |kept: Collected| match kept {
        Collected::Rows(values, _) => values.chunks_exact(width).map(<[f32]>::to_vec).collect(),
        Collected::Nothing | Collected::Words(_) => Vec::new(),
    };
    Ok(answered.defer(move |kept, _| kept.into_iter().map(rows).collect()))
}

/// The weights of words for each input.
pub(crate) async fn embed_sparse(
    context: &RequestContext,
    host: &Arc<Host>,
    inputs: Inputs,
    named: Option<String>,
    truncates: bool,
) -> Result<Deferred<Vec<Vec<TokenWeight>>>, Refusal> {
    context.refuse_chunks()?;
    host.model.expect_task("embed_sparse", &[Task::Sparse]).map_err(refusal)?;
    let prompt = prompt(host, named, &inputs)?;
    let answered =
        encode(context, host, Arc::new(inputs), prompt.into(), OutputKind::Pooled, truncates).await?;
    Ok(answered.defer(|kept, _| kept.into_iter().map(words).collect()))
}

fn words(kept: Collected) -> Vec<TokenWeight> {
    match kept {
        Collected::Words(words) => words,
        Collected::Nothing | Collected::Rows(..) => Vec::new(),
    }
}

/// The rows of each text as a matrix, of documents, or of a query before them.
pub(super) fn matrices<'a>(
    host: &'a Host,
    kept: &'a [Collected],
    job: &'a Job,
    query_first: bool,
) -> impl Iterator<Item = Matrix> + 'a {
    kept.iter().zip(&job.texts).enumerate().map(move |(at, (kept, text))| {
        let values = if let Collected::Rows(values, _) = kept { values.as_slice() } else { &[] };
        if at == 0 && query_first {
            host.model.query_matrix(values)
        } else {
            host.model.document_matrix(text, values)
        }
    })
}

/// Texts or token ids to rows.
pub(super) async fn encode(
    context: &RequestContext,
    host: &Arc<Host>,
    inputs: Arc<Inputs>,
    prompt: Prompt,
    output_kind: OutputKind,
    truncates: bool,
) -> Result<Rows, Refusal> {
    if !host.token_ids && matches!(*inputs, Inputs::Ids(_) | Inputs::ManyIds(_)) {
        return Err(invalid(token_ids_rejected(&host.name)));
    }
    let bytes = inputs.bytes();
    context.check_sizes(&bytes, 0)?;
    let encode = move |model: &Model, at: usize| match &*inputs {
        Inputs::Ids(ids) => model.encode_ids(ids),
        Inputs::ManyIds(many) => model.encode_ids(&many[at]),
        Inputs::One(_) | Inputs::Texts(_) => one(model.encode_texts(&prompt, &inputs.texts()[at..=at])),
    };
    compute(context, host, &bytes, output_kind, truncates, encode).await
}

/// Clients such as `LangChain` send tiktoken's ids, which are valid ids of other words in most vocabularies.
fn token_ids_rejected(model: &str) -> String {
    format!(
        "`{model}` accepts texts, and the request contains token ids; ids of another tokenizer, such as tiktoken, \
         would give a wrong result\n\
         hint: in LangChain: `OpenAIEmbeddings(check_embedding_ctx_length=False)`; for ids of the model's own \
         tokenizer: `sconce serve --token-ids`, or `token_ids = true` in `[models.NAME]`"
    )
}

/// The tokens of a text that was encoded alone.
pub(super) fn one(encoded: Result<Vec<TokenSequence>, Error>) -> Result<TokenSequence, Error> {
    Ok(encoded?.pop().unwrap_or_default())
}

pub(super) fn only_texts(inputs: &Inputs, otherwise: &str) -> Result<(), Refusal> {
    match inputs {
        Inputs::One(_) | Inputs::Texts(_) => Ok(()),
        Inputs::Ids(_) | Inputs::ManyIds(_) => Err(invalid(otherwise)),
    }
}

pub(super) fn lengths(texts: &[String]) -> Vec<usize> {
    texts.iter().map(String::len).collect()
}

/// The name of a prompt, if the model has one of that name.
pub(crate) fn prompt(host: &Host, named: Option<String>, inputs: &Inputs) -> Result<Option<String>, Refusal> {
    let Some(name) = named else { return Ok(None) };
    let known = &host.model.card().prompts.value;
    if !known.contains_key(&name) {
        let known: Vec<String> = known.keys().map(|name| format!("`{name}`")).collect();
        let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(invalid(format!("the model has no prompt `{name}`; there is: {there}")));
    }
    if matches!(inputs, Inputs::Ids(_) | Inputs::ManyIds(_)) {
        return Err(invalid("token ids are used as they are: no `prompt_name`"));
    }
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_counts_each_vector_by_its_weight() {
        let parts = [(vec![1.0, 0.0], 1.0), (vec![0.0, 1.0], 3.0)];
        assert_eq!(weighted(&parts, false), [0.25, 0.75]);
        let unit = weighted(&parts, true);
        let length = 0.625_f32.sqrt();
        assert!((unit[0] - 0.25 / length).abs() < 1e-6 && (unit[1] - 0.75 / length).abs() < 1e-6, "{unit:?}");
        assert_eq!(weighted(&parts[..1], true), [1.0, 0.0]);
        assert_eq!(weighted(&[(vec![3.0, 4.0], 7.0)], true), [3.0, 4.0], "one alone stays as it is");
        assert_eq!(weighted(&[], true), [] as [f32; 0]);
    }
}
