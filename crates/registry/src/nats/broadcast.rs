//! Messages on NATS, without JetStream.

use std::future::poll_fn;
use std::pin::Pin;

use async_nats::{Message, Subscriber};
use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::mpsc;

use super::keys;
use super::members::NatsRegistry;
use crate::broadcast::{Broadcast, MAX_WAITING, Subscription};
use crate::record::check_id;
use crate::registry::RegistryError;

#[async_trait]
impl Broadcast for NatsRegistry {
    async fn publish(&self, topic: &str, message: Vec<u8>) -> Result<(), RegistryError> {
        check_id("topic", topic)?;
        // A message that waits for the return of NATS would be out of date.
        self.connection.ready().await?;
        let subject = self.connection.subject(&keys::encode(topic))?;
        let sent = self.connection.client.publish(subject, message.into()).await;
        sent.map_err(|error| self.connection.unavailable(error))
    }

    async fn subscribe(&self, topic: &str) -> Result<Subscription, RegistryError> {
        check_id("topic", topic)?;
        let subject = self.connection.subject(&keys::encode(topic))?;
        let subscribed = self.connection.client.subscribe(subject).await;
        let mut messages = subscribed.map_err(|error| self.connection.unavailable(error))?;
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = next(&mut messages) => message,
                    () = sender.closed() => break,
                };
                let Some(message) = message else { break };
                let _ = sender.try_send(message.payload.to_vec());
            }
        });
        Ok(Subscription::new(receiver))
    }
}

async fn next(messages: &mut Subscriber) -> Option<Message> {
    poll_fn(|context| Pin::new(&mut *messages).poll_next(context)).await
}
