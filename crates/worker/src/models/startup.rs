//! From a name to a model that serves: opened, proved, warmed up, its workers started.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use sconce::{Error, ModelBuilder};
use serde_json::json;

use crate::models::batch_worker::{Aside, measure, work};
use crate::models::incidents;
use crate::models::recovery::watch;
use crate::models::second_opinion::SecondOpinions;
use crate::models::shadow::Checks;
use crate::schedule::queue::Queue;
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{Host, Phase, Slot};

/// Opens a model for its slot, telling how far it is.
pub(crate) fn open(app: &Arc<App>, slot: &Slot, builder: ModelBuilder) -> Result<Arc<Host>, Error> {
    let model = builder.open_with_progress(&mut |event| incidents::hear(app, slot, &event))?;
    incidents::report(app, &slot.name, &model);
    let rate = measure(&model, &mut |texts| slot.enter(Phase::WarmingUp { texts }));
    incidents::report(app, &slot.name, &model);
    let rate = rate?;
    let queue = Arc::new(Queue::new(rate, app.settings().queue_seconds));
    let (name, since, concurrency, workers) =
        (slot.name.clone(), Instant::now(), model.concurrency(), Mutex::default());
    let host = Arc::new(Host { name, model, token_ids: slot.token_ids, queue, since, concurrency, workers });
    let checks = Checks::new(Arc::clone(app), host.name.clone(), host.model.clone());
    let opinions = SecondOpinions::new(Arc::clone(app), Arc::downgrade(&host));
    let aside = Arc::new(Aside { checks, opinions });
    for hand in 0..concurrency + usize::from(concurrency > 1) {
        let (own, counted, aside) = (Arc::clone(&host), Arc::clone(app), Arc::clone(&aside));
        match spawn("sconce-worker", move || work(hand, &own, &counted, &aside)) {
            Ok(worker) => host.add_worker(worker),
            Err(error) => {
                host.queue.close();
                host.join();
                return Err(error);
            }
        }
    }
    let (watched, counted) = (Arc::downgrade(&host), Arc::clone(app));
    spawn("sconce-recovery", move || watch(&counted, &watched))?;
    let plan = host.model.plan();
    let placement = plan.chosen.as_ref().map(|chosen| short(&chosen.placement));
    let rate = json!(rate.tokens_per_second.round());
    let told = [("model", json!(slot.name)), ("placement", json!(placement)), ("tokens_per_second", rate)];
    app.edge.telemetry.info("model ready", &told);
    Ok(host)
}

/// A thread of this name.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| Error::Machine(format!("the system gives no thread: {error}")))
}
