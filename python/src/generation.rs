//! `sconce.Generation`: generated text, piece by piece.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use pyo3::prelude::*;
use sconce::{FinishReason, GenerationSummary, Piece};

use crate::error::exception;
use crate::wait::POLL_INTERVAL;

/// A running generation: an iterator over pieces of text. `close()` cancels it, and so does deleting it.
#[pyclass(frozen, module = "sconce")]
pub(crate) struct Generation {
    state: Mutex<State>,
}

struct State {
    /// None after it was closed.
    generation: Option<sconce::Generation>,
    /// Its summary when it was closed.
    summary: GenerationSummary,
}

impl Generation {
    pub(crate) fn new(generation: sconce::Generation) -> Generation {
        let summary = GenerationSummary::default();
        Generation { state: Mutex::new(State { generation: Some(generation), summary }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next piece for a moment.
    fn poll(&self) -> Poll<Option<Result<Piece, sconce::Error>>> {
        let mut state = self.state();
        state.generation.as_mut().map_or(Poll::Ready(None), |running| running.next_timeout(POLL_INTERVAL))
    }

    fn summary(&self) -> GenerationSummary {
        let state = self.state();
        state.generation.as_ref().map_or_else(|| state.summary.clone(), |running| running.summary().clone())
    }
}

#[pymethods]
impl Generation {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            let next = py.detach(|| self.poll());
            if let Err(interrupt) = py.check_signals() {
                self.close();
                return Err(interrupt);
            }
            match next {
                Poll::Pending => {}
                Poll::Ready(None) => return Ok(None),
                Poll::Ready(Some(Err(error))) => return Err(exception(error)),
                Poll::Ready(Some(Ok(piece))) if piece.text.is_empty() => {}
                Poll::Ready(Some(Ok(piece))) => return Ok(Some(piece.text)),
            }
        }
    }

    /// Waits for the rest of the text.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::new();
        while let Some(piece) = self.__next__(py)? {
            text += &piece;
        }
        Ok(text)
    }

    /// Cancels the generation.
    fn close(&self) {
        let summary = self.summary();
        *self.state() = State { generation: None, summary };
    }

    /// Why the text ended: "stop" or "length". None while it is generated.
    #[getter]
    fn finish_reason(&self) -> Option<&'static str> {
        self.summary().finish_reasons.first().copied().flatten().map(FinishReason::name)
    }

    /// Number of tokens of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.summary().prompt_tokens
    }

    /// Number of tokens of the text, once it is complete.
    #[getter]
    fn generated_tokens(&self) -> usize {
        self.summary().generated_tokens
    }
}
