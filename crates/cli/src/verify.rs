//! `sconce verify`: compares every viable placement with vectors or scores of sentence-transformers.

use std::fmt::Write;
use std::process::ExitCode;

use sconce::planner::cases::CANARIES;
use sconce::planner::plan::Constraints;
use sconce::prove::ProofDepth;
use sconce::{
    Band, ClassifyOptions, Model, ModelSource, OutputMetadata, Placement, RerankOptions, Scoring, Task,
    cosine,
};
use serde::Serialize;
use serde_json::json;

use crate::arguments;
use crate::reference::Reference;
use crate::terminal::{ProgressBars, print, print_json, refusals, rendered, table};

/// The comparison of one placement with the reference.
#[derive(Serialize)]
struct Comparison {
    placement: Placement,
    /// The band of the placement in the plan.
    band: Band,
    /// The maximum absolute difference of two values.
    max_difference: f64,
    /// The minimum cosine similarity. Absent for scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    least_cosine: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_cosine: Option<f64>,
    /// The maximum distance, which the band limits.
    distance: f64,
    /// Whether the distance is within the band.
    within_band: bool,
    /// Number of truncated texts.
    truncated: usize,
}

pub(crate) fn run(arguments: &arguments::Verify) -> anyhow::Result<ExitCode> {
    let Some(path) = &arguments.reference else {
        print(&recipe(&arguments.model.model, gives_scores(arguments)))?;
        eprintln!(
            "hint: run this script, then `sconce verify {} --reference reference.npz`",
            arguments.model.model
        );
        return Ok(ExitCode::SUCCESS);
    };
    let reference = Reference::read(path, arguments.input.as_deref())?;
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref())
        .for_constraints(&arguments.model.constraints());
    let mut bars = ProgressBars::default();
    let overrides = arguments.model.overrides();
    let subject = runtime.model_spec(&source, &overrides, &mut |event| bars.draw(&event))?;
    runtime.check_contents(&subject, &mut |event| bars.draw(&event))?;
    let task = subject.card.task.value;
    if task != Task::Embed && !task.scores() {
        anyhow::bail!("`verify` compares text vectors and scores; this model {}", task.does());
    }
    if task == Task::Rerank && reference.pairs.is_empty() {
        anyhow::bail!("the reference of a reranker needs pairs: a field `pair`, or an array `pairs`");
    }
    // A generative reranker also gives one score.
    let width = if task == Task::Rerank { 1 } else { subject.card.width() };
    if let Some(vector) = reference.vectors.iter().find(|vector| vector.len() != width) {
        anyhow::bail!("the reference has {} values per text, the model {width}", vector.len());
    }
    let constraints = arguments.model.constraints();
    let plan = runtime.plan(&subject, &constraints, ProofDepth::Twin, &mut |event| bars.draw(&event))?;
    let mut comparisons = Vec::new();
    for viable in plan.viable() {
        let Placement { engine, device, weights, dtype } = viable.placement.clone();
        let only = Constraints {
            engine: Some(engine),
            device: Some(device),
            weights: Some(weights),
            dtype: Some(dtype),
            ..constraints.clone()
        };
        let mut builder = Model::builder(&arguments.model.model)
            .runtime(&runtime)
            .constraints(only)
            .overrides(overrides.clone());
        if let Some(revision) = &arguments.model.revision {
            builder = builder.revision(revision);
        }
        let model = builder.open_with_progress(&mut |event| bars.draw(&event))?;
        comparisons.push(if task.scores() {
            compare_scores(&model, &reference)?
        } else {
            compare_vectors(&model, &reference)?
        });
    }
    bars.clear();
    if arguments.json {
        print_json(
            &json!({ "texts": reference.texts.len(), "placements": comparisons, "refused": plan.refused }),
        )?;
    } else {
        print(&text(&comparisons, reference.texts.len()))?;
        if comparisons.is_empty() {
            eprint!("{}", refusals(&plan));
        }
    }
    let within_band =
        !comparisons.is_empty() && comparisons.iter().all(|comparisons| comparisons.within_band);
    Ok(if within_band { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the vectors of one placement with the reference.
fn compare_vectors(model: &Model, reference: &Reference) -> anyhow::Result<Comparison> {
    let embeddings = model.embed(&reference.texts)?;
    let (mut difference, mut distance) = (0.0f64, 0.0f64);
    let mut cosines = Vec::with_capacity(embeddings.len());
    for (got, want) in embeddings.iter().zip(&reference.vectors) {
        let apart: Vec<f64> =
            got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).collect();
        let size: f64 = want.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        difference = apart.iter().copied().fold(difference, larger);
        distance = larger(distance, apart.iter().map(|x| x * x).sum::<f64>() / (2.0 * size));
        cosines.push(f64::from(cosine(got, want)));
    }
    let (band, placement) = (band(model), embeddings.placements[0].clone());
    Ok(Comparison {
        band,
        max_difference: difference,
        least_cosine: Some(-cosines.iter().fold(f64::NEG_INFINITY, |least, cosine| larger(least, -cosine))),
        mean_cosine: Some(cosines.iter().sum::<f64>() / cosines.len() as f64),
        distance,
        within_band: distance <= effective_band(band, &placement).tolerance(),
        truncated: embeddings.truncated.len(),
        placement,
    })
}

fn band(model: &Model) -> Band {
    model.plan().chosen.as_ref().map_or(Band::Coarse, |chosen| chosen.band)
}

/// The band that limits a placement: its own, or the expected one if its own is unknown.
fn effective_band(band: Band, placement: &Placement) -> Band {
    if band == Band::Unknown { Band::expected(placement) } else { band }
}

/// Compares the logits of one placement with the reference. The error is relative to the norm of all logits, since
/// a single logit can be near zero.
fn compare_scores(model: &Model, reference: &Reference) -> anyhow::Result<Comparison> {
    let (mut difference, mut apart, mut size, mut truncated) = (0.0f64, 0.0f64, 0.0f64, 0);
    let mut placements = Vec::new();
    for (index, (text, want)) in reference.texts.iter().zip(&reference.vectors).enumerate() {
        let (got, account) = raw_scores(model, text, reference.pairs.get(index))?;
        truncated += account.truncated.len();
        placements = account.placements;
        for (&got, &want) in got.iter().zip(want) {
            let off = (f64::from(got) - f64::from(want)).abs();
            difference = larger(difference, off);
            apart += off * off;
            size += f64::from(want) * f64::from(want);
        }
    }
    let (band, distance, placement) = (band(model), apart / (2.0 * size), placements.swap_remove(0));
    Ok(Comparison {
        band,
        max_difference: difference,
        least_cosine: None,
        mean_cosine: None,
        distance,
        within_band: distance <= effective_band(band, &placement).tolerance(),
        truncated,
        placement,
    })
}

/// The logits of a text or a pair, in the order of the labels.
fn raw_scores(
    model: &Model,
    text: &str,
    pair: Option<&String>,
) -> anyhow::Result<(Vec<f32>, OutputMetadata)> {
    let scoring = Some(Scoring::Raw);
    let labels = match (model.card().task.value, pair) {
        (Task::Rerank, Some(pair)) => {
            let options = RerankOptions { scoring, ..RerankOptions::default() };
            let ranking = model.rerank(text, &[pair], &options)?;
            return Ok((ranking.ranked.iter().map(|one| one.score).collect(), ranking.metadata));
        }
        (_, Some(pair)) => {
            let options = ClassifyOptions { scoring, ..ClassifyOptions::default() };
            model.classify_pairs(&[(text, pair.as_str())], &options)?
        }
        (_, None) => model.classify(&[text], &ClassifyOptions { scoring, ..ClassifyOptions::default() })?,
    };
    let names = model.card().head.labels.as_ref().map_or(&[][..], |said| &said.value);
    let score = |name: &String| labels.texts[0].iter().find(|one| one.label == *name).map(|one| one.score);
    Ok((names.iter().filter_map(score).collect(), labels.metadata))
}

/// The larger of two values. NaN is larger than any value.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn text(comparisons: &[Comparison], texts: usize) -> String {
    let mut rows =
        table(&["", "engine", "device", "dtype", "weights", "band", "max |d|", "least cos", "mean cos"]);
    for one in comparisons {
        let Placement { engine, device, weights, dtype } = &one.placement;
        rows.add_row(vec![
            if one.within_band { "pass" } else { "FAIL" }.to_owned(),
            engine.to_string(),
            device.to_string(),
            dtype.to_string(),
            weights.clone(),
            one.band.to_string(),
            format!("{:.1e}", one.max_difference),
            one.least_cosine.map_or_else(String::new, |cosine| format!("{cosine:.7}")),
            one.mean_cosine.map_or_else(String::new, |cosine| format!("{cosine:.7}")),
        ]);
    }
    let mut page = format!("{}\n", rendered(&rows));
    let _ = writeln!(
        page,
        "\n{texts} texts; a placement passes if its distance from the reference is within its band"
    );
    page
}

/// Whether the model's output is scores, as far as its card says without downloading weights.
fn gives_scores(arguments: &arguments::Verify) -> bool {
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref());
    let inspection = sconce::inspect(&source, &arguments.model.overrides(), arguments.model.offline);
    inspection.is_ok_and(|inspection| inspection.card.task.value.scores())
}

/// A Python script that creates a reference.
fn recipe(model: &str, scores: bool) -> String {
    let texts = CANARIES.map(|text| format!("    {},\n", json!(text))).concat();
    if scores {
        return format!(
            "# writes reference.npz: the logits of sentence-transformers for these pairs, or for your own\n\
             import numpy\n\
             import torch\n\
             from sentence_transformers import CrossEncoder\n\n\
             texts = [\n{texts}]\n\
             pairs = texts[1:] + texts[:1]\n\
             model = CrossEncoder({}, device=\"cpu\")\n\
             scores = model.predict(list(zip(texts, pairs)), activation_fn=torch.nn.Identity())\n\
             numpy.savez(\"reference.npz\", texts=numpy.array(texts), pairs=numpy.array(pairs),\n\
             \x20           scores=scores.reshape(len(texts), -1).astype(\"float32\"))\n",
            json!(model)
        );
    }
    format!(
        "# writes reference.npz: the embeddings of sentence-transformers for these texts, or for your own\n\
         import numpy\n\
         from sentence_transformers import SentenceTransformer\n\n\
         texts = [\n{texts}]\n\
         model = SentenceTransformer({}, device=\"cpu\")\n\
         numpy.savez(\"reference.npz\", texts=numpy.array(texts), embeddings=model.encode(texts))\n",
        json!(model)
    )
}
