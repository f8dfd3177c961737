//! Gathers and stores the missing evidence about the placements of a model.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sconce_core::batch::Batch;
use sconce_core::card::{Format, KvCacheDtype, ModelCard, Sizes, Task};
use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::{Dtype, Placement};
use sconce_core::probe::{ProbeCase, Sample};
use sconce_planner::band::Band;
use sconce_planner::evidence::{Agreement, Canary, Evidence, Findings, SpeedPoint};
use sconce_planner::{cases, grid, judge};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::info_span;

use super::fingerprint::Fingerprint;
use super::prover::Prover;
use super::request::{ProbeRequest, ProbeResults};
use super::store::{Key, Lookup, Store};
use super::texts::CanaryTexts;
use crate::digest::hash;
use crate::event::Event;

/// How much evidence to gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofDepth {
    /// Correctness and estimated speed with generated weights. Graphs are probed with their own weights.
    Twin,
    /// Real weights too.
    Canary,
}

/// The grid of a model, with static obstacles and evidence.
#[derive(Clone, Debug)]
pub struct GatheredEvidence {
    /// All placements, with obstacles that are known without a probe.
    pub grid: Vec<(Placement, Option<Obstacle>)>,
    /// Results of probes.
    pub evidence: Evidence,
    /// Number of placements that were probed now. The others had stored evidence.
    pub proved: usize,
}

/// Gathers evidence about one model.
pub(crate) struct Gatherer<'a> {
    pub(crate) engines: &'a [Arc<dyn Engine>],
    pub(crate) hardware: &'a Hardware,
    pub(crate) store: &'a Store,
    pub(crate) prover: &'a Prover,
    pub(crate) time_limit: Duration,
    /// Number of CPU threads.
    pub(crate) threads: usize,
    pub(crate) spec: &'a ModelSpec,
    /// Texts for real weights. Without them, real weights are not probed.
    pub(crate) texts: Option<&'a CanaryTexts>,
    /// Ignore stored evidence, and store none.
    pub(crate) bypass_store: bool,
    /// Read stored evidence only: placements without it have no findings.
    pub(crate) stored_only: bool,
    /// Whether stored evidence was missing since the last placement.
    pub(crate) missing: bool,
    pub(crate) events: &'a mut dyn FnMut(Event<'_>),
}

impl Gatherer<'_> {
    /// Probes the placements of `grid` that `admits` accepts, unless their evidence is stored.
    pub(crate) fn gather(
        &mut self,
        grid: Vec<(Placement, Option<Obstacle>)>,
        depth: ProofDepth,
        admits: &dyn Fn(&Placement) -> bool,
    ) -> GatheredEvidence {
        let mut evidence = Evidence::new();
        let mut proved = 0;
        let open: Vec<Placement> = grid
            .iter()
            .filter(|(placement, obstacle)| obstacle.is_none() && admits(placement))
            .map(|(p, _)| p.clone())
            .collect();
        let reference = self.reference(&grid);
        let twin_reference = grid::twin_reference(&self.spec.card, &grid).cloned();
        let mut references = References::default();
        for placement in open {
            let _span = info_span!("prove", model = self.spec.card.name, %placement).entered();
            let mut findings = Findings::default();
            let before = references.probes;
            let is_graph = self.format(&placement).is_graph();
            if !is_graph {
                findings.twin = Some(self.twin(&placement, twin_reference.as_ref(), &mut references));
            }
            let real = is_graph || depth == ProofDepth::Canary;
            if let (Some(texts), true, None) = (self.texts, real, findings.obstacle()) {
                findings.canary = Some(self.canary(&placement, reference.as_ref(), texts, &mut references));
            }
            if findings.obstacle().is_none() && findings.error().is_some() {
                findings.speed = Some(self.speed(&placement, &mut references));
            }
            proved += usize::from(references.probes > before);
            if std::mem::take(&mut self.missing) {
                continue;
            }
            evidence.insert(placement, findings);
        }
        GatheredEvidence { grid, evidence, proved }
    }

    /// Probes real weights on one placement of `grid`.
    pub(crate) fn probe_real_weights(
        &mut self,
        grid: &[(Placement, Option<Obstacle>)],
        placement: &Placement,
        texts: &CanaryTexts,
    ) -> Result<Canary, Obstacle> {
        let reference = self.reference(grid);
        self.canary(placement, reference.as_ref(), texts, &mut References::default())
    }

    /// The placements that `admits` accepts without stored canary evidence: graphs without any, and all others if none
    /// of them has any. Includes the reference.
    pub(crate) fn unproved(
        &self,
        grid: &[(Placement, Option<Obstacle>)],
        admits: &dyn Fn(&Placement) -> bool,
        texts: &CanaryTexts,
    ) -> Vec<Placement> {
        let reference = self.reference(grid);
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        let (graphs, described): (Vec<&Placement>, Vec<&Placement>) = open
            .filter(|placement| admits(placement))
            .partition(|placement| self.format(placement).is_graph());
        let proved = |placement: &Placement| self.has_canary(placement, reference.as_ref(), texts);
        let mut unproved: Vec<Placement> =
            graphs.into_iter().filter(|graph| !proved(graph)).cloned().collect();
        if !described.iter().any(|placement| proved(placement)) {
            unproved.extend(described.into_iter().cloned());
        }
        if !unproved.is_empty() {
            unproved.extend(reference);
        }
        unproved
    }

    fn has_canary(&self, placement: &Placement, reference: Option<&Placement>, texts: &CanaryTexts) -> bool {
        let Ok(engine) = self.engine(placement) else { return false };
        let fingerprint = Fingerprint::new(engine.build(), self.hardware, placement.device);
        let subject = self.canary_key(placement, reference, &texts.batches(self.format(placement)));
        let key = Key { kind: "canary", fingerprint: &fingerprint, subject: &subject, placement };
        matches!(self.store.get::<Canary>(&key), Lookup::Found(_))
    }

    /// Hash of the model facts that a canary depends on, including the reference and the texts.
    fn canary_key(&self, placement: &Placement, reference: Option<&Placement>, batches: &[Batch]) -> String {
        let own = canary_key_of_weights(self.spec, &placement.weights);
        let against = reference.map(|reference| canary_key_of_weights(self.spec, &reference.weights));
        hash(&(own, reference, against, batches))
    }

    fn reference(&self, grid: &[(Placement, Option<Obstacle>)]) -> Option<Placement> {
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        grid::reference(&self.spec.card, open).cloned()
    }

    fn engine(&self, placement: &Placement) -> Result<Arc<dyn Engine>, Obstacle> {
        let engine = self.engines.iter().find(|engine| engine.id() == placement.engine);
        engine.cloned().ok_or_else(|| Obstacle::engine_not_in_this_version(placement.engine))
    }

    fn format(&self, placement: &Placement) -> Format {
        // An engine reads graphs or tensors, never both.
        let formats = self.engine(placement).map_or(&[][..], |engine| engine.formats());
        formats.first().copied().unwrap_or(Format::Safetensors)
    }

    /// Stored evidence, else the result of `probe`, which is stored.
    fn stored_or<T: Serialize + DeserializeOwned>(
        &mut self,
        kind: &str,
        subject: &str,
        placement: &Placement,
        probe: impl FnOnce(&mut Self) -> Result<T, Obstacle>,
    ) -> Result<T, Obstacle> {
        if self.bypass_store {
            return probe(self);
        }
        let build = self.engine(placement)?.build();
        let fingerprint = Fingerprint::new(build, self.hardware, placement.device);
        let key = Key { kind, fingerprint: &fingerprint, subject, placement };
        let attempts = match self.store.get(&key) {
            Lookup::Found(found) => return found,
            Lookup::Missing | Lookup::Retry(..) if self.stored_only => {
                self.missing = true;
                return Err(Obstacle::LoadFailed { reason: "it is not proved".to_owned() });
            }
            Lookup::Missing => 0,
            Lookup::Retry(why, attempts) => {
                (self.events)(Event::Retrying { placement, attempt: attempts + 1, why: &why });
                attempts
            }
        };
        let found = probe(self);
        // A failure before the probe ran is not evidence.
        if !matches!(found, Err(Obstacle::LoadFailed { .. })) {
            self.store.put(&key, &found, attempts + 1);
        }
        found
    }

    fn probe(
        &mut self,
        placement: &Placement,
        cases: Vec<ProbeCase>,
        references: &mut References,
    ) -> ProbeResults {
        references.probes += 1;
        let Ok(engine) = self.engine(placement) else { return ProbeResults::new() };
        let request = ProbeRequest {
            spec: self.spec.clone(),
            placement: placement.clone(),
            cases,
            threads: self.threads,
        };
        let total = request.cases.len();
        let events = &mut *self.events;
        events(Event::Proving { placement, done: 0, total });
        let mut progress = |done| events(Event::Proving { placement, done, total });
        let time_limit = self.time_limit.saturating_add(time_of_canaries(&self.spec.card, &request.cases));
        let mut results = self.prover.run(&engine, &request, time_limit, &mut progress);
        if results.len() < total && results.last().is_none_or(Result::is_ok) {
            let says = format!("it answered {} of {total} cases and stopped", results.len());
            results.push(Err(Obstacle::LoadFailed { reason: says }));
        }
        if self.spec.card.task.value.scores() {
            join_scores(&request.cases, &mut results);
        }
        results
    }

    fn twin(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        references: &mut References,
    ) -> Result<Agreement, Obstacle> {
        let describes = self.engine(placement)?.describe(&self.spec.card)?;
        let cases = cases::twins(&self.spec.card);
        let longest = self.spec.card.max_length.value;
        let band = Band::of_twin(placement, self.spec.card.task.value == Task::Generate);
        // Weights are generated: all weight files share the evidence. Tasks do not: their cases differ.
        let any_weights = Placement { weights: String::new(), ..placement.clone() };
        let subject = hash(&(describes, longest, &cases, band.tolerance()));
        self.stored_or("twin", &subject, &any_weights, |this| {
            let compared = this.compare(placement, reference, &cases, band, references);
            if let Err(Obstacle::ModelWrong { .. }) = compared
                && let Some(op) = this.failing_op(placement, reference, references)
            {
                return Err(op);
            }
            compared
        })
    }

    /// The first op that is missing or wrong, after a twin was wrong.
    fn failing_op(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        references: &mut References,
    ) -> Option<Obstacle> {
        let named =
            |obstacle: &Obstacle| matches!(obstacle, Obstacle::OpWrong { .. } | Obstacle::OpMissing { .. });
        self.op_obstacles(placement, reference?, references).into_iter().find(named)
    }

    /// Probes every op on every placement of `grid` without an obstacle.
    pub(crate) fn ops(&mut self, grid: &[(Placement, Option<Obstacle>)]) -> Vec<OpFindings> {
        let has_ops = |placement: &&Placement| self.engine(placement).is_ok_and(|engine| engine.has_ops());
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        let open: Vec<&Placement> = open.filter(has_ops).collect();
        let Some(reference) = grid::reference(&self.spec.card, open.iter().copied()) else {
            return Vec::new();
        };
        let mut references = References::default();
        let tried = cases::ops().len();
        let mut find = |placement: &Placement| OpFindings {
            placement: placement.clone(),
            tried,
            obstacles: self.op_obstacles(placement, reference, &mut references),
        };
        open.into_iter().map(&mut find).collect()
    }

    fn op_obstacles(
        &mut self,
        placement: &Placement,
        reference: &Placement,
        references: &mut References,
    ) -> Vec<Obstacle> {
        if !self.engine(placement).is_ok_and(|engine| engine.has_ops()) {
            return Vec::new();
        }
        let cases = cases::ops();
        let expected = self.probe(reference, cases.clone(), references);
        let results = self.probe(placement, cases.clone(), references);
        let judged = cases.iter().zip(expected).zip(results).map(|((case, want), result)| {
            judge::judge(case, &result?.rows, &want?.rows, Band::expected(placement)).map(|_| ())
        });
        judged.filter_map(Result::err).collect()
    }

    /// Largest distance from the reference over `cases`, or the first obstacle.
    fn compare(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        cases: &[ProbeCase],
        band: Band,
        references: &mut References,
    ) -> Result<Agreement, Obstacle> {
        let reference = reference
            .ok_or_else(|| Obstacle::LoadFailed { reason: "no placement can be the reference".to_owned() })?;
        let expected = self.reference_samples(reference, cases, references);
        let count = cases.len();
        if reference == placement {
            return expected.map(|_| Agreement { error: Distance::ZERO, cases: count });
        }
        let expected = expected.map_err(|why| no_reference(reference, &why))?;
        let results = self.probe(placement, cases.to_vec(), references);
        let mut worst = 0.0f64;
        for ((case, want), result) in cases.iter().zip(&expected).zip(results) {
            let error = judge::judge(case, &result?.rows, &want.rows, band)?;
            worst = worst.max(error.0.unwrap_or(f64::INFINITY));
        }
        Ok(Agreement { error: Distance(Some(worst)), cases: count })
    }

    /// Samples of the reference, whose rows must be finite; computed once.
    fn reference_samples(
        &mut self,
        reference: &Placement,
        cases: &[ProbeCase],
        references: &mut References,
    ) -> Result<Vec<Sample>, Obstacle> {
        let name = hash(&(reference, cases));
        if let Some(samples) = references.samples.get(&name) {
            return Ok(samples.clone());
        }
        let mut samples = Vec::new();
        for (case, answer) in cases.iter().zip(self.probe(reference, cases.to_vec(), references)) {
            let answer = answer?;
            if judge::breach(&answer.rows).is_some() {
                let (error, tolerance) = (Distance(None), Band::Exact.tolerance());
                return Err(Obstacle::ModelWrong {
                    case: format!("{case}, as the reference"),
                    error,
                    tolerance,
                });
            }
            samples.push(answer);
        }
        references.samples.insert(name, samples.clone());
        Ok(samples)
    }

    fn speed(
        &mut self,
        placement: &Placement,
        references: &mut References,
    ) -> Result<Vec<SpeedPoint>, Obstacle> {
        let card = &self.spec.card;
        let describes = self.engine(placement)?.describe(card)?;
        let cases = cases::speeds(card);
        let (subject, key_placement, layers) = if self.format(placement).is_graph() {
            let of_file = canary_key_of_weights(self.spec, &placement.weights);
            (hash(&(of_file, &cases)), placement.clone(), card.sizes.value.layers)
        } else {
            let any_weights = Placement { weights: String::new(), ..placement.clone() };
            (hash(&(describes, &card.sizes.value, &cases)), any_weights, 1)
        };
        self.stored_or("speed", &subject, &key_placement, |this| {
            let results = this.probe(placement, cases.clone(), references);
            let output = output_share(&this.spec.card.sizes.value);
            let points = cases.iter().zip(results).filter_map(|(case, answer)| {
                let (batch, length, cached, factor) = match case {
                    ProbeCase::Speed { batch, length } => (*batch, *length, None, 1.0),
                    ProbeCase::Decode { batch, cached } => (*batch, 1, Some(*cached), 1.0 + output),
                    ProbeCase::Op { .. }
                    | ProbeCase::Twin { .. }
                    | ProbeCase::Steps { .. }
                    | ProbeCase::Canary { .. } => return None,
                };
                let point = |seconds: f64| SpeedPoint { batch, length, cached, seconds, layers };
                Some(answer.map(|sample| point(sample.seconds * factor)))
            });
            points.collect()
        })
    }

    fn canary(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        texts: &CanaryTexts,
        references: &mut References,
    ) -> Result<Canary, Obstacle> {
        let batches = texts.batches(self.format(placement));
        let subject = self.canary_key(placement, reference, &batches);
        self.stored_or("canary", &subject, placement, |this| {
            let case = ProbeCase::Canary { batches };
            let answer = this.probe(placement, vec![case.clone()], references).into_iter().next();
            let sample =
                answer.unwrap_or_else(|| Err(Obstacle::LoadFailed { reason: "no answer".to_owned() }))?;
            let want = match reference {
                Some(reference) if reference != placement => {
                    let samples = this.reference_samples(reference, std::slice::from_ref(&case), references);
                    samples.map_err(|why| no_reference(reference, &why))?.remove(0)
                }
                Some(_) | None => sample.clone(),
            };
            let error = judge::judge(&case, &sample.rows, &want.rows, Band::Coarse)?;
            Ok(canary_evidence(error, &want, sample, texts))
        })
    }
}

/// FLOP/s below which a canary exceeds its time limit.
const MIN_CANARY_FLOPS: f64 = 1e10;

/// The time that canaries with the weights of a large model may take in addition to the limit of all cases.
fn time_of_canaries(card: &ModelCard, cases: &[ProbeCase]) -> Duration {
    let values = card.weights.iter().map(|weights| weights.bytes_in(Dtype::F32) / 4).max().unwrap_or(0);
    let tokens = |case: &ProbeCase| match case {
        // Its texts are computed twice: once to be timed, once for predictions.
        ProbeCase::Canary { batches } => batches.iter().map(|batch| 2 * batch.tokens()).sum(),
        ProbeCase::Op { .. }
        | ProbeCase::Twin { .. }
        | ProbeCase::Speed { .. }
        | ProbeCase::Steps { .. }
        | ProbeCase::Decode { .. } => 0,
    };
    let tokens: usize = cases.iter().map(tokens).sum();
    let seconds = 2.0 * tokens as f64 * values as f64 / MIN_CANARY_FLOPS;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)
}

/// The size of the output matrix relative to all layers, about. A decode step reads both.
fn output_share(sizes: &Sizes) -> f64 {
    let [layers, hidden, intermediate, vocabulary] =
        [sizes.layers, sizes.hidden, sizes.intermediate, sizes.vocabulary].map(|size| size as f64);
    let layer = hidden * (4.0 * hidden + 3.0 * intermediate);
    vocabulary * hidden / (layers * layer).max(1.0)
}

fn no_reference(reference: &Placement, why: &Obstacle) -> Obstacle {
    Obstacle::LoadFailed { reason: format!("the reference {reference} failed: {why}") }
}

/// Joins the scores of all canaries into one row: a relative error of a score near zero is meaningless.
fn join_scores(cases: &[ProbeCase], results: &mut ProbeResults) {
    for (case, answer) in cases.iter().zip(results) {
        if let (ProbeCase::Canary { .. }, Ok(sample)) = (case, answer) {
            sample.rows.width = sample.rows.values.len();
        }
    }
}

fn canary_evidence(error: Distance, want: &Sample, sample: Sample, texts: &CanaryTexts) -> Canary {
    let norms = texts.norms(&sample.rows);
    let range =
        norms.iter().fold([f32::INFINITY, 0.0], |[least, most], &norm| [least.min(norm), most.max(norm)]);
    let norms = if norms.is_empty() { [0.0; 2] } else { range };
    Canary {
        error,
        accuracy: texts.accuracy(&sample, want),
        tokens_per_second: texts.canary.tokens() as f64 / sample.seconds.max(1e-9),
        memory: sample.memory,
        norms,
        nodes: sample.nodes,
    }
}

/// Hash of the facts that the output of real weights depends on.
fn canary_key_of_weights(spec: &ModelSpec, weights: &str) -> String {
    let card = &spec.card;
    let identity = card.weights_named(weights).map(|weights| &weights.identity);
    let head = (card.task.value, &card.head);
    let key =
        hash(&(identity, &card.config, &card.pooling.value, &card.steps.value, card.max_length.value, head));
    match card.generation.kv_cache_dtype {
        KvCacheDtype::Auto => key,
        dtype @ KvCacheDtype::Q8_0 => hash(&(key, dtype)),
    }
}

/// The numerics class of weights in a band.
pub(crate) fn numerics_class(spec: &ModelSpec, weights: &str, band: Band) -> String {
    format!("{}-{band}", &hash(&canary_key_of_weights(spec, weights))[..12])
}

/// Results of all ops on one placement.
#[derive(Clone, Debug, Serialize)]
pub struct OpFindings {
    /// The placement.
    pub placement: Placement,
    /// Number of cases.
    pub tried: usize,
    /// Failures.
    pub obstacles: Vec<Obstacle>,
}

/// Samples of the reference in this run, and the number of probes.
#[derive(Default)]
struct References {
    samples: HashMap<String, Vec<Sample>>,
    probes: usize,
}

#[cfg(test)]
mod tests {
    use sconce_core::batch::OutputKind;
    use sconce_testkit::goldens;

    use super::*;
    use crate::card::{self, Overrides};

    #[test]
    fn canaries_of_large_models_have_more_time() {
        let folder = goldens::folder("tiny-qwen3-generate");
        let mut card =
            card::read("tiny", &folder, &Overrides::default()).expect("the golden is a model").card;
        let mut batch = Batch::new(OutputKind::Pooled);
        batch.push(&[1; 500], &[0; 500], 0);
        let canary = [ProbeCase::Canary { batches: vec![batch.clone(), batch] }];
        assert!(time_of_canaries(&card, &canary) < Duration::from_secs(1));
        card.weights[0].values = Some(1_000_000_000);
        assert_eq!(time_of_canaries(&card, &canary), Duration::from_secs(400));
        assert_eq!(time_of_canaries(&card, &cases::twins(&card)), Duration::ZERO);
        card.weights[0].values = Some(u64::MAX / 64);
        assert!(time_of_canaries(&card, &canary) > Duration::from_hours(1));
    }
}
