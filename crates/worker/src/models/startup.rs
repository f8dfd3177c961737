//! Model startup: load, warm up, start workers and recovery.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use sconce::{Error, ModelBuilder};
use tracing::info;

use crate::models::batch_worker::{Verification, run, warm_up};
use crate::models::incidents;
use crate::models::recovery;
use crate::models::second_opinion::SecondOpinions;
use crate::models::shadow::ShadowChecks;
use crate::schedule::queue::Queue;
use crate::schedule::rate::Rate;
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{LoadedModel, Phase, Slot};

/// Loads the model of a slot and starts its threads. The slot reports progress.
pub(crate) fn start(app: &Arc<App>, slot: &Slot, builder: ModelBuilder) -> Result<Arc<LoadedModel>, Error> {
    let model = builder.open_with_progress(&mut |event| incidents::handle_event(app, slot, &event))?;
    incidents::report_downgrades(app, &slot.name, &model);
    let warm_up = warm_up(&model, &mut |texts| slot.enter(Phase::WarmingUp { texts }));
    incidents::report_downgrades(app, &slot.name, &model);
    let warm_up = warm_up?;
    let rate = Rate::from(&warm_up);
    let queue = Arc::new(Queue::new(rate, app.settings().queue_seconds));
    let (name, loaded_at, concurrency, workers) =
        (slot.name.clone(), Instant::now(), model.concurrency(), Mutex::default());
    let loaded = Arc::new(LoadedModel {
        name,
        model,
        token_ids: slot.token_ids,
        queue,
        generations: Arc::default(),
        warm_up,
        loaded_at,
        concurrency,
        workers,
    });
    let shadow = ShadowChecks::new(Arc::clone(app), loaded.name.clone(), loaded.model.clone());
    let second_opinions = SecondOpinions::new(Arc::clone(app), Arc::downgrade(&loaded));
    let verification = Arc::new(Verification { shadow, second_opinions });
    // One spare worker takes interactive texts while all others are busy with bulk.
    for worker in 0..concurrency + usize::from(concurrency > 1) {
        let (app, host_of_worker) = (Arc::clone(app), Arc::clone(&loaded));
        let verification = Arc::clone(&verification);
        match spawn("sconce-worker", move || run(worker, &host_of_worker, &app, &verification)) {
            Ok(thread) => loaded.add_worker(thread),
            Err(error) => {
                loaded.queue.close();
                loaded.join();
                return Err(error);
            }
        }
    }
    let (weak_host, shared) = (Arc::downgrade(&loaded), Arc::clone(app));
    spawn("sconce-recovery", move || recovery::run(&shared, &weak_host))?;
    let plan = loaded.model.plan();
    let placement = plan.chosen.as_ref().map(|chosen| short(&chosen.placement));
    let tokens_per_second = rate.tokens_per_second.round();
    app.edge.telemetry.log(|| info!(model = slot.name, placement, tokens_per_second, "model ready"));
    Ok(loaded)
}

/// Spawns a named thread.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| Error::Machine(format!("cannot spawn a thread: {error}")))
}
