//! `sconce.Error`: the errors of the library, with a code and a hint.

use std::error::Error as _;
use std::fmt::{Display, Write};

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use sconce::{ErrorCause, Retry, SequenceError, SourceError};

create_exception!(
    sconce,
    Error,
    PyException,
    "An error of sconce. `code` is stable; `hint` says what to do, or is None."
);

/// Before the hint of a message.
const HINT: &str = "\nhint: ";

/// The exception of an error of the library.
#[expect(clippy::needless_pass_by_value, reason = "the signature of `map_err`")]
pub(crate) fn exception(error: sconce::Error) -> PyErr {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(message, ": {cause}");
        source = cause.source();
    }
    new(code(&error), &keywords(&message))
}

/// Replaces flags of the command in code spans by keyword arguments: `--dtype f16` by `dtype="f16"`.
fn keywords(message: &str) -> String {
    let replaced = message.split('`').enumerate().map(|(index, part)| {
        let is_flags = index % 2 == 1 && part.starts_with("--");
        if is_flags { keyword_arguments(part) } else { part.to_owned() }
    });
    replaced.collect::<Vec<_>>().join("`")
}

/// The keyword arguments of flags: `--device cpu --dtype f16` is `device="cpu", dtype="f16"`.
fn keyword_arguments(flags: &str) -> String {
    let argument = |flag: &str| {
        let (name, value) = flag.trim().split_once(' ').unwrap_or((flag.trim(), ""));
        let name = name.replace('-', "_");
        let is_literal = value.parse::<f64>().is_ok() || value.chars().all(|c| c.is_uppercase() || c == '_');
        match value {
            "" => name,
            "true|false" => format!("{name}=True|False"),
            value if is_literal => format!("{name}={value}"),
            value => format!("{name}=\"{value}\""),
        }
    };
    flags.split("--").filter(|flag| !flag.is_empty()).map(argument).collect::<Vec<_>>().join(", ")
}

/// The exception of an invalid argument.
pub(crate) fn invalid(error: impl Display) -> PyErr {
    new("invalid_request", &error.to_string())
}

/// An exception with this code and message, whose last lines may be a hint.
pub(crate) fn new(code: &str, message: &str) -> PyErr {
    let hint = message.split_once(HINT).map(|(_, hint)| hint.trim());
    Python::attach(|py| {
        let error = Error::new_err(message.to_owned());
        let value = error.value(py);
        // Instances of an exception have a dictionary: this does not fail.
        let _ = value.setattr("code", code);
        let _ = value.setattr("hint", hint);
        error
    })
}

/// The code of an error: that of a server's refusal, where it has one.
fn code(error: &sconce::Error) -> &'static str {
    match (error, error.cause(), error.retry()) {
        (sconce::Error::WrongTask { .. }, ..) => "wrong_task",
        (sconce::Error::Sequence(SequenceError::DoesNotFit { .. }), ..) => "does_not_fit",
        (sconce::Error::Sequence(SequenceError::Unusual { .. }), ..) => "unusual_input",
        (sconce::Error::Source(SourceError::NotFound { .. } | SourceError::Hub(_)), _, Retry::Never) => {
            "model_not_found"
        }
        (_, ErrorCause::Request, _) => "invalid_request",
        (_, ErrorCause::Model, _) => "model_fault",
        (_, ErrorCause::Machine, Retry::Later) => "not_ready",
        (_, ErrorCause::Machine, Retry::Never | Retry::Elsewhere) => "no_placement",
    }
}
