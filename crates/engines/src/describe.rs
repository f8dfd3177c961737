//! From a model's config to its description, or to an obstacle that names the unsupported keys.

use sconce_core::card::{ModelCard, Sizes, Task};
use sconce_core::obstacle::Obstacle;
use serde_json::Value;

use crate::config::{Config, Unsupported};
use crate::description::{Description, Experts, RelativePositions};
use crate::families::{self, FAMILIES, Family, TooLarge};

/// Describes the card's model, for its task.
pub fn describe(card: &ModelCard) -> Result<Description, Obstacle> {
    let mut description = from_config(&card.config, &card.sizes.value)?;
    for window in [Some(&mut description.global), description.local.as_mut()].into_iter().flatten() {
        window.rope.iter_mut().for_each(|rope| rope.set_context(card.max_length.value));
    }
    description.kv_cache_dtype = card.generation.kv_cache_dtype;
    match unsupported_in_generation(&description) {
        Some(what) if card.task.value == Task::Generate => {
            Err(unsupported(&description.architecture, vec![what]))
        }
        Some(_) | None => Ok(description),
    }
}

/// What keeps a model from generating text: attention that is not causal, or positions that are not rotary.
fn unsupported_in_generation(d: &Description) -> Option<String> {
    let mut windows = [Some(&d.global), d.local.as_ref()].into_iter().flatten();
    if windows.any(|window| window.after != Some(0)) {
        return Some("text generation: its attention is not causal".to_owned());
    }
    if d.position_table.is_some() || d.relative_positions.is_some() {
        return Some("text generation: its positions are not rotary".to_owned());
    }
    None
}

/// The description without the check for unread keys, for size limits.
pub(crate) fn outline(config: &Value, sizes: &Sizes) -> Option<Description> {
    let family = families::of(config)?;
    let model_type = config["model_type"].as_str().unwrap_or_default();
    describe_as(family, families::root(config), sizes, model_type).0.ok()
}

/// Maximum sequence length of a model with this config, if the family is known.
pub fn max_length(config: &Value, sizes: &Sizes) -> Option<usize> {
    outline(config, sizes).map(|description| description.max_length)
}

/// Lower bound of the parameter count of a model with this config, if the family is known.
pub fn parameter_count(config: &Value, sizes: &Sizes) -> Option<u128> {
    let d = outline(config, sizes)?;
    let wide = |size: usize| size as u128;
    let rows =
        wide(d.vocabulary) + wide(d.position_table.map_or(0, |table| table.rows)) + wide(d.token_types);
    let attention = wide(d.qkv_width()).saturating_add(wide(d.query_width()));
    let block = wide(d.up_width()).saturating_add(wide(d.intermediate));
    let layer = attention.saturating_add(block.saturating_mul(wide(d.blocks())));
    let relative = match &d.relative_positions {
        Some(RelativePositions::BucketedBias(buckets)) => wide(buckets.count).saturating_mul(wide(d.heads)),
        Some(RelativePositions::Disentangled(d)) => 2 * wide(d.pos_ebd_size),
        Some(RelativePositions::Alibi) | None => 0,
    };
    let layers = wide(d.layers).saturating_mul(layer).saturating_add(rows);
    Some(layers.saturating_mul(wide(d.hidden)).saturating_add(relative))
}

pub(crate) fn from_config(config: &Value, sizes: &Sizes) -> Result<Description, Obstacle> {
    let model_type = config["model_type"].as_str().unwrap_or_default();
    let Some(family) = families::of(config) else {
        return Err(unknown_architecture(model_type, config, sizes));
    };
    let root = families::root(config);
    let (result, c) = describe_as(family, root, sizes, model_type);
    let missing = match result {
        Ok(description) => {
            let unread = c.unread();
            if unread.is_empty() {
                return Ok(description);
            }
            unread.iter().map(|key| c.unsupported(key).0).collect()
        }
        Err(Unsupported(what)) => vec![what],
    };
    Err(unsupported(model_type, missing))
}

/// The obstacle of a known family with parts that are not supported.
fn unsupported(model_type: &str, missing: Vec<String>) -> Obstacle {
    Obstacle::UnknownArchitecture {
        architecture: format!("{model_type} with {}", missing.join(", ")),
        known: families::model_types(),
        nearest: model_type.to_owned(),
        missing,
    }
}

/// Describes `config` as a model of `family`; returns the config too, which records the keys that were read.
fn describe_as<'a>(
    family: &'static Family,
    config: &'a Value,
    sizes: &Sizes,
    model_type: &str,
) -> (Result<Description, Unsupported>, Config<'a>) {
    let c = Config::new(config);
    for keys in families::SIZES {
        c.size(keys);
    }
    c.skip(family.condition.map(|(key, _)| key).as_slice());
    // Published configs carry these keys even if the family reads others instead.
    c.skip(&["layer_norm_eps", "layer_norm_epsilon", "hidden_act", "activation"]);
    if let Some(TooLarge { key, value, .. }) = families::too_large(sizes) {
        return (Err(Unsupported(format!("{key} {value}"))), c);
    }
    let describe = || {
        c.require_off(&["quantization_config"])?;
        let mut d = Description::neutral(model_type, sizes, &family.names);
        (family.describe)(&c, &mut d)?;
        d.max_length = d.position_table.map_or(d.max_length, |table| table.max_length().min(d.max_length));
        check_sizes(&d)?;
        Ok(d)
    };
    (describe(), c)
}

/// Maximum head dimension.
const MAX_HEAD_DIM: usize = 1 << 14;
/// Maximum sequence length with relative position biases, whose table is allocated before any weight confirms it.
const MAX_BIASED_LENGTH: usize = 1 << 16;

/// Maximum number of experts.
const MAX_EXPERTS: usize = 1 << 10;

/// Checks that the sizes are consistent.
fn check_sizes(d: &Description) -> Result<(), Unsupported> {
    if d.head_dim > MAX_HEAD_DIM {
        return Err(Unsupported(format!("heads of dimension {}", d.head_dim)));
    }
    if d.relative_positions.is_some() && d.max_length > MAX_BIASED_LENGTH {
        return Err(Unsupported(format!("a bias by distance over {} tokens", d.max_length)));
    }
    if let Some(RelativePositions::BucketedBias(buckets)) = &d.relative_positions
        && buckets.count < 4
    {
        return Err(Unsupported(format!("relative_attention_num_buckets {}", buckets.count)));
    }
    // A size that the config lacks is zero as well.
    let sizes = [d.layers, d.hidden, d.heads, d.intermediate, d.vocabulary];
    if let Some(([key, ..], _)) = families::SIZES.iter().zip(sizes).find(|(_, size)| *size == 0) {
        return Err(Unsupported(format!("{key} 0")));
    }
    let heads = |what: &str| Err(Unsupported(format!("{what} over {} heads", d.heads)));
    if d.head_dim == 0 {
        return heads(&format!("hidden {}", d.hidden));
    }
    // Without `head_dim` in the config, the heads divide the hidden size.
    if d.head_dim * d.heads != d.hidden && d.hidden / d.heads == d.head_dim {
        return heads(&format!("hidden {}", d.hidden));
    }
    if d.kv_heads == 0 || !d.heads.is_multiple_of(d.kv_heads) {
        return heads(&format!("{} heads of keys", d.kv_heads));
    }
    if let Some(Experts { count, per_token, .. }) = d.experts
        && (per_token == 0 || per_token > count || count > MAX_EXPERTS)
    {
        return Err(Unsupported(format!("{per_token} of {count} experts per token")));
    }
    if d.max_length == 0 {
        return Err(Unsupported("max_position_embeddings".to_owned()));
    }
    Ok(())
}

/// The obstacle for an unknown `model_type`: names the most similar family, by name and config keys, and the keys
/// that this family does not support.
fn unknown_architecture(model_type: &str, config: &Value, sizes: &Sizes) -> Obstacle {
    let likeness = |family: &&'static Family| {
        let names = family.model_types.iter().map(|name| strsim::jaro_winkler(name, model_type));
        let (_, c) = describe_as(family, config, sizes, model_type);
        let (shared, unread) = (c.matched_keys() as f64, c.unread().len() as f64);
        names.fold(0.0, f64::max) + shared / (shared + unread + 1.0)
    };
    let nearest = FAMILIES.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let (name, missing) = nearest.map_or_else(Default::default, |family| {
        let (described, c) = describe_as(family, config, sizes, model_type);
        let mut missing: Vec<String> = described.err().map(|Unsupported(what)| what).into_iter().collect();
        missing.extend(c.unread());
        (family.model_types[0].to_owned(), missing)
    });
    Obstacle::UnknownArchitecture {
        architecture: model_type.to_owned(),
        known: families::model_types(),
        nearest: name,
        missing,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::card;

    #[test]
    fn a_size_of_zero_is_an_obstacle_that_names_its_key() {
        let keys =
            ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"];
        for (model_type, key) in ["bert", "llama"].iter().flat_map(|family| keys.map(|key| (family, key))) {
            let mut config = json!({
                "model_type": model_type, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
                "intermediate_size": 128, "vocab_size": 90, "max_position_embeddings": 128,
            });
            if *model_type == "llama" {
                // Heads of their own dimension need no hidden size.
                config["head_dim"] = json!(32);
            }
            assert!(describe(&card(config.clone())).is_ok(), "{config}");
            config[key] = json!(0);
            let error = describe(&card(config)).expect_err("nothing can be computed").to_string();
            assert!(error.contains(&format!("{model_type} with {key} 0")), "{error}");
        }
    }
}
