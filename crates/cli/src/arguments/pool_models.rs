//! Commands of `sconce pool` that change which models a pool runs.

use std::str::FromStr;

use clap::Args;

use crate::model_name::ModelName;

#[derive(Args)]
pub(crate) struct PoolLoad {
    /// Model: a short name, a folder, a GGUF file or a hub id, as the workers know it; the gateway's operator key is read
    /// from `SCONCE_API_KEY`
    #[arg(value_parser = ModelName, hide_possible_values = true)]
    pub(crate) model: String,
    /// Name of the model in requests; by default that of the source
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Number of replicas, such as `2` or `1..3`; with `0..N` the model is loaded when a request names it
    #[arg(long, value_name = "MIN..MAX", default_value = "1")]
    pub(crate) replicas: Replicas,
    /// Numerics class that replicas must have, such as `461edade540d-half`
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// URL of a gateway
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) gateway: String,
    /// Wait until the minimum number of replicas is loaded
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Args)]
pub(crate) struct PoolUnload {
    /// Name or source of the model; the gateway's operator key is read from `SCONCE_API_KEY`
    pub(crate) model: String,
    /// URL of a gateway
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) gateway: String,
}

/// A range of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl FromStr for Replicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Replicas, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u32>().ok();
        match (number(min), number(max)) {
            (Some(min), Some(max)) if min <= max && max > 0 => Ok(Replicas { min, max }),
            _ => Err("expected a number above 0, or MIN..MAX".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_a_number_or_a_range() {
        let parsed = |text: &str| text.parse::<Replicas>().ok().map(|one| (one.min, one.max));
        assert_eq!(parsed("2"), Some((2, 2)));
        assert_eq!(parsed("0..1"), Some((0, 1)));
        assert_eq!(parsed("1..3"), Some((1, 3)));
        for wrong in ["", "0", "0..0", "3..1", "..2", "1..", "1..2..3", "-1", "a"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
