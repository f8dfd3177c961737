//! The time that a gateway adds.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::harness::pool;
use crate::stand_in::Behaviour;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_adds_little_latency() {
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Answer(Duration::ZERO, 16 << 10));
    let direct = Client::new(workers[0].registration.url.trim_start_matches("http://").parse().unwrap());
    let [mut alone, mut through] = [Vec::new(), Vec::new()];
    for round in 0..1100 {
        for (client, times) in [(&direct, &mut alone), (&gateway.client, &mut through)] {
            let start = Instant::now();
            assert!(client.embed(&[]).await.is_ok());
            // The first requests open connections.
            if round >= 100 {
                times.push(start.elapsed());
            }
        }
    }
    alone.sort_unstable();
    through.sort_unstable();
    let percentile = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    for percent in [50, 95] {
        let (direct, proxied) = (percentile(&alone, percent), percentile(&through, percent));
        println!(
            "p{percent}: direct {direct:?}, through the gateway {proxied:?}, added {:?}",
            proxied.saturating_sub(direct)
        );
    }
    let added = percentile(&through, 50).saturating_sub(percentile(&alone, 50));
    assert!(added < Duration::from_millis(20), "{added:?}");
}
