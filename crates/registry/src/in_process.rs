//! A registry, leases, bindings, desired state and messages within one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

use crate::bindings::Bindings;
use crate::boot::BootId;
use crate::broadcast::{Broadcast, MAX_WAITING, Subscription};
use crate::desired::{DesiredModel, DesiredModels, DesiredState, DesiredWatcher};
use crate::lease::{Lease, LeaseGrant};
use crate::member_map::MemberMap;
use crate::record::{Heartbeat, Registration, check_id, check_ttl, encode_both};
use crate::registry::{Registry, RegistryError};
use crate::watcher::{Watcher, until};

/// A registry, leases, bindings, desired state and messages for a pool within one process.
#[derive(Debug)]
pub struct InProcess {
    members: Arc<Members>,
    /// Registrations that were accepted and not removed, of all boots.
    registered: Mutex<HashMap<(String, BootId), Arc<Registration>>>,
    leases: Mutex<Leases>,
    bindings: Mutex<HashMap<String, String>>,
    desired: watch::Sender<Option<Arc<DesiredModels>>>,
    subscribers: Mutex<HashMap<String, Vec<mpsc::Sender<Vec<u8>>>>>,
    expiry: AbortHandle,
}

#[derive(Debug)]
struct Members {
    map: watch::Sender<MemberMap>,
    /// Wakes the task that expires members.
    registered: Notify,
}

#[derive(Debug, Default)]
struct Leases {
    held: HashMap<String, Held>,
    last_fence: u64,
}

#[derive(Debug)]
struct Held {
    fence: u64,
    expires: Instant,
}

impl InProcess {
    /// An empty registry, with a task that expires members.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new() -> InProcess {
        let mut map = MemberMap::default();
        map.connect(Instant::now());
        let members = Arc::new(Members { map: watch::Sender::new(map), registered: Notify::new() });
        let expiry = tokio::spawn(expire(Arc::clone(&members))).abort_handle();
        InProcess {
            members,
            registered: Mutex::default(),
            leases: Mutex::default(),
            bindings: Mutex::default(),
            desired: watch::Sender::new(Some(Arc::default())),
            subscribers: Mutex::default(),
            expiry,
        }
    }

    /// The error of a worker of which a newer boot is alive.
    fn superseded(&self, worker_id: &str, boot_id: BootId) -> Option<RegistryError> {
        let newer = self.members.map.borrow().live_boot(worker_id)?;
        (newer > boot_id).then(|| RegistryError::Superseded { worker_id: worker_id.to_owned(), newer })
    }

    /// Writes both records.
    fn write(&self, registration: Arc<Registration>, heartbeat: Heartbeat) -> Result<(), RegistryError> {
        let (worker_id, now) = (registration.worker_id.clone(), Instant::now());
        if let Some(error) = self.superseded(&worker_id, heartbeat.boot_id) {
            return Err(error);
        }
        self.members.map.send_modify(|map| {
            map.heartbeat(&worker_id, heartbeat, now);
            map.register(registration, now);
        });
        self.members.registered.notify_one();
        Ok(())
    }
}

impl Default for InProcess {
    fn default() -> InProcess {
        InProcess::new()
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

/// Expires members at their deadlines. A heartbeat only moves a deadline back; a registration may add an earlier one.
async fn expire(members: Arc<Members>) {
    loop {
        let deadline = members.map.borrow().next_deadline();
        tokio::select! {
            () = members.registered.notified() => {}
            () = until(deadline) => members.map.send_modify(|map| map.expire(Instant::now())),
        }
    }
}

#[async_trait]
impl Registry for InProcess {
    async fn register(&self, registration: Registration, heartbeat: Heartbeat) -> Result<(), RegistryError> {
        encode_both(&registration, &heartbeat)?;
        let (key, registration) =
            ((registration.worker_id.clone(), registration.boot_id), Arc::new(registration));
        self.write(Arc::clone(&registration), heartbeat)?;
        lock(&self.registered).insert(key, registration);
        Ok(())
    }

    async fn heartbeat(&self, worker_id: &str, heartbeat: Heartbeat) -> Result<(), RegistryError> {
        heartbeat.encode()?;
        let registration = lock(&self.registered).get(&(worker_id.to_owned(), heartbeat.boot_id)).cloned();
        let not_registered = || RegistryError::NotRegistered { worker_id: worker_id.to_owned() };
        self.write(registration.ok_or_else(not_registered)?, heartbeat)
    }

    async fn deregister(&self, worker_id: &str, boot_id: BootId) -> Result<(), RegistryError> {
        lock(&self.registered).remove(&(worker_id.to_owned(), boot_id));
        self.members.map.send_if_modified(|map| {
            let is_live = map.live_boot(worker_id) == Some(boot_id);
            if is_live {
                map.deregister(worker_id);
            }
            is_live
        });
        Ok(())
    }

    fn watch(&self) -> Watcher {
        Watcher::new(self.members.map.subscribe())
    }
}

#[async_trait]
impl Lease for InProcess {
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
        ttl: Duration,
    ) -> Result<Option<LeaseGrant>, RegistryError> {
        check_id("lease name", name)?;
        check_ttl(ttl)?;
        let (mut leases, now) = (lock(&self.leases), Instant::now());
        if leases.held.get(name).is_some_and(|held| held.expires > now) {
            return Ok(None);
        }
        leases.last_fence += 1;
        let (fence, expires) = (leases.last_fence, now + ttl);
        leases.held.insert(name.to_owned(), Held { fence, expires });
        let (name, holder) = (name.to_owned(), holder.to_owned());
        Ok(Some(LeaseGrant { name, holder, fence, ttl, expires }))
    }

    async fn renew(&self, grant: &mut LeaseGrant) -> Result<(), RegistryError> {
        let (mut leases, now) = (lock(&self.leases), Instant::now());
        let held = leases.held.get_mut(&grant.name);
        let Some(held) = held.filter(|held| held.fence == grant.fence && held.expires > now) else {
            return Err(RegistryError::LeaseLost { name: grant.name.clone() });
        };
        held.expires = now + grant.ttl;
        grant.expires = held.expires;
        Ok(())
    }

    async fn release(&self, grant: LeaseGrant) -> Result<(), RegistryError> {
        let mut leases = lock(&self.leases);
        if leases.held.get(&grant.name).is_some_and(|held| held.fence == grant.fence) {
            leases.held.remove(&grant.name);
        }
        Ok(())
    }
}

#[async_trait]
impl Bindings for InProcess {
    async fn bind(&self, name: &str, value: &str) -> Result<String, RegistryError> {
        check_id("bound name", name)?;
        check_id("bound value", value)?;
        Ok(lock(&self.bindings).entry(name.to_owned()).or_insert_with(|| value.to_owned()).clone())
    }

    async fn bound(&self, name: &str) -> Result<Option<String>, RegistryError> {
        check_id("bound name", name)?;
        Ok(lock(&self.bindings).get(name).cloned())
    }
}

#[async_trait]
impl DesiredState for InProcess {
    async fn set_desired(&self, desired: DesiredModel) -> Result<(), RegistryError> {
        desired.encode()?;
        self.desired.send_modify(|models| {
            let models = Arc::make_mut(models.get_or_insert_default());
            models.insert(desired.model.clone(), Arc::new(desired));
        });
        Ok(())
    }

    async fn remove_desired(&self, model: &str) -> Result<bool, RegistryError> {
        check_id("model name", model)?;
        Ok(self
            .desired
            .send_if_modified(|models| Arc::make_mut(models.get_or_insert_default()).remove(model).is_some()))
    }

    fn watch_desired(&self) -> DesiredWatcher {
        DesiredWatcher::new(self.desired.subscribe())
    }
}

#[async_trait]
impl Broadcast for InProcess {
    async fn publish(&self, topic: &str, message: Vec<u8>) -> Result<(), RegistryError> {
        check_id("topic", topic)?;
        if let Some(subscribers) = lock(&self.subscribers).get_mut(topic) {
            subscribers.retain(|subscriber| !subscriber.is_closed());
            for subscriber in subscribers {
                let _ = subscriber.try_send(message.clone());
            }
        }
        Ok(())
    }

    async fn subscribe(&self, topic: &str) -> Result<Subscription, RegistryError> {
        check_id("topic", topic)?;
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        lock(&self.subscribers).entry(topic.to_owned()).or_default().push(sender);
        Ok(Subscription::new(receiver))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
