//! Selects the ONNX graph to fetch: at most one, because a repository may have a dozen as large as the weights.

use std::path::Path;

use sconce_core::placement::EngineId;
use sconce_engines::onnx::header::Header;
use sconce_planner::plan::Constraints;

/// Default file names, in order of preference.
const DEFAULT_NAMES: [&str; 2] = ["onnx/model.onnx", "model.onnx"];

/// Which ONNX graph of a repository to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Graphs {
    /// The default graph, if the repository has no safetensors.
    #[default]
    IfNoSafetensors,
    /// The default graph, beside safetensors too.
    Default,
    /// The graph at this path.
    Named(String),
}

impl Graphs {
    /// The graph that satisfies `constraints`: by name, or any for ONNX Runtime.
    pub fn for_constraints(constraints: &Constraints) -> Graphs {
        let is_graph = |name: &&String| Path::new(name).extension().is_some_and(|kind| kind == "onnx");
        match constraints.weights.as_ref().filter(is_graph) {
            Some(name) => Graphs::Named(name.clone()),
            None if constraints.engine == Some(EngineId::Onnx) => Graphs::Default,
            None => Graphs::IfNoSafetensors,
        }
    }

    /// The graph to fetch from a repository with the files `names`.
    pub(super) fn select(&self, names: &[&str]) -> Option<String> {
        let default = || DEFAULT_NAMES.into_iter().find(|name| names.contains(name)).map(str::to_owned);
        let is_weights = |name: &&str| !name.contains('/') && name.ends_with(".safetensors");
        match self {
            Graphs::Named(name) => Some(name.clone()),
            Graphs::IfNoSafetensors if names.iter().any(is_weights) => None,
            Graphs::Default | Graphs::IfNoSafetensors => default(),
        }
    }

    /// Files of the selected graph that `snapshot` lacks. `None` if no graph is selected.
    pub(super) fn missing(&self, snapshot: &Path) -> Option<Vec<String>> {
        let there = |name: &&str| snapshot.join(name).is_file();
        let name = match (self, DEFAULT_NAMES.into_iter().find(there)) {
            (Graphs::Named(name), _) => name.as_str(),
            (Graphs::Default | Graphs::IfNoSafetensors, Some(default)) => default,
            (Graphs::Default, None) => DEFAULT_NAMES[0],
            (Graphs::IfNoSafetensors, None) => return None,
        };
        let Ok(header) = Header::read(&snapshot.join(name)) else { return Some(vec![name.to_owned()]) };
        let beside = |other: &String| Path::new(name).with_file_name(other).to_string_lossy().into_owned();
        Some(header.external.iter().map(beside).filter(|other| !there(&other.as_str())).collect())
    }
}

/// Whether `file` is `graph` or its external data: `model.onnx_data`, `model.onnx.data`.
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
            (Graphs::IfNoSafetensors, &both[..], None),
            (Graphs::Default, &both, Some("onnx/model.onnx")),
            (named.clone(), &both, Some("onnx/model_int8.onnx")),
            (Graphs::IfNoSafetensors, &graphs, Some("model.onnx")),
            (Graphs::IfNoSafetensors, &["config.json"], None),
        ] {
            assert_eq!(asked.select(names).as_deref(), expected, "{asked:?} {names:?}");
        }
        let constraints = |engine, weights: Option<&str>| {
            Graphs::for_constraints(&Constraints {
                engine,
                weights: weights.map(str::to_owned),
                ..Constraints::default()
            })
        };
        assert_eq!(constraints(None, Some("onnx/model_int8.onnx")), named);
        assert_eq!(constraints(Some(EngineId::Onnx), None), Graphs::Default);
        assert_eq!(constraints(Some(EngineId::Candle), Some("model.safetensors")), Graphs::IfNoSafetensors);
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
