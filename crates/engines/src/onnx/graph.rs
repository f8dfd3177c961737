//! Inputs and outputs of a graph, by the names that exporters use; an unsupported input is an obstacle.

use ort::session::Session;
use ort::value::{Outlet, TensorElementType, ValueType};
use sconce_core::card::{ModelCard, Task};
use sconce_core::obstacle::Obstacle;

/// The inputs of a graph, in its order, and the output that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) inputs: Vec<Input>,
    pub(super) output: Output,
    /// The fixed sequence length, if the graph has one.
    pub(super) length: Option<usize>,
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) feed: Feed,
    /// Whether it takes 32-bit instead of 64-bit integers.
    pub(super) narrow: bool,
    /// The fixed sequence length, if it has one.
    length: Option<usize>,
}

/// What an input is fed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    Ids,
    Mask,
    Types,
    PositionTable,
}

/// The output that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) kind: GraphOutput,
}

/// The kind of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphOutput {
    /// Token vectors; pooling is not in the graph.
    Tokens,
    /// Pooled vectors.
    Texts,
    /// Scores of a text or a pair.
    Scores,
}

/// Outputs of embedding models in order of preference: token vectors first, because the pooling in a graph is not
/// known.
const VECTORS: [(&str, GraphOutput); 4] = [
    ("last_hidden_state", GraphOutput::Tokens),
    ("token_embeddings", GraphOutput::Tokens),
    ("hidden_states", GraphOutput::Tokens),
    ("sentence_embedding", GraphOutput::Texts),
];
/// The output of rerankers and classifiers.
const SCORES: [(&str, GraphOutput); 1] = [("logits", GraphOutput::Scores)];

impl Graph {
    /// The inputs and the output of `session` for the task of the card's model.
    pub(super) fn of(session: &Session, card: &ModelCard) -> Result<Graph, Obstacle> {
        let longest = card.max_length.value;
        let inputs: Vec<Input> = session
            .inputs()
            .iter()
            .map(|outlet| input(outlet.name(), outlet.dtype(), longest))
            .collect::<Result<_, _>>()?;
        let length = inputs.iter().find_map(|input| input.length);
        let outputs: Vec<&str> = session.outputs().iter().map(Outlet::name).collect();
        let known = match card.task.value {
            Task::Embed => &VECTORS[..],
            Task::Rerank | Task::Classify if card.head.template.is_none() => &SCORES,
            Task::Rerank | Task::Classify | Task::Sparse | Task::Tokens | Task::Generate => {
                let reason =
                    format!("no graph of a model that {} is run in this version", card.task.value.does());
                return Err(Obstacle::LoadFailed { reason });
            }
        };
        Ok(Graph { inputs, output: output(&outputs, known)?, length })
    }
}

fn input(name: &str, takes: &ValueType, longest: usize) -> Result<Input, Obstacle> {
    let refused = |what: String| Err(Obstacle::LoadFailed { reason: format!("its input `{name}` {what}") });
    let feed = match name {
        "input_ids" => Feed::Ids,
        "attention_mask" => Feed::Mask,
        "token_type_ids" => Feed::Types,
        "position_ids" => Feed::PositionTable,
        _ => return refused("is none that this version feeds".to_owned()),
    };
    let ValueType::Tensor { ty, shape, .. } = takes else {
        return refused("is no tensor".to_owned());
    };
    let fixed = |place: usize| shape.get(place).and_then(|&size| usize::try_from(size).ok());
    if let Some(texts) = fixed(0) {
        return refused(format!("takes {texts} texts and no other number; export it with dynamic axes"));
    }
    let length = fixed(1);
    if let Some(length) = length.filter(|&length| length < longest) {
        return refused(format!(
            "takes {length} tokens, and a text may have {longest}; say `--max-length {length}`, or export it with \
             dynamic axes"
        ));
    }
    let narrow = *ty == TensorElementType::Int32;
    if !narrow && *ty != TensorElementType::Int64 {
        return refused(format!("takes {ty} and not integers"));
    }
    Ok(Input { name: name.to_owned(), feed, narrow, length })
}

fn output(outputs: &[&str], known: &[(&str, GraphOutput)]) -> Result<Output, Obstacle> {
    let Some((name, kind)) = known.iter().find(|(name, _)| outputs.contains(name)) else {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let reason = format!("it gives `{}`, and none of `{}`", outputs.join("`, `"), known.join("`, `"));
        return Err(Obstacle::LoadFailed { reason });
    };
    Ok(Output { name: (*name).to_owned(), kind: *kind })
}

#[cfg(test)]
mod tests {
    use ort::value::{Shape, SymbolicDimensions};

    use super::*;

    fn fed(name: &str, ty: TensorElementType, sizes: [i64; 2]) -> Result<Input, Obstacle> {
        let dimension_symbols = SymbolicDimensions::empty(2);
        input(name, &ValueType::Tensor { ty, shape: Shape::new(sizes), dimension_symbols }, 256)
    }

    #[test]
    fn inputs_go_by_their_names_and_a_shape_that_is_too_short_says_so() {
        let whole = TensorElementType::Int64;
        for (name, feed) in [
            ("input_ids", Feed::Ids),
            ("attention_mask", Feed::Mask),
            ("token_type_ids", Feed::Types),
            ("position_ids", Feed::PositionTable),
        ] {
            assert_eq!(fed(name, whole, [-1, -1]).map(|input| input.feed), Ok(feed));
        }
        assert!(fed("input_ids", TensorElementType::Int32, [-1, -1]).is_ok_and(|input| input.narrow));
        let reason = |refused: Result<Input, Obstacle>| refused.expect_err("it can't be fed").to_string();
        assert_eq!(fed("input_ids", whole, [-1, 256]).map(|input| input.length), Ok(Some(256)));
        let short = reason(fed("input_ids", whole, [-1, 128]));
        assert!(short.contains("takes 128 tokens, and a text may have 256"), "{short}");
        let lone = reason(fed("input_ids", whole, [1, -1]));
        assert!(lone.contains("takes 1 texts") && lone.contains("dynamic axes"), "{lone}");
        assert!(reason(fed("pixel_values", whole, [-1, -1])).contains("none that this version feeds"));
        assert!(reason(fed("input_ids", TensorElementType::Float32, [-1, -1])).contains("integers"));
    }

    #[test]
    fn vectors_of_tokens_are_read_before_those_of_texts() {
        let kind = |outputs: &[&str]| output(outputs, &VECTORS).map(|output| output.kind);
        assert_eq!(kind(&["sentence_embedding", "token_embeddings"]), Ok(GraphOutput::Tokens));
        assert_eq!(kind(&["last_hidden_state", "pooler_output"]), Ok(GraphOutput::Tokens));
        assert_eq!(kind(&["sentence_embedding"]), Ok(GraphOutput::Texts));
        let obstacle = kind(&["pooler_output"]).expect_err("a pooler is no pooling");
        assert!(obstacle.to_string().contains("it gives `pooler_output`"), "{obstacle}");
    }
}
