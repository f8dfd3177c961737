//! Embeddings: dense, sparse, of tokens, and of chunks.

use std::ops::Range;
use std::sync::Arc;

use sconce::core::batch::OutputKind;
use sconce::operations::{Input, ModelContext, chunk, embed, sparse, token_vectors};
use sconce::tokenize::TokenSequence;
use sconce::{Chunk, EmbedOptions, Error, Model, Prompt, TokenWeight};
use sconce_http::refusal::Refusal;
use tracing::warn;

use crate::errors::refusal;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::enqueue::{Rows, compute};
use crate::operations::inputs::Inputs;
use crate::operations::response::Deferred;
use crate::state::slot::LoadedModel;

/// Options of a dense embedding.
pub(crate) struct Vectors {
    /// Whether long texts are truncated.
    pub(crate) truncates: bool,
    pub(crate) prompt: Prompt,
    pub(crate) dimensions: Option<usize>,
    /// Whether vectors are L2-normalized. None is the default of the model.
    pub(crate) normalize: Option<bool>,
}

/// One vector for each input.
pub(crate) async fn embed(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    inputs: Arc<Inputs>,
    vectors: Vectors,
) -> Result<Deferred<Vec<Vec<f32>>>, Refusal> {
    let Vectors { truncates, prompt, dimensions, normalize } = vectors;
    let prompt = checked_prompt(loaded, prompt, inputs.has_ids())?;
    warn_of_missing_prompt(context, loaded, &prompt, &inputs);
    let options = EmbedOptions { prompt, dimensions, force_dimensions: false, normalize };
    embed::check(loaded.model.card(), &options).map_err(refusal)?;
    if context.chunks {
        return embed_chunks(context, loaded, inputs, options).await;
    }
    let (prompt, kind) = (options.prompt.clone(), OutputKind::Pooled);
    let rows = encode(context, loaded, inputs, prompt, kind, truncates, embed::sequence).await?;
    let loaded = Arc::clone(loaded);
    Ok(rows.defer(move |outputs, _| embed::vectors(loaded.model.card(), outputs, &options)))
}

/// One vector for each text: the mean of its chunks, weighted by tokens.
async fn embed_chunks(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    inputs: Arc<Inputs>,
    options: EmbedOptions,
) -> Result<Deferred<Vec<Vec<f32>>>, Refusal> {
    only_texts(&inputs, "`x-sconce-truncate: chunk` needs text: token ids are not split")?;
    let bytes = inputs.bytes();
    context.check_sizes(&bytes, 0)?;
    let (own, prompt) = (Arc::clone(loaded), options.prompt.clone());
    let split = move |range: Range<usize>| {
        let chunks = |text: &String| chunk::chunks(own.model.context(), &prompt, text);
        inputs.texts()[range].iter().map(chunks).collect::<Result<Vec<_>, _>>().map_err(refusal)
    };
    let most = context.app.settings().max_inputs;
    // The chunks of all texts, and for each text the tokens of its chunks.
    let gather = move |parts: Vec<Vec<Vec<Chunk>>>| {
        let texts: Vec<Vec<Chunk>> = parts.into_iter().flatten().collect();
        let count = texts.iter().map(Vec::len).sum::<usize>();
        if count > most {
            return Err(invalid(format!("the texts make {count} chunks, and a request has at most {most}")));
        }
        let tokens = texts.iter().map(|chunks| chunks.iter().map(|chunk| chunk.tokens).collect()).collect();
        Ok((texts.into_iter().flatten().map(|chunk| chunk.text).collect(), tokens))
    };
    let (chunks, tokens): (Vec<String>, Vec<Vec<usize>>) =
        context.on_text_threads(&bytes, split, gather).await?;
    let (count, inputs) = (chunks.len(), Arc::new(Inputs::Texts(chunks)));
    let (prompt, kind) = (options.prompt.clone(), OutputKind::Pooled);
    let rows = encode(context, loaded, inputs, prompt, kind, true, embed::sequence).await?;
    let loaded = Arc::clone(loaded);
    let mut deferred =
        rows.defer(move |outputs, _| chunk::vectors(loaded.model.card(), &outputs, &tokens, &options));
    deferred.work.chunks = Some(count);
    Ok(deferred)
}

/// One vector for each token of each input.
pub(crate) async fn embed_all(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    inputs: Inputs,
    name: Option<String>,
    truncates: bool,
) -> Result<Deferred<Vec<Vec<Vec<f32>>>>, Refusal> {
    context.refuse_chunks()?;
    let prompt: Prompt = prompt(loaded, name, inputs.has_ids())?.into();
    let kind = token_vectors::check(loaded.model.card(), &prompt).map_err(refusal)?;
    let rows =
        encode(context, loaded, Arc::new(inputs), prompt, kind, truncates, token_vectors::sequence).await?;
    let loaded = Arc::clone(loaded);
    Ok(rows.defer(move |outputs, sequences| {
        let texts = sequences.iter().zip(&outputs);
        texts
            .map(|(sequence, output)| token_vectors::rows(loaded.model.context(), sequence, output))
            .collect()
    }))
}

/// The token weights of each input.
pub(crate) async fn embed_sparse(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    inputs: Inputs,
    name: Option<String>,
    truncates: bool,
) -> Result<Deferred<Vec<Vec<TokenWeight>>>, Refusal> {
    context.refuse_chunks()?;
    sparse::check(loaded.model.card(), &EmbedOptions::default()).map_err(refusal)?;
    let (prompt, kind) = (prompt(loaded, name, inputs.has_ids())?.into(), OutputKind::Pooled);
    let rows = encode(context, loaded, Arc::new(inputs), prompt, kind, truncates, sparse::sequence).await?;
    Ok(rows.defer(|outputs, _| sparse::weights(outputs)))
}

/// Computes the rows of texts or token ids.
async fn encode(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    inputs: Arc<Inputs>,
    prompt: Prompt,
    output_kind: OutputKind,
    truncates: bool,
    sequence: fn(ModelContext<'_>, &Prompt, Input<'_>) -> Result<TokenSequence, Error>,
) -> Result<Rows, Refusal> {
    if !loaded.token_ids && inputs.has_ids() {
        return Err(invalid(token_ids_rejected(&loaded.name)));
    }
    let bytes = inputs.bytes();
    context.check_sizes(&bytes, 0)?;
    let encode = move |model: &Model, at: usize| {
        let input = match &*inputs {
            Inputs::Ids(ids) => Input::Ids(ids),
            Inputs::ManyIds(many) => Input::Ids(&many[at]),
            Inputs::One(_) | Inputs::Texts(_) => Input::Text(&inputs.texts()[at]),
        };
        sequence(model.context(), &prompt, input)
    };
    compute(context, loaded, &bytes, output_kind, truncates, encode).await
}

/// Clients such as `LangChain` send tiktoken's ids, which are valid ids of other tokens in most vocabularies.
pub(crate) fn token_ids_rejected(model: &str) -> String {
    format!(
        "`{model}` accepts texts, and the request contains token ids; ids of another tokenizer, such as tiktoken, \
         would give a wrong result\n\
         hint: in LangChain: `OpenAIEmbeddings(check_embedding_ctx_length=False)`; for ids of the model's own \
         tokenizer: `sconce serve --token-ids`, or `token_ids = true` in `[models.NAME]`"
    )
}

fn only_texts(inputs: &Inputs, otherwise: &str) -> Result<(), Refusal> {
    if inputs.has_ids() { Err(invalid(otherwise)) } else { Ok(()) }
}

/// Logs a warning, once per model, if texts that need a prompt have none.
fn warn_of_missing_prompt(context: &RequestContext, loaded: &LoadedModel, prompt: &Prompt, inputs: &Inputs) {
    if inputs.has_ids() {
        return;
    }
    if let Some(why) = loaded.model.take_prompt_warning(prompt, inputs.texts()) {
        let hint = "set `input_type` to `query` or `document`, or `prompt_name`";
        context.app.edge.telemetry.log(|| warn!(model = loaded.name, why, hint, "texts without a prompt"));
    }
}

/// The prompt, if the model has it and the inputs are texts.
fn checked_prompt(loaded: &LoadedModel, choice: Prompt, has_ids: bool) -> Result<Prompt, Refusal> {
    match choice {
        Prompt::Name(name) => Ok(prompt(loaded, Some(name), has_ids)?.into()),
        Prompt::Query | Prompt::Document if has_ids => {
            Err(invalid("`input_type` and `task` need text: token ids get no prompt"))
        }
        Prompt::Query | Prompt::Document | Prompt::Default | Prompt::Text(_) => Ok(choice),
    }
}

/// The name of a prompt, if the model has one of that name.
pub(crate) fn prompt(
    loaded: &LoadedModel,
    name: Option<String>,
    has_ids: bool,
) -> Result<Option<String>, Refusal> {
    let Some(name) = name else { return Ok(None) };
    let known = &loaded.model.card().prompts.value;
    if !known.contains_key(&name) {
        let known: Vec<String> = known.keys().map(|name| format!("`{name}`")).collect();
        let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(invalid(format!("the model has no prompt `{name}`; known: {there}")));
    }
    if has_ids {
        return Err(invalid("`prompt_name` needs text: token ids get no prompt"));
    }
    Ok(Some(name))
}
