//! Rate limits of tenants, which all gateways of a pool hold together: each tells the others what its tenants spend.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sconce_http::Edge;
use sconce_http::keys::{Principal, TenantId};
use sconce_http::refusal::Refusal;
use serde::{Deserialize, Serialize};
use tokio::time::{interval, sleep};
use tracing::debug;

use crate::backend::Backend;

/// Interval of messages to the other gateways.
const INTERVAL: Duration = Duration::from_millis(100);
/// Delay before a subscription that failed starts again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The topic of these messages.
const TOPIC: &str = "usage";

/// The rate limits of one gateway.
pub(super) struct RateLimits {
    edge: Arc<Edge>,
    /// Distinguishes gateways.
    id: u64,
    /// Tokens that tenants with a rate limit have spent since the last message.
    spent: Mutex<HashMap<TenantId, Spent>>,
}

/// Tokens that a tenant has spent; negative if more were returned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Spent {
    rate: f64,
    tokens: i64,
}

/// A message to the other gateways.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    gateway: u64,
    tenants: Vec<(u64, Spent)>,
}

impl RateLimits {
    pub(super) fn new(edge: &Arc<Edge>) -> RateLimits {
        RateLimits { edge: Arc::clone(edge), id: RandomState::new().hash_one(0_u8), spent: Mutex::default() }
    }

    /// Charges tokens to the rate limit of a principal.
    pub(super) fn charge(&self, principal: Principal, tokens: u64) -> Result<(), Refusal> {
        self.edge.charge(principal, tokens as usize)?;
        self.spend(principal, tokens.cast_signed());
        Ok(())
    }

    /// Charges tokens of work that is done already.
    pub(super) fn debit(&self, principal: Principal, tokens: u64) {
        self.edge.debit(principal, tokens as usize);
        self.spend(principal, tokens.cast_signed());
    }

    /// Returns tokens that were charged and not used.
    pub(super) fn refund(&self, principal: Principal, tokens: u64) {
        self.edge.refund(principal, tokens as usize);
        self.spend(principal, -tokens.cast_signed());
    }

    fn spend(&self, principal: Principal, tokens: i64) {
        if let Some(rate) = principal.rate
            && tokens != 0
        {
            let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
            spent.entry(principal.tenant).or_insert(Spent { rate, tokens: 0 }).tokens += tokens;
        }
    }

    /// Tells the other gateways what was spent, forever.
    pub(super) async fn tell(self: Arc<Self>, backend: Arc<dyn Backend>) {
        let mut ticks = interval(INTERVAL);
        loop {
            ticks.tick().await;
            let spent = std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner));
            let tenants: Vec<(u64, Spent)> =
                spent.into_iter().map(|(tenant, spent)| (tenant.0, spent)).collect();
            if tenants.is_empty() {
                continue;
            }
            let Ok(json) = serde_json::to_vec(&Message { gateway: self.id, tenants }) else { continue };
            if let Err(error) = backend.publish(TOPIC, json).await {
                debug!(%error, "other gateways do not know what tenants spend here");
            }
        }
    }

    /// Takes what the other gateways tell, forever.
    pub(super) async fn listen(self: Arc<Self>, backend: Arc<dyn Backend>) {
        loop {
            match backend.subscribe(TOPIC).await {
                Ok(mut messages) => {
                    while let Some(message) = messages.next().await {
                        self.take(&message);
                    }
                }
                Err(error) => debug!(%error, "what tenants spend at other gateways is not known"),
            }
            sleep(RETRY_DELAY).await;
        }
    }

    fn take(&self, message: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Message>(message) else { return };
        if message.gateway == self.id {
            return;
        }
        for (tenant, Spent { rate, tokens }) in message.tenants {
            if !rate.is_finite() || rate <= 0.0 {
                continue;
            }
            let principal = Principal { tenant: TenantId(tenant), rate: Some(rate), ..Principal::default() };
            let amount = tokens.unsigned_abs() as usize;
            if tokens >= 0 {
                // Refills the bucket up to now: what was spent elsewhere is not paid from the time before.
                let _ = self.edge.charge(principal, 0);
                self.edge.debit(principal, amount);
            } else {
                self.edge.refund(principal, amount);
            }
        }
    }
}
