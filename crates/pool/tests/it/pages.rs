//! Routes that a gateway answers itself.

use serde_json::json;

use crate::harness::{CLASS, pool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_report_probes_and_metrics_are_those_of_the_pool() {
    let (gateway, workers, _registry) = pool(2).await;
    let client = &gateway.client;
    assert_eq!(client.get("/livez").await.text(), "alive\n");
    assert_eq!(client.get("/readyz").await.json()["ready"], true);
    let models = client.get("/v1/models").await.json();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["chat", "m"]);
    assert_eq!(models["data"][1]["workers"], json!(["w0", "w1"]));
    assert_eq!(client.get("/v1/models/m").await.json()["classes"], json!([CLASS]));
    assert_eq!(client.get("/v1/models/x").await.status, 404);
    for path in ["/api/tags", "/api/ps"] {
        let models = client.get(path).await.json();
        assert_eq!(
            (&models["models"][1]["name"], models["models"].as_array().map(Vec::len)),
            (&json!("m"), Some(2))
        );
    }
    assert_eq!(client.get("/api/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    for _ in 0..5 {
        client.embed(&[]).await;
    }
    let report = client.get("/v1/report").await.json();
    let member = &report["members"][0];
    assert_eq!((member["worker"].as_str(), member["state"].as_str()), (Some("w0"), Some("ready")));
    assert_eq!(
        (member["circuit"].as_str(), member["rates"]["small"].as_f64()),
        (Some("closed"), Some(1000.0))
    );
    assert_eq!(report["registry"]["connected"], true);
    assert_eq!(gateway.metric("sconce_gateway_members{state=\"ready\"}").await, 2);
    assert_eq!(gateway.metric("sconce_gateway_registry_connected").await, 1);
    assert_eq!(gateway.metric("sconce_gateway_request_seconds_count").await, 5);
    let attempts = |id: &str| format!("sconce_gateway_attempts_total{{outcome=\"ok\",worker=\"{id}\"}}");
    let counted = gateway.metric(&attempts("w0")).await + gateway.metric(&attempts("w1")).await;
    assert_eq!(counted, workers.iter().map(|worker| worker.state.count()).sum::<usize>());
    let info = client.get("/models/m/info").await;
    assert_eq!((info.status, info.json()["worker"].is_string()), (200, true), "a worker describes its model");
    assert_eq!(client.get("/info").await.status, 404, "two models");
}
