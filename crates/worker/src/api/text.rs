//! Texts to tokens and back, as Text Embeddings Inference has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::errors::refusal;
use crate::operations::context::{ANY, invalid};
use crate::operations::inputs::Inputs;
use crate::operations::prompt;
use crate::operations::response;
use crate::state::app::App;
use sconce_http::refusal::{Dialect, Refusal};

/// Bytes of answer for each byte of text, at most about: a token of one letter and a space.
const TOKEN: usize = 32;
/// Bytes of answer for each byte of token ids: a word of some letters.
const WORD: usize = 2;

/// Texts to cut into tokens.
#[derive(Deserialize, ToSchema)]
pub(crate) struct TokenizeBody {
    #[schema(value_type = Object, example = "What is Deep Learning?")]
    inputs: Inputs,
    #[serde(default = "yes")]
    add_special_tokens: bool,
    prompt_name: Option<String>,
}

/// Token ids to read.
#[derive(Deserialize, ToSchema)]
pub(crate) struct DecodeBody {
    #[schema(value_type = Object, example = "[[101, 102]]")]
    ids: Inputs,
    #[serde(default = "yes")]
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

fn yes() -> bool {
    true
}

/// Texts to tokens.
#[utoipa::path(post, path = "/tokenize", tag = "TEI", request_body = TokenizeBody, responses((status = 200, body = Vec<Vec<SimpleToken>>), (status = 422)))]
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "tokenize", request, |context, body: TokenizeBody| async move {
        let host = context.host(None, &ANY).await?;
        let named = prompt(&host, body.prompt_name, body.inputs.has_ids())?;
        let before = named.and_then(|name| host.model.card().prompts.value.get(&name).cloned());
        if matches!(body.inputs, Inputs::Ids(_) | Inputs::ManyIds(_)) {
            return Err(invalid("token ids are tokens already"));
        }
        let bytes = body.inputs.bytes();
        context.check_sizes(&bytes, 0)?;
        let special = body.add_special_tokens;
        let counted = Arc::new(AtomicUsize::new(0));
        let tokens = Arc::clone(&counted);
        let item = move |at: usize| -> Result<Vec<SimpleToken>, Refusal> {
            let text = &body.inputs.texts()[at];
            let pieces = match &before {
                None => host.model.tokens(text, special).map_err(refusal)?,
                Some(before) => host.model.tokens(&format!("{before}{text}"), special).map_err(refusal)?,
            };
            counted.fetch_add(pieces.len(), Ordering::Relaxed);
            Ok(pieces.into_iter().map(token).collect())
        };
        let answer = response::write_list(&context, &bytes, TOKEN, item).await?;
        context.app.edge.charge(context.principal, tokens.load(Ordering::Relaxed))?;
        Ok(answer)
    })
    .await
}

fn token(piece: sconce::tokenize::Token) -> SimpleToken {
    let place = (!piece.special).then_some(piece.offsets);
    SimpleToken {
        id: piece.id,
        text: piece.text,
        special: piece.special,
        start: place.map(|place| place.0),
        stop: place.map(|place| place.1),
    }
}

/// Tokens to texts.
#[utoipa::path(post, path = "/decode", tag = "TEI", request_body = DecodeBody, responses((status = 200, body = Vec<String>), (status = 422)))]
pub(crate) async fn decode(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "decode", request, |context, body: DecodeBody| async move {
        let host = context.host(None, &ANY).await?;
        let bytes = body.ids.bytes();
        context.check_sizes(&bytes, 0)?;
        let many = match body.ids {
            Inputs::Ids(ids) => vec![ids],
            Inputs::ManyIds(many) => many,
            Inputs::One(_) | Inputs::Texts(_) => return Err(invalid("`ids` are token ids")),
        };
        let tokens = many.iter().map(Vec::len).sum();
        let skip = body.skip_special_tokens;
        let answer = response::write_list(&context, &bytes, WORD, move |at| {
            host.model.decode(&many[at], skip).map_err(refusal)
        })
        .await?;
        context.app.edge.charge(context.principal, tokens)?;
        Ok(answer)
    })
    .await
}
