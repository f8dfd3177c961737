//! The extension module `sconce._sconce`: the library, and the command.

mod error;
mod generation;
mod json;
mod model;
mod options;
mod plan;
mod progress;
mod wait;

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;
use sconce::catalogue;

/// Names the command that starts this program, for provers in child processes.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "an argument of Python")]
fn init(program: Vec<OsString>) {
    sconce::init_as(&program, &[]);
}

/// Runs the command `sconce`, which `program` starts, and returns its exit code.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "an argument of Python")]
fn main(py: Python<'_>, program: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let code = py.detach(|| {
        sconce::init_as(&program, &arguments);
        sconce_cli::run(arguments)
    });
    match code {
        code if code == ExitCode::SUCCESS => 0,
        code if code == ExitCode::FAILURE => 1,
        _ => 2,
    }
}

/// The models of the catalogue, or those of a task, as dictionaries.
#[pyfunction]
#[pyo3(signature = (task=None))]
fn models<'py>(py: Python<'py>, task: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    let task = task.map(str::parse).transpose().map_err(error::invalid)?;
    let is_chosen = |model: &&catalogue::CatalogueModel| task.is_none_or(|task| model.task == task);
    json::to_python(py, &catalogue::models().iter().filter(is_chosen).collect::<Vec<_>>())
}

#[pymodule]
fn _sconce(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<error::Error>())?;
    module.add_class::<model::Model>()?;
    module.add_class::<generation::Generation>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<plan::Placement>()?;
    module.add_function(wrap_pyfunction!(init, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(models, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan, module)?)
}
