//! Runners of a benchmark: placements of a model, and other servers.

use std::time::Instant;

use sconce::core::placement::Dtype;
use sconce::{Constraints, EngineId, Model, ModelBuilder, Placement, Runtime};

use super::point::Sweep;
use super::server::Server;
use super::workload::SHORT;
use crate::arguments::ModelArguments;
use crate::terminal::ProgressBars;

/// Runs of one short text per round.
const LATENCY_RUNS: usize = 40;

/// A runner and its measurements.
pub(super) struct Runner {
    target: Target,
    /// Time of the fastest round over all texts.
    pub(super) seconds: f64,
    /// Median time of one short text, in the fastest round.
    pub(super) latency: f64,
    /// Minimum cosine similarity to the f32 placement. `None` if the dimensions differ.
    pub(super) least_cosine: Option<f64>,
    pub(super) sweep: Sweep,
    /// Error of a server that failed.
    pub(super) failed: Option<String>,
    vectors: Vec<Vec<f32>>,
}

enum Target {
    Placement { placement: Placement, model: Box<Model> },
    Server(Server),
}

impl Runner {
    fn new(target: Target) -> Runner {
        Runner {
            target,
            seconds: f64::INFINITY,
            latency: f64::INFINITY,
            least_cosine: None,
            sweep: Sweep::default(),
            failed: None,
            vectors: Vec::new(),
        }
    }

    pub(super) fn for_server(server: Server) -> Runner {
        Runner::new(Target::Server(server))
    }

    /// Loads the weights on `placement`.
    pub(super) fn for_placement(
        arguments: &ModelArguments,
        runtime: &Runtime,
        placement: &Placement,
        bars: &mut ProgressBars,
    ) -> anyhow::Result<Runner> {
        let builder = builder(arguments, runtime, placement);
        let model = Box::new(builder.open_with_progress(&mut |event| bars.draw(&event))?);
        model.embed(&[SHORT])?;
        Ok(Runner::new(Target::Placement { placement: placement.clone(), model }))
    }

    /// The placement, unless this is another server.
    pub(super) fn placement(&self) -> Option<&Placement> {
        match &self.target {
            Target::Placement { placement, .. } => Some(placement),
            Target::Server(_) => None,
        }
    }

    /// The server, unless this is a placement.
    pub(super) fn server(&self) -> Option<&Server> {
        match &self.target {
            Target::Placement { .. } => None,
            Target::Server(server) => Some(server),
        }
    }

    pub(super) fn name(&self) -> String {
        match &self.target {
            Target::Placement { placement, .. } => placement.to_string(),
            Target::Server(server) => server.to_string(),
        }
    }

    /// Runs all texts once, then one short text [`LATENCY_RUNS`] times. A server that fails is excluded.
    pub(super) fn run_round(&mut self, texts: &[String]) -> anyhow::Result<()> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let Some((seconds, vectors)) = self.time(&texts)? else { return Ok(()) };
        self.seconds = self.seconds.min(seconds);
        self.vectors = vectors;
        let mut times = Vec::with_capacity(LATENCY_RUNS);
        for _ in 0..LATENCY_RUNS {
            let Some((seconds, _)) = self.time(&[SHORT])? else { return Ok(()) };
            times.push(seconds);
        }
        times.sort_by(f64::total_cmp);
        self.latency = self.latency.min(times[LATENCY_RUNS / 2]);
        Ok(())
    }

    /// Embeds the texts and returns the time and the vectors. `None` if the server failed.
    pub(super) fn time(&mut self, texts: &[&str]) -> anyhow::Result<Option<(f64, Vec<Vec<f32>>)>> {
        if self.failed.is_some() {
            return Ok(None);
        }
        let started = Instant::now();
        let vectors = match &self.target {
            Target::Placement { model, .. } => model.embed(texts)?.into_vectors(),
            Target::Server(server) => match server.embed(texts) {
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

/// Opens the model on `placement`.
pub(super) fn builder(arguments: &ModelArguments, runtime: &Runtime, placement: &Placement) -> ModelBuilder {
    let constraints = Constraints {
        engine: Some(placement.engine),
        device: Some(placement.device),
        dtype: Some(placement.dtype),
        weights: Some(placement.weights.clone()),
        ..arguments.constraints()
    };
    let builder = Model::builder(&arguments.model)
        .runtime(runtime)
        .constraints(constraints)
        .overrides(arguments.overrides());
    match &arguments.revision {
        Some(revision) => builder.revision(revision),
        None => builder,
    }
}

/// Compares the vectors of all runners with those of an f32 placement, Candle's if available.
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
    let equal_dimensions = vectors.iter().zip(reference).all(|(a, b)| a.len() == b.len());
    if vectors.len() != reference.len() || !equal_dimensions {
        return None;
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let cosines = vectors.iter().zip(reference).map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    // A zero vector has no direction and counts as orthogonal.
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
