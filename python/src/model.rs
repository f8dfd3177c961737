//! `sconce.Model`: a loaded model and its operations.

use std::ffi::CString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};
use sconce::operations::embed;
use sconce::{
    ChatOptions, ClassifyOptions, EmbedOptions, Error, Event, Message, Prompt, RerankOptions, Runtime,
    SimilarityOptions,
};

use crate::error::{exception, invalid, new};
use crate::generation::Generation;
use crate::json::from_python;
use crate::options::{ModelOptions, Sampling, progress_of, read};
use crate::plan::{Placement, Plan};
use crate::progress::Progress;
use crate::wait::wait;

/// Texts that are tokenized and computed together, so that memory of tokens is bounded.
const CHUNK: usize = 8192;

/// A loaded model: `Model("e5-small")`, by a short name, a folder, a GGUF file, a bundle or an id on the Hugging Face Hub.
///
/// Threads can share it. Calls release the GIL while they compute.
#[pyclass(frozen, module = "sconce")]
pub(crate) struct Model {
    inner: sconce::Model,
    runtime: Runtime,
    options: ModelOptions,
    /// The process whose threads compute.
    process: u32,
}

impl Model {
    /// The model, unless this process was forked from the one that opened it.
    fn model(&self) -> PyResult<&sconce::Model> {
        if self.process == process::id() {
            return Ok(&self.inner);
        }
        Err(new(
            "forked",
            "the model was opened before this process was forked, and its threads are in the other process\n\
             hint: open it in this process, or use `multiprocessing.set_start_method(\"spawn\")`",
        ))
    }

    /// Runs an operation on another thread.
    fn compute<T: Send + 'static>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&sconce::Model) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let model = self.model()?.clone();
        wait(py, &Progress::Hidden, move |_| operation(&model))?.map_err(exception)
    }

    /// Embeds texts into one array.
    fn vectors<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<PyBackedStr>,
        options: EmbedOptions,
        progress: &Progress,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let model = self.model()?.clone();
        embed::check(model.card(), &options).map_err(exception)?;
        if let Some(warning) = model.take_prompt_warning(&options.prompt, &texts) {
            let warning = CString::new(format!("{warning}; `embed_query` and `embed_documents` add them"))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &warning, 1)?;
        }
        let (count, width) = (texts.len(), options.dimensions.unwrap_or(model.card().width()));
        let max_length = model.card().max_length.value;
        let values = wait(py, progress, move |mut reporter| -> Result<(Vec<f32>, usize), Error> {
            let (mut values, mut done, mut truncated) = (vec![0.0; count * width], 0, 0);
            for (texts, rows) in texts.chunks(CHUNK).zip(values.chunks_mut(CHUNK * width)) {
                let mut state = ControlFlow::Continue(());
                let metadata = model.embed_each(texts, &options, |index, vector| {
                    rows[index * width..][..width].copy_from_slice(vector);
                    done += 1;
                    state = reporter.report("embedding", done, count as u64);
                    state
                })?;
                truncated += metadata.truncated.len();
                if state.is_break() {
                    break;
                }
            }
            Ok((values, truncated))
        });
        let (values, truncated) = values?.map_err(exception)?;
        if truncated > 0 {
            let warning = format!(
                "{truncated} of {count} texts are longer than {max_length} tokens and were truncated"
            );
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &CString::new(warning)?, 1)?;
        }
        PyArray1::from_vec(py, values).reshape([count, width])
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(
        signature = (name, *, progress=None, **options),
        text_signature = "(name, *, progress=None, device=None, engine=None, dtype=None, weights=None, band=None, \
            latency=False, task=None, pooling=None, normalize=None, max_length=None, kv_cache_dtype=None, \
            revision=None, threads=None, offline=False)"
    )]
    #[expect(clippy::needless_pass_by_value, reason = "an argument of Python")]
    fn open(
        py: Python<'_>,
        name: PathBuf,
        progress: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Model> {
        let options: ModelOptions = read(options)?;
        let mut builder = sconce::Model::builder(&name.to_string_lossy())
            .constraints(options.constraints())
            .overrides(options.overrides());
        if let Some(revision) = &options.revision {
            builder = builder.revision(revision);
        }
        let opened =
            wait(py, &Progress::new(progress, py, true)?, move |mut reporter| -> Result<Model, Error> {
                let runtime = options.runtime();
                let mut events = |event: Event<'_>| {
                    let _: Option<ControlFlow<()>> =
                        progress_of(&event).map(|(what, done, total)| reporter.report(&what, done, total));
                };
                let inner = builder.runtime(&runtime).open_with_progress(&mut events)?;
                Ok(Model { inner, runtime, options, process: process::id() })
            });
        opened?.map_err(exception)
    }

    /// Embeds texts: an array of float32 with one row per text.
    ///
    /// `prompt` names a prompt of the model, and `prefix` is literal text before every text. `dimensions` truncates the
    /// vectors. `progress` is True for a bar on stderr, or a function of what is done, how much, and of how much.
    #[pyo3(signature = (
        texts, *, prompt=None, prefix=None, dimensions=None, force_dimensions=false, normalize=None, progress=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        prompt: Option<String>,
        prefix: Option<String>,
        dimensions: Option<usize>,
        force_dimensions: bool,
        normalize: Option<bool>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let prompt = match (prompt, prefix) {
            (Some(_), Some(_)) => return Err(invalid("`prompt` and `prefix` exclude each other")),
            (None, Some(prefix)) => Prompt::Text(prefix),
            (name, None) => name.into(),
        };
        let options = EmbedOptions { prompt, dimensions, force_dimensions, normalize };
        self.vectors(py, strings(texts)?, options, &Progress::new(progress, py, false)?)
    }

    /// Embeds a search query, with the model's prompt for queries: an array of float32.
    fn embed_query<'py>(&self, py: Python<'py>, query: PyBackedStr) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let options = EmbedOptions { prompt: Prompt::Query, ..EmbedOptions::default() };
        let vectors = self.vectors(py, vec![query], options, &Progress::Hidden)?;
        vectors.reshape([self.inner.card().width()])
    }

    /// Embeds documents that are searched, with the model's prompt for documents: an array with one row per document.
    #[pyo3(signature = (documents, *, progress=None))]
    fn embed_documents<'py>(
        &self,
        py: Python<'py>,
        documents: &Bound<'py, PyAny>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let options = EmbedOptions { prompt: Prompt::Document, ..EmbedOptions::default() };
        self.vectors(py, strings(documents)?, options, &Progress::new(progress, py, false)?)
    }

    /// Sorts documents by relevance to a query: pairs of index and score, best first.
    #[pyo3(signature = (query, documents, *, top=None, instruction=None, label=None))]
    fn rerank(
        &self,
        py: Python<'_>,
        query: PyBackedStr,
        documents: &Bound<'_, PyAny>,
        top: Option<usize>,
        instruction: Option<String>,
        label: Option<String>,
    ) -> PyResult<Vec<(usize, f32)>> {
        let documents = strings(documents)?;
        let options = RerankOptions { top, instruction, label, ..RerankOptions::default() };
        let ranking = self.compute(py, move |model| model.rerank(&query, &documents, &options))?;
        Ok(ranking.ranked.into_iter().map(|ranked| (ranked.index, ranked.score)).collect())
    }

    /// Classifies texts: for each text, pairs of label and score, best first.
    fn classify(&self, py: Python<'_>, texts: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<(String, f32)>>> {
        let texts = strings(texts)?;
        let classified =
            self.compute(py, move |model| model.classify(&texts, &ClassifyOptions::default()))?;
        let labels = classified.texts.into_iter();
        Ok(labels
            .map(|labels| labels.into_iter().map(|label| (label.label, label.score)).collect())
            .collect())
    }

    /// Scores the similarity of a text to each of the others: an array of float32.
    fn similarity<'py>(
        &self,
        py: Python<'py>,
        text: PyBackedStr,
        others: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let others = strings(others)?;
        let options = SimilarityOptions::default();
        let similarities = self.compute(py, move |model| model.similarity_with(&text, &others, &options))?;
        Ok(PyArray1::from_vec(py, similarities.scores))
    }

    /// Answers a conversation: a text of the user, or messages with `role` and `content`. Returns an iterator over
    /// pieces of text.
    #[pyo3(
        signature = (messages, *, tools=None, variables=None, template=None, **options),
        text_signature = "($self, messages, *, tools=None, variables=None, template=None, max_tokens=None, \
            min_tokens=0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, \
            frequency_penalty=0.0, presence_penalty=0.0, logit_bias={}, seed=None, stop=[], ignore_eos=False, \
            json_object=False, json_schema=None, regex=None, grammar=None)"
    )]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        variables: Option<&Bound<'_, PyAny>>,
        template: Option<String>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Generation> {
        let messages: Vec<Message> = if messages.is_instance_of::<PyString>() {
            vec![Message::user(messages.extract::<String>()?)]
        } else {
            from_python(messages)?
        };
        let chat = ChatOptions {
            tools: tools.map(from_python).transpose()?,
            variables: variables.map(from_python).transpose()?.unwrap_or_default(),
            template,
            ..ChatOptions::default()
        };
        let options = read::<Sampling>(options)?.into_options();
        let running = self.compute(py, move |model| model.chat_with(&messages, &chat, &options))?;
        Ok(Generation::new(running))
    }

    /// Continues a text. Returns an iterator over pieces of text.
    #[pyo3(
        signature = (prompt, **options),
        text_signature = "($self, prompt, *, max_tokens=None, min_tokens=0, temperature=1.0, top_k=0, top_p=1.0, \
            min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, logit_bias={}, \
            seed=None, stop=[], ignore_eos=False, json_object=False, json_schema=None, regex=None, grammar=None)"
    )]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: PyBackedStr,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Generation> {
        let options = read::<Sampling>(options)?.into_options();
        Ok(Generation::new(self.compute(py, move |model| model.generate(&prompt, &options))?))
    }

    /// The model's name, folder or id.
    #[getter]
    fn name(&self) -> &str {
        &self.inner.card().name
    }

    /// What it computes: "embed", "rerank", "classify", "sparse", "tokens" or "generate".
    #[getter]
    fn task(&self) -> &'static str {
        self.inner.card().task.value.name()
    }

    /// Number of values of a vector.
    #[getter]
    fn dimensions(&self) -> usize {
        self.inner.card().width()
    }

    /// Maximum number of tokens of a text.
    #[getter]
    fn max_length(&self) -> usize {
        self.inner.card().max_length.value
    }

    /// The current plan.
    #[getter]
    fn plan(&self) -> Plan {
        Plan {
            card: self.inner.card().clone(),
            inner: self.inner.plan(),
            constraints: self.options.constraints(),
            hardware: self.runtime.hardware().clone(),
        }
    }

    /// The placement that computes; None if all have failed.
    #[getter]
    fn placement(&self) -> Option<Placement> {
        self.inner.placement().map(|placement| (&placement).into())
    }

    /// The numerics class. Vectors of one class can share an index.
    #[getter]
    fn numerics_class(&self) -> Option<String> {
        self.inner.class()
    }

    fn __repr__(&self) -> String {
        let placement =
            self.inner.placement().map_or_else(String::new, |placement| format!(" on {placement}"));
        format!("<sconce.Model {}{placement}>", self.name())
    }
}

/// Texts of any iterable but a text itself, without a copy.
fn strings(texts: &Bound<'_, PyAny>) -> PyResult<Vec<PyBackedStr>> {
    if texts.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("expected a list of texts, not one text"));
    }
    let text = |(index, text): (usize, PyResult<Bound<'_, PyAny>>)| {
        let text = text?;
        let wrong = |_| PyTypeError::new_err(format!("text {index} is {}, not a str", text.get_type()));
        text.extract().map_err(wrong)
    };
    texts.try_iter()?.enumerate().map(text).collect()
}
