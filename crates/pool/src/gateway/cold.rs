//! Requests for models that no worker has loaded: they wait while the pool loads the model.

use std::time::Duration;

use prometheus::IntGauge;
use sconce_http::refusal::{Kind, Refusal};
use tokio::time::{Instant, interval, sleep_until};

use super::state::Gateway;

/// Interval at which a request repeats what it waits for: messages between gateways may be lost.
const REPEAT: Duration = Duration::from_millis(500);
/// `Retry-After` of a request that waited for as long as it could, in seconds.
const RETRY_AFTER: f64 = 5.0;

/// Counts a request that waits.
struct Waiting(IntGauge);

impl Waiting {
    fn new(gauge: &IntGauge) -> Waiting {
        gauge.inc();
        Waiting(gauge.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Waits until a worker has loaded a model of the desired state. Models that are not in it are not waited for.
pub(super) async fn wait_for_model(gateway: &Gateway, name: &str, deadline: Instant) -> Result<(), Refusal> {
    let placement = &gateway.placement;
    let Some(desired) = placement.find(name) else { return Ok(()) };
    let model = desired.model.as_str();
    if !gateway.members.names().is_cold(name) {
        placement.note_use(model);
        return Ok(());
    }
    let _waiting = Waiting::new(&gateway.metrics.waiting);
    let (mut changes, mut refusals) = (gateway.members.changes(), placement.refusals());
    // Generations have a long deadline of their own.
    let limit = deadline.min(Instant::now() + gateway.edge.settings().time_limit);
    let mut repeat = interval(REPEAT);
    loop {
        changes.mark_unchanged();
        refusals.mark_unchanged();
        if !gateway.members.names().is_cold(name) {
            return Ok(());
        }
        if let Some((reason, left)) = placement.refusal(model) {
            placement.note_use(model);
            let message = format!("`{model}` can't be loaded by any worker now: {reason}");
            return Err(not_ready(model, message, left.as_secs_f64().max(1.0)));
        }
        if placement.find(name).is_none() {
            return Err(not_ready(model, format!("`{model}` was removed from the pool"), RETRY_AFTER));
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = refusals.changed() => {}
            _ = repeat.tick() => placement.want(model).await,
            () = sleep_until(limit) => {
                return Err(not_ready(model, format!("`{model}` is being loaded"), RETRY_AFTER));
            }
        }
    }
}

fn not_ready(model: &str, message: String, retry_after: f64) -> Refusal {
    Refusal::new(Kind::NotReady, message).retry_after(retry_after).for_model(model)
}
