//! Leases on NATS.

use std::time::{Duration, Instant};

use async_nats::jetstream::kv::Store;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::connection::{Bucket, Revision, WriteError};
use super::keys;
use super::members::NatsRegistry;
use crate::lease::{Lease, LeaseGrant};
use crate::record::{check_id, check_ttl};
use crate::registry::RegistryError;

/// The value of a lease's key.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    /// Fencing token of the acquisition; 0 in its first write, whose revision is the token.
    fence: u64,
    holder: String,
}

impl NatsRegistry {
    async fn leases(&self) -> Result<Store, RegistryError> {
        self.connection.ready().await?;
        self.connection.bucket(Bucket::Leases).await
    }

    /// Writes the lease if the last write to its key has the number `expected`.
    async fn write_lease(&self, store: &Store, grant: &LeaseGrant, expected: u64) -> Result<u64, WriteError> {
        let held = Held { fence: grant.fence, holder: grant.holder.clone() };
        let json = serde_json::to_vec(&held)
            .map_err(|error| WriteError::Other(self.connection.unavailable(error)))?;
        self.connection.write(store, &keys::encode(&grant.name), json, grant.ttl, expected).await
    }

    /// The last write to the lease's key, if it is of this grant.
    async fn last_of(&self, store: &Store, grant: &LeaseGrant) -> Result<Option<Revision>, RegistryError> {
        let last = self.connection.read(store, &keys::encode(&grant.name)).await?;
        let held = last.value.as_deref().and_then(|json| serde_json::from_slice::<Held>(json).ok());
        let fence = held.map(|held| if held.fence == 0 { last.number } else { held.fence });
        Ok((fence == Some(grant.fence)).then_some(last))
    }

    fn lease_failed(&self, error: WriteError) -> RegistryError {
        match error {
            WriteError::Conflict => self.connection.unavailable("another write came first"),
            WriteError::NoBucket => self.connection.unavailable("the bucket of leases is gone"),
            WriteError::Other(error) => error,
        }
    }
}

#[async_trait]
impl Lease for NatsRegistry {
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
        ttl: Duration,
    ) -> Result<Option<LeaseGrant>, RegistryError> {
        check_id("lease name", name)?;
        check_ttl(ttl)?;
        let store = self.leases().await?;
        let last = self.connection.read(&store, &keys::encode(name)).await?;
        if last.value.is_some() {
            return Ok(None);
        }
        let mut grant = LeaseGrant {
            name: name.to_owned(),
            holder: holder.to_owned(),
            fence: 0,
            ttl,
            expires: Instant::now() + ttl,
        };
        match self.write_lease(&store, &grant, last.number).await {
            Ok(number) => {
                grant.fence = number;
                Ok(Some(grant))
            }
            Err(WriteError::Conflict) => Ok(None),
            Err(error) => Err(self.lease_failed(error)),
        }
    }

    async fn renew(&self, grant: &mut LeaseGrant) -> Result<(), RegistryError> {
        let (store, start) = (self.leases().await?, Instant::now());
        let is_lost = || RegistryError::LeaseLost { name: grant.name.clone() };
        let last = self.last_of(&store, grant).await?.ok_or_else(is_lost)?;
        match self.write_lease(&store, grant, last.number).await {
            Ok(_) => {
                grant.expires = start + grant.ttl;
                Ok(())
            }
            Err(WriteError::Conflict) => Err(is_lost()),
            Err(error) => Err(self.lease_failed(error)),
        }
    }

    async fn release(&self, grant: LeaseGrant) -> Result<(), RegistryError> {
        let store = self.leases().await?;
        let Some(last) = self.last_of(&store, &grant).await? else { return Ok(()) };
        match self.connection.delete(&store, &keys::encode(&grant.name), last.number).await {
            Ok(()) | Err(WriteError::Conflict) => Ok(()),
            Err(error) => Err(self.lease_failed(error)),
        }
    }
}
