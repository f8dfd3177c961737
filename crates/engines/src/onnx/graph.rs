//! What a graph takes and what it gives, by the names that exporters use; what can't be fed is an obstacle.

use ort::session::Session;
use ort::value::{Outlet, TensorElementType, ValueType};
use sconce_core::card::{ModelCard, Task};
use sconce_core::obstacle::Obstacle;

/// The inputs of a graph, in its order, and the output that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) inputs: Vec<Input>,
    pub(super) output: Output,
    /// Tokens that every text is padded to, where the graph takes no other number.
    pub(super) length: Option<usize>,
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) feed: Feed,
    /// Whether it takes whole numbers of 32 bits instead of 64.
    pub(super) narrow: bool,
    /// Tokens that a text has to have, where that is fixed.
    length: Option<usize>,
}

/// What is fed to an input.
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
    pub(super) gives: Gives,
}

/// What an output gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gives {
    /// A vector a token: pooling is ours.
    Tokens,
    /// A vector a text, pooled in the graph.
    Texts,
    /// Scores of a text or a pair.
    Scores,
}

/// Outputs of embedders by name, the first that is there is read: vectors of tokens before those of texts, whose
/// pooling could not be told.
const VECTORS: [(&str, Gives); 4] = [
    ("last_hidden_state", Gives::Tokens),
    ("token_embeddings", Gives::Tokens),
    ("hidden_states", Gives::Tokens),
    ("sentence_embedding", Gives::Texts),
];
/// The output of rerankers and classifiers.
const SCORES: [(&str, Gives); 1] = [("logits", Gives::Scores)];

impl Graph {
    /// What `session` takes and gives for the task of `card`'s model.
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
            Task::Rerank | Task::Classify | Task::Sparse | Task::Tokens => {
                let says =
                    format!("no graph of a model that {} is run in this version", card.task.value.does());
                return Err(Obstacle::LoadFailed { says });
            }
        };
        Ok(Graph { inputs, output: output(&outputs, known)?, length })
    }
}

fn input(name: &str, takes: &ValueType, longest: usize) -> Result<Input, Obstacle> {
    let refused = |what: String| Err(Obstacle::LoadFailed { says: format!("its input `{name}` {what}") });
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
        return refused(format!("takes {ty} and not whole numbers"));
    }
    Ok(Input { name: name.to_owned(), feed, narrow, length })
}

fn output(outputs: &[&str], known: &[(&str, Gives)]) -> Result<Output, Obstacle> {
    let Some((name, gives)) = known.iter().find(|(name, _)| outputs.contains(name)) else {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let says = format!("it gives `{}`, and none of `{}`", outputs.join("`, `"), known.join("`, `"));
        return Err(Obstacle::LoadFailed { says });
    };
    Ok(Output { name: (*name).to_owned(), gives: *gives })
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
        let says = |refused: Result<Input, Obstacle>| refused.expect_err("it can't be fed").to_string();
        assert_eq!(fed("input_ids", whole, [-1, 256]).map(|input| input.length), Ok(Some(256)));
        let short = says(fed("input_ids", whole, [-1, 128]));
        assert!(short.contains("takes 128 tokens, and a text may have 256"), "{short}");
        let lone = says(fed("input_ids", whole, [1, -1]));
        assert!(lone.contains("takes 1 texts") && lone.contains("dynamic axes"), "{lone}");
        assert!(says(fed("pixel_values", whole, [-1, -1])).contains("none that this version feeds"));
        assert!(says(fed("input_ids", TensorElementType::Float32, [-1, -1])).contains("whole numbers"));
    }

    #[test]
    fn vectors_of_tokens_are_read_before_those_of_texts() {
        let gives = |outputs: &[&str]| output(outputs, &VECTORS).map(|output| output.gives);
        assert_eq!(gives(&["sentence_embedding", "token_embeddings"]), Ok(Gives::Tokens));
        assert_eq!(gives(&["last_hidden_state", "pooler_output"]), Ok(Gives::Tokens));
        assert_eq!(gives(&["sentence_embedding"]), Ok(Gives::Texts));
        let obstacle = gives(&["pooler_output"]).expect_err("a pooler is no pooling");
        assert!(obstacle.to_string().contains("it gives `pooler_output`"), "{obstacle}");
    }
}
