//! From a name to a model that serves: opened, proved, warmed up, its worker started.

use std::sync::Arc;
use std::thread;

use sconce::{Error, ModelBuilder};

use crate::app::{App, Host, Phase, Slot};
use crate::queue::Queue;
use crate::returning::watch;
use crate::worker::{measure, work};

/// Opens a model for its slot, telling how far it is.
pub(crate) fn open(app: &Arc<App>, slot: &Arc<Slot>, builder: ModelBuilder) -> Result<(), Error> {
    let opened = open_quietly(app, slot, builder);
    if let Err(error) = &opened {
        slot.enter(Phase::Failed { why: error.to_string() });
    }
    opened
}

fn open_quietly(app: &Arc<App>, slot: &Arc<Slot>, builder: ModelBuilder) -> Result<(), Error> {
    let ready = app.metrics.ready.with_label_values(&[&slot.name]);
    ready.set(0);
    let model = builder.open_telling(&mut |event| slot.enter(Phase::of(&event)))?;
    let rate = measure(&model, &mut |texts| slot.enter(Phase::WarmingUp { texts }))?;
    let queue = Arc::new(Queue::new(rate, app.settings.queue_seconds));
    let host = Arc::new(Host { name: slot.name.clone(), model, queue });
    let (worker, counted) = (Arc::clone(&host), Arc::clone(app));
    spawn("sconce-worker", move || work(&worker.name, &worker.model, &worker.queue, &counted.metrics))?;
    let (watched, counted) = (Arc::clone(&host), Arc::clone(app));
    spawn("sconce-returning", move || watch(&counted, &watched))?;
    slot.fill(host);
    ready.set(1);
    Ok(())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map(drop).map_err(|error| Error::Request(format!("no thread can be had: {error}")))
}
