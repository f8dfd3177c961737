//! From a model's config to its description, or to the refusal that names what is missing.

use sconce_core::card::{ModelCard, Sizes};
use sconce_core::obstacle::Obstacle;
use serde_json::Value;

use crate::config::{Config, Unfit};
use crate::description::{
    Activation, Biases, Description, NormKind, NormPlacement, Pattern, Positions, Relative, Span,
};
use crate::families::{self, FAMILIES, Family, TooLarge};

/// What a card's model is, or why no description fits.
pub fn describe(card: &ModelCard) -> Result<Description, Obstacle> {
    from_config(&card.config, &card.sizes.value)
}

/// What a model is as far as its family reads its config, for limits alone: keys that nobody reads are not refused.
pub(crate) fn outline(config: &Value, sizes: &Sizes) -> Option<Description> {
    let family = families::of(config)?;
    let model_type = config["model_type"].as_str().unwrap_or_default();
    within(family, families::root(config), sizes, model_type).0.ok()
}

/// The most tokens that a model with this config takes, where it is known.
pub fn longest(config: &Value, sizes: &Sizes) -> Option<usize> {
    outline(config, sizes).map(|description| description.longest)
}

/// How many numbers a model with this config has at least, where it is known.
pub fn numbers(config: &Value, sizes: &Sizes) -> Option<u128> {
    let d = outline(config, sizes)?;
    let wide = |size: usize| size as u128;
    let rows = wide(d.vocabulary) + wide(d.positions.map_or(0, |table| table.rows)) + wide(d.types);
    let attention = wide(d.qkv_width()).saturating_add(wide(d.query_width()));
    let layer = attention.saturating_add(wide(d.up_width())).saturating_add(wide(d.intermediate));
    let relative = match &d.relative {
        Some(Relative::Buckets(buckets)) => wide(buckets.count).saturating_mul(wide(d.heads)),
        Some(Relative::Disentangled(d)) => 2 * wide(d.span),
        Some(Relative::Slopes) | None => 0,
    };
    let layers = wide(d.layers).saturating_mul(layer).saturating_add(rows);
    Some(layers.saturating_mul(wide(d.hidden)).saturating_add(relative))
}

pub(crate) fn from_config(config: &Value, sizes: &Sizes) -> Result<Description, Obstacle> {
    let model_type = config["model_type"].as_str().unwrap_or_default();
    let Some(family) = families::of(config) else {
        return Err(unknown(model_type, config, sizes));
    };
    let root = families::root(config);
    let (result, c) = within(family, root, sizes, model_type);
    let missing = match result {
        Ok(description) => {
            let unread = c.unread();
            if unread.is_empty() {
                return Ok(description);
            }
            unread.iter().map(|key| c.unfit(key).0).collect()
        }
        Err(Unfit(what)) => vec![what],
    };
    Err(Obstacle::UnknownArchitecture {
        architecture: format!("{model_type} with {}", missing.join(", ")),
        known: families::model_types(),
        nearest: model_type.to_owned(),
        missing,
    })
}

/// The description of `config` as one of `family`, and the config with what was read of it.
fn within<'a>(
    family: &'static Family,
    config: &'a Value,
    sizes: &Sizes,
    model_type: &str,
) -> (Result<Description, Unfit>, Config<'a>) {
    let c = Config::new(config);
    for names in families::SIZES {
        c.size(names);
    }
    c.skip(family.when.map(|(key, _)| key).as_slice());
    if let Some(TooLarge { key, value, .. }) = families::too_large(sizes) {
        return (Err(Unfit(format!("{key} {value}"))), c);
    }
    let description = start(family, &c, sizes, model_type).and_then(|mut d| {
        (family.describe)(&c, &mut d)?;
        d.longest = d.positions.map_or(d.longest, |table| table.room().min(d.longest));
        fits(&d)?;
        Ok(d)
    });
    (description, c)
}

/// A plain BERT of these sizes.
fn start(
    family: &'static Family,
    c: &Config<'_>,
    sizes: &Sizes,
    model_type: &str,
) -> Result<Description, Unfit> {
    c.none_of(&["quantization_config"])?;
    let head = sizes.hidden.checked_div(sizes.heads).unwrap_or(0);
    let mut d = Description {
        architecture: model_type.to_owned(),
        layers: sizes.layers,
        hidden: sizes.hidden,
        heads: sizes.heads,
        kv_heads: sizes.heads,
        head,
        intermediate: sizes.intermediate,
        vocabulary: sizes.vocabulary,
        longest: sizes.positions,
        positions: Some(Positions { rows: sizes.positions, after: None }),
        types: 0,
        embedding_scale: None,
        embedding_norm: true,
        norm: NormKind::Layer,
        placement: NormPlacement::Post,
        first_norm: true,
        final_norm: false,
        epsilon: c.number(&["layer_norm_eps", "layer_norm_epsilon"], 1e-12),
        global: Span::ALL,
        local: None,
        pattern: Pattern::None,
        scale: 1.0 / (head as f64).sqrt(),
        head_norms: false,
        relative: None,
        biases: Biases::ALL,
        activation: Activation::Gelu,
        gated: false,
        family,
    };
    d.activate(c, &["hidden_act", "activation"], "gelu").or_else(|unfit| {
        // A family that reads its activation elsewhere says so itself.
        if family.names.final_norm.is_empty() { Err(unfit) } else { Ok(()) }
    })?;
    Ok(d)
}

/// The widest head that is read.
const WIDEST_HEAD: usize = 1 << 14;
/// The most tokens for which a bias by distance is laid out before any weight confirms them.
const LONGEST_BIASED: usize = 1 << 16;

/// Sizes that fit together.
fn fits(d: &Description) -> Result<(), Unfit> {
    if d.head > WIDEST_HEAD {
        return Err(Unfit(format!("heads of {} numbers", d.head)));
    }
    if d.relative.is_some() && d.longest > LONGEST_BIASED {
        return Err(Unfit(format!("a bias by distance over {} tokens", d.longest)));
    }
    if let Some(Relative::Buckets(buckets)) = &d.relative
        && buckets.count < 4
    {
        return Err(Unfit(format!("relative_attention_num_buckets {}", buckets.count)));
    }
    let heads = |what: &str| Err(Unfit(format!("{what} over {} heads", d.heads)));
    if d.heads == 0 || d.head == 0 || d.layers == 0 {
        return heads(&format!("hidden {}", d.hidden));
    }
    // Where no config names the width of a head, it is what the heads divide.
    if d.head * d.heads != d.hidden && d.hidden / d.heads == d.head {
        return heads(&format!("hidden {}", d.hidden));
    }
    if d.kv_heads == 0 || !d.heads.is_multiple_of(d.kv_heads) {
        return heads(&format!("{} heads of keys", d.kv_heads));
    }
    if d.longest == 0 {
        return Err(Unfit("max_position_embeddings".to_owned()));
    }
    Ok(())
}

/// The refusal of a `model_type` that no family goes by: the nearest by its name and by the keys of its config, and
/// the keys that the nearest has no place for.
fn unknown(model_type: &str, config: &Value, sizes: &Sizes) -> Obstacle {
    let likeness = |family: &&'static Family| {
        let names = family.model_types.iter().map(|name| strsim::jaro_winkler(name, model_type));
        let (_, c) = within(family, config, sizes, model_type);
        let (shared, unread) = (c.shared() as f64, c.unread().len() as f64);
        names.fold(0.0, f64::max) + shared / (shared + unread + 1.0)
    };
    let nearest = FAMILIES.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let (name, missing) = nearest.map_or_else(Default::default, |family| {
        let (described, c) = within(family, config, sizes, model_type);
        let mut missing: Vec<String> = described.err().map(|Unfit(what)| what).into_iter().collect();
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

impl Description {
    /// Takes the activation that a config names under one of `keys`.
    pub(crate) fn activate(&mut self, c: &Config<'_>, keys: &[&str], default: &str) -> Result<(), Unfit> {
        let key = keys.iter().find(|key| !c.get(key).is_null()).unwrap_or(&keys[0]);
        self.activate_as(key, c.word(keys, default))
    }

    /// Takes the activation that configs call `name`.
    pub(crate) fn activate_as(&mut self, key: &str, name: &str) -> Result<(), Unfit> {
        self.activation = Activation::named(name).ok_or_else(|| Unfit(format!("{key} {name}")))?;
        Ok(())
    }
}

impl Pattern {
    /// The layers that `layer_types` lists, where it is there.
    pub(crate) fn listed(c: &Config<'_>, layers: usize) -> Result<Option<Pattern>, Unfit> {
        let Some(types) = c.get("layer_types").as_array() else { return Ok(None) };
        let local = types.iter().take(layers).map(|kind| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            Some(_) | None => Err(Unfit(format!("layer_types {kind}"))),
        });
        let local: Vec<bool> = local.collect::<Result<_, _>>()?;
        if local.len() < layers {
            return Err(Unfit(format!("layer_types for {} of {layers} layers", local.len())));
        }
        Ok(Some(Pattern::Listed(local)))
    }
}
