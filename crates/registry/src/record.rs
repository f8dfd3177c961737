//! The records of a worker: the registration, written on change, and the heartbeat, written at an interval.
//!
//! Both are JSON that workers and gateways of different versions read: names of tasks, devices and obstacles are
//! strings, and unknown fields are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::boot::BootId;

/// Maximum size of a heartbeat as JSON.
pub const MAX_HEARTBEAT_BYTES: usize = 400;
/// Maximum size of a registration as JSON: half of the maximum payload of NATS.
pub const MAX_REGISTRATION_BYTES: usize = 512 * 1024;
/// Maximum size of a worker id.
const MAX_ID_BYTES: usize = 128;
/// Maximum time to live of a heartbeat or a lease.
const MAX_TTL: Duration = Duration::from_hours(24);
/// Minimum retention of a registration after the last heartbeat.
const MIN_RETENTION: Duration = Duration::from_mins(1);

/// What a worker has and offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Id of the worker, unique in its pool. It stays the same when the worker restarts.
    pub worker_id: String,
    /// Id of this start of the worker.
    pub boot_id: BootId,
    /// URL of its API.
    pub url: String,
    /// Version of sconce.
    pub version: String,
    /// Time to live of a heartbeat in milliseconds. A member without a heartbeat for this long expires.
    pub ttl_ms: u64,
    /// Its models, loaded or not.
    #[serde(default)]
    pub models: Vec<ModelRecord>,
    /// Why the worker does not run. Its agent writes this registration in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureRecord>,
}

impl Registration {
    /// Whether a worker process runs, or only its agent speaks for it.
    pub fn is_running(&self) -> bool {
        self.failure.is_none()
    }

    /// Time to live of a heartbeat, at most a day.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms).min(MAX_TTL)
    }

    /// How long the registration is kept after the last heartbeat, for a worker that comes back.
    pub fn retention(&self) -> Duration {
        (self.ttl() * 10).max(MIN_RETENTION)
    }

    /// The registration as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        check_id("worker id", &self.worker_id)?;
        check_ttl(Duration::from_millis(self.ttl_ms))?;
        encode("registration", self, MAX_REGISTRATION_BYTES)
    }

    /// Parses a registration.
    pub fn decode(json: &[u8]) -> Result<Registration, RecordError> {
        decode("registration", json)
    }
}

/// A model of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Its name in requests.
    pub model: String,
    /// Its other names in requests.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Its task, such as `embed`.
    pub task: String,
    /// Maximum number of tokens of a sequence.
    pub max_length: usize,
    /// Whether a pool loaded it, which may unload it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub managed: bool,
    /// Its placements on this worker, usable or not.
    #[serde(default)]
    pub placements: Vec<PlacementRecord>,
}

/// A placement of a model, as `engine/device/dtype`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Its name.
    pub placement: String,
    /// Whether it serves requests.
    pub active: bool,
    /// Numerics class of its outputs, if it is proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Accuracy band, if it is proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<String>,
    /// Why it can't be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<ObstacleRecord>,
}

/// Why a placement can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObstacleRecord {
    /// The stable code.
    pub code: String,
    /// The explanation.
    pub message: String,
}

/// Why a worker does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// How often it crashed, and how the last process ended.
    pub reason: String,
    /// The last lines of its log.
    #[serde(default)]
    pub log: Vec<String>,
}

/// The state of a worker, written at an interval. At most [`MAX_HEARTBEAT_BYTES`] as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Id of this start of the worker.
    #[serde(rename = "boot")]
    pub boot_id: BootId,
    /// Number of this heartbeat, which grows within a boot.
    #[serde(rename = "seq")]
    pub sequence: u64,
    /// Whether the worker takes requests.
    pub state: WorkerState,
    /// Work that it has accepted.
    pub load: Load,
    /// Measured throughput by request size.
    pub rates: Rates,
    /// Free memory by device in MiB, such as `cuda:0`.
    #[serde(default, rename = "free")]
    pub free_memory: BTreeMap<String, u64>,
}

impl Heartbeat {
    /// The heartbeat as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        for (field, value) in [
            ("rates.small", self.rates.small),
            ("rates.medium", self.rates.medium),
            ("rates.large", self.rates.large),
            ("load.latency", self.load.latency),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(RecordError::Invalid { field, value: value.to_string() });
            }
        }
        encode("heartbeat", self, MAX_HEARTBEAT_BYTES)
    }

    /// Parses a heartbeat.
    pub fn decode(json: &[u8]) -> Result<Heartbeat, RecordError> {
        decode("heartbeat", json)
    }
}

/// Whether a worker takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Models are being proved or loaded.
    Starting,
    /// It takes requests.
    Ready,
    /// It takes no requests until it is resumed.
    Paused,
    /// It finishes the requests in flight and stops.
    Draining,
    /// It takes requests, but a placement is quarantined or a model is missing.
    Degraded,
}

/// Work that a worker has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests in flight.
    pub requests: u32,
    /// Tokens in queues and in running batches.
    pub tokens: u64,
    /// Latency of one short request in seconds, without waiting.
    pub latency: f32,
}

/// Measured throughput in tokens per second by request size; 0 while unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Single short texts.
    #[serde(rename = "s")]
    pub small: f32,
    /// Several texts of medium length.
    #[serde(rename = "m")]
    pub medium: f32,
    /// Many long texts.
    #[serde(rename = "l")]
    pub large: f32,
}

/// A record that can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record is too large.
    #[error("the {record} has {size} bytes, more than the maximum of {max}")]
    TooLarge {
        /// The kind of record, such as `heartbeat`.
        record: &'static str,
        /// Its size as JSON.
        size: usize,
        /// Maximum size.
        max: usize,
    },
    /// A field has a value that is not allowed.
    #[error("`{value}` is not a valid {field}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The JSON can't be written or read.
    #[error("the {record} is not valid: {source}")]
    Json {
        /// The kind of record, such as `heartbeat`.
        record: &'static str,
        /// Why.
        source: serde_json::Error,
    },
}

/// Checks a registration with its heartbeat, and returns both as JSON.
pub(crate) fn encode_both(
    registration: &Registration,
    heartbeat: &Heartbeat,
) -> Result<(Vec<u8>, Vec<u8>), RecordError> {
    if registration.boot_id != heartbeat.boot_id {
        return Err(RecordError::Invalid {
            field: "heartbeat.boot_id",
            value: heartbeat.boot_id.to_string(),
        });
    }
    Ok((registration.encode()?, heartbeat.encode()?))
}

/// Checks the id of a worker or a lease.
pub(crate) fn check_id(field: &'static str, id: &str) -> Result<(), RecordError> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(RecordError::Invalid { field, value: id.to_owned() });
    }
    Ok(())
}

/// Checks a time to live.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), RecordError> {
    if ttl.is_zero() || ttl > MAX_TTL {
        return Err(RecordError::Invalid { field: "time to live", value: format!("{ttl:?}") });
    }
    Ok(())
}

/// A record as JSON.
pub(crate) fn encode<T: Serialize>(
    record: &'static str,
    value: &T,
    max: usize,
) -> Result<Vec<u8>, RecordError> {
    let json = serde_json::to_vec(value).map_err(|source| RecordError::Json { record, source })?;
    if json.len() > max {
        return Err(RecordError::TooLarge { record, size: json.len(), max });
    }
    Ok(json)
}

/// Parses a record.
pub(crate) fn decode<T: DeserializeOwned>(record: &'static str, json: &[u8]) -> Result<T, RecordError> {
    serde_json::from_slice(json).map_err(|source| RecordError::Json { record, source })
}

#[cfg(test)]
mod tests;
