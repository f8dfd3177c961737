//! Text generation through the library: engines agree, batches do not matter, cancelled generations leave.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_core::Stream;
use sconce::{
    Device, Dtype, EngineId, Error, FinishReason, GenerateOptions, GenerationStream, GenerationSummary,
    Model, Scheduling, Task,
};
use sconce_testkit::fake::{BatchFault, Fault};
use serde_json::{Value, json};

use crate::fakes::{METAL, Stage, builder, candle};
use crate::support::{Copy, Home};

/// A tied decoder whose words are `w0`, `w1`, ….
fn folder(name: &str) -> Copy {
    words(name, 120).setting("config.json", "tie_word_embeddings", json!(true))
}

/// A golden with a tokenizer of `count` words, `w0`, `w1`, ….
pub(crate) fn words(name: &str, count: usize) -> Copy {
    let vocabulary: serde_json::Map<String, Value> =
        (0..count).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "w3" },
    });
    Copy::of(name).with("tokenizer.json", tokenizer.to_string())
}

fn open(home: &Home, folder: &Copy, engine: EngineId, dtype: Dtype, cache: Option<u64>) -> Model {
    let builder = home.model(folder.path()).task(Task::Generate).engine(engine).dtype(dtype);
    let builder = cache.into_iter().fold(builder.device(Device::Cpu), sconce::ModelBuilder::kv_cache_bytes);
    builder.open().expect("it opens")
}

fn prompt(seed: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| ((seed * 31 + at * 17 + at * at * seed) % 117 + 3) as u32).collect()
}

pub(crate) fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(max_tokens), temperature: 0.0, ignore_eos: true, ..sampled(0, 0) }
}

fn sampled(seed: u64, max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        temperature: 1.0,
        seed: Some(seed),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

/// The ids of a generation.
pub(crate) fn ids(model: &Model, prompt: &[u32], options: &GenerateOptions) -> Vec<u32> {
    let generation = model.generate_from_ids(prompt.to_vec(), options).expect("a valid request");
    generation.filter_map(|piece| piece.expect("it generates").token).map(|token| token.id).collect()
}

#[test]
fn engines_generate_the_same_greedy_tokens() {
    let home = Home::new();
    for name in ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"] {
        let folder = folder(name);
        let [native, candle] =
            [EngineId::Native, EngineId::Candle].map(|engine| open(&home, &folder, engine, Dtype::F32, None));
        for (seed, length) in [(1, 1), (2, 31), (3, 33), (4, 129)] {
            let prompt = prompt(seed, length);
            let [one, other] = [&native, &candle].map(|model| ids(model, &prompt, &greedy(64)));
            assert_eq!(one.len(), 64);
            assert_eq!(one, other, "{name} after {length} tokens");
        }
    }
}

#[test]
fn a_seed_gives_the_same_tokens_alone_and_beside_others_and_after_preemption() {
    let (home, folder) = (Home::new(), folder("tiny-qwen3"));
    let model = open(&home, &folder, EngineId::Native, Dtype::F32, None);
    let requests: Vec<(Vec<u32>, GenerateOptions)> =
        (0..64).map(|n| (prompt(n, 1 + n * 13 % 90), sampled(n as u64, 5 + n * 7 % 60))).collect();
    let alone: Vec<Vec<u32>> =
        requests.iter().map(|(prompt, options)| ids(&model, prompt, options)).collect();
    assert_eq!(alone.iter().collect::<HashSet<_>>().len(), alone.len(), "each seed has its own text");
    // 20 blocks of 16 tokens hold a few sequences at a time: others wait, or are preempted.
    let block = 16 * 2 * 2 * 2 * 16 * 4;
    let small = open(&home, &folder, EngineId::Native, Dtype::F32, Some(20 * block));
    // A third of the clients leave after a few tokens, and clients join over time.
    let client = |model: &Model, n: usize| {
        thread::sleep(Duration::from_millis(n as u64 % 16));
        let (prompt, options) = &requests[n];
        if n % 3 < 2 {
            return Some(ids(model, prompt, options));
        }
        let leaving = model.generate_from_ids(prompt.clone(), options).expect("a valid request");
        leaving.take(n % 7).for_each(|piece| drop(piece.expect("it generates")));
        None
    };
    for model in [&model, &small] {
        let together: Vec<Option<Vec<u32>>> = thread::scope(|scope| {
            let client = &client;
            let clients: Vec<_> =
                (0..requests.len()).map(|n| scope.spawn(move || client(model, n))).collect();
            clients.into_iter().map(|client| client.join().expect("no panic")).collect()
        });
        assert!(together.iter().flatten().count() > 40);
        for (n, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert!(together.as_ref().is_none_or(|together| together == alone), "request {n}");
        }
    }
    // Nothing is left behind: a sequence that needs all blocks fits.
    let (whole, options) = (prompt(1, 280), greedy(40));
    assert_eq!(ids(&small, &whole, &options), ids(&model, &whole, &options));
    let long = sampled(1, 700);
    let refused = small.generate_from_ids(prompt(1, 8), &long).expect("a valid request").text();
    let Err(Error::Request(message)) = refused else { panic!("{refused:?}") };
    assert!(message.contains("does not fit in the KV cache"), "{message}");
}

#[test]
fn conversations_compute_a_shared_system_prompt_once() {
    const TURNS: usize = 8;
    let home = Home::new();
    let folder = folder("tiny-llama").setting("config.json", "max_position_embeddings", json!(4096));
    let model = open(&home, &folder, EngineId::Native, Dtype::F32, None);
    let prefill = || model.generation_load().expect("it generates").prefill_tokens;
    // The number of tokens that are sent, and all answers. Without a cache, each request has a scope of its own.
    let converse = |number: usize, is_cached: bool| {
        let (mut sent, mut history) = (0, prompt(7, 1000));
        for turn in 0..TURNS {
            let request = 1 + TURNS * number + turn;
            history.extend(prompt(request, 60));
            sent += history.len();
            let prefix_scope = if is_cached { 0 } else { request as u64 };
            let scheduling = Scheduling { prefix_scope, ..Scheduling::default() };
            let generation = model.generate_scheduled(history.clone(), &greedy(64), scheduling);
            let pieces = generation.expect("a valid request").map(|piece| piece.expect("it generates"));
            history.extend(pieces.filter_map(|piece| piece.token).map(|token| token.id));
        }
        (sent, history)
    };
    let conversations = |count: usize, is_cached: bool| -> Vec<(usize, Vec<u32>)> {
        let converse = &converse;
        thread::scope(|scope| {
            let all: Vec<_> =
                (0..count).map(|number| scope.spawn(move || converse(number, is_cached))).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).collect()
        })
    };
    let cached = conversations(50, true);
    let computed = prefill();
    let sent: usize = cached.iter().map(|(sent, _)| sent).sum();
    println!("{computed} of {sent} tokens of prompts were computed");
    assert!(computed * 100 <= 15 * sent as u64, "{computed} of {sent}");
    // Some of them again, without the cache.
    let uncached = conversations(6, false);
    assert_eq!(uncached, cached[..6]);
    let sent: usize = uncached.iter().map(|(sent, _)| sent).sum();
    assert!((prefill() - computed) * 100 >= 99 * sent as u64, "nothing was cached");
}

#[test]
fn text_ends_at_end_tokens_stop_strings_and_the_maximum_and_choices_differ() {
    let (home, folder) = (Home::new(), folder("tiny-llama"));
    let model = open(&home, &folder, EngineId::Native, Dtype::F32, None);
    let all = ids(&model, &prompt(5, 9), &greedy(40));
    let end = all[7];
    let first = all.iter().position(|id| *id == end).expect("it is there");
    let run = |options: GenerateOptions| {
        let mut generation = model.generate_from_ids(prompt(5, 9), &options).expect("a valid request");
        let text: String = (&mut generation).map(|piece| piece.expect("it generates").text).collect();
        let summary = generation.summary().clone();
        assert_eq!(summary.prompt_tokens, 9);
        assert_eq!(summary.placements.len(), 1);
        (text, summary.finish_reasons[0], summary.generated_tokens)
    };
    let (whole, reason, tokens) = run(greedy(40));
    assert_eq!((reason, tokens), (Some(FinishReason::Length), 40));
    let words: Vec<String> = all.iter().map(|id| format!("w{id}")).collect();
    assert_eq!(whole.split_whitespace().collect::<Vec<_>>(), words);
    let (text, reason, tokens) = run(GenerateOptions { stop_tokens: vec![end], ..greedy(40) });
    assert_eq!((reason, tokens), (Some(FinishReason::Stop), first + 1));
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), words[..first]);
    let (text, reason, _) =
        run(GenerateOptions { stop: vec![format!("{} {}", words[2], words[3])], ..greedy(40) });
    assert_eq!(reason, Some(FinishReason::Stop));
    assert!(whole.starts_with(&text) && !text.contains(&format!("{} {}", words[2], words[3])), "{text}");
    let stop = vec!["never there".to_owned(), words[2].clone()];
    let options = GenerateOptions { stop, ..greedy(40) };
    let mut generation = model.generate_from_ids(prompt(5, 9), &options).expect("a valid request");
    assert!(generation.all(|piece| piece.is_ok()));
    assert_eq!(generation.summary().stop_strings, [Some(1)]);
    let (text, _, _) = run(GenerateOptions { allowed_tokens: Some(vec![7, 9]), ..greedy(10) });
    assert!(text.split_whitespace().all(|word| ["w7", "w9"].contains(&word)), "{text}");
    let options = GenerateOptions { n: 3, ..sampled(3, 12) };
    let mut choices = vec![String::new(); 3];
    for piece in model.generate("w5 w6 w7", &options).expect("a valid request") {
        let piece = piece.expect("it generates");
        choices[piece.choice] += &piece.text;
    }
    assert_eq!(choices.iter().collect::<HashSet<_>>().len(), 3, "{choices:?}");
}

#[test]
fn a_causal_model_without_modules_generates_and_models_beside_each_other_do_not_matter() {
    let home = Home::new();
    let folder = folder("tiny-qwen2").without("modules.json");
    let folder = folder.setting("config.json", "architectures", json!(["Qwen2ForCausalLM"]));
    let open =
        || home.model(folder.path()).engine(EngineId::Native).dtype(Dtype::F32).open().expect("it opens");
    let models = [open(), open()];
    assert_eq!(models[0].card().task.value, Task::Generate);
    assert_eq!(models[0].card().task.source, "config.json");
    let wanted = ids(&models[0], &prompt(3, 40), &greedy(60));
    // Both models share the threads of the engine.
    thread::scope(|scope| {
        for model in models.iter().cycle().take(6) {
            let wanted = &wanted;
            scope.spawn(move || assert_eq!(ids(model, &prompt(3, 40), &greedy(60)), *wanted));
        }
    });
    let endless = GenerateOptions { max_tokens: Some(usize::MAX), ..greedy(1) };
    let mut generation = models[0].generate_from_ids(prompt(3, 40), &endless).expect("a valid request");
    let first: Vec<u32> = generation
        .by_ref()
        .take(60)
        .map(|piece| piece.expect("it generates").token.expect("a token").id)
        .collect();
    assert_eq!(first, wanted);
}

#[test]
fn a_dropped_generation_leaves_and_invalid_requests_are_refused() {
    let (home, folder) = (Home::new(), folder("tiny-llama"));
    let model = open(&home, &folder, EngineId::Native, Dtype::F32, None);
    let wanted = ids(&model, &prompt(2, 20), &greedy(8));
    let mut left = model.generate_from_ids(prompt(1, 30), &greedy(4000)).expect("a valid request");
    assert!(left.next().expect("a piece").is_ok());
    drop(left);
    assert_eq!(ids(&model, &prompt(2, 20), &greedy(8)), wanted);
    let refused = |prompt: Vec<u32>, options: &GenerateOptions| match model.generate_from_ids(prompt, options)
    {
        Err(Error::Request(message)) => message,
        Err(error) => panic!("{error}"),
        Ok(generation) => match generation.text() {
            Err(Error::Request(message)) => message,
            other => panic!("{other:?}"),
        },
    };
    assert!(refused(Vec::new(), &greedy(1)).contains("empty"));
    assert!(refused(vec![120], &greedy(1)).contains("token id 120 of a vocabulary of 120"));
    assert!(refused(vec![1; 4096], &greedy(1)).contains("no token is left"));
    assert!(refused(vec![1], &GenerateOptions { top_p: 2.0, ..greedy(1) }).contains("`top_p`"));
    assert!(
        refused(vec![1], &GenerateOptions { stop_tokens: vec![500], ..greedy(1) }).contains("stop_tokens")
    );
    let embedder = home.model(folder.path()).open().expect("it opens");
    let wrong = embedder.generate("w1", &greedy(1)).err().expect("it embeds").to_string();
    assert!(wrong.contains("`generate` needs another model"), "{wrong}");
}

/// Runs a stream to its end, on this thread.
fn block_on_pieces(mut stream: GenerationStream) -> (String, GenerationSummary) {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, mut text) = (Context::from_waker(&waker), String::new());
    loop {
        match Pin::new(&mut stream).poll_next(&mut context) {
            Poll::Ready(Some(piece)) => text += &piece.expect("it generates").text,
            Poll::Ready(None) => return (text, stream.summary().clone()),
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_stream_has_the_pieces_of_the_iterator() {
    let (home, folder) = (Home::new(), folder("tiny-llama"));
    let model = open(&home, &folder, EngineId::Native, Dtype::F32, None);
    let run = |length| model.generate_from_ids(prompt(5, length), &greedy(40)).expect("a valid request");
    let wanted = run(9).text().expect("it generates");
    let (text, summary) = block_on_pieces(run(9).into_stream());
    assert_eq!(text, wanted);
    assert_eq!((summary.generated_tokens, summary.finish_reasons), (40, vec![Some(FinishReason::Length)]));
    let mut stream =
        model.generate_from_ids(vec![1; 4096], &greedy(1)).expect("a valid request").into_stream();
    let mut context = Context::from_waker(Waker::noop());
    let failed = loop {
        if let Poll::Ready(piece) = Pin::new(&mut stream).poll_next(&mut context) {
            break piece;
        }
        thread::yield_now();
    };
    assert!(matches!(failed, Some(Err(Error::Request(_)))), "it is too long");
    // Waiting with a timeout is the same again.
    let (mut generation, mut text) = (run(9), String::new());
    loop {
        match generation.next_timeout(Duration::from_millis(1)) {
            Poll::Ready(Some(piece)) => text += &piece.expect("it generates").text,
            Poll::Ready(None) => break,
            Poll::Pending => {}
        }
    }
    assert_eq!(text, wanted);
}

#[test]
fn a_placement_that_fails_amid_generations_costs_them_nothing_but_time() {
    let stage = |faults: &[Fault]| {
        let engine = faults.iter().fold(candle(), |engine, fault| engine.with(METAL, *fault));
        Stage { timeout: Duration::from_millis(400), ..Stage::new(engine) }
    };
    let open = |stage: &Stage| {
        builder(&stage.in_process().build()).task(Task::Generate).open().expect("something serves")
    };
    let requests: Vec<(Vec<u32>, GenerateOptions)> =
        (0..6).map(|n| (prompt(n, 3 + 5 * n), sampled(n as u64, 12 + n))).collect();
    let whole = stage(&[]);
    let healthy = open(&whole);
    let wanted: Vec<Vec<u32>> =
        requests.iter().map(|(prompt, options)| ids(&healthy, prompt, options)).collect();
    for fault in [BatchFault::Error, BatchFault::Nan, BatchFault::Rows, BatchFault::Panic, BatchFault::Hang] {
        for nth in [1, 5] {
            let stage = stage(&[Fault::FromBatch(nth, fault)]);
            let model = open(&stage);
            let got: Vec<(Vec<u32>, Vec<Device>)> = thread::scope(|scope| {
                let spawn = |(prompt, options): &'_ (Vec<u32>, GenerateOptions)| {
                    let (prompt, options, model) = (prompt.clone(), options.clone(), &model);
                    scope.spawn(move || {
                        let mut run = model.generate_from_ids(prompt, &options).expect("a valid request");
                        let pieces = run.by_ref().filter_map(|piece| piece.expect("it generates").token);
                        let ids = pieces.map(|token| token.id).collect();
                        (ids, run.summary().placements.iter().map(|placement| placement.device).collect())
                    })
                };
                let threads: Vec<_> = requests.iter().map(spawn).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            for ((ids, devices), wanted) in got.iter().zip(&wanted) {
                assert_eq!(ids, wanted, "{fault:?} from step {nth}");
                assert_eq!(devices.last(), Some(&Device::Cpu), "{fault:?} from step {nth}");
            }
            assert_eq!(model.quarantined().len(), 1, "{fault:?}: {}", model.plan().explain());
        }
    }
}

#[test]
fn models_whose_logits_would_be_wrong_are_refused() {
    let home = Home::new();
    let refused = |folder: &Copy| {
        let opened = home.model(folder.path()).task(Task::Generate).device(Device::Cpu).open();
        opened.err().expect("it can't generate").to_string()
    };
    let untied = folder("tiny-llama").setting("config.json", "tie_word_embeddings", json!(false));
    assert!(refused(&untied).contains("no tensor `lm_head.weight`"), "{}", refused(&untied));
    let capped = folder("tiny-llama").setting("config.json", "final_logit_softcapping", json!(30.0));
    assert!(refused(&capped).contains("final_logit_softcapping 30"), "{}", refused(&capped));
    let encoder = folder("tiny-bert");
    assert!(refused(&encoder).contains("its attention is not causal"), "{}", refused(&encoder));
}
