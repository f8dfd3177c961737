//! `sconce bench`: every placement, other servers, the plot and the roofline.

use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;

use serde_json::Value;

use crate::embedding_server::{EmbeddingServer, Manner};
use crate::harness::{CommandOutput, Sandbox, numbers};

const TEXTS: &str = "one\ntwo words\n";

/// `bench tiny-bert` on two texts, once, with more arguments.
fn bench<'a>(input: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "tiny-bert", "--rounds", "1", "--input", input], more].concat()
}

#[track_caller]
fn run(sandbox: &Sandbox, more: &[&str]) -> CommandOutput {
    let input = sandbox.with("texts.txt", TEXTS);
    sandbox.run(&bench(&input, more))
}

#[test]
fn bench_runs_every_placement_that_works() {
    let sandbox = Sandbox::new();
    let page = run(&sandbox, &[]).succeeds();
    assert!(
        page.stdout.contains("2 texts, ") && page.stdout.contains(" candle  cpu     f32 "),
        "{}",
        page.stdout
    );
    assert!(page.stdout.contains("measured peak: "), "{}", page.stdout);
    let json = run(&sandbox, &["--engine", "candle", "--json"]).succeeds().json();
    let placements = json["placements"].as_array().expect("a list");
    assert_eq!(placements.len(), 3, "{json}");
    for figures in placements {
        for key in ["texts_per_s", "tokens_per_s", "one_text_ms", "gflops", "bandwidth_share"] {
            assert!(figures[key].as_f64() > Some(0.0), "{key} in {figures}");
        }
        assert!(figures["least_cosine"].as_f64() > Some(0.999), "{figures}");
        // There is no f16 kernel, so there is no peak.
        let has_peak = figures["gemm_peak_gflops"].is_f64();
        assert_eq!(figures["gemm_share"].is_f64(), has_peak, "{figures}");
        assert!(
            has_peak == (figures["placement"]["dtype"] == "f32") || figures["placement"]["dtype"] == "bf16"
        );
    }
    assert!(json["gemm_peak_gflops"]["f32"].as_f64() > Some(0.1), "{json}");
    assert!(json["bandwidth_gb_s"].as_f64() > Some(0.1), "{json}");
    assert!(json["flops_per_token"].as_f64() > Some(1000.0), "{json}");
    sandbox.run(&["bench", "tiny-bert", "--rounds", "0"]).fails(2, &["--rounds"]);
}

#[test]
fn a_plot_is_written_as_svg_or_png() {
    let sandbox = Sandbox::new();
    let only = ["--engine", "native", "--dtype", "f32", "--json"];
    let json = run(&sandbox, &[&only[..], &["--plot", &sandbox.name("a.svg")]].concat()).succeeds().json();
    let svg = fs::read_to_string(sandbox.file("a.svg")).expect("a plot");
    for words in
        ["<svg", "roofline of this machine", "texts per call", "tokens per text", "native cpu f32", "</svg>"]
    {
        assert!(svg.contains(words), "no `{words}` in it");
    }
    let sweep = &json["placements"][0]["sweep"];
    assert_eq!(sweep["by_batch"].as_array().map(Vec::len), Some(8), "{sweep}");
    assert!(sweep["by_length"][0]["tokens_per_s"].as_f64() > Some(0.0), "{sweep}");

    run(&sandbox, &[&only[..], &["--plot", &sandbox.name("a.png")]].concat()).succeeds();
    let png = fs::read(sandbox.file("a.png")).expect("a plot");
    assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "{}", png.len());

    for name in ["a.jpg", "a", "svg"] {
        run(&sandbox, &["--plot", name]).fails(2, &["`.svg` or `.png`", name]);
    }
    let nowhere = run(&sandbox, &["--plot", &sandbox.name("no/such/folder/a.svg")]);
    nowhere.fails(2, &["could not write", "no/such/folder/a.svg`"]);
    assert!(!nowhere.stderr.contains("round 1"), "{}", nowhere.stderr);
}

#[test]
fn other_servers_are_compared_and_wrong_vectors_show() {
    let sandbox = Sandbox::new();
    let short = "how do I place a model on the right device?";
    let lines =
        sandbox.run(&["embed", "tiny-bert", "--dtype", "f32", "one", "two words", short]).succeeds().lines();
    let vectors: HashMap<String, Vec<f64>> = lines
        .iter()
        .map(|line| (line["text"].as_str().expect("a text").to_owned(), numbers(&line["embedding"])))
        .collect();
    let turned = vectors.iter().map(|(text, vector)| (text.clone(), vector.iter().map(|x| -x).collect()));
    let wrong = EmbeddingServer::start(Manner::Honest(turned.collect()));
    let right = EmbeddingServer::start(Manner::Honest(vectors));
    let narrow = EmbeddingServer::start(Manner::Wide(7));
    let [tei, openai, bad, other] = [
        format!("tei={}/", right.url),
        format!("openai={}/v1", right.url),
        format!("tei={}", wrong.url),
        format!("openai={}", narrow.url),
    ];
    let all = ["--against", &tei, "--against", &openai, "--against", &bad, "--against", &other];
    let only = ["--engine", "native", "--dtype", "f32"];
    let with = |more: &[&str]| {
        let input = sandbox.with("texts.txt", TEXTS);
        let mut command = sandbox.command(&bench(&input, &[&all[..], &only[..], more].concat()));
        let output = command.env("OPENAI_API_KEY", "secret").output().expect("the command ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let json: Value = serde_json::from_str(&with(&["--against-model", "that one", "--json"])).expect("JSON");
    let servers = json["servers"].as_array().expect("a list");
    assert_eq!((json["placements"].as_array().map(Vec::len), servers.len()), (Some(1), 4), "{json}");
    for server in servers {
        for key in ["texts_per_s", "tokens_per_s", "one_text_ms"] {
            assert!(server[key].as_f64() > Some(0.0), "{key} in {server}");
        }
        let cosine = server["least_cosine"].as_f64();
        match server["url"].as_str() {
            Some(url) if url == right.url => assert!(cosine > Some(0.99999), "{server}"),
            Some(url) if url == wrong.url => assert!(cosine < Some(-0.99999), "{server}"),
            _ => assert_eq!(cosine, None, "{server}"),
        }
    }
    let page = with(&[]);
    assert!(page.contains(" tei ") && page.contains(" openai ") && page.contains("-1.000000"), "{page}");

    for (path, key, body) in right.requests() {
        match path.as_str() {
            "/embed" => assert_eq!((key, &body["truncate"]), (None, &Value::from(true))),
            "/v1/embeddings" => {
                assert_eq!(key.as_deref(), Some("Bearer secret"));
                assert!(
                    ["that one", "tiny-bert"].contains(&body["model"].as_str().expect("a name")),
                    "{body}"
                );
            }
            path => panic!("{path} was asked for"),
        }
    }
}

#[test]
fn an_unreachable_server_is_reported_before_the_benchmark_starts() {
    let refusing = |status, words| Manner::Refusing { after: 0, status, words };
    let cases: [(Manner, &[&str]); 10] = [
        (refusing(500, "out of memory"), &["returned 500: out of memory", "see the server's log"]),
        (
            refusing(429, r#"{"error": "Model is overloaded"}"#),
            &["429: Model is overloaded", "raise the server's rate limit"],
        ),
        (refusing(401, r#"{"error": {"message": "no key"}}"#), &["401: no key", "OPENAI_API_KEY"]),
        (refusing(404, ""), &["returned 404\n", "check the kind of server"]),
        (refusing(413, ""), &["returned 413\n", "32 texts per request"]),
        (refusing(302, ""), &["returned 302\n", "pass the final URL"]),
        (Manner::Nonsense("<html>"), &["invalid response", "not JSON"]),
        (Manner::Nonsense("{}"), &["invalid response", "missing list `data`"]),
        (Manner::Nonsense(r#"{"data": []}"#), &["invalid response", "0 vectors for 1 texts"]),
        (Manner::Hanging, &["timed out after 1 s", "--timeout"]),
    ];
    let sandbox = Sandbox::unproved();
    for (manner, words) in cases {
        let server = EmbeddingServer::start(manner);
        let answer = run(&sandbox, &["--timeout", "1", "--against", &format!("openai={}", server.url)]);
        answer.fails(2, words);
        answer
            .fails(2, &[&server.url, "hint: "][..if words[0].contains("invalid response") { 1 } else { 2 }]);
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    let nobody = format!("tei=http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    run(&sandbox, &["--against", &nobody]).fails(2, &["could not connect to", "check that the server runs"]);
    run(&sandbox, &["--against", "tgi=http://127.0.0.1:1"]).fails(2, &["tei=URL or openai=URL"]);
    run(&sandbox, &["--against", &nobody, "--offline"]).fails(2, &["--offline"]);
    assert!(!sandbox.file("home").exists(), "something was proved before the servers were asked");
}

#[test]
fn a_server_that_fails_later_does_not_affect_the_others() {
    let sandbox = Sandbox::new();
    let server = EmbeddingServer::start(Manner::Refusing { after: 2, status: 429, words: "slow down" });
    let address = format!("tei={}", server.url);
    let only = ["--engine", "native", "--dtype", "f32", "--against", &address];
    let page = run(&sandbox, &only);
    assert_eq!(page.code, 1, "{}", page.stderr);
    assert!(page.stdout.contains("native  cpu     f32"), "{}", page.stdout);
    assert!(
        page.stdout.contains("failed  tei http://") && page.stdout.contains("429: slow down"),
        "{}",
        page.stdout
    );
    let again = EmbeddingServer::start(Manner::Refusing { after: 2, status: 429, words: "slow down" });
    let address = format!("tei={}", again.url);
    let json =
        run(&sandbox, &["--engine", "native", "--dtype", "f32", "--against", &address, "--json"]).json();
    assert!(json["placements"][0]["texts_per_s"].as_f64() > Some(0.0), "{json}");
    assert!(json["servers"][0]["error"].as_str().is_some_and(|error| error.contains("429")), "{json}");
}
