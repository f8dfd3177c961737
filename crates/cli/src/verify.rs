//! `sconce verify`: every placement that works against vectors or scores that sentence-transformers made.

use std::fmt::Write;
use std::process::ExitCode;

use sconce::planner::cases::CANARIES;
use sconce::planner::plan::Constraints;
use sconce::prove::Depth;
use sconce::{
    Account, Band, ClassifyOptions, Model, ModelSource, Placement, RerankOptions, Scoring, Task, cosine,
};
use serde::Serialize;
use serde_json::json;

use crate::arguments;
use crate::reference::Reference;
use crate::screen::{Bars, print, print_json, refusals, rendered, table};

/// How one placement compares with the reference.
#[derive(Serialize)]
struct Verified {
    placement: Placement,
    /// What is promised of it.
    band: Band,
    /// The largest difference of two numbers.
    max_difference: f64,
    /// Of vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    least_cosine: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_cosine: Option<f64>,
    /// The largest distance, which the band is about.
    distance: f64,
    /// Whether it keeps its band.
    holds: bool,
    /// Texts that were cut.
    truncated: usize,
}

pub(crate) fn run(arguments: &arguments::Verify) -> anyhow::Result<ExitCode> {
    let Some(path) = &arguments.reference else {
        print(&recipe(&arguments.model.model, scores(arguments)))?;
        eprintln!("hint: then `sconce verify {} --reference reference.npz`", arguments.model.model);
        return Ok(ExitCode::from(2));
    };
    let reference = Reference::read(path, arguments.input.as_deref())?;
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref())
        .wished(&arguments.model.constraints());
    let mut bars = Bars::default();
    let overrides = arguments.model.overrides();
    let subject = runtime.subject(&source, &overrides, &mut |event| bars.draw(&event))?;
    runtime.check_contents(&subject, &mut |event| bars.draw(&event))?;
    let task = subject.card.task.value;
    if task != Task::Embed && !task.scores() {
        anyhow::bail!("`verify` compares vectors of texts and scores, and this model {}", task.does());
    }
    if task == Task::Rerank && reference.pairs.is_empty() {
        anyhow::bail!(
            "a reranker's scores are of pairs, and the reference has no field or array `pair`, `pairs`"
        );
    }
    // A reranker that answers with words gives one score too.
    let width = if task == Task::Rerank { 1 } else { subject.card.width() };
    if let Some(vector) = reference.vectors.iter().find(|vector| vector.len() != width) {
        anyhow::bail!("the reference's vectors have {} numbers, the model's {width}", vector.len());
    }
    let constraints = arguments.model.constraints();
    let plan = runtime.plan(&subject, &constraints, Depth::Twin, &mut |event| bars.draw(&event))?;
    let mut verified = Vec::new();
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
        let model = builder.open_telling(&mut |event| bars.draw(&event))?;
        verified.push(if task.scores() {
            scored(&model, &reference)?
        } else {
            compared(&model, &reference)?
        });
    }
    bars.clear();
    if arguments.json {
        print_json(
            &json!({ "texts": reference.texts.len(), "placements": verified, "refused": plan.refused }),
        )?;
    } else {
        print(&page(&verified, reference.texts.len()))?;
        if verified.is_empty() {
            eprint!("{}", refusals(&plan));
        }
    }
    let holds = !verified.is_empty() && verified.iter().all(|verified| verified.holds);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One placement's vectors beside the reference's.
fn compared(model: &Model, reference: &Reference) -> anyhow::Result<Verified> {
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
    Ok(Verified {
        band,
        max_difference: difference,
        least_cosine: Some(-cosines.iter().fold(f64::NEG_INFINITY, |least, cosine| larger(least, -cosine))),
        mean_cosine: Some(cosines.iter().sum::<f64>() / cosines.len() as f64),
        distance,
        holds: distance <= promised(band, &placement).tolerance(),
        truncated: embeddings.truncated.len(),
        placement,
    })
}

fn band(model: &Model) -> Band {
    model.plan().chosen.as_ref().map_or(Band::Coarse, |chosen| chosen.band)
}

/// The band that a placement is held to: where its own is unknown, that of its dtype.
fn promised(band: Band, placement: &Placement) -> Band {
    if band == Band::Unknown { Band::expected(placement.dtype) } else { band }
}

/// One placement's raw scores beside the reference's: all together, since one near zero has no length that an error
/// could be held against.
fn scored(model: &Model, reference: &Reference) -> anyhow::Result<Verified> {
    let (mut difference, mut apart, mut size, mut truncated) = (0.0f64, 0.0f64, 0.0f64, 0);
    let mut placements = Vec::new();
    for (index, (text, want)) in reference.texts.iter().zip(&reference.vectors).enumerate() {
        let (got, account) = raw(model, text, reference.pairs.get(index))?;
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
    Ok(Verified {
        band,
        max_difference: difference,
        least_cosine: None,
        mean_cosine: None,
        distance,
        holds: distance <= promised(band, &placement).tolerance(),
        truncated,
        placement,
    })
}

/// The raw scores of a text or a pair, in the order of the labels.
fn raw(model: &Model, text: &str, pair: Option<&String>) -> anyhow::Result<(Vec<f32>, Account)> {
    let scoring = Some(Scoring::Raw);
    let labels = match (model.card().task.value, pair) {
        (Task::Rerank, Some(pair)) => {
            let options = RerankOptions { scoring, ..RerankOptions::default() };
            let ranking = model.rerank(text, &[pair], &options)?;
            return Ok((ranking.ranked.iter().map(|one| one.score).collect(), ranking.account));
        }
        (_, Some(pair)) => {
            let options = ClassifyOptions { scoring, ..ClassifyOptions::default() };
            model.classify_pairs(&[(text, pair.as_str())], &options)?
        }
        (_, None) => model.classify(&[text], &ClassifyOptions { scoring, ..ClassifyOptions::default() })?,
    };
    let names = model.card().head.labels.as_ref().map_or(&[][..], |said| &said.value);
    let score = |name: &String| labels.texts[0].iter().find(|one| one.label == *name).map(|one| one.score);
    Ok((names.iter().filter_map(score).collect(), labels.account))
}

/// The larger of two; what is not a number is larger than all.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn page(verified: &[Verified], texts: usize) -> String {
    let mut rows =
        table(&["", "engine", "device", "dtype", "weights", "band", "max |d|", "least cos", "mean cos"]);
    for one in verified {
        let Placement { engine, device, weights, dtype } = &one.placement;
        rows.add_row(vec![
            if one.holds { "holds" } else { "LEAVES" }.to_owned(),
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
    let _ = writeln!(page, "\n{texts} texts; a placement holds while its distance stays in its band");
    page
}

/// Whether the model gives scores, as far as can be told without fetching it.
fn scores(arguments: &arguments::Verify) -> bool {
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref());
    let inspection = sconce::inspect(&source, &arguments.model.overrides(), arguments.model.offline);
    inspection.is_ok_and(|inspection| inspection.card.task.value.scores())
}

/// How to make a reference of one's own.
fn recipe(model: &str, scores: bool) -> String {
    let texts = CANARIES.map(|text| format!("    {},\n", json!(text))).concat();
    if scores {
        return format!(
            "# writes reference.npz: the raw scores that sentence-transformers gives to these pairs, or to your own\n\
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
        "# writes reference.npz: what sentence-transformers makes of these texts, or of your own\n\
         import numpy\n\
         from sentence_transformers import SentenceTransformer\n\n\
         texts = [\n{texts}]\n\
         model = SentenceTransformer({}, device=\"cpu\")\n\
         numpy.savez(\"reference.npz\", texts=numpy.array(texts), embeddings=model.encode(texts))\n",
        json!(model)
    )
}
