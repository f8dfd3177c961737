//! Heads of every family against transformers and sentence-transformers.

use std::fs;

use sconce::tokenize::ModelTokenizer;
use sconce::{ClassifyOptions, EmbedOptions, RerankOptions, Scoring, Task, TruncationStrategy};
use sconce_core::batch::{Batch, OutputKind};
use sconce_core::engine::{Encoder, ModelSpec};
use sconce_core::placement::{Dtype, EngineId};
use sconce_testkit::compare::{largest, max_difference};
use sconce_testkit::goldens::{self, CLASSIFY, Golden, RERANK, SPARSE, TOKENS, WIDER_HEADS, cosine};

use crate::support::{Home, INTERPRETERS, load_on, spec, texts};

/// The lengths that the goldens have answers for.
const LENGTHS: [usize; 5] = [1, 2, 7, 33, 128];
/// How far numbers may lie apart, relative to theirs where they are above one.
const TOLERANCE: f64 = 1e-4;

/// The largest difference relative to the wanted numbers, where those are above one.
fn off(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    largest(got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - b).abs() / b.abs().max(1.0)))
}

/// One row a sequence.
fn answers(encoder: &dyn Encoder, sequences: &[(&[u32], &[u32])]) -> Vec<Vec<f32>> {
    let mut batch = Batch::new(OutputKind::Pooled);
    for (ids, types) in sequences {
        batch.push(ids, types, 0);
    }
    let rows = encoder.encode(&batch).expect("the batch is computed").into_rows();
    rows.iter().map(<[f32]>::to_vec).collect()
}

/// The answers to the golden's ids at every length, in one batch.
fn at_lengths(encoder: &dyn Encoder, golden: &Golden) -> Vec<Vec<f32>> {
    let (ids, types) = (golden.ids("ids"), [0; 128]);
    let sequences: Vec<_> = LENGTHS.iter().map(|&length| (&ids[..length], &types[..length])).collect();
    answers(encoder, &sequences)
}

pub(crate) fn pairs(name: &str) -> Vec<(String, String)> {
    let bytes = fs::read(goldens::folder(name).join("pairs.json")).expect("the golden has pairs");
    serde_json::from_slice(&bytes).expect("pairs")
}

/// How far a loaded head lies from its golden, over lengths and pairs.
pub(crate) fn worst_score(spec: &ModelSpec, encoder: &dyn Encoder, name: &str) -> f64 {
    let golden = Golden::read(name, "golden.safetensors");
    let tokens = ModelTokenizer::open(&spec.files.folder, &spec.card).expect("a tokenizer");
    let mut worst = 0.0f64;
    for (got, want) in at_lengths(encoder, &golden).iter().zip(golden.rows("logits.ids")) {
        worst = worst.max(off(got, want));
    }
    for (pair, want) in pairs(name).iter().zip(golden.rows("logits.pairs")) {
        let both = tokens.encode_pair(&pair.0, &pair.1, TruncationStrategy::LongestFirst).expect("a pair");
        worst = worst.max(off(&answers(encoder, &[(&both.ids, &both.type_ids)])[0], want));
    }
    worst
}

#[test]
fn scores_are_those_of_transformers() {
    for name in RERANK.into_iter().chain(CLASSIFY) {
        let spec = spec(name);
        for engine in INTERPRETERS {
            let encoder = load_on(engine, &spec, Dtype::F32).expect("the golden loads");
            let worst = worst_score(&spec, encoder.as_ref(), name);
            println!("{engine} {name}: {worst:.1e}");
            assert!(worst < TOLERANCE, "{engine} {name} is off by {worst}");
        }
    }
}

/// How far weights of words lie from their golden, over lengths.
pub(crate) fn worst_weight(encoder: &dyn Encoder, name: &str) -> f64 {
    let golden = Golden::read(name, "golden.safetensors");
    let got = at_lengths(encoder, &golden);
    let pairs = got.iter().zip(golden.rows("sparse.ids"));
    largest(pairs.map(|(got, want)| off(got, want)))
}

#[test]
fn token_weights_are_those_of_transformers() {
    for name in SPARSE {
        for engine in INTERPRETERS {
            let encoder = load_on(engine, &spec(name), Dtype::F32).expect("the golden loads");
            let worst = worst_weight(encoder.as_ref(), name);
            println!("{engine} {name}: {worst:.1e}");
            assert!(worst < TOLERANCE, "{engine} {name} is off by {worst}");
        }
    }
}

/// How far answers lie from a golden that has them for ids alone.
pub(crate) fn worst_answer(encoder: &dyn Encoder, name: &str) -> f64 {
    let golden = Golden::read(name, "golden.safetensors");
    let got = at_lengths(encoder, &golden);
    let pairs = got.iter().zip(golden.rows("answers.ids"));
    largest(pairs.map(|(got, want)| off(got, want)))
}

#[test]
fn heads_of_the_other_families_are_those_of_transformers() {
    for name in WIDER_HEADS {
        let golden = Golden::read(name, "golden.safetensors");
        for (engine, dtype) in [
            (EngineId::Candle, Dtype::F32),
            (EngineId::Native, Dtype::F32),
            (EngineId::Candle, Dtype::F16),
            (EngineId::Candle, Dtype::Bf16),
            (EngineId::Native, Dtype::Bf16),
        ] {
            let encoder = match load_on(engine, &spec(name), dtype) {
                Ok(encoder) => encoder,
                Err(obstacle) => {
                    assert!((engine, dtype) == (EngineId::Native, Dtype::Bf16), "{name}: {obstacle}");
                    continue;
                }
            };
            if dtype == Dtype::F32 {
                let worst = worst_answer(encoder.as_ref(), name);
                println!("{engine} {name}: {worst:.1e}");
                assert!(worst < TOLERANCE, "{engine} {name} is off by {worst}");
            } else {
                let near =
                    cosine(&at_lengths(encoder.as_ref(), &golden).concat(), golden.numbers("answers.ids"));
                assert!(near >= 0.999, "{engine} {name} {dtype}: cosine {near}");
            }
        }
    }
}

#[test]
fn half_precision_stays_near() {
    for name in RERANK.into_iter().chain(CLASSIFY).chain(SPARSE) {
        let golden = Golden::read(name, "golden.safetensors");
        for (engine, dtype) in
            [(EngineId::Candle, Dtype::F16), (EngineId::Candle, Dtype::Bf16), (EngineId::Native, Dtype::Bf16)]
        {
            let Ok(encoder) = load_on(engine, &spec(name), dtype) else {
                assert_eq!(engine, EngineId::Native, "{name} {dtype} loads on Candle");
                continue;
            };
            let got = at_lengths(encoder.as_ref(), &golden).concat();
            let want = if golden.has("sparse.ids") { "sparse.ids" } else { "logits.ids" };
            let near = cosine(&got, golden.numbers(want));
            assert!(near >= 0.999, "{engine} {name} {dtype}: cosine {near}");
        }
    }
}

#[test]
fn an_answer_alone_equals_the_same_in_a_batch() {
    for name in RERANK.into_iter().chain(CLASSIFY).chain(SPARSE) {
        let golden = Golden::read(name, "golden.safetensors");
        let (ids, types) = (golden.ids("ids"), [0; 128]);
        for engine in INTERPRETERS {
            let encoder = load_on(engine, &spec(name), Dtype::F32).expect("the golden loads");
            let together = at_lengths(encoder.as_ref(), &golden);
            for (&length, together) in LENGTHS.iter().zip(together) {
                let alone = answers(encoder.as_ref(), &[(&ids[..length], &types[..length])]).remove(0);
                let alone: Vec<f64> = alone.into_iter().map(f64::from).collect();
                assert!(off(&together, &alone) < 1e-5, "{engine} {name} at {length}");
            }
        }
    }
}

#[test]
fn pairs_are_joined_and_cut_as_the_peers_do() {
    for name in RERANK {
        let golden = Golden::read(name, "golden.safetensors");
        let spec = spec(name);
        let tokens = ModelTokenizer::open(&spec.files.folder, &spec.card).expect("a tokenizer");
        let pairs = pairs(name);
        let encode =
            |pair: &(String, String), cut| tokens.encode_pair(&pair.0, &pair.1, cut).expect("a pair");
        let joined: Vec<_> =
            pairs.iter().map(|pair| encode(pair, TruncationStrategy::LongestFirst)).collect();
        let counts: Vec<u32> = joined.iter().map(|pair| pair.ids.len() as u32).collect();
        assert_eq!(counts, golden.ids("counts"), "{name}");
        assert_eq!(joined[2].ids, golden.ids("pair.ids"), "{name}");
        assert!(!joined[0].is_truncated() && joined[5].is_truncated() && joined[6].is_truncated(), "{name}");
        let second = encode(&pairs[5], TruncationStrategy::OnlySecond);
        let encoder = load_on(EngineId::Candle, &spec, Dtype::F32).expect("the golden loads");
        let got = answers(encoder.as_ref(), &[(&second.ids, &second.type_ids)]).remove(0);
        assert!(off(&got, golden.numbers("logits.second")) < TOLERANCE, "{name}");
    }
}

#[test]
fn reranking_gives_the_scores_of_sentence_transformers_best_first() {
    let home = Home::new();
    for name in RERANK {
        let model = home.model(&goldens::folder(name)).open().expect("the golden opens");
        assert_eq!(model.card().task.value, Task::Rerank);
        let golden = Golden::read(name, "golden.safetensors");
        for ((query, document), want) in pairs(name).iter().zip(golden.numbers("given")) {
            let ranking =
                model.rerank(query, &[document], &RerankOptions::default()).expect("the pair is scored");
            assert!(off(&[ranking.ranked[0].score], &[*want]) < TOLERANCE, "{name}: {query}");
        }
        let documents: Vec<String> = pairs(name).into_iter().map(|(_, document)| document).collect();
        let ranking = model.rerank("lamp", &documents, &RerankOptions::default()).expect("ranked");
        assert!(ranking.ranked.windows(2).all(|two| two[0].score >= two[1].score), "{name}");
        let cut: Vec<usize> = ranking.metadata.truncated.iter().map(|cut| cut.index).collect();
        assert!(cut.contains(&5) && cut.contains(&6), "{name}: {cut:?}");
        let raw = RerankOptions { scoring: Some(Scoring::Raw), top: Some(2), ..RerankOptions::default() };
        let raw = model.rerank("lamp", &documents, &raw).expect("ranked");
        let indices = |ranked: &[sconce::RankedDocument]| ranked.iter().map(|r| r.index).collect::<Vec<_>>();
        assert_eq!(indices(&raw.ranked), indices(&ranking.ranked[..2]), "{name}");
    }
}

#[test]
fn classifying_gives_labels_with_probabilities() {
    let home = Home::new();
    for (name, best, sums_to_one) in [
        ("tiny-bert-classify", "contradiction entailment neutral", true),
        ("tiny-roberta-classify", "contradiction entailment neutral", false),
        ("tiny-camembert-classify", "LABEL_0 LABEL_1", true),
        ("tiny-distilbert-classify", "NEGATIVE POSITIVE", true),
    ] {
        let model = home.model(&goldens::folder(name)).open().expect("the golden opens");
        assert_eq!(model.card().task.value, Task::Classify);
        let golden = Golden::read(name, "golden.safetensors");
        let alone = "The engine reads a model from the disk and answers when it is asked.";
        let raw = ClassifyOptions { scoring: Some(Scoring::Raw), ..ClassifyOptions::default() };
        let scores = model.classify(&[alone], &raw).expect("classified");
        let names: Vec<&str> = best.split(' ').collect();
        for (label, want) in names.iter().zip(golden.numbers("logits.alone")) {
            let got = scores.texts[0].iter().find(|labelled| labelled.label == *label).expect("a label");
            assert!(off(&[got.score], &[*want]) < TOLERANCE, "{name} {label}");
        }
        let likely = model.classify(&[alone], &ClassifyOptions::default()).expect("classified");
        let sum: f32 = likely.texts[0].iter().map(|labelled| labelled.score).sum();
        assert_eq!((sum - 1.0).abs() < 1e-5, sums_to_one, "{name}: {sum}");
        assert!(likely.texts[0].windows(2).all(|two| two[0].score >= two[1].score), "{name}");
        let both = model.classify_pairs(&pairs(name), &raw).expect("classified");
        for (got, want) in both.texts.iter().zip(golden.rows("logits.pairs")) {
            let by_score = |scores: &mut Vec<f64>| scores.sort_by(|a, b| b.total_cmp(a));
            let mut scores: Vec<f64> = got.iter().map(|labelled| f64::from(labelled.score)).collect();
            let mut want = want.to_vec();
            by_score(&mut scores);
            by_score(&mut want);
            assert!(max_difference(&scores, &want) < TOLERANCE, "{name}: {scores:?} for {want:?}");
        }
    }
}

#[test]
fn sparse_vectors_are_those_of_sentence_transformers() {
    let home = Home::new();
    for name in SPARSE {
        let model = home.model(&goldens::folder(name)).open().expect("the golden opens");
        let golden = Golden::read(name, "golden.safetensors");
        let embedded = model.embed_sparse(&texts(name), &EmbedOptions::default()).expect("embedded");
        for (got, want) in embedded.texts.iter().zip(golden.rows("given")) {
            let mut row = vec![0.0; want.len()];
            for weight in got {
                row[weight.index as usize] = weight.value;
            }
            assert!(got.iter().all(|weight| weight.value > 0.0));
            assert!(off(&row, want) < TOLERANCE, "{name}: {}", off(&row, want));
        }
    }
}

#[test]
fn vectors_of_tokens_and_their_matches_are_those_of_sentence_transformers() {
    let home = Home::new();
    for name in TOKENS {
        let model = home.model(&goldens::folder(name)).open().expect("the golden opens");
        assert_eq!(model.card().task.value, Task::Tokens);
        let golden = Golden::read(name, "golden.safetensors");
        let bytes = fs::read(goldens::folder(name).join("queries.json")).expect("the golden has queries");
        let queries: Vec<String> = serde_json::from_slice(&bytes).expect("queries");
        let documents = model.embed_tokens(&texts(name)).expect("embedded");
        for (number, got) in documents.texts.iter().enumerate() {
            let want = golden.numbers(&format!("document.{number}"));
            assert!(off(&got.values, want) < TOLERANCE, "{name}: document {number}");
        }
        let asked = model.embed_queries(&queries).expect("embedded");
        for (number, got) in asked.texts.iter().enumerate() {
            let want = golden.numbers(&format!("query.{number}"));
            assert!(off(&got.values, want) < TOLERANCE, "{name}: query {number}");
        }
        for (query, want) in queries.iter().zip(golden.rows("scores")) {
            let similar = model.similarity(query, &texts(name)).expect("compared");
            assert!(off(&similar.scores, want) < TOLERANCE, "{name}: {query}");
        }
    }
}

#[test]
fn a_model_asked_for_another_task_says_which_it_has() {
    let home = Home::new();
    let model = home.model(&goldens::folder("tiny-bert-rerank")).open().expect("the golden opens");
    let error = model.embed(&["a text"]).expect_err("it does not embed").to_string();
    assert!(error.contains("scores a document against a query, according to `config.json`"), "{error}");
    assert!(error.contains("hint: use `rerank`"), "{error}");
    let error = model.classify(&["a"], &ClassifyOptions::default()).expect_err("it has no labels");
    assert!(matches!(error, sconce::Error::WrongTask { has: Task::Rerank, .. }), "{error}");
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("the golden opens");
    let error = model.rerank("a", &["b"], &RerankOptions::default()).expect_err("it embeds").to_string();
    assert!(error.contains("turns a text into one vector, according to `modules.json`"), "{error}");
}
