//! Which graph of a repository is fetched. There may be a dozen, each as large as the weights, so it is one at most.

use std::path::Path;

use sconce_core::placement::EngineId;
use sconce_engines::onnx::header::Header;
use sconce_planner::plan::Constraints;

/// The graphs that most repositories have, the widest first.
const USUAL: [&str; 2] = ["onnx/model.onnx", "model.onnx"];

/// Which graph of a repository is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Graphs {
    /// The usual one, where there are no safetensors.
    #[default]
    Otherwise,
    /// The usual one, beside safetensors too.
    Usual,
    /// This one.
    Named(String),
}

impl Graphs {
    /// What the constraints asks for: a graph by its name, or one for ONNX Runtime.
    pub fn wished(constraints: &Constraints) -> Graphs {
        let is_graph = |name: &&String| Path::new(name).extension().is_some_and(|kind| kind == "onnx");
        match constraints.weights.as_ref().filter(is_graph) {
            Some(name) => Graphs::Named(name.clone()),
            None if constraints.engine == Some(EngineId::Onnx) => Graphs::Usual,
            None => Graphs::Otherwise,
        }
    }

    /// The graph to fetch from a repository with the files `names`.
    pub(super) fn of(&self, names: &[&str]) -> Option<String> {
        let usual = || USUAL.into_iter().find(|name| names.contains(name)).map(str::to_owned);
        let weighs = |name: &&str| !name.contains('/') && name.ends_with(".safetensors");
        match self {
            Graphs::Named(name) => Some(name.clone()),
            Graphs::Otherwise if names.iter().any(weighs) => None,
            Graphs::Usual | Graphs::Otherwise => usual(),
        }
    }

    /// The files of the graph that `snapshot` needs and has not; none where it needs no graph.
    pub(super) fn missing(&self, snapshot: &Path) -> Option<Vec<String>> {
        let there = |name: &&str| snapshot.join(name).is_file();
        let name = match (self, USUAL.into_iter().find(there)) {
            (Graphs::Named(name), _) => name.as_str(),
            (Graphs::Usual | Graphs::Otherwise, Some(usual)) => usual,
            (Graphs::Usual, None) => USUAL[0],
            (Graphs::Otherwise, None) => return None,
        };
        let Ok(header) = Header::read(&snapshot.join(name)) else { return Some(vec![name.to_owned()]) };
        let beside = |other: &String| Path::new(name).with_file_name(other).to_string_lossy().into_owned();
        Some(header.external.iter().map(beside).filter(|other| !there(&other.as_str())).collect())
    }
}

/// Whether `file` is `graph`, or holds its numbers: `model.onnx_data`, `model.onnx.data`.
pub(super) fn is_part(graph: &str, file: &str) -> bool {
    file.strip_prefix(graph).is_some_and(|rest| !rest.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_fetched_where_it_is_asked_for_or_there_is_nothing_else() {
        let both = ["config.json", "model.safetensors", "onnx/model.onnx", "onnx/model_int8.onnx"];
        let graphs = ["config.json", "model.onnx", "2_Dense/model.safetensors"];
        let named = Graphs::Named("onnx/model_int8.onnx".to_owned());
        for (asked, names, expected) in [
            (Graphs::Otherwise, &both[..], None),
            (Graphs::Usual, &both, Some("onnx/model.onnx")),
            (named.clone(), &both, Some("onnx/model_int8.onnx")),
            (Graphs::Otherwise, &graphs, Some("model.onnx")),
            (Graphs::Otherwise, &["config.json"], None),
        ] {
            assert_eq!(asked.of(names).as_deref(), expected, "{asked:?} {names:?}");
        }
        let constraints = |engine, weights: Option<&str>| {
            Graphs::wished(&Constraints {
                engine,
                weights: weights.map(str::to_owned),
                ..Constraints::default()
            })
        };
        assert_eq!(constraints(None, Some("onnx/model_int8.onnx")), named);
        assert_eq!(constraints(Some(EngineId::Onnx), None), Graphs::Usual);
        assert_eq!(constraints(Some(EngineId::Candle), Some("model.safetensors")), Graphs::Otherwise);
    }

    #[test]
    fn what_begins_with_the_name_of_a_graph_holds_its_numbers() {
        for file in
            ["onnx/model.onnx", "onnx/model.onnx_data", "onnx/model.onnx.data", "onnx/model.onnx_data_1"]
        {
            assert!(is_part("onnx/model.onnx", file), "{file}");
        }
        for file in ["onnx/model_int8.onnx", "model.onnx", "onnx/model.onnx/x"] {
            assert!(!is_part("onnx/model.onnx", file), "{file}");
        }
    }
}
