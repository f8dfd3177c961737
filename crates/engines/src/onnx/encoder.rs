//! A loaded graph: sequences are padded per length bucket, and the padding is removed from the output.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use ort::session::{Session, SessionInputValue, SessionOutputs};
use ort::value::{Tensor, TensorElementType};
use sconce_core::batch::{Batch, Output, OutputKind, Rows, Sequence};
use sconce_core::card::ModelCard;
use sconce_core::engine::{BatchLayout, Encoder, EngineError};

use super::graph::{Feed, Graph, GraphOutput, Input};
use crate::describe::outline;
use crate::description::Description;
use crate::errors;
use crate::length_buckets::length_buckets;
use crate::loaded_head::LoadedHead;
use crate::normalize::normalized;

/// Maximum tokens per run, including padding: more only take more memory.
const AT_ONCE: usize = 4096;

pub(super) struct OnnxEncoder {
    /// One run at a time.
    pub(super) session: Mutex<Session>,
    pub(super) graph: Graph,
    /// The output head; none if the graph includes it.
    pub(super) head: Option<LoadedHead>,
    pub(super) limits: Limits,
    pub(super) normalizes: bool,
}

/// Limits of a batch: every index into a table is checked before the graph runs.
pub(super) struct Limits {
    description: Option<Description>,
    vocabulary: usize,
    length: usize,
}

impl Limits {
    /// Limits of the model's description, or of its config if the family is unknown.
    pub(super) fn of(card: &ModelCard) -> Limits {
        let sizes = &card.sizes.value;
        Limits {
            description: outline(&card.config, sizes),
            vocabulary: sizes.vocabulary,
            length: card.max_length.value,
        }
    }

    fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        if let Some(description) = &self.description {
            return description.check(batch);
        }
        let malformed = |what: String| Err(EngineError::Malformed(what));
        if !batch.is_well_formed() || batch.sequences.is_empty() {
            return malformed("its sequences do not lie end to end".to_owned());
        }
        if let Some(id) = batch.ids.iter().find(|&&id| id as usize >= self.vocabulary) {
            return malformed(format!("token id {id} of a vocabulary of {}", self.vocabulary));
        }
        match batch.sequences.iter().find(|sequence| sequence.length > self.length) {
            Some(sequence) => {
                malformed(format!("{} tokens where the model takes {}", sequence.length, self.length))
            }
            None => Ok(()),
        }
    }

    /// The row of the position table for each of `ids`.
    fn positions(&self, ids: &[u32]) -> Vec<u32> {
        match self.description.as_ref().and_then(|description| description.position_table) {
            Some(positions) => positions.rows(ids),
            None => (0..ids.len() as u32).collect(),
        }
    }
}

impl Encoder for OnnxEncoder {
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError> {
        self.limits.check(batch)?;
        let lengths: Vec<usize> = batch.sequences.iter().map(|sequence| sequence.length).collect();
        if let Some(length) = self.graph.length
            && lengths.iter().any(|&own| own > length)
        {
            return Err(EngineError::Malformed(format!("a text longer than the graph's {length} tokens")));
        }
        let mut all = Given::default();
        for bucket in length_buckets(&lengths) {
            let longest = bucket.iter().map(|&member| lengths[member]).max().unwrap_or(1);
            let longest = self.graph.length.unwrap_or(longest);
            for members in bucket.chunks((AT_ONCE / longest).max(1)) {
                self.run(batch, members, longest, &mut all)?;
            }
        }
        self.answer(batch, all)
    }

    fn batch_layout(&self) -> BatchLayout {
        BatchLayout::Padded
    }
}

/// The graph's output for a batch: rows of tokens, or rows of texts.
#[derive(Default)]
struct Given {
    width: usize,
    values: Vec<f32>,
}

impl OnnxEncoder {
    /// Runs `members` of `batch`, padded to `longest`, and stores their rows.
    fn run(
        &self,
        batch: &Batch,
        members: &[usize],
        longest: usize,
        all: &mut Given,
    ) -> Result<(), EngineError> {
        let sequences: Vec<Sequence> = members.iter().map(|&member| batch.sequences[member]).collect();
        let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::new();
        for input in &self.graph.inputs {
            let values = padded(batch, &sequences, longest, input.feed, &self.limits);
            let value = value(input, [sequences.len(), longest], values).map_err(errors::to_engine_error)?;
            inputs.push((Cow::Borrowed(&input.name), value));
        }
        let output = &self.graph.output;
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let outputs = session.run(inputs).map_err(errors::to_engine_error)?;
        let (shape, values) = read(&outputs, &output.name)?;
        let (rows, total) = match output.kind {
            GraphOutput::Tokens => (longest, batch.tokens()),
            GraphOutput::Texts | GraphOutput::Scores => (1, batch.sequences.len()),
        };
        let width = shape.last().copied().unwrap_or(0);
        if width == 0
            || values.len() != sequences.len() * rows * width
            || all.width != 0 && all.width != width
        {
            return Err(EngineError::Failed(format!("`{}` came back as {shape:?}", output.name).into()));
        }
        all.width = width;
        all.values.resize(total * width, 0.0);
        for ((&member, sequence), given) in
            members.iter().zip(&sequences).zip(values.chunks_exact(rows * width))
        {
            let (start, count) = match output.kind {
                GraphOutput::Tokens => (sequence.start, sequence.length),
                GraphOutput::Texts | GraphOutput::Scores => (member, 1),
            };
            all.values[start * width..(start + count) * width].copy_from_slice(&given[..count * width]);
        }
        Ok(())
    }

    fn answer(&self, batch: &Batch, Given { width, values }: Given) -> Result<Output, EngineError> {
        let missing_tokens = || Err(EngineError::Malformed("the graph gives no token vectors".to_owned()));
        match (self.graph.output.kind, batch.output_kind, &self.head) {
            (GraphOutput::Tokens, OutputKind::Pooled, Some(head)) => {
                Ok(Output::Rows(head.rows(&values, width, &batch.sequences)))
            }
            (GraphOutput::Tokens, OutputKind::Projected, Some(head)) => {
                Ok(Output::Tokens(head.projected(values, width)))
            }
            (GraphOutput::Tokens, OutputKind::Tokens, _) => {
                Ok(Output::Tokens(Rows { width, values, norms: Vec::new() }))
            }
            (GraphOutput::Texts, OutputKind::Pooled, _) => {
                Ok(Output::Rows(normalized(width, values, self.normalizes)))
            }
            // The head's input stays in the graph.
            (GraphOutput::Scores, OutputKind::Pooled, _) => {
                Ok(Output::Rows(Rows { width, values, norms: Vec::new() }))
            }
            (GraphOutput::Tokens | GraphOutput::Texts | GraphOutput::Scores, _, _) => missing_tokens(),
        }
    }
}

/// The values of one input, each sequence padded to `longest`.
fn padded(batch: &Batch, sequences: &[Sequence], longest: usize, feed: Feed, limits: &Limits) -> Vec<i64> {
    let mut values = vec![0; sequences.len() * longest];
    for (row, sequence) in values.chunks_exact_mut(longest).zip(sequences) {
        let place = sequence.start..sequence.start + sequence.length;
        let own: Vec<u32> = match feed {
            Feed::Ids => batch.ids[place].to_vec(),
            Feed::Mask => vec![1; sequence.attended()],
            Feed::Types => batch.types[place].to_vec(),
            Feed::PositionTable => limits.positions(&batch.ids[place]),
        };
        row.iter_mut().zip(own).for_each(|(number, own)| *number = i64::from(own));
    }
    values
}

fn value(input: &Input, shape: [usize; 2], values: Vec<i64>) -> ort::Result<SessionInputValue<'static>> {
    Ok(if input.narrow {
        let values: Vec<i32> = values.into_iter().map(|number| number as i32).collect();
        Tensor::from_array((shape, values))?.into()
    } else {
        Tensor::from_array((shape, values))?.into()
    })
}

/// An output's shape and its values, converted to f32.
fn read(outputs: &SessionOutputs<'_>, name: &str) -> Result<(Vec<usize>, Vec<f32>), EngineError> {
    let missing = |what: &str| EngineError::Failed(format!("`{name}` {what}").into());
    let value = outputs.get(name).ok_or_else(|| missing("did not come back"))?;
    let failed = |error: ort::Error| errors::to_engine_error(error);
    let (shape, values) = match value.dtype().tensor_type() {
        Some(TensorElementType::Float32) => {
            let (shape, values) = value.try_extract_tensor::<f32>().map_err(failed)?;
            (shape, values.to_vec())
        }
        Some(TensorElementType::Float16) => {
            let (shape, values) = value.try_extract_tensor::<f16>().map_err(failed)?;
            (shape, values.iter().map(|x| x.to_f32()).collect())
        }
        Some(TensorElementType::Bfloat16) => {
            let (shape, values) = value.try_extract_tensor::<bf16>().map_err(failed)?;
            (shape, values.iter().map(|x| x.to_f32()).collect())
        }
        Some(_) | None => return Err(missing("is not made of values")),
    };
    Ok((shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect(), values))
}
