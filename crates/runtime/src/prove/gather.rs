//! Gathers what is not known yet about the placements of a model, and keeps it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sconce_core::batch::{Batch, Rows};
use sconce_core::card::Format;
use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::Placement;
use sconce_core::probe::{ProbeCase, Sample};
use sconce_planner::band::Band;
use sconce_planner::evidence::{Agreement, Canary, Evidence, Findings, SpeedPoint};
use sconce_planner::{cases, grid, judge};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::texts::Texts;
use super::{Answers, Prover, Question};
use crate::event::Event;
use crate::fingerprint::{Fingerprint, hash};
use crate::store::{Key, Known, Store};

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Generated weights: right or wrong, and an estimate of the speed. Graphs are tried with their own.
    Twin,
    /// The real weights too.
    Canary,
}

/// Every placement of a model with what stands against it beforehand, and what was found by trying.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The placements.
    pub grid: Vec<(Placement, Option<Obstacle>)>,
    /// What was found.
    pub evidence: Evidence,
    /// How many placements had to be tried now; the rest was known.
    pub proved: usize,
}

/// All that gathering needs.
pub(crate) struct Gathering<'a> {
    pub(crate) engines: &'a [Arc<dyn Engine>],
    pub(crate) hardware: &'a Hardware,
    pub(crate) store: &'a Store,
    pub(crate) prover: &'a Prover,
    pub(crate) limit: Duration,
    /// Threads that compute on the CPU.
    pub(crate) threads: usize,
    pub(crate) subject: &'a ModelSpec,
    /// What real weights are tried on; none where no tokenizer is at hand, and then none are.
    pub(crate) texts: Option<&'a Texts>,
    /// Whether all is tried as if nothing were known, and nothing of it kept.
    pub(crate) anew: bool,
    pub(crate) events: &'a mut dyn FnMut(Event<'_>),
}

impl Gathering<'_> {
    /// Tries what `admits` lets through of `grid` and is not known yet.
    pub(crate) fn survey(
        &mut self,
        grid: Vec<(Placement, Option<Obstacle>)>,
        depth: Depth,
        admits: &dyn Fn(&Placement) -> bool,
    ) -> Survey {
        let mut evidence = Evidence::new();
        let mut proved = 0;
        let open: Vec<Placement> = grid
            .iter()
            .filter(|(placement, obstacle)| obstacle.is_none() && admits(placement))
            .map(|(p, _)| p.clone())
            .collect();
        let reference = self.reference(&grid);
        let mut references = References::default();
        for placement in open {
            let mut findings = Findings::default();
            let before = references.asked;
            let is_graph = self.format(&placement).is_graph();
            if !is_graph {
                findings.twin = Some(self.twin(&placement, reference.as_ref(), &mut references));
            }
            let real = is_graph || depth == Depth::Canary;
            if let (Some(texts), true, None) = (self.texts, real, findings.obstacle()) {
                findings.canary = Some(self.canary(&placement, reference.as_ref(), texts, &mut references));
            }
            if findings.obstacle().is_none() && findings.error().is_some() {
                findings.speed = Some(self.speed(&placement, &mut references));
            }
            proved += usize::from(references.asked > before);
            evidence.insert(placement, findings);
        }
        Survey { grid, evidence, proved }
    }

    /// The real weights on one placement of `grid`.
    pub(crate) fn real(
        &mut self,
        grid: &[(Placement, Option<Obstacle>)],
        placement: &Placement,
        texts: &Texts,
    ) -> Result<Canary, Obstacle> {
        let reference = self.reference(grid);
        self.canary(placement, reference.as_ref(), texts, &mut References::default())
    }

    /// The placements that `admits` lets through whose real weights are yet to be tried: graphs that nothing is known
    /// of, and all others where no canary of any is known. The reference is tried with them.
    pub(crate) fn unproved(
        &self,
        grid: &[(Placement, Option<Obstacle>)],
        admits: &dyn Fn(&Placement) -> bool,
        texts: &Texts,
    ) -> Vec<Placement> {
        let reference = self.reference(grid);
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        let (graphs, described): (Vec<&Placement>, Vec<&Placement>) = open
            .filter(|placement| admits(placement))
            .partition(|placement| self.format(placement).is_graph());
        let known = |placement: &Placement| self.knows_canary(placement, reference.as_ref(), texts);
        let mut unproved: Vec<Placement> =
            graphs.into_iter().filter(|graph| !known(graph)).cloned().collect();
        if !described.iter().any(|placement| known(placement)) {
            unproved.extend(described.into_iter().cloned());
        }
        if !unproved.is_empty() {
            unproved.extend(reference);
        }
        unproved
    }

    fn knows_canary(&self, placement: &Placement, reference: Option<&Placement>, texts: &Texts) -> bool {
        let Ok(engine) = self.engine(placement) else { return false };
        let fingerprint = Fingerprint::new(engine.build(), self.hardware, placement.device);
        let subject = self.compared_subject(placement, reference, &texts.batches(engine.format()));
        let key = Key { kind: "canary", fingerprint: &fingerprint, subject: &subject, placement };
        matches!(self.store.get::<Canary>(&key), Known::Finding(_))
    }

    /// What of a model a canary depends on: what it is compared with, and on what texts, is part of what was found.
    fn compared_subject(
        &self,
        placement: &Placement,
        reference: Option<&Placement>,
        batches: &[Batch],
    ) -> String {
        let own = canary_subject(self.subject, &placement.weights);
        let against = reference.map(|reference| canary_subject(self.subject, &reference.weights));
        hash(&(own, reference, against, batches))
    }

    fn reference(&self, grid: &[(Placement, Option<Obstacle>)]) -> Option<Placement> {
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        grid::reference(&self.subject.card, open).cloned()
    }

    fn engine(&self, placement: &Placement) -> Result<Arc<dyn Engine>, Obstacle> {
        let engine = self.engines.iter().find(|engine| engine.id() == placement.engine);
        engine.cloned().ok_or_else(|| Obstacle::engine_not_in_this_version(placement.engine))
    }

    fn format(&self, placement: &Placement) -> Format {
        self.engine(placement).map_or(Format::Safetensors, |engine| engine.format())
    }

    /// What is known, else what `find` finds, which is kept.
    fn known_or<T: Serialize + DeserializeOwned>(
        &mut self,
        kind: &str,
        subject: &str,
        placement: &Placement,
        find: impl FnOnce(&mut Self) -> Result<T, Obstacle>,
    ) -> Result<T, Obstacle> {
        if self.anew {
            return find(self);
        }
        let build = self.engine(placement)?.build();
        let fingerprint = Fingerprint::new(build, self.hardware, placement.device);
        let key = Key { kind, fingerprint: &fingerprint, subject, placement };
        let attempts = match self.store.get(&key) {
            Known::Finding(found) => return found,
            Known::Nothing => 0,
            Known::Retry(why, attempts) => {
                (self.events)(Event::Retrying { placement, attempt: attempts + 1, why: &why });
                attempts
            }
        };
        let found = find(self);
        // What failed before it was tried says nothing about the next time.
        if !matches!(found, Err(Obstacle::LoadFailed { .. })) {
            self.store.put(&key, &found, attempts + 1);
        }
        found
    }

    fn ask(&mut self, placement: &Placement, cases: Vec<ProbeCase>, references: &mut References) -> Answers {
        references.asked += 1;
        let Ok(engine) = self.engine(placement) else { return Answers::new() };
        let question = Question {
            subject: self.subject.clone(),
            placement: placement.clone(),
            cases,
            threads: self.threads,
        };
        let total = question.cases.len();
        let events = &mut *self.events;
        events(Event::Proving { placement, done: 0, total });
        let mut heard = |done| events(Event::Proving { placement, done, total });
        let mut answers = self.prover.ask(&engine, &question, self.limit, &mut heard);
        if answers.len() < total && answers.last().is_none_or(Result::is_ok) {
            let says = format!("it answered {} of {total} cases and stopped", answers.len());
            answers.push(Err(Obstacle::LoadFailed { says }));
        }
        if self.subject.card.task.value.scores() {
            join_scores(&question.cases, &mut answers);
        }
        answers
    }

    fn twin(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        references: &mut References,
    ) -> Result<Agreement, Obstacle> {
        let describes = self.engine(placement)?.describe(&self.subject.card)?;
        let cases = cases::twins(&self.subject.card);
        let longest = self.subject.card.max_length.value;
        // Weights are generated, so that all files of a model share what is found.
        let anyones = Placement { weights: String::new(), ..placement.clone() };
        self.known_or("twin", &format!("{describes} up to {longest}"), &anyones, |this| {
            let band = Band::expected(placement.dtype);
            let compared = this.compare(placement, reference, &cases, band, references);
            if let Err(Obstacle::ModelWrong { .. }) = compared
                && let Some(op) = this.blame(placement, reference, references)
            {
                return Err(op);
            }
            compared
        })
    }

    /// The op that is missing or wrong on its own, after a whole model was wrong.
    fn blame(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        references: &mut References,
    ) -> Option<Obstacle> {
        let named =
            |obstacle: &Obstacle| matches!(obstacle, Obstacle::OpWrong { .. } | Obstacle::OpMissing { .. });
        self.op_obstacles(placement, reference?, references).into_iter().find(named)
    }

    /// Every op alone on every placement of `grid` that nothing stands against.
    pub(crate) fn ops(&mut self, grid: &[(Placement, Option<Obstacle>)]) -> Vec<OpFindings> {
        let has_ops = |placement: &&Placement| self.engine(placement).is_ok_and(|engine| engine.has_ops());
        let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        let open: Vec<&Placement> = open.filter(has_ops).collect();
        let Some(reference) = grid::reference(&self.subject.card, open.iter().copied()) else {
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
        let wants = self.ask(reference, cases.clone(), references);
        let answers = self.ask(placement, cases.clone(), references);
        let judged = cases.iter().zip(wants).zip(answers).map(|((case, want), answer)| {
            judge::judge(case, &answer?.rows, &want?.rows, Band::expected(placement.dtype)).map(|_| ())
        });
        judged.filter_map(Result::err).collect()
    }

    /// The largest distance from the reference over `cases`, or the first obstacle.
    fn compare(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        cases: &[ProbeCase],
        band: Band,
        references: &mut References,
    ) -> Result<Agreement, Obstacle> {
        let reference = reference
            .ok_or_else(|| Obstacle::LoadFailed { says: "no placement can be the reference".to_owned() })?;
        let wants = self.reference_rows(reference, cases, references);
        let count = cases.len();
        if reference == placement {
            return wants.map(|_| Agreement { error: Distance::ZERO, cases: count });
        }
        let wants = wants.map_err(|why| no_reference(reference, &why))?;
        let answers = self.ask(placement, cases.to_vec(), references);
        let mut worst = 0.0f64;
        for ((case, want), answer) in cases.iter().zip(&wants).zip(answers) {
            let error = judge::judge(case, &answer?.rows, want, band)?;
            worst = worst.max(error.0.unwrap_or(f64::INFINITY));
        }
        Ok(Agreement { error: Distance(Some(worst)), cases: count })
    }

    /// The reference's own answers, which must be numbers at least; asked for once.
    fn reference_rows(
        &mut self,
        reference: &Placement,
        cases: &[ProbeCase],
        references: &mut References,
    ) -> Result<Vec<Rows>, Obstacle> {
        let name = hash(&(reference, cases));
        if let Some(rows) = references.rows.get(&name) {
            return Ok(rows.clone());
        }
        let mut rows = Vec::new();
        for (case, answer) in cases.iter().zip(self.ask(reference, cases.to_vec(), references)) {
            let answer = answer?;
            if judge::breach(&answer.rows).is_some() {
                let (error, tolerance) = (Distance(None), Band::Exact.tolerance());
                return Err(Obstacle::ModelWrong {
                    case: format!("{case}, as the reference"),
                    error,
                    tolerance,
                });
            }
            rows.push(answer.rows);
        }
        references.rows.insert(name, rows.clone());
        Ok(rows)
    }

    fn speed(
        &mut self,
        placement: &Placement,
        references: &mut References,
    ) -> Result<Vec<SpeedPoint>, Obstacle> {
        let card = &self.subject.card;
        let describes = self.engine(placement)?.describe(card)?;
        let cases = cases::speeds(card);
        let (subject, whose, layers) = if self.format(placement).is_graph() {
            let of_file = canary_subject(self.subject, &placement.weights);
            (hash(&(of_file, &cases)), placement.clone(), card.sizes.value.layers)
        } else {
            let anyones = Placement { weights: String::new(), ..placement.clone() };
            (hash(&(describes, &card.sizes.value, &cases)), anyones, 1)
        };
        self.known_or("speed", &subject, &whose, |this| {
            let answers = this.ask(placement, cases.clone(), references);
            let points = cases.iter().zip(answers).filter_map(|(case, answer)| match case {
                ProbeCase::Speed { batch, length } => Some(answer.map(|sample| SpeedPoint {
                    batch: *batch,
                    length: *length,
                    seconds: sample.seconds,
                    layers,
                })),
                ProbeCase::Op { .. } | ProbeCase::Twin { .. } | ProbeCase::Canary { .. } => None,
            });
            points.collect()
        })
    }

    fn canary(
        &mut self,
        placement: &Placement,
        reference: Option<&Placement>,
        texts: &Texts,
        references: &mut References,
    ) -> Result<Canary, Obstacle> {
        let batches = texts.batches(self.format(placement));
        let subject = self.compared_subject(placement, reference, &batches);
        self.known_or("canary", &subject, placement, |this| {
            let case = ProbeCase::Canary { batches };
            let answer = this.ask(placement, vec![case.clone()], references).into_iter().next();
            let sample =
                answer.unwrap_or_else(|| Err(Obstacle::LoadFailed { says: "no answer".to_owned() }))?;
            let want = match reference {
                Some(reference) if reference != placement => {
                    let rows = this.reference_rows(reference, std::slice::from_ref(&case), references);
                    rows.map_err(|why| no_reference(reference, &why))?.remove(0)
                }
                Some(_) | None => sample.rows.clone(),
            };
            let error = judge::judge(&case, &sample.rows, &want, Band::Coarse)?;
            Ok(certificate(error, &want, sample, texts))
        })
    }
}

fn no_reference(reference: &Placement, why: &Obstacle) -> Obstacle {
    Obstacle::LoadFailed { says: format!("the reference {reference} failed: {why}") }
}

/// Scores of all canaries as one row: a score near zero has no length that an error could be held against.
fn join_scores(cases: &[ProbeCase], answers: &mut Answers) {
    for (case, answer) in cases.iter().zip(answers) {
        if let (ProbeCase::Canary { .. }, Ok(sample)) = (case, answer) {
            sample.rows.width = sample.rows.values.len();
        }
    }
}

fn certificate(error: Distance, want: &Rows, sample: Sample, texts: &Texts) -> Canary {
    let norms = texts.norms(&sample.rows);
    let range =
        norms.iter().fold([f32::INFINITY, 0.0], |[least, most], &norm| [least.min(norm), most.max(norm)]);
    let norms = if norms.is_empty() { [0.0; 2] } else { range };
    Canary {
        error,
        accuracy: texts.accuracy(&sample.rows, want),
        tokens_per_second: texts.canary.tokens() as f64 / sample.seconds.max(1e-9),
        memory: sample.memory,
        norms,
        nodes: sample.nodes,
    }
}

/// What of a model the real numbers depend on: the weights and what is done with them.
pub(crate) fn canary_subject(subject: &ModelSpec, weights: &str) -> String {
    let card = &subject.card;
    let identity = card.weights_named(weights).map(|weights| &weights.identity);
    let head = (card.task.value, &card.head);
    hash(&(identity, &card.config, &card.pooling.value, &card.steps.value, card.max_length.value, head))
}

/// What came of every op alone on one placement.
#[derive(Clone, Debug, Serialize)]
pub struct OpFindings {
    /// Where.
    pub placement: Placement,
    /// How many cases were tried.
    pub tried: usize,
    /// Those that failed.
    pub obstacles: Vec<Obstacle>,
}

/// What the reference answered in this survey.
#[derive(Default)]
struct References {
    rows: HashMap<String, Vec<Rows>>,
    asked: usize,
}
