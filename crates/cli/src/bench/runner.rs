//! Those who take turns: the placements of a model, and other servers.

use std::time::Instant;

use sconce::core::placement::Dtype;
use sconce::{Constraints, EngineId, Model, Placement, Runtime};

use super::server::Server;
use super::sweep::Sweep;
use super::workload::SHORT;
use crate::arguments::ModelArguments;
use crate::screen::Bars;

/// Runs of one short text in each turn.
const ALONE: usize = 40;

/// One of them, with its figures.
pub(super) struct Runner {
    who: Who,
    /// The best turn with all texts.
    pub(super) seconds: f64,
    /// The median time of one short text, in the best turn.
    pub(super) alone: f64,
    /// The least cosine of its vectors to the reference among ours; none where widths differ.
    pub(super) least_cosine: Option<f64>,
    pub(super) sweep: Sweep,
    /// Why a server has no figures.
    pub(super) failed: Option<String>,
    vectors: Vec<Vec<f32>>,
}

enum Who {
    Ours { placement: Placement, model: Box<Model> },
    Other(Server),
}

impl Runner {
    fn new(who: Who) -> Runner {
        Runner {
            who,
            seconds: f64::INFINITY,
            alone: f64::INFINITY,
            least_cosine: None,
            sweep: Sweep::default(),
            failed: None,
            vectors: Vec::new(),
        }
    }

    pub(super) fn other(server: Server) -> Runner {
        Runner::new(Who::Other(server))
    }

    /// The real weights loaded at `placement`.
    pub(super) fn ours(
        arguments: &ModelArguments,
        runtime: &Runtime,
        placement: &Placement,
        bars: &mut Bars,
    ) -> anyhow::Result<Runner> {
        let constraints = Constraints {
            engine: Some(placement.engine),
            device: Some(placement.device),
            dtype: Some(placement.dtype),
            weights: Some(placement.weights.clone()),
            ..arguments.constraints()
        };
        let mut builder = Model::builder(&arguments.model)
            .runtime(runtime)
            .constraints(constraints)
            .overrides(arguments.overrides());
        if let Some(revision) = &arguments.revision {
            builder = builder.revision(revision);
        }
        let model = Box::new(builder.open_telling(&mut |event| bars.draw(&event))?);
        model.embed(&[SHORT])?;
        Ok(Runner::new(Who::Ours { placement: placement.clone(), model }))
    }

    /// Ours, at this placement.
    pub(super) fn placement(&self) -> Option<&Placement> {
        match &self.who {
            Who::Ours { placement, .. } => Some(placement),
            Who::Other(_) => None,
        }
    }

    /// Another's.
    pub(super) fn server(&self) -> Option<&Server> {
        match &self.who {
            Who::Ours { .. } => None,
            Who::Other(server) => Some(server),
        }
    }

    pub(super) fn name(&self) -> String {
        match &self.who {
            Who::Ours { placement, .. } => placement.to_string(),
            Who::Other(server) => server.to_string(),
        }
    }

    /// All texts once, then one short text many times. A server that fails is told of and out of the race.
    pub(super) fn turn(&mut self, texts: &[String]) -> anyhow::Result<()> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let Some((seconds, vectors)) = self.timed(&texts)? else { return Ok(()) };
        self.seconds = self.seconds.min(seconds);
        self.vectors = vectors;
        let mut times = Vec::with_capacity(ALONE);
        for _ in 0..ALONE {
            let Some((seconds, _)) = self.timed(&[SHORT])? else { return Ok(()) };
            times.push(seconds);
        }
        times.sort_by(f64::total_cmp);
        self.alone = self.alone.min(times[ALONE / 2]);
        Ok(())
    }

    /// How long these texts take, and their vectors; none from a server that fails now or failed before.
    pub(super) fn timed(&mut self, texts: &[&str]) -> anyhow::Result<Option<(f64, Vec<Vec<f32>>)>> {
        if self.failed.is_some() {
            return Ok(None);
        }
        let started = Instant::now();
        let vectors = match &self.who {
            Who::Ours { model, .. } => model.embed(texts)?.into_vectors(),
            Who::Other(server) => match server.embed(texts) {
                Ok(vectors) => vectors,
                Err(error) => {
                    self.failed = Some(format!("{error:#}"));
                    return Ok(None);
                }
            },
        };
        Ok(Some((started.elapsed().as_secs_f64(), vectors)))
    }
}

/// Holds everyone's vectors against ours in f32, Candle's where it ran.
pub(super) fn compare(runners: &mut [Runner]) {
    let rank = |placement: &Placement| (placement.dtype != Dtype::F32, placement.engine != EngineId::Candle);
    let ours = runners.iter().filter_map(|runner| Some((rank(runner.placement()?), runner)));
    let Some((_, reference)) = ours.min_by_key(|(rank, _)| *rank) else { return };
    let reference = reference.vectors.clone();
    for runner in runners {
        runner.least_cosine = least_cosine(&runner.vectors, &reference);
        runner.vectors.clear();
    }
}

fn least_cosine(vectors: &[Vec<f32>], reference: &[Vec<f32>]) -> Option<f64> {
    let alike = vectors.iter().zip(reference).all(|(a, b)| a.len() == b.len());
    if vectors.len() != reference.len() || !alike {
        return None;
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let cosines = vectors.iter().zip(reference).map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    // A vector of zeros has no direction: it is as wrong as one that points nowhere near.
    cosines.map(|cosine| if cosine.is_finite() { cosine } else { 0.0 }).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_cosine_is_that_of_the_worst_vector_whatever_its_length() {
        let (x, y) = (vec![1.0, 0.0], vec![0.0, 1.0]);
        let both = [x.clone(), y.clone()];
        assert_eq!(least_cosine(&both, &[vec![3.0, 0.0], vec![0.0, 0.5]]), Some(1.0));
        assert_eq!(least_cosine(&both, &[x.clone(), x.clone()]), Some(0.0));
        assert_eq!(least_cosine(&[vec![0.0, 0.0]], std::slice::from_ref(&x)), Some(0.0));
        assert_eq!(least_cosine(&both, std::slice::from_ref(&x)), None);
        assert_eq!(least_cosine(&[vec![1.0]], &[x]), None);
    }
}
