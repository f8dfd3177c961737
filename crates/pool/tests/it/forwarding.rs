//! What a gateway forwards, and to whom.

use std::time::Duration;

use sconce_http::Keys;
use sconce_pool::gateway::GatewaySettings;

use crate::harness::{pool, pool_with};
use crate::stand_in::Behaviour;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_passed_on_and_names_its_worker() {
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Answer(Duration::ZERO, 100_000));
    let answer = gateway
        .client
        .post("/v1/embeddings?a=b", &[("x-sconce-priority", "bulk")], r#"{"input": "a"}"#)
        .await;
    assert!(answer.is_ok(), "{}", answer.text());
    assert_eq!(answer.header("x-sconce-worker"), "w0");
    assert_eq!(answer.json()["pad"].as_str().unwrap().len(), 100_000);
    assert_eq!(*workers[0].state.last_path.lock().unwrap(), "/v1/embeddings?a=b");
    let headers = workers[0].state.last_headers.lock().unwrap().clone();
    assert_eq!(headers["x-sconce-priority"], "bulk");
    assert_eq!(headers["x-sconce-model"], "m", "the only model that embeds");
    assert!(!headers.contains_key("x-sconce-tenant"), "not without the key of the pool");
    let trace = |value: &str| value.split('-').nth(1).unwrap().to_owned();
    assert_eq!(trace(&headers["traceparent"]), trace(answer.header("traceparent")), "one trace");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_named_by_path_body_or_header() {
    let (gateway, workers, _registry) = pool(1).await;
    let client = &gateway.client;
    assert!(client.post("/models/org/m/embed", &[], r#"{"inputs": "a"}"#).await.is_ok());
    assert_eq!(*workers[0].state.last_path.lock().unwrap(), "/models/org/m/embed");
    assert!(client.post("/embed", &[("x-sconce-model", "org/m")], r#"{"inputs": "a"}"#).await.is_ok());
    assert!(client.post("/embed", &[], r#"{"inputs": "a", "model": "ignored by TEI"}"#).await.is_ok());
    assert!(client.post("/api/embed", &[], r#"{"model": "m:latest", "input": "a"}"#).await.is_ok());
    for (path, headers, body, status, code) in [
        ("/v1/embeddings", vec![], r#"{"model": "x"}"#, 404, "model_not_found"),
        ("/v1/embeddings", vec![], r#"{"model": "chat"}"#, 400, "wrong_task"),
        ("/v1/embeddings", vec![], r#"{"model": "m", "model": "m"}"#, 400, "invalid_request"),
        ("/v1/embeddings", vec![], r#"{"model": "m""#, 400, "invalid_json"),
        ("/embed", vec![("x-sconce-model", "x")], "{}", 404, "model_not_found"),
        ("/models/x/embed", vec![], "{}", 404, "model_not_found"),
        ("/tokenize", vec![], "{}", 404, "model_not_found"),
        ("/v1/drain", vec![], "{}", 404, "no_such_route"),
    ] {
        let answer = client.post(path, &headers, body).await;
        assert_eq!((answer.status, answer.header("x-sconce-code")), (status, code), "{path} {body}");
    }
    assert_eq!(client.get("/v1/embeddings").await.status, 405);
    assert_eq!(workers[0].state.count(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_limits_are_those_of_a_worker() {
    let mut settings = GatewaySettings { pool_key: Some("ours".to_owned()), ..GatewaySettings::default() };
    settings.http.keys = Keys::read("alice name=a\nbob rate=1").unwrap();
    settings.http.max_body = 100;
    let registry = std::sync::Arc::new(sconce_registry::InProcess::new());
    let worker = crate::stand_in::StandIn::start(registry.clone(), "w0", crate::harness::CLASS, 100.0).await;
    let gateway = crate::harness::Gateway::start(registry, settings).await;
    while gateway.client.get("/readyz").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(gateway.client.embed(&[]).await.status, 401);
    assert_eq!(gateway.client.get("/readyz").await.status, 200, "probes need no key");
    let forged = [("authorization", "Bearer alice"), ("x-sconce-tenant", "forged")];
    assert_eq!(gateway.client.embed(&forged).await.status, 403, "only the pool's key names tenants");
    let alice = [("authorization", "Bearer alice")];
    assert!(gateway.client.embed(&alice).await.is_ok());
    let headers = worker.state.last_headers.lock().unwrap().clone();
    assert_eq!(headers["authorization"], "Bearer ours");
    assert_eq!(headers["x-sconce-tenant"].len(), 16, "{headers:?}");
    let long = format!(r#"{{"model": "m", "input": "{}"}}"#, "a".repeat(100));
    assert_eq!(gateway.client.post("/v1/embeddings", &alice, &long).await.status, 413);
    let bob = [("x-api-key", "bob")];
    let statuses = [gateway.client.embed(&bob).await.status, gateway.client.embed(&bob).await.status];
    assert_eq!(statuses, [200, 429], "five tokens overdraw a rate of one per second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_exceeds_the_memory_budget_is_refused() {
    let mut settings = GatewaySettings::default();
    settings.http.max_bodies = 64;
    let (gateway, workers, _registry) = pool_with(1, settings).await;
    workers[0].state.set(Behaviour::Answer(Duration::from_millis(500), 1));
    let requests = [gateway.client.embed(&[]), gateway.client.embed(&[]), gateway.client.embed(&[])];
    let [one, two, three] = requests;
    let (one, two, three) = tokio::join!(one, two, three);
    let mut statuses = [one.status, two.status, three.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429, 429], "bodies of 43 bytes in a budget of 64");
}
