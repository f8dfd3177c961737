//! The members of a pool as one watcher knows them: a pure state machine whose clock is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::boot::BootId;
use crate::record::{Heartbeat, Registration};

/// Time to live of a heartbeat whose registration is not known yet.
const ORPHAN_TTL: Duration = Duration::from_secs(10);

/// A worker with a registration and a live heartbeat of the same boot.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The registration.
    pub registration: &'a Arc<Registration>,
    /// The last heartbeat.
    pub heartbeat: &'a Arc<Heartbeat>,
    /// When the last heartbeat arrived.
    pub received: Instant,
}

/// The members of a pool, by worker id.
///
/// While the backend is connected, a member whose heartbeat is older than its time to live expires by the clock of the
/// watcher. While the backend is away, nobody can renew a heartbeat, and every member stays.
#[derive(Clone, Debug, Default)]
pub struct MemberMap {
    entries: BTreeMap<String, Entry>,
    connected_since: Option<Instant>,
    expirations: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    registration: Option<Arc<Registration>>,
    heartbeat: Option<(Arc<Heartbeat>, Instant)>,
    /// A registration of an older boot than the heartbeat. It counts once the heartbeat has expired.
    waiting: Option<Arc<Registration>>,
    /// Start of the time to live: when the last record arrived, or the last connection.
    renewed: Instant,
}

impl Entry {
    fn member(&self) -> Option<Member<'_>> {
        let (registration, (heartbeat, received)) = (self.registration.as_ref()?, self.heartbeat.as_ref()?);
        let is_live = registration.boot_id == heartbeat.boot_id;
        is_live.then_some(Member { registration, heartbeat, received: *received })
    }

    fn ttl(&self) -> Duration {
        self.registration.as_ref().map_or(ORPHAN_TTL, |registration| registration.ttl())
    }

    /// When the heartbeat expires; without a heartbeat, when the registration is dropped.
    fn deadline(&self) -> Instant {
        let retention =
            || self.registration.as_ref().map_or(ORPHAN_TTL, |registration| registration.retention());
        self.renewed + if self.heartbeat.is_some() { self.ttl() } else { retention() }
    }

    /// Drops the heartbeat. The registration stays, for a worker that comes back.
    fn drop_heartbeat(&mut self, now: Instant) {
        self.heartbeat = None;
        self.registration = self.waiting.take().or(self.registration.take());
        self.renewed = now;
    }
}

impl MemberMap {
    /// Whether the backend is connected. Without it, the map is the last known one.
    pub fn is_connected(&self) -> bool {
        self.connected_since.is_some()
    }

    /// The member with this id.
    pub fn get(&self, worker_id: &str) -> Option<Member<'_>> {
        self.entries.get(worker_id)?.member()
    }

    /// How often a member has expired.
    pub fn expirations(&self) -> u64 {
        self.expirations
    }

    /// The newest boot of this worker with a live heartbeat.
    pub(crate) fn live_boot(&self, worker_id: &str) -> Option<BootId> {
        Some(self.entries.get(worker_id)?.heartbeat.as_ref()?.0.boot_id)
    }

    /// All members, by worker id.
    pub fn iter(&self) -> impl Iterator<Item = Member<'_>> {
        self.entries.values().filter_map(Entry::member)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Takes a registration. While a newer boot has a live heartbeat, it only waits. Returns whether it was taken.
    pub fn register(&mut self, registration: Arc<Registration>, now: Instant) -> bool {
        let entry = self.entry(&registration.worker_id, now);
        if entry.heartbeat.as_ref().is_some_and(|(live, _)| live.boot_id > registration.boot_id) {
            entry.waiting = Some(registration);
            return false;
        }
        entry.registration = Some(registration);
        entry.waiting = None;
        if entry.heartbeat.is_none() {
            entry.renewed = now;
        }
        true
    }

    /// Takes a heartbeat. One of an older boot, or with a sequence number that is not greater than the last one, is
    /// ignored. Returns whether it was taken.
    pub fn heartbeat(&mut self, worker_id: &str, heartbeat: Heartbeat, now: Instant) -> bool {
        let entry = self.entry(worker_id, now);
        if let Some((last, _)) = &entry.heartbeat {
            let order = (heartbeat.boot_id, heartbeat.sequence);
            if order <= (last.boot_id, last.sequence) {
                return false;
            }
        }
        entry.heartbeat = Some((Arc::new(heartbeat), now));
        entry.renewed = now;
        true
    }

    /// Removes a worker that deregistered.
    pub fn deregister(&mut self, worker_id: &str) {
        self.entries.remove(worker_id);
    }

    /// Takes the report of the backend that a worker's heartbeat has expired there. Ignored for one time to live after
    /// a connection: keys also expire while nobody can renew them.
    pub fn heartbeat_expired(&mut self, worker_id: &str, now: Instant) {
        let Some(since) = self.connected_since else { return };
        if let Some(entry) = self.entries.get_mut(worker_id)
            && entry.heartbeat.is_some()
            && now.duration_since(since) > entry.ttl()
        {
            self.expirations += u64::from(entry.member().is_some());
            entry.drop_heartbeat(now);
        }
    }

    /// Drops heartbeats and registrations whose time to live has passed. Does nothing while the backend is away.
    pub fn expire(&mut self, now: Instant) {
        if !self.is_connected() {
            return;
        }
        self.entries.retain(|_, entry| {
            if entry.deadline() > now {
                return true;
            }
            self.expirations += u64::from(entry.member().is_some());
            let was_live = entry.heartbeat.is_some();
            entry.drop_heartbeat(now);
            was_live && entry.registration.is_some()
        });
    }

    /// The next time at which [`expire`](Self::expire) has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let earliest = self.entries.values().map(Entry::deadline).min();
        earliest.filter(|_| self.is_connected())
    }

    /// Marks the backend as connected. Every entry gets a whole time to live, in which its worker reconnects too.
    pub fn connect(&mut self, now: Instant) {
        self.connected_since = Some(now);
        for entry in self.entries.values_mut() {
            entry.renewed = now;
        }
    }

    /// Marks the backend as away.
    pub fn disconnect(&mut self) {
        self.connected_since = None;
    }

    fn entry(&mut self, worker_id: &str, now: Instant) -> &mut Entry {
        let new = || Entry { registration: None, heartbeat: None, waiting: None, renewed: now };
        self.entries.entry(worker_id.to_owned()).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests;
