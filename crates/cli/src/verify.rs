//! `sconce verify`: every placement that works against vectors that sentence-transformers made.

use std::fmt::Write;
use std::process::ExitCode;

use sconce::planner::cases::CANARIES;
use sconce::planner::plan::Wish;
use sconce::prove::Depth;
use sconce::{Band, Model, ModelSource, Placement, Task, cosine};
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
    least_cosine: f64,
    mean_cosine: f64,
    /// The largest distance, which the band is about.
    distance: f64,
    /// Whether it keeps its band.
    holds: bool,
    /// Texts that were cut.
    truncated: usize,
}

pub(crate) fn run(arguments: &arguments::Verify) -> anyhow::Result<ExitCode> {
    let Some(path) = &arguments.reference else {
        print(&recipe(&arguments.model.model))?;
        eprintln!("hint: then `sconce verify {} --reference reference.npz`", arguments.model.model);
        return Ok(ExitCode::from(2));
    };
    let reference = Reference::read(path, arguments.input.as_deref())?;
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref())
        .wished(&arguments.model.wish());
    let mut bars = Bars::default();
    let overrides = arguments.model.overrides();
    let subject = runtime.subject(&source, &overrides, &mut |event| bars.draw(&event))?;
    if subject.card.task.value != Task::Embed {
        anyhow::bail!(
            "`verify` compares vectors of texts, and this model {}",
            subject.card.task.value.does()
        );
    }
    if let Some(vector) = reference.vectors.iter().find(|vector| vector.len() != subject.card.width()) {
        anyhow::bail!(
            "the reference's vectors have {} numbers, the model's {}",
            vector.len(),
            subject.card.width()
        );
    }
    let wish = arguments.model.wish();
    let plan = runtime.plan(&subject, &wish, Depth::Twin, &mut |event| bars.draw(&event))?;
    let mut verified = Vec::new();
    for sound in plan.sound() {
        let Placement { engine, device, weights, dtype } = sound.placement.clone();
        let only = Wish {
            engine: Some(engine),
            device: Some(device),
            weights: Some(weights),
            dtype: Some(dtype),
            ..wish.clone()
        };
        let mut builder =
            Model::builder(&arguments.model.model).runtime(&runtime).wish(only).overrides(overrides.clone());
        if let Some(revision) = &arguments.model.revision {
            builder = builder.revision(revision);
        }
        let model = builder.open_telling(&mut |event| bars.draw(&event))?;
        verified.push(compared(&model, &reference)?);
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
    let chosen = model.plan().chosen;
    let band = chosen.as_ref().map_or(Band::Coarse, |chosen| chosen.band);
    Ok(Verified {
        placement: embeddings.placements[0].clone(),
        band,
        max_difference: difference,
        least_cosine: cosines.iter().copied().fold(f64::INFINITY, f64::min),
        mean_cosine: cosines.iter().sum::<f64>() / cosines.len() as f64,
        distance,
        holds: distance <= band.tolerance(),
        truncated: embeddings.truncated.len(),
    })
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
            format!("{:.7}", one.least_cosine),
            format!("{:.7}", one.mean_cosine),
        ]);
    }
    let mut page = format!("{}\n", rendered(&rows));
    let _ = writeln!(page, "\n{texts} texts; a placement holds while its distance stays in its band");
    page
}

/// How to make a reference of one's own.
fn recipe(model: &str) -> String {
    let texts = CANARIES.map(|text| format!("    {},\n", json!(text))).concat();
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
