//! Numerics pinning.

use std::sync::Arc;

use sconce_pool::gateway::{Backend, GatewaySettings};
use sconce_registry::{InProcess, Registry};

use crate::harness::Gateway;
use crate::stand_in::StandIn;

/// Classes of two workers with the same weights, and one with others.
const CLASSES: [&str; 3] = ["aaaaaaaaaaaa-exact", "aaaaaaaaaaaa-half", "bbbbbbbbbbbb-half"];

async fn pool() -> (Gateway, Vec<StandIn>, Arc<InProcess>) {
    let registry = Arc::new(InProcess::new());
    let mut workers = Vec::new();
    for (index, class) in CLASSES.iter().enumerate() {
        let registry = Arc::clone(&registry) as Arc<dyn Registry>;
        workers.push(StandIn::start(registry, &format!("w{index}"), class, 1000.0).await);
    }
    let gateway = Gateway::start(Arc::clone(&registry) as Arc<dyn Backend>, GatewaySettings::default()).await;
    gateway.wait_for_members(3).await;
    (gateway, workers, registry)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_pinned_class_answers() {
    let (gateway, workers, _registry) = pool().await;
    for class in CLASSES {
        for _ in 0..30 {
            let answer = gateway.client.embed(&[("x-sconce-class", class)]).await;
            assert!(answer.is_ok(), "{}", answer.text());
            assert_eq!(answer.json()["class"], class);
        }
    }
    let tighter = [("x-sconce-class", CLASSES[1]), ("x-sconce-allow-tighter", "true")];
    let mut seen = [0; 3];
    for _ in 0..60 {
        let answer = gateway.client.embed(&tighter).await.json();
        seen[CLASSES.iter().position(|class| answer["class"] == *class).unwrap()] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0 && seen[2] == 0, "{seen:?}");

    let answer = gateway.client.embed(&[("x-sconce-class", "cccccccccccc-half")]).await;
    assert_eq!(
        (answer.status, answer.header("x-sconce-code")),
        (503, "class_unavailable"),
        "{}",
        answer.text()
    );
    workers[2].kill();
    let mut last = 0;
    for _ in 0..12 {
        last = gateway.client.embed(&[("x-sconce-class", CLASSES[2])]).await.status;
        assert!((500..600).contains(&last), "{last}");
    }
    tokio::time::sleep(crate::stand_in::TTL + std::time::Duration::from_millis(500)).await;
    let answer = gateway.client.embed(&[("x-sconce-class", CLASSES[2])]).await;
    assert_eq!((answer.status, answer.header("x-sconce-code")), (503, "class_unavailable"), "after {last}");
    for (name, value) in
        [("x-sconce-class", "half"), ("x-sconce-allow-tighter", "yes"), ("x-sconce-index", "")]
    {
        assert_eq!(gateway.client.embed(&[(name, value)]).await.status, 400, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_keeps_the_class_of_its_first_use() {
    let (gateway, _workers, registry) = pool().await;
    let other = Gateway::start(Arc::clone(&registry) as Arc<dyn Backend>, GatewaySettings::default()).await;
    other.wait_for_members(3).await;
    for index in 0..20 {
        let name = format!("index {index}");
        let headers = [("x-sconce-index", name.as_str())];
        // Both gateways use a new index at the same time.
        let (one, two) = tokio::join!(gateway.client.embed(&headers), other.client.embed(&headers));
        let class = one.json()["class"].clone();
        assert_eq!(two.json()["class"], class);
        for _ in 0..5 {
            assert_eq!(gateway.client.embed(&headers).await.json()["class"], class);
            assert_eq!(other.client.embed(&headers).await.json()["class"], class);
        }
    }
    let named = [("x-sconce-index", "mine"), ("x-sconce-class", CLASSES[2])];
    assert_eq!(gateway.client.embed(&named).await.json()["class"], CLASSES[2]);
    assert_eq!(other.client.embed(&named[..1]).await.json()["class"], CLASSES[2]);
    let wrong = [("x-sconce-index", "mine"), ("x-sconce-class", CLASSES[0])];
    assert_eq!(other.client.embed(&wrong).await.status, 400);
    // An index is not bound to a class that no worker has: nothing would answer for it.
    let unknown = [("x-sconce-index", "docs"), ("x-sconce-class", "cccccccccccc-half")];
    let answer = gateway.client.embed(&unknown).await;
    assert_eq!((answer.status, answer.header("x-sconce-code")), (503, "class_unavailable"));
    assert!(other.client.embed(&unknown[..1]).await.is_ok(), "it is free");
}
