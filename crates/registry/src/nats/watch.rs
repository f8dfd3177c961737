//! Watches the members on NATS.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use async_nats::jetstream::kv::{Entry, Operation, Store, Watch};
use futures_core::Stream;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::connection::{Bucket, Connection, State};
use super::keys::MemberKey;
use crate::member_map::MemberMap;
use crate::record::{Heartbeat, RecordError, Registration};
use crate::registry::RegistryError;
use crate::watcher::{Watcher, until};

/// Delay before a watch that failed starts again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Starts a task that keeps a map until its watchers are dropped.
pub(super) fn watch(connection: Arc<Connection>) -> Watcher {
    let (sender, receiver) = watch::channel(MemberMap::default());
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = run(&connection, &sender) => {}
        }
    });
    Watcher::new(receiver)
}

/// Follows the bucket while NATS is connected, and keeps the map while it is not.
async fn run(connection: &Connection, map: &watch::Sender<MemberMap>) {
    let mut state = connection.subscribe();
    loop {
        let Ok(epoch) = state.wait_for(|state| state.is_connected).await.map(|state| state.epoch) else {
            return;
        };
        let same = |state: &State| state.is_connected && state.epoch == epoch;
        tokio::select! {
            _ = state.wait_for(|state| !same(state)) => {}
            Err(error) = follow(connection, map) => debug!(%error, "the watch of members starts again"),
        }
        if map.borrow().is_connected() {
            map.send_modify(MemberMap::disconnect);
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Follows the bucket until that fails.
async fn follow(connection: &Connection, map: &watch::Sender<MemberMap>) -> Result<(), RegistryError> {
    let store = connection.bucket(Bucket::Members).await?;
    let mut entries = store.watch_with_history(">").await.map_err(|error| connection.unavailable(error))?;
    map.send_modify(|map| map.connect(Instant::now()));
    loop {
        // Heartbeats only move deadlines back; a registration may have an earlier one.
        let deadline = map.borrow().next_deadline();
        let expires = until(deadline);
        tokio::pin!(expires);
        loop {
            tokio::select! {
                entry = next(&mut entries) => {
                    let entry = entry.unwrap_or_else(|| Err("the watch ended".to_owned()));
                    let entry = entry.map_err(|reason| connection.unavailable(reason))?;
                    if apply(map, &entry) {
                        break;
                    }
                }
                () = &mut expires => {
                    expire(connection, &store, &mut entries, map).await?;
                    break;
                }
            }
        }
    }
}

/// Expires members once JetStream has answered a request, and after the entries that came before that answer: heartbeats
/// may be missing because JetStream or this process was stopped, not the workers.
async fn expire(
    connection: &Connection,
    store: &Store,
    entries: &mut Watch,
    map: &watch::Sender<MemberMap>,
) -> Result<(), RegistryError> {
    let now = Instant::now();
    // Heartbeats have moved the deadline since it was read.
    if map.borrow().next_deadline().is_none_or(|deadline| deadline > now) {
        return Ok(());
    }
    store.stream.get_info().await.map_err(|error| connection.unavailable(error))?;
    while let Some(Some(Ok(entry))) = ready(entries).await {
        apply(map, &entry);
    }
    map.send_modify(|map| map.expire(now));
    Ok(())
}

/// Applies an entry to the map. Returns whether the next deadline may be earlier now.
fn apply(map: &watch::Sender<MemberMap>, entry: &Entry) -> bool {
    let now = Instant::now();
    let Some(key) = MemberKey::parse(&entry.key) else { return false };
    let invalid = |error: RecordError| warn!(key = entry.key, %error, "a record was ignored");
    match (key, entry.operation) {
        (MemberKey::Registration(id), Operation::Put) => match Registration::decode(&entry.value) {
            Ok(registration) if registration.worker_id != id => false,
            Ok(registration) => map.send_if_modified(|map| map.register(Arc::new(registration), now)),
            Err(error) => {
                invalid(error);
                false
            }
        },
        (MemberKey::Heartbeat(id), Operation::Put) => match Heartbeat::decode(&entry.value) {
            Ok(heartbeat) => {
                let is_known = map.borrow().live_boot(&id).is_some();
                map.send_if_modified(|map| map.heartbeat(&id, heartbeat, now)) && !is_known
            }
            Err(error) => {
                invalid(error);
                false
            }
        },
        (MemberKey::Registration(id), Operation::Delete) => {
            map.send_modify(|map| map.deregister(&id));
            false
        }
        (MemberKey::Heartbeat(id), Operation::Purge) => {
            map.send_modify(|map| map.heartbeat_expired(&id, now));
            false
        }
        // The registration was deleted before, or outlives its key in the map.
        (MemberKey::Heartbeat(_), Operation::Delete) | (MemberKey::Registration(_), Operation::Purge) => {
            false
        }
    }
}

/// The next entry.
async fn next(entries: &mut Watch) -> Option<Result<Entry, String>> {
    let entry = poll_fn(|context| Pin::new(&mut *entries).poll_next(context)).await;
    entry.map(|entry| entry.map_err(|error| error.to_string()))
}

/// The next entry that has arrived, if any.
async fn ready(entries: &mut Watch) -> Option<Option<Result<Entry, String>>> {
    poll_fn(|context| match Pin::new(&mut *entries).poll_next(context) {
        Poll::Ready(entry) => Poll::Ready(Some(entry.map(|entry| entry.map_err(|error| error.to_string())))),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
