//! TLS certificate rotation, CORS, operator keys, Cohere's embedding types, and chunked texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sconce::cosine;
use sconce_http::{Keys, Settings as HttpSettings, Tls};
use sconce_worker::Settings;
use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::client::{post, post_with, request, send};
use crate::harness::{settings, start, tiny, tiny_builder, tiny_with};

/// A self-signed certificate for `localhost`.
fn certificate() -> (Tls, Certificate<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let tls = Tls::read(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes());
    (tls.expect("it can be used"), Certificate::from_der(made.cert.der()).to_owned())
}

fn agent(trusted: &[Certificate<'static>]) -> ureq::Agent {
    let roots = RootCerts::new_with_certs(trusted);
    let tls = TlsConfig::builder().root_certs(roots).build();
    let config = ureq::Agent::config_builder().tls_config(tls).timeout_global(Some(Duration::from_secs(30)));
    ureq::Agent::new_with_config(config.build())
}

fn embed(agent: &ureq::Agent, port: u16) -> Result<usize, ureq::Error> {
    let url = format!("https://localhost:{port}/v1/embeddings");
    let mut answer = agent.post(url).send_json(json!({"input": "a text"}))?;
    let answer: Value = answer.body_mut().read_json()?;
    Ok(answer["data"][0]["embedding"].as_array().map_or(0, Vec::len))
}

#[test]
fn a_certificate_is_replaced_under_load_and_no_request_fails() {
    let ((first, old), (second, new)) = (certificate(), certificate());
    let settings = Settings { http: HttpSettings { tls: Some(first), ..settings().http }, ..settings() };
    let server = start(tiny_builder("tiny-bert"), settings.clone(), None);
    let port = server.address.port();
    let both = agent(&[old.clone(), new.clone()]);
    while embed(&both, port).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            let (kept, trusted) = (both.clone(), vec![old.clone(), new.clone()]);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Half of the clients reuse connections, the others open one per request.
                    let own = if number % 2 == 0 { kept.clone() } else { agent(&trusted) };
                    assert!(embed(&own, port).expect("an answer") > 0);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let only_new = agent(&[new]);
    assert!(embed(&only_new, port).is_err(), "the old certificate is shown");
    let more = |than: usize| {
        let before = answered.load(Ordering::Relaxed);
        while answered.load(Ordering::Relaxed) < before + than {
            thread::sleep(Duration::from_millis(5));
        }
    };
    more(12);
    server
        .running()
        .reload(Settings { http: HttpSettings { tls: Some(second), ..settings.http }, ..settings });
    assert!(embed(&only_new, port).expect("the new certificate is shown") > 0);
    assert!(embed(&agent(&[old]), port).is_err(), "the old one is not");
    more(12);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("no request fails");
    }
    println!("{answered:?} requests answered while the certificate was replaced");
}

#[test]
fn allowed_origins_may_send_requests_with_a_key_and_others_may_not() {
    let keys = Keys::read("secret").expect("a key");
    let cors_origins = vec!["https://page.example".to_owned()];
    let server = tiny_with(
        "tiny-bert",
        Settings { http: HttpSettings { keys, cors_origins, ..settings().http }, ..settings() },
    );
    let ask = |origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type"),
        ];
        send(*server, &request("OPTIONS", "/v1/embeddings", &headers, b"")).expect("an answer")
    };
    let allowed = ask("https://page.example");
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://page.example"));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization,content-type"));
    assert_eq!(ask("https://other.example").header("access-control-allow-origin"), None);
    let headers = [("origin", "https://page.example"), ("authorization", "Bearer secret")];
    let answer = post_with(*server, "/v1/embeddings", &headers, &json!({"input": "a"}));
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("https://page.example"))
    );
    assert!(
        answer.header("access-control-expose-headers").is_some_and(|shown| shown.contains("x-sconce-class"))
    );
    // The page can read a refusal as well.
    let refused = post_with(*server, "/v1/embeddings", &headers[..1], &json!({"input": "a"}));
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (401, Some("https://page.example"))
    );
}

fn vector<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).expect("a vector")
}

#[test]
fn vectors_come_as_cohere_has_them() {
    let server = tiny("tiny-bert");
    let texts = ["one text", "another, which is longer"];
    let body = json!({
        "model": "model", "texts": texts, "input_type": "search_document",
        "embedding_types": ["float", "int8", "uint8", "binary", "ubinary"],
    });
    let answer = post(*server, "/v2/embed", &body).expect(200);
    let floats: Vec<Vec<f32>> = vector(&answer["embeddings"]["float"]);
    let embed = |body: Value| -> Vec<Vec<f32>> { vector(&post(*server, "/embed", &body).expect(200)) };
    assert_eq!(
        floats,
        embed(json!({"inputs": texts, "prompt_name": "passage"})),
        "the model has a prompt for that"
    );
    assert_eq!(answer["texts"], json!(texts));
    assert!(answer["meta"]["billed_units"]["input_tokens"].as_u64().is_some_and(|tokens| tokens > 4));
    for (at, float) in floats.iter().enumerate() {
        let bytes: Vec<i8> = vector(&answer["embeddings"]["int8"][at]);
        let back: Vec<f32> = bytes.iter().map(|&x| f32::from(x)).collect();
        assert!(cosine(&back, float) > 0.9995);
        let bits: Vec<u8> = vector(&answer["embeddings"]["ubinary"][at]);
        let sign = |place: usize| bits[place / 8] >> (7 - place % 8) & 1 == 1;
        assert!(float.iter().enumerate().all(|(place, x)| sign(place) == (*x > 0.0)));
        let signed: Vec<i8> = vector(&answer["embeddings"]["binary"][at]);
        assert!(signed.iter().zip(&bits).all(|(a, b)| i16::from(*a) == i16::from(*b) - 128));
    }
    for wrong in [
        json!({"texts": ["a"], "embedding_types": ["int4"]}),
        json!({"texts": ["a"], "truncate": "START"}),
        json!({"texts": ["a"], "input_type": "poem"}),
        json!({"embedding_types": ["float"]}),
        json!({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ] {
        let refused = post(*server, "/v2/embed", &wrong);
        assert_eq!(refused.status, 400, "{wrong}");
        assert!(refused.json()["message"].is_string());
    }
    let contents = json!({"inputs": [{"content": [{"type": "text", "text": "one text"}]}]});
    let answer = post(*server, "/v2/embed", &contents).expect(200);
    assert_eq!(vector::<f32>(&answer["embeddings"]["float"][0]), embed(json!({"inputs": texts[0]}))[0]);
}

#[test]
fn a_long_text_is_the_mean_of_its_chunks() {
    let server = tiny("tiny-bert");
    let chunk = [("x-sconce-truncate", "chunk")];
    let embed = |headers: &[(&str, &str)], text: &str| {
        let answer = post_with(*server, "/v1/embeddings", headers, &json!({"input": text}));
        let chunks = answer.header("x-sconce-chunks").map(str::to_owned);
        (chunks, vector::<f32>(&answer.expect(200)["data"][0]["embedding"]))
    };
    assert_eq!(embed(&chunk, "a short text"), (Some("1".to_owned()), embed(&[], "a short text").1));
    let long = (0..4000).map(|n| format!("word{n}")).collect::<Vec<_>>().join(" ");
    assert_eq!(post(*server, "/v1/embeddings", &json!({"input": long})).status, 400, "it is too long");
    let (chunks, whole) = embed(&chunk, &long);
    let chunks: usize = chunks.and_then(|chunks| chunks.parse().ok()).expect("a number");
    assert!(chunks > 3, "{chunks}");
    let length: f32 = whole.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    let cut = embed(&[("x-sconce-truncate", "truncate")], &long).1;
    assert!(cosine(&whole, &cut) < 0.9999, "the end counts as well");
    let refused = post_with(*server, "/rerank", &chunk, &json!({"query": "a", "texts": ["b"]}));
    assert_ne!(refused.status, 200);
    let refused = post_with(*server, "/embed_all", &chunk, &json!({"inputs": "a"}));
    assert_ne!(refused.status, 200);
    assert!(refused.text().contains("is for embeddings of texts"), "{}", refused.text());
}

#[test]
fn only_operators_drain_a_worker_and_no_page_of_another_origin_does() {
    let none = tiny("tiny-bert");
    let drain = |address, headers: &[(&str, &str)]| {
        send(address, &request("POST", "/v1/drain", headers, b"")).expect("an answer")
    };
    for header in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        let refused = drain(*none, &[header]);
        assert_eq!(refused.status, 403, "{}", refused.text());
    }
    assert_eq!(post(*none, "/embed", &json!({"inputs": "a"})).status, 200);
    let keys = Keys::read("one\ntwo operator\n").expect("keys");
    let server =
        tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    let refused = drain(*server, &[("x-api-key", "one")]);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (403, &"forbidden".into()));
    assert_eq!(drain(*server, &[("x-api-key", "two")]).status, 202);
    assert_eq!(drain(*none, &[("origin", "http://x"), ("sec-fetch-site", "same-origin")]).status, 202);
}
