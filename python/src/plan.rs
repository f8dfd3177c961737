//! `sconce.Plan` and `sconce.Placement`.

use std::fmt::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sconce::core::hardware::Hardware;
use sconce::prove::ProofDepth;
use sconce::{Constraints, Error, Event, ModelCard, ModelSource, PlanSpec};
use sconce_cli::PlanPage;
use serde_json::json;

use crate::error::exception;
use crate::json::to_python;
use crate::options::{ModelOptions, progress_of, read};
use crate::progress::Progress;
use crate::wait::wait;

/// Where a model runs: engine, device, weights and dtype.
#[pyclass(frozen, eq, str, module = "sconce")]
#[derive(PartialEq)]
pub(crate) struct Placement {
    #[pyo3(get)]
    engine: String,
    #[pyo3(get)]
    device: String,
    #[pyo3(get)]
    weights: String,
    #[pyo3(get)]
    dtype: String,
    /// All of them, as messages name it.
    name: String,
}

impl From<&sconce::Placement> for Placement {
    fn from(placement: &sconce::Placement) -> Placement {
        Placement {
            engine: placement.engine.to_string(),
            device: placement.device.to_string(),
            weights: placement.weights.clone(),
            dtype: placement.dtype.to_string(),
            name: placement.to_string(),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[pymethods]
impl Placement {
    fn __repr__(&self) -> String {
        format!("<sconce.Placement {self}>")
    }
}

/// The placements of a model: the chosen one, the other viable ones, and the reasons against the rest.
#[pyclass(frozen, module = "sconce")]
pub(crate) struct Plan {
    pub(crate) card: ModelCard,
    pub(crate) inner: sconce::Plan,
    pub(crate) constraints: Constraints,
    pub(crate) hardware: Hardware,
}

impl Plan {
    fn page(&self) -> PlanPage {
        PlanPage::new(&self.card, &self.inner, &self.constraints, &self.hardware)
    }
}

#[pymethods]
impl Plan {
    /// The chosen placement; None if no placement satisfies the constraints.
    #[getter]
    fn chosen(&self) -> Option<Placement> {
        self.inner.chosen.as_ref().map(|chosen| (&chosen.placement).into())
    }

    /// The viable placements, best first.
    #[getter]
    fn placements(&self) -> Vec<Placement> {
        self.inner.viable().map(|viable| (&viable.placement).into()).collect()
    }

    /// The plan as a dictionary, with all findings, as `sconce plan --json` prints it.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &json!({ "card": self.card, "constraints": self.constraints, "plan": self.inner }))
    }

    fn __repr__(&self) -> String {
        self.page().to_string().trim_end().to_owned()
    }

    fn _repr_html_(&self) -> String {
        let page = self.page();
        let mut html = format!("<p>{}</p>\n<table>\n", escape(&page.title));
        for (index, row) in page.rows.iter().enumerate() {
            let tag = if index == 0 { "th" } else { "td" };
            html += "<tr>";
            for cell in row {
                let _ = write!(html, "<{tag}>{}</{tag}>", escape(cell));
            }
            html += "</tr>\n";
        }
        html + &format!("</table>\n<pre>{}</pre>\n", escape(page.notes.trim()))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Shows where a model can run, how fast and how accurately, and why not elsewhere.
///
/// Weights are not downloaded; `full=True` downloads and loads them. The other options are those of `Model`.
#[pyfunction]
#[pyo3(
    signature = (name, *, full=false, progress=None, **options),
    text_signature = "(name, *, full=False, progress=None, device=None, engine=None, dtype=None, weights=None, \
        band=None, latency=False, task=None, pooling=None, normalize=None, max_length=None, \
        kv_cache_dtype=None, revision=None, threads=None, offline=False)"
)]
#[expect(clippy::needless_pass_by_value, reason = "an argument of Python")]
pub(crate) fn plan(
    py: Python<'_>,
    name: PathBuf,
    full: bool,
    progress: Option<&Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Plan> {
    let options: ModelOptions = read(options)?;
    let source = ModelSource::parse(&name.to_string_lossy(), options.revision.as_deref())
        .for_constraints(&options.constraints());
    let made = wait(py, &Progress::new(progress, py, true)?, move |mut reporter| -> Result<Plan, Error> {
        let (runtime, constraints, overrides) =
            (options.runtime(), options.constraints(), options.overrides());
        let mut events = |event: Event<'_>| {
            let _: Option<ControlFlow<()>> =
                progress_of(&event).map(|(what, done, total)| reporter.report(&what, done, total));
        };
        let card_and_files = if full {
            runtime.model_spec(&source, &overrides, &mut events)?
        } else {
            let PlanSpec { spec, .. } = runtime.plan_spec(&source, &overrides, &mut events)?;
            spec
        };
        let depth = if full { ProofDepth::Canary } else { ProofDepth::Twin };
        let inner = runtime.plan(&card_and_files, &constraints, depth, &mut events)?;
        Ok(Plan { card: card_and_files.card, inner, constraints, hardware: runtime.hardware().clone() })
    });
    made?.map_err(exception)
}
