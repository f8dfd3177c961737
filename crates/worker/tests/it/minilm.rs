//! A real model under load: correct embeddings, priorities, cancellation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sconce::{Model, Runtime};
use serde_json::{Value, json};

use crate::client::{Connection, get, metric, post, post_with, request};
use crate::harness::{TestServer, settings, shared_home, start};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn builder() -> sconce::ModelBuilder {
    let folder = workspace().join("target/parts/minilm");
    assert!(folder.is_dir(), "no MiniLM in `target/parts`: fetch it with `scripts/parts minilm`");
    let runtime = Runtime::builder().home(shared_home()).offline(true).build();
    Model::builder(&folder.to_string_lossy()).runtime(&runtime)
}

fn texts() -> Vec<String> {
    let lines = fs::read_to_string(workspace().join("benches/texts.jsonl")).expect("the texts are there");
    let text = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("a line is JSON");
        value["text"].as_str().expect("a text").to_owned()
    };
    lines.lines().map(text).collect()
}

fn open() -> TestServer {
    start(builder(), settings(), None).ready()
}

#[test]
fn clients_at_once_get_what_the_library_gives() {
    let texts = texts();
    let server = open();
    let address = *server;
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let own: Vec<String> = texts.iter().skip(client).step_by(40).cloned().collect();
            thread::spawn(move || {
                let mut connection = Connection::open(address).expect("a connection");
                let ask = |text: String| {
                    let body = json!({"input": text, "model": "model"}).to_string();
                    let answer = connection.ask(&request("POST", "/v1/embeddings", &[], body.as_bytes()));
                    let answer = answer.expect("an answer").expect(200);
                    let vector: Vec<f32> =
                        serde_json::from_value(answer["data"][0]["embedding"].clone()).expect("a vector");
                    (text, vector, answer["usage"]["total_tokens"].as_u64().expect("usage"))
                };
                own.into_iter().map(ask).collect::<Vec<_>>()
            })
        })
        .collect();
    let answers: Vec<_> = clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect();
    let model = builder().open().expect("it opens");
    let asked: Vec<&str> = answers.iter().map(|(text, ..)| text.as_str()).collect();
    let library = model.embed(&asked).expect("it embeds");
    for ((text, vector, _), want) in answers.iter().zip(&library) {
        let near = sconce::cosine(vector, want);
        assert!(near > 0.9995, "{near}: {text}");
    }
    let tokens: u64 = answers.iter().map(|(_, _, tokens)| tokens).sum();
    assert_eq!(tokens as usize, library.tokens);
    let batches = metric(address, "te_batch_next_size_count");
    assert!(batches < answers.len() as f64, "{batches} batches for {} texts", answers.len());
}

#[test]
fn cancelled_requests_are_not_computed() {
    let texts = texts();
    let server = open();
    let address = *server;
    let body = json!({"inputs": texts[..200], "truncate": true}).to_string();
    let whole: usize = {
        let model = builder().open().expect("it opens");
        model
            .encode_texts(&sconce::Prompt::Default, &texts[..200])
            .expect("tokens")
            .iter()
            .map(|text| text.ids.len())
            .sum()
    };
    let before = metric(address, "sconce_tokens_computed_total");
    let queued = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..40)
        .map(|client| {
            let bytes = request("POST", "/embed", &[("x-sconce-priority", "bulk")], body.as_bytes());
            let queued = Arc::clone(&queued);
            thread::spawn(move || {
                let mut connection = Connection::open(address).expect("a connection");
                connection.write(&bytes).expect("it can be sent");
                while !queued.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                thread::sleep(Duration::from_millis(client));
            })
        })
        .collect();
    // Clients leave once texts are queued, however long tokenizing took.
    while metric(address, "te_queue_size") < 100.0 {
        thread::sleep(Duration::from_millis(1));
    }
    queued.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("no panic");
    }
    // Cancelled requests have left the queue; the last batch may still be in flight.
    while metric(address, "te_queue_size") > 0.0 {
        thread::sleep(Duration::from_millis(10));
    }
    post(address, "/embed", &json!({"inputs": "behind all of them"})).expect(200);
    let settled = metric(address, "sconce_tokens_computed_total");
    let (asked, computed) = (40.0 * whole as f64, settled - before);
    println!("{asked} tokens asked for and left, {computed} computed");
    assert!(computed < 0.8 * asked, "{computed} of {asked}");
    let cancelled = metric(address, "sconce_cancelled_total");
    assert!((0.5..40.5).contains(&cancelled), "{cancelled} of 40");
    assert!(metric(address, "sconce_cancelled_tokens_total") > 0.5);
    assert!(metric(address, "sconce_queue_tokens").abs() < 0.5);
    let answer = post(address, "/embed", &json!({"inputs": "still here"}));
    let report = get(address, "/v1/report").expect(200);
    let serving = &report["models"][0]["serving"];
    assert_eq!(serving["class"].as_str(), answer.header("x-sconce-class"), "{serving}");
    assert_eq!(serving["placement"].as_str(), answer.header("x-sconce-placement"), "{serving}");
    answer.expect(200);
}

#[test]
fn overload_is_refused_with_retry_after_and_livez_stays_fast() {
    let texts = texts();
    let settings = sconce_worker::Settings { queue_seconds: 0.3, ..settings() };
    let server = start(builder(), settings, None).ready();
    let address = *server;
    let clients: Vec<_> = (0..24)
        .map(|_| {
            let body = json!({"inputs": texts[..100]});
            thread::spawn(move || {
                let answer = post_with(address, "/embed", &[("x-sconce-priority", "bulk")], &body);
                (answer.status, answer.header("retry-after").map(str::to_owned))
            })
        })
        .collect();
    assert_eq!(get(address, "/livez").status, 200);
    assert!(
        clients.iter().any(|client| !client.is_finished()),
        "`livez` is answered before all work is done"
    );
    let answers: Vec<_> = clients.into_iter().map(|client| client.join().expect("no panic")).collect();
    let refused: Vec<_> = answers.iter().filter(|(status, _)| *status == 429).collect();
    assert!(!refused.is_empty() && refused.len() < answers.len(), "{answers:?}");
    assert!(refused.iter().all(|(_, after)| after.is_some()), "{answers:?}");
    assert!(answers.iter().all(|(status, _)| [200, 429].contains(status)), "{answers:?}");
}
