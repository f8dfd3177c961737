//! Cohere's route `/v2/embed`, with float, int8 and binary embeddings.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::Task;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::api::{openai, rerank};
use crate::operations::context::invalid;
use crate::operations::input_type;
use crate::operations::inputs::{BoundedVec, Inputs, Values};
use crate::operations::response;
use crate::operations::{self, Vectors};
use crate::state::app::App;
use sconce_http::refusal::{Dialect, Refusal};

/// Texts to embed.
#[derive(Deserialize, ToSchema)]
#[schema(example = json!({
    "texts": ["A sconce does.", "The harbour at night."], "input_type": "search_document", "embedding_types": ["float"]
}))]
pub(crate) struct CohereBody {
    model: Option<String>,
    #[schema(value_type = Option<Vec<String>>)]
    texts: Option<BoundedVec<String>>,
    /// Texts as content objects. Images are not supported.
    #[schema(value_type = Option<Vec<Object>>)]
    inputs: Option<BoundedVec<Contents>>,
    /// What the texts are, such as `search_query`. Selects the prompt of the model.
    input_type: Option<String>,
    /// `float`, `int8`, `uint8`, `binary`, `ubinary`, `base64`.
    #[schema(value_type = Option<Vec<String>>)]
    embedding_types: Option<Values<EmbeddingType>>,
    /// `NONE` rejects long texts, `END` truncates them.
    truncate: Option<String>,
    output_dimension: Option<usize>,
    /// Truncation limit. Only values of at least the maximum length of the model are supported.
    max_tokens: Option<usize>,
}

/// The encoding of embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EmbeddingType {
    Float,
    Int8,
    Uint8,
    Binary,
    Ubinary,
    Base64,
}

/// One input.
#[derive(Deserialize)]
struct Contents {
    content: BoundedVec<Content>,
}

#[derive(Deserialize)]
struct Content {
    text: Option<String>,
}

/// Embeddings by type.
#[derive(Serialize, ToSchema)]
pub(crate) struct ByType {
    id: String,
    response_type: &'static str,
    embeddings: Types,
    #[schema(value_type = Vec<String>)]
    #[serde(serialize_with = "as_texts")]
    texts: Arc<Inputs>,
    #[schema(value_type = Object)]
    meta: serde_json::Value,
}

/// Embeddings in each requested type.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct Types {
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<Vec<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int8: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uint8: Option<Vec<Vec<u8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ubinary: Option<Vec<Vec<u8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Vec<String>>,
}

/// Embeds texts.
#[utoipa::path(post, path = "/v2/embed", tag = "Cohere and Jina", request_body = CohereBody, responses((status = 200, body = ByType), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn embed(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Cohere, "embed", request, |context, body: CohereBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Embed]).await?;
        let types = body.embedding_types.map_or_else(|| [EmbeddingType::Float].into(), |types| types.0);
        if types.is_empty() {
            return Err(invalid("`embedding_types` is empty"));
        }
        let length = loaded.model.card().max_length.value;
        if let Some(tokens) = body.max_tokens.filter(|&tokens| tokens < length) {
            let message = format!(
                "`max_tokens` below the maximum length of the model, {length} tokens, is not supported: {tokens}"
            );
            return Err(invalid(message));
        }
        let truncate = match body.truncate.as_deref() {
            None => None,
            Some("NONE") => Some(false),
            Some("END") => Some(true),
            Some(_) => return Err(invalid("`truncate` must be `NONE` or `END`")),
        };
        let card = loaded.model.card();
        let prompt = input_type::chosen(card, None, body.input_type.as_deref(), None)?;
        let options = Vectors {
            truncates: context.truncates(truncate, true),
            prompt,
            dimensions: body.output_dimension,
            normalize: None,
        };
        let inputs = Arc::new(Inputs::Texts(texts(body.texts, body.inputs)?));
        let answer = operations::embed(&context, &loaded, Arc::clone(&inputs), options).await?;
        let (billed, bytes) = (json!({ "input_tokens": answer.work.tokens }), inputs.bytes().iter().sum());
        let answer = answer.and_bytes(bytes).map(move |vectors| ByType {
            id: rerank::id("", inputs.texts()),
            response_type: "embeddings_by_type",
            embeddings: by_type(&types, vectors),
            texts: inputs,
            meta: json!({ "api_version": { "version": "2" }, "billed_units": billed }),
        });
        response::write(&context, answer).await
    })
    .await
}

/// Serializes inputs as texts.
fn as_texts<S: Serializer>(inputs: &Arc<Inputs>, serializer: S) -> Result<S::Ok, S::Error> {
    inputs.texts().serialize(serializer)
}

fn texts(
    texts: Option<BoundedVec<String>>,
    inputs: Option<BoundedVec<Contents>>,
) -> Result<Vec<String>, Refusal> {
    match (texts, inputs) {
        (Some(texts), None) => Ok(texts.0),
        (None, Some(inputs)) => {
            let text = |contents: Contents| {
                let all: Option<Vec<String>> =
                    contents.content.0.into_iter().map(|content| content.text).collect();
                all.map(|all| all.join("\n")).ok_or_else(|| invalid("only text content is supported"))
            };
            inputs.0.into_iter().map(text).collect()
        }
        (Some(_), Some(_)) => Err(invalid("`texts` and `inputs` are mutually exclusive")),
        (None, None) => Err(invalid("`texts` is missing")),
    }
}

fn by_type(types: &BTreeSet<EmbeddingType>, vectors: Vec<Vec<f32>>) -> Types {
    let mut all = Types::default();
    for kind in types {
        match kind {
            EmbeddingType::Float => {}
            EmbeddingType::Int8 => all.int8 = Some(vectors.iter().map(|vector| quantize(vector)).collect()),
            EmbeddingType::Uint8 => {
                let shifted = |vector: &Vec<f32>| {
                    quantize(vector).iter().map(|x| x.wrapping_add(-128).cast_unsigned()).collect()
                };
                all.uint8 = Some(vectors.iter().map(shifted).collect());
            }
            EmbeddingType::Ubinary => {
                all.ubinary = Some(vectors.iter().map(|vector| binarize(vector)).collect());
            }
            EmbeddingType::Binary => {
                let shifted = |vector: &Vec<f32>| {
                    binarize(vector).iter().map(|x| x.wrapping_sub(128).cast_signed()).collect()
                };
                all.binary = Some(vectors.iter().map(shifted).collect());
            }
            EmbeddingType::Base64 => {
                all.base64 = Some(vectors.iter().map(|vector| openai::to_base64(vector)).collect());
            }
        }
    }
    if types.contains(&EmbeddingType::Float) {
        all.float = Some(vectors);
    }
    all
}

/// Quantizes to int8, scaled so that the largest magnitude is 127. Cosine similarity is preserved.
fn quantize(vector: &[f32]) -> Vec<i8> {
    let largest = vector.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    vector.iter().map(|x| (x / largest * 127.0).round() as i8).collect()
}

/// Binarizes by sign and packs eight values per byte, most significant bit first.
fn binarize(vector: &[f32]) -> Vec<u8> {
    let byte = |eight: &[f32]| {
        let bit = |(at, x): (usize, &f32)| if *x > 0.0 { 128u8 >> at } else { 0 };
        eight.iter().enumerate().map(bit).sum()
    };
    vector.chunks(8).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int8_keeps_the_direction_and_binary_the_signs() {
        let vector = vec![0.5, -0.25, 0.0, 0.125, -0.5, 0.01, -0.01, 0.4, 0.3];
        let all: Vec<EmbeddingType> =
            serde_json::from_value(json!(["int8", "uint8", "binary", "ubinary", "float"])).expect("types");
        let types = by_type(&all.into_iter().collect(), vec![vector.clone()]);
        assert_eq!(types.int8, Some(vec![vec![127, -64, 0, 32, -127, 3, -3, 102, 76]]));
        assert_eq!(types.uint8, Some(vec![vec![255, 64, 128, 160, 1, 131, 125, 230, 204]]));
        // numpy.packbits([1,0,0,1,0,1,0,1,1]) is 149, 128.
        assert_eq!(types.ubinary, Some(vec![vec![149, 128]]));
        assert_eq!(types.binary, Some(vec![vec![21, 0]]));
        assert_eq!(types.float, Some(vec![vector]));
        assert!(types.base64.is_none());
    }
}
