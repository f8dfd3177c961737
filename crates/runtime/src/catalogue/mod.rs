//! The catalogue: models that are known by a short name, as data.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use sconce_core::card::Task;
use serde::{Deserialize, Serialize};

/// The data. A test checks that it parses.
const CATALOGUE: &str = include_str!("catalogue.toml");

/// A model of the catalogue. A field is `None` if its value was not checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CatalogueModel {
    /// Short name.
    pub name: String,
    /// Repository of the hub.
    pub id: String,
    /// Repository of the hub with quantized GGUF files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gguf: Option<String>,
    /// Commit that was checked, and that the short name loads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The task.
    pub task: Task,
    /// Architecture: `model_type` in `config.json`.
    pub model_type: String,
    /// Number of parameters in millions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<f64>,
    /// Size of a vector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// Maximum sequence length in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// Codes of languages, or their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub languages: Option<String>,
    /// License, as the hub names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Whether the hub asks for an account that accepted the license.
    #[serde(default)]
    pub gated: bool,
    /// Prompts by name, for models whose files declare none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// What the model is good for, in one phrase.
    pub good_for: String,
}

#[derive(Deserialize)]
struct Catalogue {
    model: Vec<CatalogueModel>,
}

/// The source of what a card has from the catalogue.
pub(crate) const SOURCE: &str = "catalogue";

/// All models of the catalogue, by task.
pub fn models() -> &'static [CatalogueModel] {
    static MODELS: LazyLock<Vec<CatalogueModel>> =
        LazyLock::new(|| toml::from_str::<Catalogue>(CATALOGUE).map_or(Vec::new(), |all| all.model));
    &MODELS
}

/// The model with this short name, or with this name of a repository without its owner. Case is ignored.
pub fn by_name(name: &str) -> Option<&'static CatalogueModel> {
    let short = |model: &&CatalogueModel| model.name.eq_ignore_ascii_case(name);
    let repository = |model: &&CatalogueModel| last_part(&model.id).eq_ignore_ascii_case(name);
    models().iter().find(short).or_else(|| models().iter().find(repository))
}

/// The model of a repository of the hub. `id` may have a quantization, as in `owner/name:Q4_K_M`.
pub fn by_id(id: &str) -> Option<&'static CatalogueModel> {
    let id = id.split_once(':').map_or(id, |(id, _)| id);
    let same = |other: &str| other.eq_ignore_ascii_case(id);
    models().iter().find(|model| same(&model.id) || model.gguf.as_deref().is_some_and(same))
}

/// The model that a source names: by its repository, or by the name of its folder or GGUF file.
pub(crate) fn of_source(source: &str, path: &Path) -> Option<&'static CatalogueModel> {
    let last = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named = |model: &&CatalogueModel| {
        let name = last_part(&model.id);
        let is_gguf = last.len() > name.len() && path.extension().is_some_and(|kind| kind == "gguf");
        last.eq_ignore_ascii_case(name) || is_gguf && starts_with_word(last, name)
    };
    by_id(source).or_else(|| models().iter().find(is_named))
}

/// Whether `text` begins with `name` and ends the word there: `name-Q8_0.gguf`, `name.Q8_0.gguf`.
fn starts_with_word(text: &str, name: &str) -> bool {
    let start = text.get(..name.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(name)) && text[name.len()..].starts_with(['-', '.'])
}

/// `name` of `owner/name`.
fn last_part(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sconce_engines::families;

    use super::*;

    #[test]
    fn the_catalogue_parses() {
        let all = toml::from_str::<Catalogue>(CATALOGUE).expect("it is TOML of this shape").model;
        assert!(all.len() >= 40, "{} models", all.len());
        assert_eq!(models(), all);
    }

    #[test]
    fn names_are_unique_and_can_be_typed() {
        let mut seen = BTreeSet::new();
        for model in models() {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            assert!(model.name.chars().all(is_plain), "{}", model.name);
            let repository = last_part(&model.id).to_ascii_lowercase();
            for name in BTreeSet::from([model.name.clone(), repository]) {
                assert!(seen.insert(name.clone()), "two models are called `{name}`");
            }
            assert_eq!(model.id.split('/').count(), 2, "{}", model.id);
        }
    }

    #[test]
    fn every_model_is_of_a_supported_family() {
        let known = families::model_types();
        for model in models() {
            let config = serde_json::json!({ "model_type": model.model_type });
            assert!(families::of(&config).is_some(), "{}: {known:?}", model.name);
            let generates = families::of(&config).is_some_and(|family| !family.generation_goldens.is_empty());
            assert!(model.task != Task::Generate || generates, "{} generates", model.name);
        }
    }

    #[test]
    fn cells_are_of_the_task() {
        for model in models() {
            let name = &model.name;
            assert!(matches!(model.task, Task::Embed | Task::Rerank | Task::Generate), "{name}");
            assert!(model.task == Task::Embed || model.prompts.is_empty(), "{name}: prompts are for vectors");
            assert!(
                model.task == Task::Embed || model.dimensions.is_none(),
                "{name}: only vectors have a size"
            );
            assert!(model.revision.as_ref().is_none_or(|commit| commit.len() == 40), "{name}");
            assert!(!model.good_for.is_empty() && model.good_for.len() <= 60, "{name}");
            assert!(model.prompts.is_empty() || model.prompts.contains_key("query"), "{name}");
            assert_eq!(model.prompts.contains_key("query"), model.prompts.contains_key("document"), "{name}");
        }
    }

    #[test]
    fn a_model_is_found_by_short_name_repository_and_folder() {
        let id = |model: Option<&'static CatalogueModel>| model.map(|model| model.id.as_str());
        let e5 = Some("intfloat/e5-small-v2");
        for name in ["e5-small", "E5-Small", "e5-small-v2"] {
            assert_eq!(id(by_name(name)), e5, "{name}");
        }
        assert_eq!(id(by_name("e5")), None);
        assert_eq!(id(by_id("intfloat/e5-small-v2")), e5);
        assert_eq!(id(by_id("Qwen/Qwen3-0.6B-GGUF:Q8_0")), Some("Qwen/Qwen3-0.6B"));
        for path in ["models/e5-small-v2", "e5-small-v2", "e5-small-v2-Q8_0.gguf", "e5-small-v2.f16.gguf"] {
            assert_eq!(id(of_source("./here", Path::new(path))), e5, "{path}");
        }
        for path in ["models/e5-small", "e5-small-v21", "e5-small-v2-Q8_0", "e5-small-v2x.gguf", ""] {
            assert_eq!(id(of_source("./here", Path::new(path))), None, "{path}");
        }
    }
}
