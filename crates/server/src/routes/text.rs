//! Texts to tokens and back, as Text Embeddings Inference has it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::asks::prompt;
use crate::call::{ANY, Work, handle, wrong};
use crate::inputs::Inputs;
use crate::refusal::Dialect;

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
    handle(app, Dialect::Tei, "tokenize", request, |call, body: TokenizeBody| async move {
        let host = call.host(None, &ANY).await?;
        let named = prompt(&host, body.prompt_name, &body.inputs)?;
        let before = named.and_then(|name| host.model.card().prompts.value.get(&name).cloned());
        let texts = match body.inputs {
            Inputs::One(text) => vec![text],
            Inputs::Texts(texts) => texts,
            Inputs::Ids(_) | Inputs::ManyIds(_) => return Err(wrong("token ids are tokens already")),
        };
        let bytes = call.check_sizes(&texts.iter().map(String::len).collect::<Vec<_>>(), 0)?;
        let (model, special) = (host.model.clone(), body.add_special_tokens);
        let tokens = call
            .on_threads(bytes, move || {
                let one = |text: &String| {
                    let text =
                        before.as_ref().map_or_else(|| text.clone(), |before| format!("{before}{text}"));
                    let pieces = model.pieces(&text, special)?.into_iter();
                    Ok(pieces.map(token).collect())
                };
                texts.iter().map(one).collect::<Result<Vec<Vec<SimpleToken>>, sconce::Error>>()
            })
            .await??;
        let size = tokens.iter().map(Vec::len).sum();
        call.write(tokens, size, Work::default()).await
    })
    .await
}

fn token(piece: sconce::tokens::Piece) -> SimpleToken {
    let place = (!piece.special).then_some(piece.place);
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
    handle(app, Dialect::Tei, "decode", request, |call, body: DecodeBody| async move {
        let host = call.host(None, &ANY).await?;
        let bytes = call.check_sizes(&body.ids.bytes(), 0)?;
        let many = match body.ids {
            Inputs::Ids(ids) => vec![ids],
            Inputs::ManyIds(many) => many,
            Inputs::One(_) | Inputs::Texts(_) => return Err(wrong("`ids` are token ids")),
        };
        let (model, skip) = (host.model.clone(), body.skip_special_tokens);
        let texts = call
            .on_threads(bytes, move || {
                many.iter().map(|ids| model.decode(ids, skip)).collect::<Result<Vec<_>, _>>()
            })
            .await??;
        call.write(texts, 0, Work::default()).await
    })
    .await
}
