//! Tests of the outcome of a job.

use sconce::core::batch::Rows;
use sconce::operations::SequenceOutput;
use sconce::{BatchOutput, Device, Dtype, EngineId, Incident, IncidentKind, Placement, TokenWeight};
use tokio::sync::oneshot;

use super::*;
use crate::schedule::job::{BatchTiming, Outcome};
use sconce_http::refusal::{Kind, Refusal};

type Receiver = oneshot::Receiver<Result<Outcome, Refusal>>;

fn new(texts: usize, sparse: bool) -> (Job, Receiver) {
    let text =
        TokenSequence { ids: vec![1; 4], type_ids: vec![0; 4], full_length: 4, ..TokenSequence::default() };
    Job::new(vec![text; texts], OutputKind::Pooled, Priority::Bulk, sparse, TenantId(1))
}

fn computed(dtype: Dtype, incidents: usize) -> BatchOutput {
    let placement =
        Placement { engine: EngineId::Candle, device: Device::Cpu, weights: "model".to_owned(), dtype };
    let incident =
        Incident { placement: placement.clone(), kind: IncidentKind::Failed, why: "broken".to_owned() };
    BatchOutput {
        rows: Rows::default(),
        placement,
        class: format!("class-{dtype}"),
        incidents: vec![incident; incidents],
        splits: 0,
    }
}

fn timing(job: &Job, milliseconds: u64) -> BatchTiming {
    let began = job.arrived + Duration::from_millis(milliseconds);
    BatchTiming { began, computing: began, computed: began, ended: job.arrived, texts: 1, tokens: 4 }
}

#[test]
fn a_job_is_answered_once_its_last_text_is_computed() {
    let (job, mut outcome) = new(3, false);
    assert_eq!(job.tokens(), 12);
    let before = Instant::now();
    let (half, full) = (computed(Dtype::F16, 1), computed(Dtype::F32, 0));
    job.add_rows(&half, [(2, &[3.0][..], Some(0.5))].into_iter(), timing(&job, 5));
    job.add_rows(&half, [(0, &[1.0][..], None)].into_iter(), timing(&job, 20));
    assert!(outcome.try_recv().is_err(), "a text still waits");
    job.add_rows(&full, [(1, &[2.0][..], Some(0.25))].into_iter(), timing(&job, 30));
    let outcome = outcome.try_recv().expect("all texts are computed").expect("no refusal");
    let rows = |value, norm| SequenceOutput::Dense { values: vec![value], norm };
    assert_eq!(outcome.outputs, [rows(1.0, None), rows(2.0, Some(0.25)), rows(3.0, Some(0.5))]);
    assert_eq!(outcome.placements, [half.placement, full.placement]);
    assert_eq!(outcome.classes, ["class-f16", "class-f32"]);
    assert_eq!(outcome.incidents.len(), 2, "one for each batch that had one");
    assert_eq!(outcome.queued, Duration::from_millis(5), "until the first batch");
    assert_eq!(outcome.batches.len(), 3);
    assert!(outcome.batches.iter().all(|batch| batch.ended >= before), "when the job had its rows");
    assert!(!job.is_cancelled());
}

#[test]
fn a_sparse_job_keeps_the_nonzero_weights() {
    let (job, mut outcome) = new(1, true);
    job.add_rows(
        &computed(Dtype::F32, 0),
        [(0, &[0.0, 2.0, -1.0][..], Some(2.0))].into_iter(),
        timing(&job, 1),
    );
    let outcome = outcome.try_recv().expect("it is computed").expect("no refusal");
    assert_eq!(outcome.outputs, [SequenceOutput::Sparse(vec![TokenWeight { index: 1, value: 2.0 }])]);
}

#[test]
fn a_job_that_fails_is_refused_once_and_leaves_the_queue() {
    let (job, mut outcome) = new(2, false);
    job.fail(Refusal::new(Kind::Machine, "first"));
    job.fail(Refusal::new(Kind::Model, "second"));
    let refusal = outcome.try_recv().expect("an answer").expect_err("a refusal");
    assert_eq!(refusal.code(), Refusal::new(Kind::Machine, "first").code());
    assert!(job.is_cancelled());
}
