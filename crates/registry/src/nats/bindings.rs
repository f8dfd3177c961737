//! Bindings on NATS.

use async_nats::jetstream::kv::Store;
use async_trait::async_trait;

use super::connection::{Bucket, WriteError};
use super::keys;
use super::members::NatsRegistry;
use crate::bindings::Bindings;
use crate::record::check_id;
use crate::registry::RegistryError;

/// Attempts to bind a name that others bind at the same time.
const ATTEMPTS: usize = 4;

impl NatsRegistry {
    async fn bindings(&self) -> Result<Store, RegistryError> {
        self.connection.ready().await?;
        self.connection.bucket(Bucket::Bindings).await
    }
}

#[async_trait]
impl Bindings for NatsRegistry {
    async fn bind(&self, name: &str, value: &str) -> Result<String, RegistryError> {
        check_id("bound name", name)?;
        check_id("bound value", value)?;
        let (mut store, key) = (self.bindings().await?, keys::encode(name));
        for _ in 0..ATTEMPTS {
            let last = self.connection.read(&store, &key).await?;
            if let Some(bound) = last.value {
                return text(bound).ok_or_else(|| self.connection.unavailable("a binding is not text"));
            }
            let bytes = value.as_bytes().to_vec();
            match self.connection.write_durable(&store, &key, bytes, last.number).await {
                Ok(_) => return Ok(value.to_owned()),
                Err(WriteError::Conflict) => {}
                Err(WriteError::NoBucket) => store = self.bindings().await?,
                Err(WriteError::Other(error)) => return Err(error),
            }
        }
        Err(self.connection.unavailable(format!("{ATTEMPTS} bindings of `{name}` conflicted")))
    }

    async fn bound(&self, name: &str) -> Result<Option<String>, RegistryError> {
        check_id("bound name", name)?;
        let store = self.bindings().await?;
        Ok(self.connection.read(&store, &keys::encode(name)).await?.value.and_then(text))
    }
}

fn text(value: Vec<u8>) -> Option<String> {
    String::from_utf8(value).ok()
}
