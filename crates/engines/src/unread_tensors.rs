//! Tensors of a checkpoint that nothing reads: parts that the description or the head lacks. Decided by names alone,
//! before the weights are downloaded.

use std::collections::HashSet;

use sconce_core::card::ModelCard;
use sconce_core::head::Step;

use crate::assembly::Assembly;
use crate::describe::describe;
use crate::description::{Description, PositionTable};
use crate::weights::{Tensors, WeightsError};

/// Tensors that checkpoints carry without effect on the output: position ids, BERT's pooler, pretraining heads, a
/// decoder, a vision model.
const IDLE: [&str; 24] = [
    "position_ids",
    "inv_freq",
    "pooler.",
    "lm_head.",
    "cls.predictions.",
    "cls.seq_relationship.",
    "lm_predictions.",
    "mask_predictions.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "head.dense.",
    "head.norm.",
    "decoder.",
    "generator_",
    "discriminator_predictions.",
    "vision_model.",
    "vision_tower.",
    "multi_modal_projector.",
    "visual_projection.",
    "text_projection.",
    "logit_scale",
    "rope_freqs.",
    "rope_factors_",
];

/// The tensors among `names` that neither the description nor the head of the card's model reads, sorted, without those
/// known to have no effect. Empty if no description fits.
pub fn unread_tensors(card: &ModelCard, names: &[String]) -> Vec<String> {
    let Ok(description) = describe(card) else { return Vec::new() };
    let listed = Listed(names.iter().map(String::as_str).collect());
    let small = small(&description);
    let Ok(assembly) = Assembly::new(&small, &listed) else { return Vec::new() };
    // A missing tensor is reported by the loader.
    let _ = read(&assembly, small.layers);
    let mut used = assembly.used();
    used.extend(of_head(card, &listed));
    let carried = |name: &str| {
        IDLE.iter().any(|part| name.contains(part))
            || description.names.ignored.iter().any(|part| name.contains(part))
    };
    let mut unread: Vec<String> =
        names.iter().filter(|name| !used.contains(*name) && !carried(name)).cloned().collect();
    unread.sort_unstable();
    unread
}

/// The description with minimal sizes: which tensors are read does not depend on them.
fn small(d: &Description) -> Description {
    Description {
        head_dim: 1,
        hidden: d.heads,
        intermediate: 1,
        vocabulary: 1,
        max_length: 1,
        position_table: d.position_table.map(|table| PositionTable { rows: 1, ..table }),
        ..d.clone()
    }
}

fn read(assembly: &Assembly<'_>, layers: usize) -> Result<(), WeightsError> {
    assembly.token_embeddings()?;
    assembly.position_embeddings()?;
    assembly.token_type_embeddings()?;
    assembly.embedding_norm()?;
    assembly.final_norm()?;
    assembly.bias_table()?;
    (0..layers).try_for_each(|layer| assembly.layer(layer).map(|_| ()))
}

/// The tensors of the head in the model's own weights.
fn of_head(card: &ModelCard, listed: &Listed<'_>) -> Vec<String> {
    let mut used = Vec::new();
    let mut first = |names: Vec<String>| {
        used.extend(names.into_iter().find(|name| listed.0.contains(name.as_str())));
    };
    for step in card.token_steps().iter().chain(&card.steps.value) {
        match step {
            Step::Dense(dense) if dense.folder.is_none() => {
                first(dense.weight.clone());
                first(dense.bias.clone());
            }
            Step::Norm(norm) => {
                for parts in [["weight", "gamma"], ["bias", "beta"]] {
                    let spelled = |name: &String| parts.map(|part| format!("{name}.{part}"));
                    first(norm.name.iter().flat_map(spelled).collect());
                }
            }
            Step::Dense(_) | Step::LogRelu(_) | Step::Normalize => {}
        }
    }
    used
}

/// The names of a checkpoint; every tensor reads as zeros.
struct Listed<'a>(HashSet<&'a str>);

impl Tensors for Listed<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.contains(name).then(Vec::new)
    }

    fn read(&self, _name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        Ok(vec![0.0; shape.iter().product()])
    }
}
