//! A sconce model as an embedding model of `swiftide`.
//!
//! ```no_run
//! # use swiftide_core::EmbeddingModel;
//! # async fn index() -> Result<(), Box<dyn std::error::Error>> {
//! let model = sconce::Model::open("e5-small")?;
//! let documents = adapters::swiftide::Sconce::new(model.clone(), sconce::Prompt::Document);
//! let queries = adapters::swiftide::Sconce::new(model, sconce::Prompt::Query);
//! let vectors = documents.embed(vec!["list.sort() orders it in place".to_owned()]).await?;
//! # Ok(()) }
//! ```

use std::fmt;

use async_trait::async_trait;
use sconce::{EmbedOptions, Model, Prompt, Retry};
use swiftide_core::chat_completion::errors::LanguageModelError;
use swiftide_core::{EmbeddingModel, Embeddings};
use tokio::task::spawn_blocking;

/// Computes embeddings in this process.
#[derive(Clone)]
pub struct Sconce {
    model: Model,
    options: EmbedOptions,
}

impl Sconce {
    /// The model, with `prompt` before every text. An indexing pipeline and a query pipeline have a model each if their
    /// prompts differ, as those of E5 do.
    pub fn new(model: Model, prompt: Prompt) -> Sconce {
        Sconce { model, options: EmbedOptions { prompt, ..EmbedOptions::default() } }
    }
}

impl fmt::Debug for Sconce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Sconce").field(&self.model.card().name).field(&self.options).finish()
    }
}

#[async_trait]
impl EmbeddingModel for Sconce {
    async fn embed(&self, input: Vec<String>) -> Result<Embeddings, LanguageModelError> {
        let Sconce { model, options } = self.clone();
        let computed = spawn_blocking(move || model.embed_with(&input, &options)).await;
        match computed.map_err(LanguageModelError::permanent)? {
            Ok(embeddings) => Ok(embeddings.into_vectors()),
            // swiftide retries transient errors.
            Err(error) if error.retry() == Retry::Later => Err(LanguageModelError::transient(error)),
            Err(error) => Err(LanguageModelError::permanent(error)),
        }
    }
}
