//! Streams of events.

use std::time::Duration;

use crate::harness::pool;
use crate::stand_in::Behaviour;

const CHAT: &str = r#"{"model": "chat", "messages": [], "stream": true}"#;

/// The data of the events of a stream.
fn events(text: &str) -> Vec<&str> {
    assert!(text.ends_with("\n\n"), "only whole events: {text:?}");
    text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap_or(event)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_as_they_are_sent() {
    use http_body_util::BodyExt;
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Stream(3, Duration::from_millis(200)));
    let start = std::time::Instant::now();
    let mut body = gateway.client.send("POST", "/v1/chat/completions", &[], CHAT).await.into_body();
    let mut times = Vec::new();
    while let Some(frame) = body.frame().await {
        if frame.unwrap().is_data() {
            times.push(start.elapsed().as_millis());
        }
    }
    assert!(times.len() >= 3 && times[0] < 350 && times[1] > 350 && times[2] > 550, "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_worker_ends_its_streams_with_one_error_each() {
    let (gateway, workers, _registry) = pool(2).await;
    for worker in &workers {
        worker.state.set(Behaviour::Stream(20, Duration::from_millis(100)));
    }
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let client = gateway.client.clone();
            tokio::spawn(async move { client.post("/v1/chat/completions", &[], CHAT).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(800)).await;
    workers[0].kill();
    let (mut broken, mut whole) = (0, 0);
    for task in tasks {
        let answer = task.await.unwrap();
        assert!(answer.is_ok(), "{}", answer.status);
        let text = answer.text();
        let events = events(&text);
        let errors = events.iter().filter(|event| event.starts_with("{\"error\"")).count();
        if answer.header("x-sconce-worker") == "w0" {
            assert_eq!(errors, 1, "{text}");
            assert!(
                events.last().unwrap().contains("\"worker_failed\""),
                "the error is the last event: {text}"
            );
            broken += 1;
        } else {
            assert_eq!((errors, events.len(), events.last()), (0, 21, Some(&"[DONE]")), "{text}");
            whole += 1;
        }
    }
    println!("{broken} streams ended with an error, {whole} were untouched");
    assert!(broken > 8 && whole > 8, "{broken} {whole}");
    let [ok, _, failed, _] = gateway.outcomes().await;
    assert_eq!((ok, failed), (whole, broken));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_a_frozen_worker_ends_with_an_error() {
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Stream(20, Duration::from_millis(50)));
    let client = gateway.client.clone();
    let task = tokio::spawn(async move { client.post("/v1/chat/completions", &[], CHAT).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    workers[0].state.freeze(true);
    let answer = tokio::time::timeout(Duration::from_secs(8), task).await.expect("it ends").unwrap();
    let text = answer.text();
    assert!(events(&text).last().unwrap().starts_with("{\"error\""), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_is_retried_before_its_first_byte() {
    let (gateway, workers, _registry) = pool(2).await;
    workers[0].state.set(Behaviour::Refuse(503, "not_ready", 1));
    workers[1].state.set(Behaviour::Stream(1, Duration::ZERO));
    for _ in 0..20 {
        let answer = gateway.client.post("/v1/chat/completions", &[], CHAT).await;
        assert!(answer.is_ok() && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_no_failure() {
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Stream(1000, Duration::from_millis(20)));
    let response = gateway.client.send("POST", "/v1/chat/completions", &[], CHAT).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(response);
    for _ in 0..100 {
        if gateway.outcomes().await == [0, 0, 0, 1] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?}", gateway.outcomes().await);
}
