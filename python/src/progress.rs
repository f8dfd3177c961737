//! Progress: a bar on standard error, or a callback.

use pyo3::prelude::*;
use pyo3::types::PyBool;

/// Characters of a full bar.
const WIDTH: u64 = 30;

pub(crate) enum Progress {
    Hidden,
    Bar,
    /// Called with what is done, and how much of how much.
    Callback(Py<PyAny>),
}

impl Progress {
    /// By an argument: a truth value, or a callback. Without one, a bar if `is_default` and standard error is a terminal.
    pub(crate) fn new(
        argument: Option<&Bound<'_, PyAny>>,
        py: Python<'_>,
        is_default: bool,
    ) -> PyResult<Progress> {
        let is_shown = match argument {
            Some(argument) if argument.is_instance_of::<PyBool>() => argument.is_truthy()?,
            Some(callback) => return Ok(Progress::Callback(callback.clone().unbind())),
            None => is_default && stderr(py)?.is_some_and(|stderr| is_terminal(&stderr)),
        };
        Ok(if is_shown { Progress::Bar } else { Progress::Hidden })
    }

    pub(crate) fn show(&self, py: Python<'_>, what: &str, done: u64, total: u64) -> PyResult<()> {
        match self {
            Progress::Hidden => Ok(()),
            Progress::Callback(callback) => callback.call1(py, (what, done, total)).map(drop),
            Progress::Bar => {
                let filled = (WIDTH * done.min(total) / total.max(1)) as usize;
                let bar = format!("{}{}", "=".repeat(filled), " ".repeat(WIDTH as usize - filled));
                write(py, &format!("\r{what} [{bar}] {done}/{total}\x1b[K"))
            }
        }
    }

    /// Removes the bar.
    pub(crate) fn clear(&self, py: Python<'_>) {
        if matches!(self, Progress::Bar) {
            let _ = write(py, "\r\x1b[K");
        }
    }
}

/// `sys.stderr`, which notebooks replace; `None` without one.
fn stderr(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let stderr = py.import("sys")?.getattr("stderr")?;
    Ok((!stderr.is_none()).then_some(stderr))
}

fn is_terminal(stderr: &Bound<'_, PyAny>) -> bool {
    stderr.call_method0("isatty").and_then(|answer| answer.is_truthy()).unwrap_or(false)
}

fn write(py: Python<'_>, text: &str) -> PyResult<()> {
    if let Some(stderr) = stderr(py)? {
        stderr.call_method1("write", (text,))?;
        stderr.call_method0("flush")?;
    }
    Ok(())
}
