//! The registry on NATS.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use async_nats::jetstream::kv::Store;
use async_trait::async_trait;
use tokio::sync::Mutex;

use super::connection::{Bucket, Connection, WriteError};
use super::keys;
use super::options::NatsOptions;
use super::watch::watch;
use crate::boot::BootId;
use crate::record::{Heartbeat, Registration, encode_both};
use crate::registry::{Registry, RegistryError};
use crate::watcher::Watcher;

/// Attempts of a write that others interfere with.
const ATTEMPTS: usize = 16;

/// A registry, leases and bindings on NATS JetStream KV (NATS 2.11 or later).
///
/// A key of a heartbeat expires after its time to live. The key of a registration is written on change, at intervals,
/// and when the server has lost it. Writes are compare-and-set: a boot that was superseded learns it from its next heartbeat.
#[derive(Debug)]
pub struct NatsRegistry {
    pub(super) connection: Arc<Connection>,
    /// Workers that registered here, with every boot.
    workers: Mutex<HashMap<(String, BootId), Worker>>,
}

/// A worker that registered here.
#[derive(Clone, Debug)]
struct Worker {
    registration: Registration,
    written: Option<Written>,
}

/// The last complete registration.
#[derive(Clone, Debug)]
struct Written {
    at: Instant,
    store: Store,
    /// Revision of the heartbeat's key.
    heartbeat: u64,
}

impl NatsRegistry {
    /// Connects in the background, and again whenever the connection is lost. Fails only if an option is not valid.
    pub async fn connect(options: NatsOptions) -> Result<NatsRegistry, RegistryError> {
        let connection = Arc::new(Connection::open(options).await?);
        Ok(NatsRegistry { connection, workers: Mutex::default() })
    }

    /// Writes both records. The heartbeat comes first: it alone decides which boot is alive.
    async fn write(
        &self,
        registration: &Registration,
        heartbeat: &Heartbeat,
    ) -> Result<Written, RegistryError> {
        let (registration_json, heartbeat_json) = encode_both(registration, heartbeat)?;
        let connection = &self.connection;
        connection.ready().await?;
        let worker_id = &registration.worker_id;
        let (registration_key, heartbeat_key) = (keys::registration(worker_id), keys::heartbeat(worker_id));
        let mut store = connection.bucket(Bucket::Members).await?;
        for _ in 0..ATTEMPTS {
            let last_registration = connection.read(&store, &registration_key).await?;
            let last_heartbeat = connection.read(&store, &heartbeat_key).await?;
            let live = last_heartbeat.value.and_then(|json| Heartbeat::decode(&json).ok());
            if let Some(live) = live.filter(|live| live.boot_id > heartbeat.boot_id) {
                return Err(RegistryError::Superseded { worker_id: worker_id.clone(), newer: live.boot_id });
            }
            let (ttl, retention) = (registration.ttl(), registration.retention());
            let written = async {
                let expected = last_heartbeat.number;
                let number =
                    connection.write(&store, &heartbeat_key, heartbeat_json.clone(), ttl, expected).await?;
                let (json, expected) = (registration_json.clone(), last_registration.number);
                connection.write(&store, &registration_key, json, retention, expected).await?;
                Ok(number)
            };
            match written.await {
                Ok(heartbeat) => return Ok(Written { at: Instant::now(), store, heartbeat }),
                Err(WriteError::Conflict) => {}
                Err(WriteError::NoBucket) => store = connection.bucket(Bucket::Members).await?,
                Err(WriteError::Other(error)) => return Err(error),
            }
        }
        Err(connection.unavailable(format!("{ATTEMPTS} writes of worker `{worker_id}` conflicted")))
    }

    /// Writes a heartbeat alone, if the registration is in place. Returns the revision.
    async fn write_heartbeat(
        &self,
        worker: &Worker,
        heartbeat: &Heartbeat,
    ) -> Result<Option<u64>, RegistryError> {
        self.connection.ready().await?;
        let registration = &worker.registration;
        let is_fresh = |written: &&Written| written.at.elapsed() < registration.retention() / 3;
        let Some(written) = worker.written.as_ref().filter(is_fresh) else { return Ok(None) };
        let (key, json) = (keys::heartbeat(&registration.worker_id), heartbeat.encode()?);
        let outcome =
            self.connection.write(&written.store, &key, json, registration.ttl(), written.heartbeat).await;
        match outcome {
            Ok(number) => Ok(Some(number)),
            // It expired, another boot wrote it, the answer to the last write was lost, or the server lost its data.
            Err(WriteError::Conflict | WriteError::NoBucket) => Ok(None),
            Err(WriteError::Other(error)) => Err(error),
        }
    }

    /// Deletes a key whose value belongs to `boot_id`.
    async fn delete(
        &self,
        store: &Store,
        key: &str,
        boot_of: impl Fn(&[u8]) -> Option<BootId>,
        boot_id: BootId,
    ) -> Result<(), RegistryError> {
        for _ in 0..ATTEMPTS {
            let last = self.connection.read(store, key).await?;
            if last.value.as_deref().and_then(&boot_of) != Some(boot_id) {
                return Ok(());
            }
            match self.connection.delete(store, key, last.number).await {
                Ok(()) | Err(WriteError::NoBucket) => return Ok(()),
                Err(WriteError::Conflict) => {}
                Err(WriteError::Other(error)) => return Err(error),
            }
        }
        Err(self.connection.unavailable(format!("{ATTEMPTS} deletions of `{key}` conflicted")))
    }
}

#[async_trait]
impl Registry for NatsRegistry {
    async fn register(&self, registration: Registration, heartbeat: Heartbeat) -> Result<(), RegistryError> {
        encode_both(&registration, &heartbeat)?;
        let key = (registration.worker_id.clone(), registration.boot_id);
        let mut workers = self.workers.lock().await;
        let worker = Worker { registration, written: None };
        // Kept even if the write fails: the next heartbeat tries again.
        let worker = workers.entry(key).insert_entry(worker).into_mut();
        worker.written = Some(self.write(&worker.registration, &heartbeat).await?);
        Ok(())
    }

    async fn heartbeat(&self, worker_id: &str, heartbeat: Heartbeat) -> Result<(), RegistryError> {
        let mut workers = self.workers.lock().await;
        let Some(worker) = workers.get_mut(&(worker_id.to_owned(), heartbeat.boot_id)) else {
            return Err(RegistryError::NotRegistered { worker_id: worker_id.to_owned() });
        };
        if let Some(number) = self.write_heartbeat(worker, &heartbeat).await? {
            if let Some(written) = &mut worker.written {
                written.heartbeat = number;
            }
        } else {
            worker.written = None;
            worker.written = Some(self.write(&worker.registration, &heartbeat).await?);
        }
        Ok(())
    }

    async fn deregister(&self, worker_id: &str, boot_id: BootId) -> Result<(), RegistryError> {
        self.workers.lock().await.remove(&(worker_id.to_owned(), boot_id));
        self.connection.ready().await?;
        let store = self.connection.bucket(Bucket::Members).await?;
        let boot = |json: &[u8]| Some(Registration::decode(json).ok()?.boot_id);
        self.delete(&store, &keys::registration(worker_id), boot, boot_id).await?;
        let boot = |json: &[u8]| Some(Heartbeat::decode(json).ok()?.boot_id);
        self.delete(&store, &keys::heartbeat(worker_id), boot, boot_id).await
    }

    fn watch(&self) -> Watcher {
        watch(Arc::clone(&self.connection))
    }
}
