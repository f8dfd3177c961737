//! Text generation of every family against transformers: logits with a KV cache and without, greedy tokens, batches, dtypes.

use sconce::card::{self, Overrides};
use sconce::{Device, KvCacheDtype, Task};
use sconce_core::batch::{Batch, CachedSequence, OutputKind};
use sconce_core::engine::{Encoder, ModelSpec};
use sconce_core::placement::{Dtype, EngineId};
use sconce_engines::families::FAMILIES;
use sconce_testkit::compare::largest;
use sconce_testkit::goldens::{self, Golden, apart};

use crate::generation::{greedy, ids, words};
use crate::support::{Home, INTERPRETERS, load_on, tokens};

/// Its rotary embedding depends on the context length: up to 128 tokens, and beyond.
const LONG_ROPE: &str = "tiny-phi3-generate";
const CONTEXT: usize = 512;
/// Lengths of prompts that goldens have greedy tokens after.
const PROMPTS: [usize; 4] = [1, 33, 129, 300];
pub(crate) const VOCABULARY: usize = 128;

/// Every golden of text generation.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.generation_goldens).copied()
}

/// The context lengths that a golden is for, each with the lengths of the sequences that it holds for.
pub(crate) fn contexts(name: &str) -> Vec<(usize, std::ops::RangeInclusive<usize>)> {
    if name == LONG_ROPE {
        vec![(128, 1..=128), (CONTEXT, 129..=CONTEXT)]
    } else {
        vec![(CONTEXT, 1..=CONTEXT)]
    }
}

fn spec(name: &str, context: usize) -> ModelSpec {
    let overrides = Overrides { max_length: Some(context), ..Overrides::default() };
    card::read(name, &goldens::folder(name), &overrides).expect("the golden is a model")
}

fn golden(name: &str) -> Golden {
    Golden::read(name, "golden.safetensors")
}

/// The logits after the last `count` tokens of each sequence, all computed together in steps of `step` tokens.
pub(crate) fn logits(
    encoder: &dyn Encoder,
    sequences: &[&[u32]],
    step: usize,
    count: usize,
) -> Vec<Vec<Vec<f32>>> {
    let generator = encoder.generator().expect("it generates");
    let size = generator.cache_layout().block_size;
    let longest = sequences.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let each = longest.div_ceil(size);
    generator.reserve(each * sequences.len()).expect("memory");
    // The blocks of all sequences in turn.
    let blocks = |index: usize| (0..each).map(|block| (block * sequences.len() + index) as u32).collect();
    let mut logits = vec![Vec::new(); sequences.len()];
    for first in (0..longest).step_by(step) {
        let mut batch = Batch::new(OutputKind::Logits);
        let mut requested = Vec::new();
        for (index, ids) in sequences.iter().enumerate().filter(|(_, ids)| ids.len() > first) {
            let end = ids.len().min(first + step);
            let own = (end + count).saturating_sub(ids.len()).min(end - first);
            let cached =
                CachedSequence { length: first, blocks: blocks(index), logits: own, prompt: ids.len() };
            batch.push_cached(&ids[first..end], cached);
            requested.push((index, own));
        }
        let rows = generator.step(&batch).expect("the step is well formed").into_rows();
        let mut rows = rows.iter().map(<[f32]>::to_vec);
        for (index, own) in requested {
            logits[index].extend(rows.by_ref().take(own));
        }
    }
    logits
}

/// The largest difference of logits over all lengths of a golden, computed together in steps of `step` tokens; infinite
/// where the model does not load.
pub(crate) fn worst(
    golden: &Golden,
    encoder: &dyn Encoder,
    step: usize,
    within: impl Fn(usize) -> bool,
) -> f64 {
    let (ids, rows) = (golden.ids("ids"), golden.rows("logits"));
    let lengths = golden.ids("lengths").into_iter().map(|length| length as usize).zip(rows);
    let (lengths, wanted): (Vec<usize>, Vec<&[f64]>) = lengths.filter(|(length, _)| within(*length)).unzip();
    let sequences: Vec<&[u32]> = lengths.iter().map(|&length| &ids[..length]).collect();
    let got = logits(encoder, &sequences, step, 1);
    largest(got.iter().zip(wanted).map(|(got, wanted)| apart(&got[0], wanted)))
}

#[test]
fn logits_are_those_of_transformers() {
    for (engine, name) in INTERPRETERS.into_iter().flat_map(|engine| names().map(move |name| (engine, name)))
    {
        for (context, lengths) in contexts(name) {
            let encoder = load_on(engine, &spec(name, context), Dtype::F32).expect("the golden loads");
            let golden = golden(name);
            for step in [CONTEXT, 37] {
                let worst = worst(&golden, encoder.as_ref(), step, |length| lengths.contains(&length));
                println!("{engine} {name} of {context} by {step}: {worst:.1e}");
                assert!(worst < 1e-4, "{engine} {name} of {context} is off by {worst}");
            }
            for length in golden.lengths().into_iter().filter(|length| lengths.contains(length)) {
                let got = tokens(encoder.as_ref(), &[&golden.ids("ids")[..length]], None).remove(0);
                let off = apart(&got, golden.numbers(&format!("hidden.{length}")));
                assert!(off < 1e-4, "{engine} {name}: hidden states of {length} tokens are off by {off}");
            }
        }
    }
}

#[test]
fn a_sequence_alone_equals_the_same_sequence_among_others() {
    for (engine, name) in INTERPRETERS.into_iter().flat_map(|engine| names().map(move |name| (engine, name)))
    {
        let encoder = load_on(engine, &spec(name, CONTEXT), Dtype::F32).expect("the golden loads");
        let ids = golden(name).ids("ids");
        let sequences: Vec<&[u32]> = [3, 200, 1, 64, 33].iter().map(|&length| &ids[..length]).collect();
        let together = logits(encoder.as_ref(), &sequences, 29, 1);
        for (ids, together) in sequences.iter().zip(together) {
            let alone = logits(encoder.as_ref(), &[ids], CONTEXT, 1).remove(0);
            if engine == EngineId::Native {
                assert_eq!(together, alone, "{name}: {} tokens", ids.len());
            }
            let alone: Vec<f64> = alone[0].iter().copied().map(f64::from).collect();
            let off = apart(&together[0], &alone);
            assert!(off <= 2e-5, "{engine} {name}: {} tokens differ by {off}", ids.len());
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    let home = Home::new();
    for name in names() {
        let (folder, golden) = (words(name, VOCABULARY), golden(name));
        let all = golden.ids("ids");
        for (context, lengths) in contexts(name) {
            let lengths: Vec<usize> = PROMPTS.into_iter().filter(|length| lengths.contains(length)).collect();
            let native = home.model(folder.path()).engine(EngineId::Native).dtype(Dtype::F32);
            let model = native.device(Device::Cpu).max_length(context).open().expect("it opens");
            assert_eq!(model.card().task.value, Task::Generate);
            for &length in &lengths {
                let got = ids(&model, &all[..length], &greedy(64));
                assert_eq!(got, golden.ids(&format!("greedy.{length}")), "{name} after {length} tokens");
            }
            let candle = load_on(EngineId::Candle, &spec(name, context), Dtype::F32).expect("it loads");
            let (same, all) = agreement(&golden, candle.as_ref(), &lengths);
            assert_eq!(same, all, "candle {name} of {context}");
        }
    }
}

/// How many greedy tokens of transformers have the largest logit after those before them, and how many there are.
fn agreement(golden: &Golden, encoder: &dyn Encoder, lengths: &[usize]) -> (usize, usize) {
    let (mut same, mut all) = (0, 0);
    for length in lengths {
        let wanted = golden.ids(&format!("greedy.{length}"));
        let mut ids = golden.ids("ids")[..*length].to_vec();
        ids.extend(&wanted[..wanted.len() - 1]);
        let logits = logits(encoder, &[&ids], 64, wanted.len()).remove(0);
        let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id);
        same += logits.iter().zip(&wanted).filter(|(row, id)| best(row) == Some(**id as usize)).count();
        all += wanted.len();
    }
    (same, all)
}

#[test]
fn bf16_chooses_mostly_the_same_tokens() {
    for name in names() {
        let encoder = match load_on(EngineId::Native, &spec(name, CONTEXT), Dtype::Bf16) {
            Ok(encoder) => encoder,
            Err(obstacle) => {
                assert_eq!(obstacle.code(), "op_missing", "{obstacle}");
                return;
            }
        };
        let (same, all) = agreement(&golden(name), encoder.as_ref(), &PROMPTS[2..]);
        println!("native {name} bf16: {same} of {all} greedy tokens");
        assert!(10 * same >= 9 * all, "{name}: {same} of {all}");
    }
}

#[test]
fn a_quantized_kv_cache_chooses_mostly_the_same_tokens() {
    let overrides = Overrides {
        max_length: Some(CONTEXT),
        kv_cache_dtype: Some(KvCacheDtype::Q8_0),
        ..Overrides::default()
    };
    for name in names() {
        let spec = card::read(name, &goldens::folder(name), &overrides).expect("the golden is a model");
        let encoder = load_on(EngineId::Native, &spec, Dtype::F32).expect("the golden loads");
        let (same, all) = agreement(&golden(name), encoder.as_ref(), &PROMPTS[2..]);
        println!("native {name} with a cache in q8_0: {same} of {all} greedy tokens");
        assert!(10 * same >= 9 * all, "{name}: {same} of {all}");
    }
}
