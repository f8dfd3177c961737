//! A sconce model as an embedding model of `rig-core`.
//!
//! A model of rig is a wire, which describes the model, and a transport, which computes replies. A model in the same
//! process has the wire `Local`, and [`Sconce`] is its transport.
//!
//! ```no_run
//! # async fn index() -> Result<(), Box<dyn std::error::Error>> {
//! let model = sconce::Model::open("e5-small")?;
//! let documents = adapters::rig::embedding_model(model.clone(), sconce::Prompt::Document);
//! let queries = adapters::rig::embedding_model(model, sconce::Prompt::Query);
//! let builder = rig_core::embeddings::EmbeddingsBuilder::new(documents);
//! let vectors = builder.documents(["list.sort() orders it in place", "the harbour at night"])?.build().await?;
//! let query = queries.embed_text("how do I sort a list?").await?;
//! # Ok(()) }
//! ```

use futures_util::stream;
use rig_core::driver::{Exchange, Local, Opened, Opening, Step, Transport};
use rig_core::embeddings::{Embedding as Vector, EmbeddingResponse};
use rig_core::error::ProviderError;
use rig_core::operation::Embedding;
use rig_core::wire::Capabilities;
use sconce::{EmbedOptions, Model, Prompt};
use tokio::task::spawn_blocking;

/// Maximum number of texts per call of rig. The model splits them into batches of its own.
const MAX_DOCUMENTS: usize = 1024;

/// Computes embeddings in this process.
#[derive(Clone)]
pub struct Sconce {
    model: Model,
    options: EmbedOptions,
}

/// The embedding model of rig that puts `prompt` before every text. rig has one model for queries and one for documents
/// if their prompts differ, as those of E5 do.
pub fn embedding_model(model: Model, prompt: Prompt) -> rig_core::Model<Local<Embedding>, Sconce> {
    let capabilities = Capabilities::embedding(MAX_DOCUMENTS, model.card().width());
    let wire = Local::new("sconce").with_id(&model.card().name).with_capabilities(capabilities);
    rig_core::Model::new(wire, Sconce { model, options: EmbedOptions { prompt, ..EmbedOptions::default() } })
}

impl Transport<Local<Embedding>> for Sconce {
    fn send(&self, texts: Vec<String>, _: Exchange) -> Opening<Step<Embedding>> {
        let Sconce { model, options } = self.clone();
        Opening::new(async move {
            let computed = spawn_blocking(move || model.embed_with(&texts, &options)).await;
            let computed = computed.map_err(|panic| ProviderError::Provider(panic.to_string()))?;
            let embeddings = computed.map_err(|error| ProviderError::Provider(error.to_string()))?;
            let tokens = embeddings.tokens as u64;
            // rig adds the texts.
            let vectors = embeddings.into_iter().map(|vector| Vector {
                document: String::new(),
                vec: vector.into_iter().map(f64::from).collect(),
            });
            let mut response = EmbeddingResponse::new(vectors.collect());
            response.usage.input_tokens = Some(tokens);
            Ok(Opened::new(stream::iter([Ok(Step::End(response))])))
        })
    }
}
