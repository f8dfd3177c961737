//! A NATS server of a test.

pub(crate) use sconce_testkit::nats::NatsServer as Server;
