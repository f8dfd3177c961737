//! The desired state on NATS.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv::{Entry, Keys, Operation, Store, Watch};
use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::connection::{Bucket, Connection, WriteError};
use super::keys;
use super::members::NatsRegistry;
use crate::desired::{DesiredModel, DesiredModels, DesiredState, DesiredWatcher};
use crate::record::check_id;
use crate::registry::RegistryError;

/// Attempts to write an entry that others write at the same time.
const ATTEMPTS: usize = 8;
/// Delay before a watch that failed starts again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// What watchers read; `None` until it is known.
type Sender = watch::Sender<Option<Arc<DesiredModels>>>;

#[async_trait]
impl DesiredState for NatsRegistry {
    async fn set_desired(&self, desired: DesiredModel) -> Result<(), RegistryError> {
        let json = desired.encode()?;
        self.connection.ready().await?;
        write(&self.connection, &keys::encode(&desired.model), &json).await
    }

    async fn remove_desired(&self, model: &str) -> Result<bool, RegistryError> {
        check_id("model name", model)?;
        self.connection.ready().await?;
        let store = self.connection.bucket(Bucket::Desired).await?;
        let key = keys::encode(model);
        for _ in 0..ATTEMPTS {
            let last = self.connection.read(&store, &key).await?;
            if last.value.is_none() {
                return Ok(false);
            }
            match self.connection.delete(&store, &key, last.number).await {
                Ok(()) => return Ok(true),
                Err(WriteError::NoBucket) => return Ok(false),
                Err(WriteError::Conflict) => {}
                Err(WriteError::Other(error)) => return Err(error),
            }
        }
        Err(self.connection.unavailable(format!("{ATTEMPTS} deletions of `{model}` conflicted")))
    }

    fn watch_desired(&self) -> DesiredWatcher {
        let (sender, receiver) = watch::channel(None);
        let connection = Arc::clone(&self.connection);
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                () = run(&connection, &sender) => {}
            }
        });
        DesiredWatcher::new(receiver)
    }
}

async fn write(connection: &Connection, key: &str, json: &[u8]) -> Result<(), RegistryError> {
    let mut store = connection.bucket(Bucket::Desired).await?;
    for _ in 0..ATTEMPTS {
        let last = connection.read(&store, key).await?;
        match connection.write_durable(&store, key, json.to_vec(), last.number).await {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict) => {}
            Err(WriteError::NoBucket) => store = connection.bucket(Bucket::Desired).await?,
            Err(WriteError::Other(error)) => return Err(error),
        }
    }
    Err(connection.unavailable(format!("{ATTEMPTS} writes of `{key}` conflicted")))
}

/// Follows the bucket while NATS is connected, and keeps the models while it is not.
async fn run(connection: &Connection, models: &Sender) {
    let mut state = connection.subscribe();
    // When the bucket was created, to notice that its server has lost it.
    let mut created = None;
    loop {
        let Ok(epoch) = state.wait_for(|state| state.is_connected).await.map(|state| state.epoch) else {
            return;
        };
        tokio::select! {
            _ = state.wait_for(|state| !state.is_connected || state.epoch != epoch) => {}
            Err(error) = follow(connection, models, &mut created) => {
                debug!(%error, "the watch of the desired state starts again");
            }
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Follows the bucket until that fails.
async fn follow(
    connection: &Connection,
    models: &Sender,
    created: &mut Option<String>,
) -> Result<(), RegistryError> {
    let store = connection.bucket(Bucket::Desired).await?;
    // Changes that come while the bucket is listed are applied after it.
    let mut entries = store.watch_all().await.map_err(|error| connection.unavailable(error))?;
    let info = store.stream.get_info().await.map_err(|error| connection.unavailable(error))?;
    let now_created = format!("{:?}", info.created);
    let mut listed = list(connection, &store).await?;
    if created.as_ref().is_some_and(|created| *created != now_created) {
        restore(connection, models, &mut listed).await?;
    }
    *created = Some(now_created);
    models.send_if_modified(|models| {
        let is_new = models.as_deref() != Some(&listed);
        *models = Some(Arc::new(listed));
        is_new
    });
    loop {
        let entry = next(&mut entries).await.unwrap_or_else(|| Err("the watch ended".to_owned()));
        apply(models, &entry.map_err(|reason| connection.unavailable(reason))?);
    }
}

/// All entries.
async fn list(connection: &Connection, store: &Store) -> Result<DesiredModels, RegistryError> {
    let mut keys = store.keys().await.map_err(|error| connection.unavailable(error))?;
    let mut models = DesiredModels::new();
    while let Some(key) = next_key(&mut keys).await {
        let key = key.map_err(|reason| connection.unavailable(reason))?;
        let Some(json) = connection.read(store, &key).await?.value else { continue };
        if let Some(desired) = parse(&key, &json) {
            models.insert(desired.model.clone(), Arc::new(desired));
        }
    }
    Ok(models)
}

/// Writes the last known entries to a bucket that was created again: its server has lost them, nobody removed them.
async fn restore(
    connection: &Connection,
    models: &Sender,
    listed: &mut DesiredModels,
) -> Result<(), RegistryError> {
    let known = models.borrow().clone().unwrap_or_default();
    for (model, desired) in known.iter().filter(|(model, _)| !listed.contains_key(*model)).collect::<Vec<_>>()
    {
        write(connection, &keys::encode(model), &desired.encode()?).await?;
        listed.insert(model.clone(), Arc::clone(desired));
    }
    Ok(())
}

/// Applies a change.
fn apply(models: &Sender, entry: &Entry) {
    let Some(model) = keys::decode(&entry.key) else { return };
    models.send_if_modified(|models| {
        let known = Arc::make_mut(models.get_or_insert_default());
        match entry.operation {
            Operation::Put => match parse(&entry.key, &entry.value) {
                Some(desired) if known.get(&model).is_none_or(|known| **known != desired) => {
                    known.insert(model, Arc::new(desired));
                    true
                }
                _ => false,
            },
            Operation::Delete | Operation::Purge => known.remove(&model).is_some(),
        }
    });
}

fn parse(key: &str, json: &[u8]) -> Option<DesiredModel> {
    match DesiredModel::decode(json) {
        Ok(desired) => (keys::encode(&desired.model) == key).then_some(desired),
        Err(error) => {
            warn!(key, %error, "an entry of the desired state was ignored");
            None
        }
    }
}

async fn next(entries: &mut Watch) -> Option<Result<Entry, String>> {
    let entry = poll_fn(|context| Pin::new(&mut *entries).poll_next(context)).await;
    entry.map(|entry| entry.map_err(|error| error.to_string()))
}

async fn next_key(keys: &mut Keys) -> Option<Result<String, String>> {
    let key = poll_fn(|context| Pin::new(&mut *keys).poll_next(context)).await;
    key.map(|key| key.map_err(|error| error.to_string()))
}
