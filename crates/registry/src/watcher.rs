//! A watcher: a local map of members that a task keeps up to date.

use std::time::Instant;

use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::member_map::MemberMap;

/// Reads the members of a pool. Reading never waits for the backend. Clones share one map; the task that keeps it ends
/// with the last clone.
#[derive(Clone, Debug)]
pub struct Watcher {
    map: watch::Receiver<MemberMap>,
}

impl Watcher {
    pub(crate) fn new(map: watch::Receiver<MemberMap>) -> Watcher {
        Watcher { map }
    }

    /// Calls `read` with the current map. The map does not change meanwhile, so `read` should be short.
    pub fn read<T>(&self, read: impl FnOnce(&MemberMap) -> T) -> T {
        read(&self.map.borrow())
    }

    /// A copy of the current map.
    pub fn snapshot(&self) -> MemberMap {
        self.read(MemberMap::clone)
    }

    /// Whether the backend is connected.
    pub fn is_connected(&self) -> bool {
        self.read(MemberMap::is_connected)
    }

    /// Waits until the map has changed since the last call. Returns `false` if it will never change again.
    pub async fn changed(&mut self) -> bool {
        self.map.changed().await.is_ok()
    }

    /// Waits until `condition` holds. Returns `false` if it never will.
    pub async fn wait_for(&mut self, mut condition: impl FnMut(&MemberMap) -> bool) -> bool {
        self.map.wait_for(|map| condition(map)).await.is_ok()
    }
}

/// Waits until `deadline`, or forever without one.
pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
