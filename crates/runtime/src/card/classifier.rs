//! The head of rerankers and classifiers: layers, labels and score activation.

use sconce_core::card::{Pooling, PoolingMode, Task};
use sconce_core::head::{OutputHead, Scoring, Template};
use sconce_core::sourced::Sourced;
use sconce_engines::family_heads;
use serde_json::Value;

use super::config::ConfigFiles;
use super::error::CardError;
use super::json::{non_null, relative_path};
use super::modules::Modules;
use super::task::labels;
use crate::tokenize::{self, rerank_template};

const CONFIG: &str = "config.json";
const SENTENCE: &str = "config_sentence_transformers.json";

/// Reads the classification head of the family.
pub(super) fn read(files: &ConfigFiles<'_>, task: Task) -> Result<Modules, CardError> {
    if task == Task::Rerank && files.config["architectures"][0].as_str().is_some_and(is_decoder) {
        return yes_no_logits(files);
    }
    let config = files.config;
    // A reranker by user override may have no label count: it has one score.
    let counted = config["id2label"].is_object() || config["num_labels"].is_u64();
    let count = if task == Task::Rerank && !counted { 1 } else { labels(config) };
    if task == Task::Rerank && count != 1 {
        return Err(CardError::SeveralLabels(count));
    }
    let (mode, steps) = family_heads::classifier(files.architecture, config, files.sizes.hidden, count)
        .ok_or_else(|| CardError::NoHead {
            architecture: files.architecture.to_owned(),
            task,
            known: family_heads::model_types(),
        })?;
    let scoring = match task {
        Task::Rerank => rerank_scoring(config, files.sentence)?,
        Task::Classify | Task::Embed | Task::Sparse | Task::Tokens | Task::Generate => {
            classify_scoring(config, count)?
        }
    };
    Ok(Modules {
        pooling: Sourced::new(Pooling { modes: vec![mode], include_prompt: true }, CONFIG),
        steps: Sourced::new(steps, CONFIG),
        head: OutputHead {
            labels: Some(names(config, count)),
            scoring: Some(scoring),
            ..OutputHead::default()
        },
        files: std::collections::BTreeMap::new(),
    })
}

fn is_decoder(class: &str) -> bool {
    class.ends_with("ForCausalLM")
}

/// The head of a causal language model that answers `yes` or `no`: the logits of the two tokens.
fn yes_no_logits(files: &ConfigFiles<'_>) -> Result<Modules, CardError> {
    let mut modules = files.modules.and_then(Value::as_array).into_iter().flatten();
    let module =
        modules.find(|module| module["type"].as_str().is_some_and(|kind| kind.ends_with(".LogitScore")));
    let said = match module {
        Some(module) => {
            let path = relative_path("modules.json", module["path"].as_str().unwrap_or_default())?;
            let file = format!("{path}/config.json");
            let config = files.json.required(&file)?;
            let id = |key: &str| config[key].as_u64().and_then(|id| u32::try_from(id).ok());
            id("false_token_id").zip(id("true_token_id")).map(|ids| Sourced::new(ids, file))
        }
        None => None,
    };
    let template = rerank_template::qwen3();
    let (no, yes) = match said {
        Some(said) => said.value,
        None => answer_ids(files, &template)?,
    };
    let step = family_heads::next_token_logits(files.sizes.hidden, files.sizes.vocabulary, &[no, yes]);
    let last = Pooling { modes: vec![PoolingMode::LastToken], include_prompt: true };
    Ok(Modules {
        pooling: Sourced::new(last, CONFIG),
        steps: Sourced::new(vec![step], CONFIG),
        head: OutputHead {
            scoring: Some(rerank_scoring(files.config, files.sentence)?),
            template: Some(Sourced::new(template, "Qwen3-Reranker's training")),
            ..OutputHead::default()
        },
        files: std::collections::BTreeMap::new(),
    })
}

/// Token ids of `no` and `yes`.
fn answer_ids(files: &ConfigFiles<'_>, template: &Template) -> Result<(u32, u32), CardError> {
    let missing = |word: &str| CardError::Missing {
        file: format!("tokenizer.json with the word `{word}`"),
        folder: files.json.folder().to_owned(),
    };
    let tokenizer = tokenize::load(files.json.folder()).map_err(|_| missing(&template.yes))?;
    let id = |word: &str| tokenizer.token_to_id(word).ok_or_else(|| missing(word));
    Ok((id(&template.no)?, id(&template.yes)?))
}

/// Label names; `LABEL_n` by default, as in transformers.
fn names(config: &Value, count: usize) -> Sourced<Vec<String>> {
    let given = |index: usize| config["id2label"][index.to_string()].as_str().map(str::to_owned);
    let names = (0..count).map(|index| given(index).unwrap_or_else(|| format!("LABEL_{index}"))).collect();
    Sourced::new(names, if config["id2label"].is_object() { CONFIG } else { "transformers' default" })
}

/// Activation of a reranker's score, under the keys of all sentence-transformers versions.
fn rerank_scoring(config: &Value, sentence: Option<&Value>) -> Result<Sourced<Scoring>, CardError> {
    let said = [
        (CONFIG, config["sentence_transformers"].get("activation_fn")),
        (CONFIG, non_null(config, "sbert_ce_default_activation_function")),
        (SENTENCE, sentence.and_then(|config| non_null(config, "activation_fn"))),
    ];
    let Some((file, value)) = said.into_iter().find_map(|(file, value)| Some((file, value?))) else {
        return Ok(Sourced::new(Scoring::Sigmoid, "sentence-transformers' default"));
    };
    let name = value.as_str().unwrap_or_default();
    match name.rsplit('.').next().unwrap_or_default() {
        "Sigmoid" => Ok(Sourced::new(Scoring::Sigmoid, file)),
        "Identity" => Ok(Sourced::new(Scoring::Raw, file)),
        _ => Err(CardError::UnknownValue {
            file: file.to_owned(),
            key: "activation_fn",
            value: value.to_string(),
        }),
    }
}

/// Activation of a classifier's scores, as in transformers' pipelines.
fn classify_scoring(config: &Value, count: usize) -> Result<Sourced<Scoring>, CardError> {
    match non_null(config, "problem_type").and_then(Value::as_str) {
        Some("multi_label_classification") => Ok(Sourced::new(Scoring::Sigmoid, CONFIG)),
        Some("single_label_classification") => Ok(Sourced::new(Scoring::Softmax, CONFIG)),
        Some("regression") => Ok(Sourced::new(Scoring::Raw, CONFIG)),
        Some(other) => Err(CardError::UnknownValue {
            file: CONFIG.to_owned(),
            key: "problem_type",
            value: other.to_owned(),
        }),
        None if count == 1 => Ok(Sourced::new(Scoring::Sigmoid, "transformers' default")),
        None => Ok(Sourced::new(Scoring::Softmax, "transformers' default")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_version_of_sentence_transformers_is_read_and_the_unknown_rejected() {
        let sigmoid = "torch.nn.modules.activation.Sigmoid";
        let identity = "torch.nn.modules.linear.Identity";
        let none = json!({});
        for (config, sentence, scoring, by) in [
            (json!({ "sbert_ce_default_activation_function": identity }), &none, Scoring::Raw, CONFIG),
            (
                json!({ "sentence_transformers": { "activation_fn": sigmoid, "version": "4" } }),
                &none,
                Scoring::Sigmoid,
                CONFIG,
            ),
            (json!({}), &json!({ "activation_fn": identity }), Scoring::Raw, SENTENCE),
            (json!({}), &none, Scoring::Sigmoid, "sentence-transformers' default"),
        ] {
            let said = rerank_scoring(&config, Some(sentence)).expect("a known function");
            assert_eq!((said.value, said.source.as_str()), (scoring, by), "{config} {sentence}");
        }
        let odd = json!({ "sbert_ce_default_activation_function": "mine.Squash" });
        assert!(rerank_scoring(&odd, None).is_err());
    }

    #[test]
    fn labels_compete_unless_the_config_says_that_several_may_hold() {
        let of = |config: Value, count| classify_scoring(&config, count).expect("a known type").value;
        assert_eq!(of(json!({}), 3), Scoring::Softmax);
        assert_eq!(of(json!({}), 1), Scoring::Sigmoid);
        assert_eq!(of(json!({ "problem_type": null }), 2), Scoring::Softmax);
        assert_eq!(of(json!({ "problem_type": "multi_label_classification" }), 3), Scoring::Sigmoid);
        assert_eq!(of(json!({ "problem_type": "regression" }), 1), Scoring::Raw);
        assert_eq!(names(&json!({ "id2label": { "1": "no", "0": "yes" } }), 2).value, ["yes", "no"]);
        assert_eq!(names(&json!({}), 2).value, ["LABEL_0", "LABEL_1"]);
    }
}
