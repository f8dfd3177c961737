//! Ollama's API.

pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod models;
mod options;
mod writer;

use std::time::{Duration, SystemTime};

use crate::state::app::App;

/// The model that a request names: `NAME:latest` is `NAME`, unless a model has the longer name.
fn model_name<'a>(app: &App, name: Option<&'a str>) -> Option<&'a str> {
    let name = name.filter(|name| !name.is_empty())?;
    let is_known = |name: &str| app.slots().iter().any(|slot| slot.has_name(name));
    Some(name.strip_suffix(":latest").filter(|_| !is_known(name)).unwrap_or(name))
}

/// A time in RFC 3339.
fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
