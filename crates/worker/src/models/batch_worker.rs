//! Batch workers: threads that dequeue batches of a model, compute them, and return the rows to their jobs.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use sconce::core::batch::{Batch, OutputKind};
use sconce::{BatchOutcome, BatchOutput, Error, GenerateOptions, Model, Task};

use crate::errors;
use crate::models::incidents::{count_fallbacks, report_incidents};
use crate::models::second_opinion::{Pending, SecondOpinions};
use crate::models::shadow::ShadowChecks;
use crate::schedule::job::BatchTiming;
use crate::schedule::list::Entry;
use crate::schedule::queue::ActiveBatch;
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::LoadedModel;
use sconce_http::refusal::{Kind, Refusal};

/// The text of warm-up batches.
const WARM_UP_TEXT: &str = "When the lamplighter reached the last street he turned around and counted the lights behind \
                    him: nineteen, and one that he had not lit. He walked back to it, and there stood a child \
                    with a match, who said that the dark had come early and that somebody had to begin.";
/// Tokens per text of a warm-up batch.
const WARM_UP_TOKENS: usize = 64;
/// Warm-up ends with the first batch that takes this many seconds.
const WARM_UP_SECONDS: f64 = 0.05;
/// Maximum texts of a warm-up batch.
const MAX_WARM_UP_TEXTS: usize = 512;

/// Warms up a model with batches of growing size. Returns tokens and seconds of each. `on_batch` receives its texts.
pub(crate) fn warm_up(model: &Model, on_batch: &mut dyn FnMut(usize)) -> Result<Vec<(usize, f64)>, Error> {
    if model.card().task.value == Task::Generate {
        return warm_up_generation(model, on_batch);
    }
    let mut ids = model.encode_texts(&sconce::Prompt::NONE, &[WARM_UP_TEXT])?.remove(0).ids;
    ids.truncate(WARM_UP_TOKENS);
    let mut measured = Vec::new();
    let mut texts = 1;
    loop {
        on_batch(texts);
        let mut batch = Batch::new(model.output_kind());
        for _ in 0..texts {
            batch.push(&ids, &vec![0; ids.len()], 0);
        }
        let tokens = batch.tokens();
        // The first batch of each size pays one-time costs.
        let mut seconds = f64::INFINITY;
        for _ in 0..2 {
            let batch = batch.clone();
            let began = Instant::now();
            model.compute(batch)?;
            seconds = seconds.min(began.elapsed().as_secs_f64());
        }
        measured.push((tokens, seconds));
        if seconds > WARM_UP_SECONDS || texts >= MAX_WARM_UP_TEXTS {
            return Ok(measured);
        }
        texts *= 4;
    }
}

/// Warms up a language model with two prompts. Returns tokens and seconds of the second.
fn warm_up_generation(model: &Model, on_batch: &mut dyn FnMut(usize)) -> Result<Vec<(usize, f64)>, Error> {
    on_batch(1);
    let options = GenerateOptions { max_tokens: Some(2), temperature: 0.0, ..GenerateOptions::default() };
    let ids: Vec<u32> = model.tokens(WARM_UP_TEXT, true)?.into_iter().map(|token| token.id).collect();
    let mut measured = Vec::new();
    for _ in 0..2 {
        // The second prompt begins with another token, so that no prefix of it is cached.
        let prompt: Vec<u32> = ids.iter().copied().skip(measured.len()).collect();
        let (tokens, began) = (prompt.len(), Instant::now());
        model.generate_from_ids(prompt, &options)?.text()?;
        measured.push((tokens, began.elapsed().as_secs_f64()));
    }
    Ok(measured.split_off(1))
}

/// Checks of computed batches: shadow checks against the reference, and second opinions on suspect texts.
pub(crate) struct Verification {
    pub(crate) shadow: ShadowChecks,
    pub(crate) second_opinions: SecondOpinions,
}

/// Runs the worker with this index until the queue is closed and empty.
pub(crate) fn run(worker: usize, loaded: &LoadedModel, app: &App, verification: &Verification) {
    let LoadedModel { model, queue, .. } = loaded;
    let width = model.card().width().max(model.card().sizes.value.hidden);
    // A fallback placement may allow more concurrency than there are workers.
    let concurrency = || (model.batch_layout(), model.concurrency().min(loaded.concurrency));
    while let Some(mut batch) = queue.next(worker, concurrency, width) {
        // Longest first: the short sequences at the end balance the load of the threads.
        batch.entries.sort_by_key(|entry| Reverse(entry.tokens()));
        let compute = AssertUnwindSafe(|| compute(loaded, app, &batch, verification));
        if catch_unwind(compute).is_err() {
            fail(&batch.entries, &panicked());
        }
    }
}

fn panicked() -> Refusal {
    Refusal::new(Kind::Machine, "the worker panicked during this batch")
}

fn compute(loaded: &LoadedModel, app: &App, active: &ActiveBatch<'_>, verification: &Verification) {
    let LoadedModel { name, model, .. } = loaded;
    let metrics = &app.metrics;
    let (entries, began) = (&active.entries, active.began);
    let mut batch = Batch::new(entries.first().map_or(OutputKind::Pooled, |entry| entry.job.output_kind));
    for entry in entries {
        let text = &entry.job.texts[entry.index];
        batch.push_masked(&text.ids, &text.type_ids, text.prompt_tokens, text.masked);
    }
    let tokens = batch.tokens();
    let shadowed = verification.shadow.is_due().then(|| batch.clone());
    let (computing, texts) = (Instant::now(), entries.len());
    let timing = move |done| BatchTiming { began, computing, computed: done, ended: done, texts, tokens };
    let own_entries = entries.clone();
    // Requests are answered by the thread that computed them.
    let on_output = move |computed: &BatchOutput| {
        let batch = timing(Instant::now());
        let return_rows = AssertUnwindSafe(|| return_rows(&own_entries, computed, batch, &HashSet::new()));
        if catch_unwind(return_rows).is_err() {
            fail(&own_entries, &panicked());
        }
    };
    match model.compute_each_then(batch, Box::new(on_output)) {
        Ok(BatchOutcome { output: computed, rejected: refused, unresolved: suspects, delivered }) => {
            let done = Instant::now();
            if computed.incidents.is_empty() {
                active.observe(tokens, done);
            }
            let batch = timing(done);
            let failed = refused.iter().map(|(index, _)| *index);
            let failed: HashSet<usize> = failed.chain(suspects.iter().map(|one| one.index)).collect();
            if !delivered {
                return_rows(entries, &computed, batch, &failed);
            }
            count_fallbacks(name, app, &computed);
            report_incidents(loaded, app);
            let seconds = done.saturating_duration_since(began).as_secs_f64();
            metrics.batch(name, &short(&computed.placement), entries.len(), tokens, seconds);
            for (index, error) in refused {
                entries[index].job.fail(errors::refusal(Error::from(error)));
            }
            for suspect in suspects {
                let entry = entries[suspect.index].clone();
                verification.second_opinions.send(Pending { entry, suspect, batch });
            }
            // Failed texts have no valid rows to compare.
            if let Some(batch) = shadowed.filter(|_| failed.is_empty()) {
                verification.shadow.send(batch, computed);
            }
        }
        Err(error) => {
            report_incidents(loaded, app);
            fail(entries, &errors::refusal(error));
        }
    }
}

/// Returns the rows of all entries to their jobs, except those of `failed` entries.
fn return_rows(entries: &[Entry], computed: &BatchOutput, batch: BatchTiming, failed: &HashSet<usize>) {
    let rows = &computed.rows;
    let (mut at, mut row) = (0, 0);
    for run in entries.chunk_by(|a, b| Arc::ptr_eq(&a.job, &b.job)) {
        let pooled = run[0].job.output_kind == OutputKind::Pooled;
        let mut own = Vec::with_capacity(run.len());
        for entry in run {
            let count = if pooled { 1 } else { entry.tokens() };
            let values = &rows.values[row * rows.width..(row + count) * rows.width];
            let norm = if pooled { rows.norms.get(row).copied() } else { None };
            if !failed.contains(&at) {
                own.push((entry.index, values, norm));
            }
            at += 1;
            row += count;
        }
        if !own.is_empty() {
            run[0].job.add_rows(computed, own.into_iter(), batch);
        }
    }
}

fn fail(entries: &[Entry], refusal: &Refusal) {
    for entry in entries {
        entry.job.fail(refusal.clone());
    }
}

#[cfg(test)]
mod tests {
    use sconce::core::batch::Rows;
    use sconce::core::engine::BatchLayout;
    use sconce::operations::SequenceOutput;
    use sconce::tokenize::TokenSequence;
    use sconce::{Device, Dtype, EngineId, Placement};

    use super::*;
    use crate::schedule::job::{Job, PENDING};
    use crate::schedule::next_batch::Priority;
    use crate::schedule::queue::Queue;
    use crate::schedule::rate::Rate;
    use sconce_http::keys::TenantId;

    #[test]
    fn every_job_gets_the_rows_and_norms_of_its_own_texts() {
        let text = |tokens: usize| TokenSequence { ids: vec![1; tokens], ..TokenSequence::default() };
        for (output_kind, norms) in [(OutputKind::Pooled, true), (OutputKind::Tokens, false)] {
            let queue = Queue::new(Rate { min_seconds: 0.001, tokens_per_second: 1e6 }, 2.0);
            let (jobs, outcomes): (Vec<_>, Vec<_>) = [[9, 3], [7, 5], [8, 1]]
                .map(|lengths| {
                    let texts = lengths.map(text).to_vec();
                    let (job, outcome) = Job::new(texts, output_kind, Priority::Bulk, false, TenantId(1));
                    (Arc::new(job), outcome)
                })
                .into_iter()
                .unzip();
            for job in &jobs {
                queue.admit(job).expect("capacity");
            }
            let mut taken = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch");
            taken.entries.sort_by_key(|entry| Reverse(entry.tokens()));
            // The value of a row is its index, and a text of n tokens has n rows or one; norms are a hundred more.
            let mut row = 0_u8;
            let mut expected = vec![vec![PENDING; 2]; 3];
            for entry in &taken.entries {
                let job = jobs.iter().position(|job| Arc::ptr_eq(job, &entry.job)).expect("a job");
                let count = if norms { 1 } else { u8::try_from(entry.tokens()).expect("few") };
                let values = (row..row + count).map(f32::from).collect();
                let norm = norms.then(|| f32::from(row) + 100.0);
                row += count;
                expected[job][entry.index] = SequenceOutput::Dense { values, norm };
            }
            let values: Vec<f32> = (0..row).map(f32::from).collect();
            let norms = values.iter().map(|value| value + 100.0).collect();
            let placement = Placement {
                engine: EngineId::Candle,
                device: Device::Cpu,
                weights: "model".to_owned(),
                dtype: Dtype::F32,
            };
            let rows = Rows { width: 1, values, norms };
            let computed =
                BatchOutput { rows, placement, class: String::new(), incidents: Vec::new(), splits: 0 };
            let now = Instant::now();
            let batch =
                BatchTiming { began: now, computing: now, computed: now, ended: now, texts: 6, tokens: 33 };
            return_rows(&taken.entries, &computed, batch, &HashSet::new());
            for (mut outcome, expected) in outcomes.into_iter().zip(expected) {
                let outcome = outcome.try_recv().expect("all texts are computed").expect("no refusal");
                assert_eq!(outcome.outputs, expected, "{output_kind:?}");
            }
        }
    }
}
