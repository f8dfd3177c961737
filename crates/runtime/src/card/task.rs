//! The task of a model, from its files or the user.

use sconce_core::card::Task;
use sconce_core::sourced::Sourced;
use serde_json::Value;

use super::config::Overrides;

/// The task of a model: from the user, the module types, the sentence-transformers config, or the architecture class, in
/// this order.
pub(super) fn find(
    config: &Value,
    modules: Option<&Value>,
    sentence: Option<&Value>,
    overrides: &Overrides,
) -> Sourced<Task> {
    if let Some(task) = overrides.task {
        return Sourced::new(task, "--task");
    }
    let kinds = modules.into_iter().flat_map(module_kinds).collect::<Vec<_>>();
    let has = |kind: &str| kinds.contains(&kind);
    if has("SpladePooling") {
        return Sourced::new(Task::Sparse, "modules.json");
    }
    if has("LogitScore") {
        return Sourced::new(Task::Rerank, "modules.json");
    }
    if has("MultiVectorMask") || has("Dense") && !has("Pooling") {
        return Sourced::new(Task::Tokens, "modules.json");
    }
    if has("Pooling") {
        return Sourced::new(Task::Embed, "modules.json");
    }
    if let Some("ColBERT" | "MultiVectorEncoder") = sentence.and_then(|config| config["model_type"].as_str())
    {
        return Sourced::new(Task::Tokens, "config_sentence_transformers.json");
    }
    let class = config["architectures"][0].as_str().unwrap_or_default();
    if class == "HF_ColBERT" {
        return Sourced::new(Task::Tokens, "config.json");
    }
    if class.ends_with("ForSequenceClassification") {
        return Sourced::new(if labels(config) == 1 { Task::Rerank } else { Task::Classify }, "config.json");
    }
    if generates(class, config) && modules.is_none() && sentence.is_none() {
        return Sourced::new(Task::Generate, "config.json");
    }
    Sourced::new(Task::Embed, if modules.is_some() { "modules.json" } else { "config.json" })
}

/// Whether a model of this class generates text: a decoder, or a decoder beside a vision model.
fn generates(class: &str, config: &Value) -> bool {
    let has_text_model = || config["text_config"].is_object();
    class.ends_with("ForCausalLM") || class.ends_with("ForConditionalGeneration") && has_text_model()
}

/// Class name of each module.
fn module_kinds(modules: &Value) -> Vec<&str> {
    let kinds = modules.as_array().into_iter().flatten().filter_map(|module| module["type"].as_str());
    kinds.map(|kind| kind.rsplit('.').next().unwrap_or(kind)).collect()
}

/// Number of labels of a classifier; 2 by default, as in transformers.
pub(super) fn labels(config: &Value) -> usize {
    let named = config["id2label"].as_object().map(serde_json::Map::len);
    named.or(config["num_labels"].as_u64().map(|count| count as usize)).unwrap_or(2)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(config: &Value, modules: Option<&Value>) -> (Task, String) {
        let Sourced { value, source } = find(config, modules, None, &Overrides::default());
        (value, source)
    }

    #[test]
    fn the_class_of_the_weights_tells_where_no_module_does() {
        let classes = [
            ("BertForSequenceClassification", 1, Task::Rerank),
            ("XLMRobertaForSequenceClassification", 3, Task::Classify),
            ("HF_ColBERT", 1, Task::Tokens),
            ("BertForMaskedLM", 1, Task::Embed),
            ("LlamaForCausalLM", 1, Task::Generate),
            ("T5ForConditionalGeneration", 1, Task::Embed),
        ];
        for (class, count, task) in classes {
            let config = json!({ "architectures": [class], "num_labels": count });
            assert_eq!(found(&config, None), (task, "config.json".to_owned()), "{class}");
        }
        assert_eq!(found(&json!({}), None).0, Task::Embed);
    }

    #[test]
    fn modules_tell_before_the_class_does() {
        let config = json!({ "architectures": ["BertForMaskedLM"] });
        let modules = |kinds: &[&str]| -> Value {
            kinds.iter().map(|kind| json!({ "type": format!("a.b.{kind}"), "path": "" })).collect()
        };
        for (kinds, task) in [
            (&["MLMTransformer", "SpladePooling"][..], Task::Sparse),
            (&["Transformer", "Dense"], Task::Tokens),
            (&["Transformer", "Pooling", "Dense"], Task::Embed),
            (&["Transformer", "LogitScore"], Task::Rerank),
        ] {
            assert_eq!(found(&config, Some(&modules(kinds))).0, task, "{kinds:?}");
        }
    }
}
