//! Messages between the processes of a pool.

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::registry::RegistryError;

/// Messages that wait for a subscriber. Further ones are dropped.
pub(crate) const MAX_WAITING: usize = 1024;

/// Sends messages to all processes of a pool. Best effort: a message may be lost, and its sender receives it too.
#[async_trait]
pub trait Broadcast: Send + Sync {
    /// Sends a message to the subscribers of a topic.
    async fn publish(&self, topic: &str, message: Vec<u8>) -> Result<(), RegistryError>;

    /// Subscribes to a topic.
    async fn subscribe(&self, topic: &str) -> Result<Subscription, RegistryError>;
}

/// The messages of a topic.
#[derive(Debug)]
pub struct Subscription {
    messages: mpsc::Receiver<Vec<u8>>,
}

impl Subscription {
    pub(crate) fn new(messages: mpsc::Receiver<Vec<u8>>) -> Subscription {
        Subscription { messages }
    }

    /// The next message. `None` if there will be none.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await
    }
}
