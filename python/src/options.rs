//! Keyword arguments that choose a model, a placement, and how text is generated.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::process;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sconce::card::Overrides;
use sconce::planner::evidence::Goal;
use sconce::{
    Band, Constraints, Device, Dtype, EngineId, Event, GenerateOptions, KvCacheDtype, PoolingMode, Runtime,
    StructuredOutput, Task, hub::Progress,
};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::json::from_python;

/// Reads keyword arguments.
pub(crate) fn read<T: DeserializeOwned + Default>(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<T> {
    arguments.map_or_else(|| Ok(T::default()), |arguments| from_python(arguments))
}

/// Which model, and where it may run.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ModelOptions {
    #[serde(deserialize_with = "by_name")]
    device: Option<Device>,
    #[serde(deserialize_with = "by_name")]
    engine: Option<EngineId>,
    #[serde(deserialize_with = "by_name")]
    dtype: Option<Dtype>,
    weights: Option<String>,
    #[serde(deserialize_with = "by_name")]
    band: Option<Band>,
    latency: bool,
    #[serde(deserialize_with = "by_name")]
    task: Option<Task>,
    #[serde(deserialize_with = "by_name")]
    pooling: Option<PoolingMode>,
    normalize: Option<bool>,
    max_length: Option<usize>,
    #[serde(deserialize_with = "by_name")]
    kv_cache_dtype: Option<KvCacheDtype>,
    pub(crate) revision: Option<String>,
    threads: Option<NonZeroUsize>,
    offline: bool,
}

impl ModelOptions {
    pub(crate) fn constraints(&self) -> Constraints {
        Constraints {
            engine: self.engine,
            device: self.device,
            dtype: self.dtype,
            weights: self.weights.clone(),
            band: self.band.unwrap_or(Constraints::default().band),
            goal: if self.latency { Goal::Latency } else { Goal::Throughput },
        }
    }

    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            task: self.task,
            pooling: self.pooling,
            normalize: self.normalize,
            max_length: self.max_length,
            kv_cache_dtype: self.kv_cache_dtype,
        }
    }

    /// The runtime that all models with these options share. A process that was forked has its own.
    pub(crate) fn runtime(&self) -> Runtime {
        type Key = (u32, bool, Option<NonZeroUsize>);
        static RUNTIMES: Mutex<Vec<(Key, Runtime)>> = Mutex::new(Vec::new());
        let key = (process::id(), self.offline, self.threads);
        let mut runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, runtime)) = runtimes.iter().find(|(known, _)| *known == key) {
            return runtime.clone();
        }
        let mut builder = Runtime::builder().offline(self.offline);
        if let Some(threads) = self.threads {
            builder = builder.threads(threads.get());
        }
        let runtime = builder.build();
        runtimes.push((key, runtime.clone()));
        runtime
    }
}

/// What an event reports, and how much of how much is done.
pub(crate) fn progress_of(event: &Event<'_>) -> Option<(String, u64, u64)> {
    match event {
        Event::Proving { placement, done, total } => {
            Some((format!("proving {placement}"), *done as u64, *total as u64))
        }
        Event::Hashing { file, done, total } => Some((format!("hashing {file}"), *done, *total)),
        Event::Loading { placement, done, total } => Some((format!("loading {placement}"), *done, *total)),
        Event::Hub(Progress::File { name, done, total }) => {
            Some((format!("downloading {name}"), *done, *total))
        }
        Event::Retrying { .. } | Event::Hub(_) => None,
    }
}

/// How text is generated. The names are those of `GenerateOptions`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sampling {
    max_tokens: Option<usize>,
    min_tokens: usize,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    logit_bias: BTreeMap<u32, f32>,
    seed: Option<u64>,
    #[serde(deserialize_with = "one_or_many")]
    stop: Vec<String>,
    ignore_eos: bool,
    json_object: bool,
    json_schema: Option<Value>,
    regex: Option<String>,
    grammar: Option<String>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        let default = GenerateOptions::default();
        Sampling {
            max_tokens: default.max_tokens,
            min_tokens: default.min_tokens,
            temperature: default.temperature,
            top_k: default.top_k,
            top_p: default.top_p,
            min_p: default.min_p,
            repetition_penalty: default.repetition_penalty,
            frequency_penalty: default.frequency_penalty,
            presence_penalty: default.presence_penalty,
            logit_bias: default.logit_bias,
            seed: default.seed,
            stop: default.stop,
            ignore_eos: default.ignore_eos,
            json_object: false,
            json_schema: None,
            regex: None,
            grammar: None,
        }
    }
}

impl Sampling {
    /// The options of the library. Of several structures the first one counts.
    pub(crate) fn into_options(self) -> GenerateOptions {
        let structured_output = self
            .json_schema
            .map(StructuredOutput::JsonSchema)
            .or(self.regex.map(StructuredOutput::Regex))
            .or(self.grammar.map(StructuredOutput::Grammar))
            .or(self.json_object.then_some(StructuredOutput::JsonObject));
        GenerateOptions {
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias,
            seed: self.seed,
            stop: self.stop,
            ignore_eos: self.ignore_eos,
            structured_output,
            ..GenerateOptions::default()
        }
    }
}

/// One text, or a list of them.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = Value::deserialize(deserializer)?;
    match texts.as_str() {
        Some(text) => Ok(vec![text.to_owned()]),
        None => Vec::deserialize(texts).map_err(D::Error::custom),
    }
}

/// A value by its name, or none.
fn by_name<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    Option::<String>::deserialize(deserializer)?
        .map(|name| name.parse().map_err(D::Error::custom))
        .transpose()
}
