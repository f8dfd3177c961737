//! What is asked of a model, whatever the words it is asked in: texts in, answers out, through the queue.

use std::sync::Arc;

use sconce::core::batch::Want;
use sconce::{
    ClassifyOptions, Cut, EmbedOptions, Labelled, Prompt, Ranked, RerankOptions, Scoring, Task, Weight,
    cosine, maxsim, ranked, sparse_dot,
};

use crate::call::{Answered, Call, Work, wrong};
use crate::inputs::Inputs;
use crate::queue::Kept;
use crate::refusal::Refusal;
use crate::slot::Host;

/// How vectors are asked for.
pub(crate) struct Vectors {
    pub(crate) truncates: bool,
    pub(crate) prompt: Option<String>,
    pub(crate) dimensions: Option<usize>,
    /// Made one long or not; none leaves it to the model.
    pub(crate) normalize: Option<bool>,
}

/// One vector for each input.
pub(crate) async fn embed(
    call: &Call,
    host: &Arc<Host>,
    inputs: Inputs,
    asked: Vectors,
) -> Result<(Vec<Vec<f32>>, Work), Refusal> {
    let prompt = prompt(host, asked.prompt, &inputs)?;
    let options =
        EmbedOptions { prompt: prompt.into(), dimensions: asked.dimensions, force_dimensions: false };
    host.model.check_embed(&options)?;
    if call.chunks {
        return embed_chunks(call, host, inputs, &options, asked.normalize).await;
    }
    let answered = encode(call, host, inputs, options.prompt.clone(), Want::Pooled, asked.truncates).await?;
    let finish = |kept: &Kept| match kept {
        Kept::Rows(row, norm) => vector(host, row, *norm, &options, asked.normalize),
        Kept::Nothing | Kept::Words(_) => Vec::new(),
    };
    Ok((answered.kept.iter().map(finish).collect(), answered.work))
}

/// One vector for each text, the mean of those of its pieces, each by its tokens.
async fn embed_chunks(
    call: &Call,
    host: &Arc<Host>,
    inputs: Inputs,
    options: &EmbedOptions,
    normalize: Option<bool>,
) -> Result<(Vec<Vec<f32>>, Work), Refusal> {
    let texts = texts(inputs, "token ids are used as they are: no `x-sconce-truncate: chunk`")?;
    let bytes = call.check_sizes(&lengths(&texts), 0)?;
    let (model, prompt) = (host.model.clone(), options.prompt.clone());
    let cut = move || {
        let one = |text: &String| model.chunks(&prompt, text);
        texts.iter().map(one).collect::<Result<Vec<_>, _>>()
    };
    let chunks = call.on_threads(bytes, cut).await??;
    let pieces: Vec<String> = chunks.iter().flatten().map(|(text, _)| text.clone()).collect();
    let most = call.app.settings().max_inputs;
    if pieces.len() > most {
        let count = pieces.len();
        return Err(wrong(format!("the texts make {count} pieces, and a request has at most {most}")));
    }
    let answered =
        encode(call, host, Inputs::Texts(pieces), options.prompt.clone(), Want::Pooled, true).await?;
    let mut rows = answered.kept.iter();
    let mean = |pieces: &Vec<(String, usize)>| {
        let parts = pieces.iter().zip(&mut rows).map(|((_, tokens), kept)| match kept {
            Kept::Rows(row, norm) => (vector(host, row, *norm, options, normalize), *tokens as f32),
            Kept::Nothing | Kept::Words(_) => (Vec::new(), 0.0),
        });
        weighted(&parts.collect::<Vec<_>>(), normalize.unwrap_or(host.model.card().normalizes()))
    };
    let vectors = chunks.iter().map(mean).collect();
    Ok((vectors, Work { chunks: Some(answered.kept.len()), ..answered.work }))
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
    call: &Call,
    host: &Arc<Host>,
    inputs: Inputs,
    named: Option<String>,
    truncates: bool,
) -> Result<(Vec<Vec<Vec<f32>>>, Work), Refusal> {
    call.refuse_chunks()?;
    let task = host.model.expect("embed_all", &[Task::Embed, Task::Tokens])?;
    let (answered, width) = if task == Task::Tokens {
        let texts = texts(inputs, "a model that compares tokens takes texts, not token ids")?;
        if named.is_some() {
            return Err(wrong("a model that compares tokens has prompts of its own: no `prompt_name`"));
        }
        let bytes = call.check_sizes(&lengths(&texts), 0)?;
        let encode = move |model: &sconce::Model| model.encode_documents(&texts);
        (call.rows(host, bytes, Want::Projected, truncates, encode).await?, host.model.card().width())
    } else {
        let prompt = prompt(host, named, &inputs)?;
        let hidden = host.model.card().sizes.value.hidden;
        (encode(call, host, inputs, prompt.into(), Want::Tokens, truncates).await?, hidden)
    };
    let rows = |(kept, text): (&Kept, &sconce::tokens::Tokenized)| match kept {
        Kept::Rows(values, _) if task == Task::Tokens => {
            host.model.document_matrix(text, values).rows().map(<[f32]>::to_vec).collect()
        }
        Kept::Rows(values, _) => values.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect(),
        Kept::Nothing | Kept::Words(_) => Vec::new(),
    };
    Ok((answered.kept.iter().zip(&answered.job.texts).map(rows).collect(), answered.work))
}

/// The weights of words for each input.
pub(crate) async fn embed_sparse(
    call: &Call,
    host: &Arc<Host>,
    inputs: Inputs,
    named: Option<String>,
    truncates: bool,
) -> Result<(Vec<Vec<Weight>>, Work), Refusal> {
    call.refuse_chunks()?;
    host.model.expect("embed_sparse", &[Task::Sparse])?;
    let prompt = prompt(host, named, &inputs)?;
    let answered = encode(call, host, inputs, prompt.into(), Want::Pooled, truncates).await?;
    Ok((answered.kept.into_iter().map(words).collect(), answered.work))
}

fn words(kept: Kept) -> Vec<Weight> {
    match kept {
        Kept::Words(words) => words,
        Kept::Nothing | Kept::Rows(..) => Vec::new(),
    }
}

/// Documents, best first, and their texts as they were given.
pub(crate) async fn rerank(
    call: &Call,
    host: &Arc<Host>,
    query: String,
    documents: Vec<String>,
    options: RerankOptions,
    truncates: bool,
) -> Result<(Vec<Ranked>, Vec<String>, Work), Refusal> {
    call.refuse_chunks()?;
    let task = host.model.check_rerank(&options)?;
    let documents: Arc<[String]> = documents.into();
    let (scores, work) = if task == Task::Tokens {
        if options.scoring.is_some() {
            return Err(wrong("scores of best matches are raw: no `raw_scores`"));
        }
        best_matches(call, host, query, Arc::clone(&documents), truncates).await?
    } else {
        let bytes = call.check_sizes(&lengths(&documents), query.len())?;
        let (asked, given) = (options.clone(), Arc::clone(&documents));
        let encode = move |model: &sconce::Model| model.encode_ranking(&query, &given, &asked);
        let answered = call.rows(host, bytes, Want::Pooled, truncates, encode).await?;
        let score = |kept: &Kept| match kept {
            Kept::Rows(row, _) => host.model.relevance(row, &options),
            Kept::Nothing | Kept::Words(_) => f32::NAN,
        };
        (answered.kept.iter().map(score).collect::<Vec<f32>>(), answered.work)
    };
    Ok((ranked(&scores, options.top), documents.to_vec(), work))
}

/// How well the tokens of each document match those of the query.
async fn best_matches(
    call: &Call,
    host: &Arc<Host>,
    query: String,
    documents: Arc<[String]>,
    truncates: bool,
) -> Result<(Vec<f32>, Work), Refusal> {
    let bytes = call.check_sizes(&lengths(&documents), 0)? + call.check_sizes(&[query.len()], 0)?;
    let encode = move |model: &sconce::Model| {
        let mut texts = model.encode_queries(&[query])?;
        texts.extend(model.encode_documents(&documents)?);
        Ok(texts)
    };
    let answered = call.rows(host, bytes, Want::Projected, truncates, encode).await?;
    let mut matrices = answered.kept.iter().zip(&answered.job.texts).enumerate().map(|(at, (kept, text))| {
        let values = if let Kept::Rows(values, _) = kept { values.as_slice() } else { &[] };
        if at == 0 { host.model.query_matrix(values) } else { host.model.document_matrix(text, values) }
    });
    let query = matrices.next().unwrap_or_default();
    Ok((matrices.map(|document| maxsim(&query, &document)).collect(), answered.work))
}

/// The labels of each text or pair, the best first.
pub(crate) async fn classify(
    call: &Call,
    host: &Arc<Host>,
    sequences: Vec<(String, Option<String>)>,
    scoring: Option<Scoring>,
    truncates: bool,
) -> Result<(Vec<Vec<Labelled>>, Work), Refusal> {
    call.refuse_chunks()?;
    host.model.expect("predict", &[Task::Classify])?;
    let lengths: Vec<usize> = sequences
        .iter()
        .map(|(first, second)| first.len() + second.as_ref().map_or(0, String::len))
        .collect();
    let bytes = call.check_sizes(&lengths, 0)?;
    let options = ClassifyOptions { scoring, cut: Cut::Longest };
    let encode = move |model: &sconce::Model| {
        let one = |(first, second): (String, Option<String>)| match second {
            None => model.encode_texts(&Prompt::NONE, &[first]),
            Some(second) => model.encode_pairs(&[(first, second)], Cut::Longest),
        };
        let texts = sequences.into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(texts.into_iter().flatten().collect())
    };
    let answered = call.rows(host, bytes, Want::Pooled, truncates, encode).await?;
    let labels = |kept: &Kept| match kept {
        Kept::Rows(row, _) => host.model.labels(row, &options),
        Kept::Nothing | Kept::Words(_) => Vec::new(),
    };
    Ok((answered.kept.iter().map(labels).collect(), answered.work))
}

/// How alike `text` is to each of `others`.
pub(crate) async fn similarity(
    call: &Call,
    host: &Arc<Host>,
    text: String,
    others: Vec<String>,
    named: Option<String>,
    truncates: bool,
) -> Result<(Vec<f32>, Work), Refusal> {
    let task = host.model.expect("similarity", &[Task::Embed, Task::Sparse, Task::Tokens])?;
    call.check_sizes(&lengths(&others), 0)?;
    if task == Task::Tokens {
        return best_matches(call, host, text, others.into(), truncates).await;
    }
    let inputs = Inputs::Texts([vec![text], others].concat());
    if task == Task::Sparse {
        let (texts, work) = embed_sparse(call, host, inputs, named, truncates).await?;
        return Ok((texts[1..].iter().map(|other| sparse_dot(&texts[0], other)).collect(), work));
    }
    let asked = Vectors { truncates, prompt: named, dimensions: None, normalize: None };
    let (vectors, work) = embed(call, host, inputs, asked).await?;
    Ok((vectors[1..].iter().map(|other| cosine(&vectors[0], other)).collect(), work))
}

/// Texts or token ids to rows.
async fn encode(
    call: &Call,
    host: &Arc<Host>,
    inputs: Inputs,
    prompt: Prompt,
    want: Want,
    truncates: bool,
) -> Result<Answered, Refusal> {
    if !host.token_ids && matches!(inputs, Inputs::Ids(_) | Inputs::ManyIds(_)) {
        return Err(wrong(token_ids_rejected(&host.name)));
    }
    let bytes = call.check_sizes(&inputs.bytes(), 0)?;
    let encode = move |model: &sconce::Model| match inputs {
        Inputs::One(text) => model.encode_texts(&prompt, &[text]),
        Inputs::Texts(texts) => model.encode_texts(&prompt, &texts),
        Inputs::Ids(ids) => Ok(vec![model.encode_ids(&ids)?]),
        Inputs::ManyIds(many) => many.iter().map(|ids| model.encode_ids(ids)).collect(),
    };
    call.rows(host, bytes, want, truncates, encode).await
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

fn texts(inputs: Inputs, otherwise: &str) -> Result<Vec<String>, Refusal> {
    match inputs {
        Inputs::One(text) => Ok(vec![text]),
        Inputs::Texts(texts) => Ok(texts),
        Inputs::Ids(_) | Inputs::ManyIds(_) => Err(wrong(otherwise)),
    }
}

fn lengths(texts: &[String]) -> Vec<usize> {
    texts.iter().map(String::len).collect()
}

/// The name of a prompt, if the model has one of that name.
pub(crate) fn prompt(host: &Host, named: Option<String>, inputs: &Inputs) -> Result<Option<String>, Refusal> {
    let Some(name) = named else { return Ok(None) };
    let known = &host.model.card().prompts.value;
    if !known.contains_key(&name) {
        let known: Vec<String> = known.keys().map(|name| format!("`{name}`")).collect();
        let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(wrong(format!("the model has no prompt `{name}`; there is: {there}")));
    }
    if matches!(inputs, Inputs::Ids(_) | Inputs::ManyIds(_)) {
        return Err(wrong("token ids are used as they are: no `prompt_name`"));
    }
    Ok(Some(name))
}
