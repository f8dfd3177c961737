//! Values of Python as JSON, and back.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::invalid;

/// Reads a value from dictionaries, lists, texts and numbers.
pub(crate) fn from_python<T: DeserializeOwned>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    let text: PyBackedStr = value.py().import("json")?.call_method1("dumps", (value,))?.extract()?;
    serde_json::from_str(&text).map_err(|error| {
        let message = error.to_string();
        // Positions are those of a text that the caller has not written.
        let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        if message.starts_with("unknown field") {
            let message = message.replacen("unknown field", "unexpected keyword argument", 1);
            return PyTypeError::new_err(message);
        }
        invalid(message)
    })
}

/// A value as dictionaries, lists, texts and numbers.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).map_err(invalid)?;
    py.import("json")?.call_method1("loads", (text,))
}
