//! TEI's routes `/tokenize` and `/decode`. `/tokenize` also takes llama.cpp's requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::api::llama_cpp;
use crate::errors::refusal;
use crate::operations::context::{ANY, invalid};
use crate::operations::inputs::Inputs;
use crate::operations::prompt;
use crate::operations::response;
use crate::state::app::App;
use sconce_http::refusal::{Dialect, Refusal};

/// Approximate maximum response bytes per byte of text.
const TOKENIZE_EXPANSION: usize = 32;
/// Approximate response bytes per byte of token ids.
const DECODE_EXPANSION: usize = 2;

/// Texts to tokenize.
#[derive(Deserialize, ToSchema)]
pub(crate) struct TokenizeBody {
    #[schema(value_type = Option<Object>, example = "What is Deep Learning?")]
    inputs: Option<Inputs>,
    #[serde(default = "default_true")]
    add_special_tokens: bool,
    prompt_name: Option<String>,
    /// The text in llama.cpp's requests, in place of `inputs`. The response is `{"tokens": [ids]}`.
    content: Option<String>,
    /// Whether special tokens are added to `content`.
    #[serde(default)]
    add_special: bool,
    /// Only true: special tokens in `content` are recognized.
    parse_special: Option<bool>,
    /// Whether the response to `content` has the texts of the tokens.
    #[serde(default)]
    with_pieces: bool,
}

/// Token ids to decode.
#[derive(Deserialize, ToSchema)]
pub(crate) struct DecodeBody {
    #[schema(value_type = Object, example = "[[101, 102]]")]
    ids: Inputs,
    #[serde(default = "default_true")]
    skip_special_tokens: bool,
}

/// A token.
#[derive(Serialize, ToSchema)]
pub(crate) struct SimpleToken {
    id: u32,
    text: String,
    special: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<usize>,
}

fn default_true() -> bool {
    true
}

/// Tokenizes texts.
#[utoipa::path(post, path = "/tokenize", tag = "TEI", request_body = TokenizeBody, responses((status = 200, body = Vec<Vec<SimpleToken>>), (status = 422)))]
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "tokenize", request, |context, body: TokenizeBody| async move {
        let loaded = context.loaded(None, &ANY).await?;
        let inputs = match (body.inputs, body.content) {
            (Some(inputs), None) => inputs,
            (None, Some(_)) if body.parse_special == Some(false) => {
                return Err(invalid("`parse_special: false` is not supported"));
            }
            (None, Some(text)) => {
                return llama_cpp::tokenize(&context, loaded, text, body.add_special, body.with_pieces).await;
            }
            (Some(_), Some(_)) => return Err(invalid("`inputs` and `content` are mutually exclusive")),
            (None, None) => return Err(invalid("missing field `inputs`")),
        };
        let prompt_name = prompt(&loaded, body.prompt_name, inputs.has_ids())?;
        let prompt = prompt_name.and_then(|name| loaded.model.card().prompts.value.get(&name).cloned());
        if matches!(inputs, Inputs::Ids(_) | Inputs::ManyIds(_)) {
            return Err(invalid("`inputs` must be texts, not token ids"));
        }
        let bytes = inputs.bytes();
        context.check_sizes(&bytes, 0)?;
        let special = body.add_special_tokens;
        let counted = Arc::new(AtomicUsize::new(0));
        let tokens = Arc::clone(&counted);
        let item = move |at: usize| -> Result<Vec<SimpleToken>, Refusal> {
            let text = &inputs.texts()[at];
            let pieces = match &prompt {
                None => loaded.model.tokens(text, special).map_err(refusal)?,
                Some(prompt) => loaded.model.tokens(&format!("{prompt}{text}"), special).map_err(refusal)?,
            };
            counted.fetch_add(pieces.len(), Ordering::Relaxed);
            Ok(pieces.into_iter().map(token).collect())
        };
        let answer = response::write_list(&context, &bytes, TOKENIZE_EXPANSION, item).await?;
        context.app.edge.charge(context.principal, tokens.load(Ordering::Relaxed))?;
        Ok(answer)
    })
    .await
}

fn token(piece: sconce::tokenize::Token) -> SimpleToken {
    let span = (!piece.special).then_some(piece.offsets);
    SimpleToken {
        id: piece.id,
        text: piece.text,
        special: piece.special,
        start: span.map(|(start, _)| start),
        stop: span.map(|(_, stop)| stop),
    }
}

/// Decodes token ids to texts.
#[utoipa::path(post, path = "/decode", tag = "TEI", request_body = DecodeBody, responses((status = 200, body = Vec<String>), (status = 422)))]
pub(crate) async fn decode(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "decode", request, |context, body: DecodeBody| async move {
        let loaded = context.loaded(None, &ANY).await?;
        let bytes = body.ids.bytes();
        context.check_sizes(&bytes, 0)?;
        let many = match body.ids {
            Inputs::Ids(ids) => vec![ids],
            Inputs::ManyIds(many) => many,
            Inputs::One(_) | Inputs::Texts(_) => return Err(invalid("`ids` must be token ids")),
        };
        let tokens = many.iter().map(Vec::len).sum();
        let skip = body.skip_special_tokens;
        let answer = response::write_list(&context, &bytes, DECODE_EXPANSION, move |at| {
            loaded.model.decode(&many[at], skip).map_err(refusal)
        })
        .await?;
        context.app.edge.charge(context.principal, tokens)?;
        Ok(answer)
    })
    .await
}
