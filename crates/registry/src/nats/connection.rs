//! The connection to NATS, its buckets, and writes with compare-and-set and a time to live.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::kv::{Config, Operation, Store};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::StorageType;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Event, connect_with_options};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::options::NatsOptions;
use crate::registry::RegistryError;

/// How long deletions and expirations stay in a bucket.
const MARKER_TTL: Duration = Duration::from_mins(1);

/// A connection to NATS, which reconnects by itself.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    jetstream: Context,
    options: NatsOptions,
    state: watch::Receiver<State>,
    last_error: Arc<Mutex<Option<String>>>,
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) is_connected: bool,
    /// Number of times that the connection was made.
    pub(super) epoch: u64,
}

/// A bucket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bucket {
    /// In memory: workers register again after a restart of NATS.
    Members,
    /// On disk: a lease stays held over a restart of NATS.
    Leases,
    /// On disk: a name stays bound.
    Bindings,
    /// On disk: what a pool should run.
    Desired,
}

/// The last write to a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Revision {
    /// Its sequence number; 0 if there is none.
    pub(super) number: u64,
    /// The value, unless it was deleted or has expired.
    pub(super) value: Option<Vec<u8>>,
}

/// Why a write failed.
#[derive(Debug)]
pub(super) enum WriteError {
    /// Another write came first.
    Conflict,
    /// The bucket is gone.
    NoBucket,
    /// NATS does not answer.
    Other(RegistryError),
}

impl Connection {
    /// Connects in the background. Fails only if an option is not valid.
    pub(super) async fn open(options: NatsOptions) -> Result<Connection, RegistryError> {
        let addresses = options.addresses()?;
        options.bucket("members")?;
        let (sender, state) = watch::channel(State::default());
        let last_error = Arc::new(Mutex::new(None));
        let (sender, errors) = (Arc::new(sender), Arc::clone(&last_error));
        let connect_options = options.connect_options().event_callback(move |event| {
            on_event(&event, &sender, &errors);
            std::future::ready(())
        });
        let client = connect_with_options(addresses, connect_options).await;
        let client = client.map_err(|error| RegistryError::Unavailable {
            backend: backend(&options),
            reason: error.to_string(),
        })?;
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(options.timeout);
        Ok(Connection { client, jetstream, options, state, last_error })
    }

    /// The state, for those who wait for changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits for the first connection. Later, fails at once while NATS is away.
    pub(super) async fn ready(&self) -> Result<State, RegistryError> {
        let mut state = self.state.clone();
        if state.borrow().epoch == 0 {
            let _ = timeout(self.options.timeout, state.wait_for(|state| state.epoch > 0)).await;
        }
        let state = *state.borrow();
        if state.is_connected {
            return Ok(state);
        }
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(self.unavailable(last_error.unwrap_or_else(|| "no connection".to_owned())))
    }

    /// The subject of a topic of this pool.
    pub(super) fn subject(&self, topic: &str) -> Result<String, RegistryError> {
        Ok(format!("{}.{topic}", self.options.bucket("topics")?))
    }

    /// Opens a bucket, and creates it if it does not exist.
    pub(super) async fn bucket(&self, bucket: Bucket) -> Result<Store, RegistryError> {
        let (suffix, storage) = match bucket {
            Bucket::Members => ("members", StorageType::Memory),
            Bucket::Leases => ("leases", StorageType::File),
            Bucket::Bindings => ("bindings", StorageType::File),
            Bucket::Desired => ("desired", StorageType::File),
        };
        let name = self.options.bucket(suffix)?;
        if let Ok(store) = self.jetstream.get_key_value(&name).await {
            return Ok(store);
        }
        let config = Config {
            bucket: name,
            description: format!("{suffix} of a pool of sconce workers"),
            history: 1,
            storage,
            num_replicas: self.options.replicas,
            limit_markers: Some(MARKER_TTL),
            ..Config::default()
        };
        self.jetstream.create_key_value(config).await.map_err(|error| self.unavailable(error))
    }

    /// Reads the last write to a key.
    pub(super) async fn read(&self, store: &Store, key: &str) -> Result<Revision, RegistryError> {
        let entry = store.entry(key).await.map_err(|error| self.unavailable(error))?;
        Ok(entry.map_or_else(Revision::default, |entry| Revision {
            number: entry.revision,
            value: (entry.operation == Operation::Put).then(|| entry.value.to_vec()),
        }))
    }

    /// Writes a value that expires after `ttl`, if the last write to the key has the number `expected`.
    ///
    /// `Store::create_with_ttl` loses the time to live where the key was deleted before.
    pub(super) async fn write(
        &self,
        store: &Store,
        key: &str,
        value: Vec<u8>,
        ttl: Duration,
        expected: u64,
    ) -> Result<u64, WriteError> {
        let message = PublishMessage::build().payload(value.into()).ttl(whole_seconds(ttl));
        self.publish(store, key, message, expected).await
    }

    /// Writes a value that does not expire, if the last write to the key has the number `expected`.
    pub(super) async fn write_durable(
        &self,
        store: &Store,
        key: &str,
        value: Vec<u8>,
        expected: u64,
    ) -> Result<u64, WriteError> {
        self.publish(store, key, PublishMessage::build().payload(value.into()), expected).await
    }

    /// Deletes a key, if the last write to it has the number `expected`. Watchers can tell it from an expiration.
    pub(super) async fn delete(&self, store: &Store, key: &str, expected: u64) -> Result<(), WriteError> {
        let message = PublishMessage::build().header("KV-Operation", "DEL").ttl(MARKER_TTL);
        self.publish(store, key, message, expected).await.map(|_| ())
    }

    async fn publish(
        &self,
        store: &Store,
        key: &str,
        message: PublishMessage,
        expected: u64,
    ) -> Result<u64, WriteError> {
        let subject = format!("{}{key}", store.put_prefix.as_ref().unwrap_or(&store.prefix));
        let message = message.expected_last_subject_sequence(expected);
        let sent = async { self.jetstream.send_publish(subject, message).await?.await };
        // A connection that is lost meanwhile must not make the caller wait for its return.
        let outcome = timeout(self.options.timeout, sent).await;
        match outcome {
            Ok(Ok(ack)) => Ok(ack.sequence),
            Ok(Err(error)) => Err(match error.kind() {
                PublishErrorKind::WrongLastSequence => WriteError::Conflict,
                PublishErrorKind::StreamNotFound => WriteError::NoBucket,
                PublishErrorKind::WrongLastMessageId
                | PublishErrorKind::TimedOut
                | PublishErrorKind::BrokenPipe
                | PublishErrorKind::MaxAckPending
                | PublishErrorKind::MaxPayloadExceeded
                | PublishErrorKind::Other => WriteError::Other(self.unavailable(error)),
            }),
            Err(_) => Err(WriteError::Other(self.unavailable("timed out"))),
        }
    }

    pub(super) fn unavailable(&self, reason: impl Display) -> RegistryError {
        RegistryError::Unavailable { backend: backend(&self.options), reason: reason.to_string() }
    }
}

/// Name and addresses of NATS.
fn backend(options: &NatsOptions) -> String {
    format!("NATS at {}", options.servers.join(", "))
}

/// Times to live of NATS are whole seconds.
fn whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(Duration::from_secs(1))
}

fn on_event(event: &Event, state: &watch::Sender<State>, last_error: &Mutex<Option<String>>) {
    let note = |error: Option<String>| *last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    match event {
        Event::Connected => {
            debug!("NATS is connected");
            note(None);
            state.send_modify(|state| *state = State { is_connected: true, epoch: state.epoch + 1 });
        }
        Event::Disconnected | Event::Closed => {
            warn!("NATS is away: the last known members are kept");
            state.send_modify(|state| state.is_connected = false);
        }
        Event::ServerError(error) => note(Some(error.to_string())),
        Event::ClientError(error) => note(Some(error.to_string())),
        Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => debug!(%event, "NATS"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live_are_rounded_up() {
        for (millis, seconds) in [(1, 1), (0, 1), (1000, 1), (1001, 2), (3000, 3)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), Duration::from_secs(seconds));
        }
    }
}
