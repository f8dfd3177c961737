//! Golden outputs are sensitive: each single change must show.

use sconce_core::placement::Dtype;
use sconce_testkit::goldens::{Golden, TINY};
use serde_json::{Value, json};

use crate::support::{Copy, Tensor, load, read_tensors, spec, tokens, worst, write_tensors};

/// What the goldens allow: a mistake that moves less than this would not be seen.
const TOLERANCE: f64 = 1e-4;

/// How far one family's hidden states lie from its golden after a change.
struct Mutant {
    golden: Golden,
    copy: Copy,
    tensors: Vec<Tensor>,
}

impl Mutant {
    fn of(name: &str) -> Mutant {
        let copy = Copy::of(name);
        let tensors = read_tensors(&copy.file("model.safetensors"));
        Mutant { golden: Golden::read(name, "golden.safetensors"), copy, tensors }
    }

    /// With one tensor changed.
    fn moved_by(&self, tensor: &str, change: impl FnOnce(&mut Tensor)) -> f64 {
        let mut tensors = self.tensors.clone();
        change(tensors.iter_mut().find(|found| found.name == tensor).expect("the golden has this tensor"));
        write_tensors(&self.copy.file("model.safetensors"), &tensors);
        let spec = self.copy.read().expect("the copy is a model");
        worst(&self.golden, load(&spec, Dtype::F32).as_ref())
    }

    fn named(&self, ends: &[&str]) -> Vec<&str> {
        let names = self.tensors.iter().map(|tensor| tensor.name.as_str());
        names.filter(|name| ends.iter().any(|end| name.ends_with(end))).collect()
    }
}

/// With one line of the config changed.
fn moved_by_config(name: &str, key: &str, value: Value) -> f64 {
    let copy = Copy::of(name).setting("config.json", key, value);
    let spec = copy.read().expect("the copy is a model");
    worst(&Golden::read(name, "golden.safetensors"), load(&spec, Dtype::F32).as_ref())
}

fn zero(tensor: &mut Tensor) {
    tensor.values.fill(0.0);
}

/// Heads for other tasks, which embedding does not use.
fn is_unused(tensor: &str) -> bool {
    tensor.starts_with("lm_head.") || tensor.starts_with("pooler.")
}

/// Adds the same to every score of a query, so that softmax cancels it.
fn is_key_bias(tensor: &str) -> bool {
    ["key.bias", "k_lin.bias", "attn.k.bias"].iter().any(|end| tensor.ends_with(end))
}

#[test]
fn every_bias_shows_but_those_of_keys() {
    for name in TINY {
        let mutant = Mutant::of(name);
        let biases = mutant.named(&[".bias"]);
        // Six linear layers and two norms a layer, and the norm of the embeddings.
        assert_eq!(biases.iter().filter(|bias| !is_unused(bias)).count(), 17, "{name}");
        for bias in biases {
            let moved = mutant.moved_by(bias, zero);
            let shows = !is_key_bias(bias) && !is_unused(bias);
            assert_eq!(moved > TOLERANCE, shows, "{name} without `{bias}` moves by {moved}");
        }
    }
}

#[test]
fn every_norm_weight_shows() {
    for name in TINY {
        let mutant = Mutant::of(name);
        let weights = mutant.named(&["LayerNorm.weight", "layer_norm.weight"]);
        let used: Vec<_> = weights.into_iter().filter(|weight| !is_unused(weight)).collect();
        assert_eq!(used.len(), 5, "{name}: {used:?}");
        for weight in used {
            let moved = mutant.moved_by(weight, |tensor| tensor.values.fill(1.0));
            assert!(moved > TOLERANCE, "{name} with `{weight}` at one moves by {moved}");
        }
    }
}

#[test]
fn every_matrix_shows() {
    for name in TINY {
        let mutant = Mutant::of(name);
        for tensor in &mutant.tensors {
            if tensor.shape.len() < 2 || is_unused(&tensor.name) {
                continue;
            }
            let moved = mutant.moved_by(&tensor.name, zero);
            assert!(moved > TOLERANCE, "{name} without `{}` moves by {moved}", tensor.name);
        }
    }
}

#[test]
fn the_activation_shows() {
    for name in TINY {
        let key = if name == "tiny-distilbert" { "activation" } else { "hidden_act" };
        assert!(moved_by_config(name, key, json!("gelu")) < TOLERANCE);
        for other in ["gelu_new", "relu"] {
            let moved = moved_by_config(name, key, json!(other));
            assert!(moved > TOLERANCE, "{name} with {other} moves by {moved}");
        }
    }
}

#[test]
fn the_epsilon_of_norms_shows_where_it_is_large() {
    for name in ["tiny-bert", "tiny-roberta", "tiny-mpnet"] {
        let moved = moved_by_config(name, "layer_norm_eps", json!(1e-12));
        assert!(moved > TOLERANCE, "{name} moves by {moved}");
    }
    // DistilBERT's is fixed: what a config says of it does not count.
    assert!(moved_by_config("tiny-distilbert", "layer_norm_eps", json!(1e-3)) < TOLERANCE);
}

#[test]
fn the_first_row_of_positions_shows() {
    for name in TINY {
        let mutant = Mutant::of(name);
        let table = mutant.named(&["position_embeddings.weight"])[0];
        let moved = mutant.moved_by(table, |tensor| tensor.values.rotate_right(tensor.shape[1]));
        assert!(moved > TOLERANCE, "{name} moves by {moved}");
    }
}

#[test]
fn the_padding_that_positions_are_counted_from_shows() {
    for name in ["tiny-roberta", "tiny-xlm-roberta", "tiny-camembert", "tiny-mpnet"] {
        let moved = moved_by_config(name, "pad_token_id", json!(0));
        assert!(moved > TOLERANCE, "{name} moves by {moved}");
    }
}

#[test]
fn every_token_type_shows() {
    for name in ["tiny-bert", "tiny-roberta", "tiny-xlm-roberta", "tiny-camembert"] {
        let mutant = Mutant::of(name);
        let table = mutant.named(&["token_type_embeddings.weight"])[0];
        for row in 0..if name == "tiny-bert" { 2 } else { 1 } {
            let moved = mutant.moved_by(table, |tensor| tensor.values[row * 32..][..32].fill(0.0));
            assert!(moved > TOLERANCE, "{name} without type {row} moves by {moved}");
        }
    }
}

#[test]
fn the_bias_by_distance_shows() {
    let mutant = Mutant::of("tiny-mpnet");
    let table = "encoder.relative_attention_bias.weight";
    assert!(mutant.moved_by(table, zero) > TOLERANCE);
    for bucket in 0..32 {
        // Distance 0 has its bucket among those before; the first of those after stays empty.
        let moved = mutant.moved_by(table, |tensor| tensor.values[bucket * 4..][..4].fill(0.0));
        assert_eq!(moved > TOLERANCE, bucket != 16, "without bucket {bucket} it moves by {moved}");
    }
}

#[test]
fn a_sequence_does_not_see_its_neighbours() {
    for name in TINY {
        let ids = Golden::read(name, "golden.safetensors").ids("ids");
        let encoder = load(&spec(name), Dtype::F32);
        let (own, before, after) = (&ids[..70], &ids[100..190], &ids[200..250]);
        let (other_before, other_after) = (&ids[300..390], &ids[400..450]);
        let first = tokens(encoder.as_ref(), &[before, own, after], None);
        let second = tokens(encoder.as_ref(), &[other_before, own, other_after], None);
        assert_eq!(first[1], second[1], "{name}");
        assert_ne!(first[0], second[0], "{name}");
    }
}
