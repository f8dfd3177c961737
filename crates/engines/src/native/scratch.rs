//! Scratch memory that threads keep between blocks, and its limit.

/// Maximum bytes of scratch memory that a thread keeps: enough for a block of a large model, not for one long sequence.
const KEPT: usize = 32 << 20;

/// Scratch memory with a known size.
pub(super) trait ScratchMemory: Default {
    /// Allocated bytes.
    fn bytes(&self) -> usize;
}

/// Runs `work` with this thread's scratch memory, and frees the memory if it exceeds the limit.
pub(super) fn bounded<S: ScratchMemory, T>(scratch: &mut S, work: impl FnOnce(&mut S) -> T) -> T {
    let result = work(scratch);
    if scratch.bytes() > KEPT {
        *scratch = S::default();
    }
    result
}

#[cfg(test)]
mod tests {
    use sconce_core::batch::OutputKind;
    use sconce_kernels::bf16::Bf16;
    use sconce_kernels::isa::Isa;
    use sconce_kernels::team::Team;
    use serde_json::json;

    use super::super::forward_bf16::ForwardBf16;
    use super::super::forward_f32::{self, ForwardF32, PackF32};
    use super::super::matrix::Cpu;
    use super::super::pack_bf16::PackBf16;
    use super::super::scratch_bf16;
    use super::super::weights::Weights;
    use super::*;
    use crate::describe::describe;
    use crate::description::Description;
    use crate::probe;
    use crate::testing::card;
    use crate::weights::GeneratedTensors;

    /// Tokens of a long sequence.
    const LONG: usize = 4096;

    fn description(model_type: &str) -> Description {
        let mut config = json!({
            "model_type": model_type, "num_hidden_layers": 1, "hidden_size": 512, "num_attention_heads": 4,
            "intermediate_size": 2048, "vocab_size": 90, "max_position_embeddings": LONG,
        });
        if model_type == "deberta-v2" {
            config["relative_attention"] = json!(true);
            config["pos_att_type"] = json!("p2c|c2p");
            config["position_buckets"] = json!(32);
        }
        describe(&card(config)).expect("the family is known")
    }

    /// Allocated bytes after a sequence of each of these lengths in turn.
    fn held<S: ScratchMemory>(lengths: [usize; 3], mut compute: impl FnMut(&mut S, usize)) -> [usize; 3] {
        let mut scratch = S::default();
        lengths.map(|length| {
            bounded(&mut scratch, |scratch| compute(scratch, length));
            scratch.bytes()
        })
    }

    #[test]
    fn scratch_memory_is_kept_for_blocks_and_freed_after_a_long_text() {
        for model_type in ["bert", "deberta-v2"] {
            let d = description(model_type);
            let activation = d.activation.kernel();
            let batch = |length: usize| probe::batch(&[length], 1, OutputKind::Tokens, &d);
            let (isa, team) = (Isa::best(), &Team::single());
            let weights = Weights::load(&d, &GeneratedTensors, &PackF32(isa, Team::single()), false)
                .expect("generated weights");
            let model = ForwardF32 { d: &d, weights: &weights, cpu: Cpu::new(isa, team), activation };
            let [block, long, after] =
                held([256, LONG, 256], |scratch: &mut forward_f32::Scratch, length| {
                    model.hidden::<f32>(&batch(length), None, scratch);
                });
            assert!(block > 1 << 20 && block <= KEPT, "{model_type}: a block keeps its {block} bytes");
            assert_eq!((long, after), (0, block), "{model_type} in f32");
            let Some(unit) = Bf16::of(isa) else { continue };
            let weights = Weights::load(&d, &GeneratedTensors, &PackBf16(unit, Team::single()), false)
                .expect("generated weights");
            let model = ForwardBf16 { d: &d, weights: &weights, activation, unit, team };
            let [block, long, after] =
                held([256, LONG, 256], |scratch: &mut scratch_bf16::Scratch, length| {
                    model.hidden(&batch(length), None, scratch);
                });
            assert!(block > 1 << 20 && block <= KEPT, "{model_type}: a block keeps its {block} bytes");
            assert_eq!((long, after), (0, block), "{model_type} in bf16");
        }
    }
}
