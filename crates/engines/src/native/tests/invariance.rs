//! A sequence has the same logits, bit for bit, alone, in batches that sequences join and leave, and after preemption.

use sconce_core::generator::Generator;

use super::*;

/// Most sequences of a step.
const MOST: usize = 64;
/// Most tokens of a prompt, and generated ones.
const TOKENS: [usize; 2] = [40, 8];
/// Blocks of a sequence.
const BLOCKS: usize = (TOKENS[0] + TOKENS[1]).div_ceil(BLOCK_SIZE);
/// Sequences for each kind of kernel: more than 1,000 in all.
const SEQUENCES: usize = 100;

/// Trained weights in a mix of block formats, as in files of K-quants.
struct Mixed(HashMap<String, Vec<usize>>);

impl Tensors for Mixed {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.get(name).cloned()
    }

    fn stored(&self, name: &str) -> Result<Option<StoredTensor>, WeightsError> {
        const FORMATS: [StoredType; 5] =
            [StoredType::Q4_K, StoredType::Q6_K, StoredType::Q5_0, StoredType::Q8_0, StoredType::Q5_K];
        let Some(shape) = self.0.get(name) else { return Ok(None) };
        let mut state = seed(name);
        let (stored, bytes) = if shape.len() == 2 {
            let stored = FORMATS[state as usize % FORMATS.len()];
            let length = stored.bytes_of(shape.iter().product()).expect("whole blocks");
            // With bytes up to 0x23, no f16 is larger than a sixtieth.
            (stored, (0..length).map(|_| (uniform(&mut state).abs() * 36.0) as u8).collect())
        } else {
            let values = GeneratedTensors.read(name, shape)?;
            (StoredType::F32, values.into_iter().flat_map(f32::to_le_bytes).collect())
        };
        Ok(Some(StoredTensor { stored, shape: shape.clone(), bytes }))
    }
}

struct Random(u64);

impl Random {
    /// A number from `least` to `most`.
    fn within(&mut self, least: usize, most: usize) -> usize {
        let share = uniform(&mut self.0).abs();
        (least + (share * (most - least + 1) as f32) as usize).min(most)
    }
}

/// A sequence with a prompt of random length and random tokens after it, in the blocks of `slot`.
fn sequence(random: &mut Random, number: usize, slot: usize) -> Stepped {
    let [prompt, generated] = TOKENS.map(|most| random.within(1, most));
    let ids = tokens(prompt + generated, &format!("sequence {number}"));
    Stepped { prompt, ..Stepped::new(ids, scattered(BLOCKS, (slot * BLOCKS) as u32)) }
}

/// The logits of a sequence that is computed alone: its prompt, then a token per step.
fn alone(generator: &dyn Generator, sequence: &Stepped) -> Vec<Vec<f32>> {
    let Stepped { ids, blocks, prompt, .. } = sequence;
    let mut alone = Stepped { prompt: *prompt, ..Stepped::new(ids.clone(), blocks.clone()) };
    run(generator, &mut [&mut alone], &[&[*prompt][..], &vec![1; ids.len() - prompt]].concat());
    alone.logits
}

/// Computes all sequences in steps of up to `MOST`, which they join and leave at random, some of them after preemption.
/// Returns the number of preemptions, and of sequences in the largest step.
fn together(
    generator: &dyn Generator,
    random: &mut Random,
    all: Vec<(Stepped, Vec<Vec<f32>>)>,
    label: &str,
) -> [usize; 2] {
    let (mut preempted, mut largest) = (0, 0);
    let mut waiting = all.into_iter();
    let mut running: Vec<(Stepped, Vec<Vec<f32>>)> = Vec::new();
    let mut most = MOST;
    loop {
        if largest > MOST / 2 && random.within(0, 9) == 0 {
            most = random.within(2, MOST);
        }
        let joining = random.within(0, 16).min(most.saturating_sub(running.len()));
        running.extend(waiting.by_ref().take(joining));
        match (running.is_empty(), waiting.len()) {
            (true, 0) => return [preempted, largest],
            (true, _) => continue,
            (false, _) => {}
        }
        for (sequence, _) in &mut running {
            if random.within(0, 9) == 0 && sequence.done > 0 {
                preempted += 1;
                sequence.done = 0;
                sequence.logits.clear();
            }
        }
        // A prompt is computed in chunks. After preemption, tokens that were generated may be in the same step as its end.
        let counts =
            running.iter().map(|(sequence, _)| match sequence.prompt.saturating_sub(sequence.done) {
                0 => 1,
                _ => random.within(1, sequence.ids.len() - sequence.done),
            });
        let counts: Vec<usize> = counts.collect();
        largest = largest.max(running.len());
        let mut sequences: Vec<&mut Stepped> = running.iter_mut().map(|(sequence, _)| sequence).collect();
        step(generator, &mut sequences, &counts);
        running.retain(|(sequence, wanted)| {
            let is_done = sequence.done == sequence.ids.len();
            assert!(!is_done || sequence.logits == *wanted, "{label}");
            !is_done
        });
    }
}

#[test]
fn random_sequences_have_the_same_logits_alone_in_batches_and_after_preemption() {
    let config = json!({
        "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 101,
        "max_position_embeddings": 512, "hidden_act": "silu", "rope_theta": 10000.0,
    });
    let d = describe(&card(config)).expect("the family is known");
    let recorded = Recorded::default();
    NativeEngine::new(1).encoder(&d, &recorded, Dtype::F32, LoadedOutput::Logits).expect("it is generated");
    let weights = Mixed(recorded.0.into_inner());
    let narrower = Isa::available().into_iter().map(|isa| (Kernels { dtype: Dtype::Int4, isa }, d.clone()));
    for (number, (kernels, d)) in variants(&d).chain(narrower).enumerate() {
        let engine = NativeEngine { isa: kernels.isa, ..NativeEngine::new(2) };
        let encoder = engine.encoder(&d, &weights, kernels.dtype, LoadedOutput::Logits).expect("it loads");
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(MOST.max(SEQUENCES) * BLOCKS).expect("memory");
        let mut random = Random(number as u64 + 1);
        let all = (0..SEQUENCES).map(|number| {
            let sequence = sequence(&mut random, number, number);
            let logits = alone(generator, &sequence);
            assert!(logits.iter().flatten().all(|logit| logit.is_finite()), "{kernels:?}");
            (sequence, logits)
        });
        let all = all.collect();
        let [preempted, largest] = together(generator, &mut random, all, &format!("{kernels:?}"));
        assert!(
            preempted > 20 && largest > MOST / 2,
            "{preempted} preemptions, {largest} sequences in a step"
        );
    }
}
