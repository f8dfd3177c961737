//! Chat templates of a model, and the special tokens that they use.

use std::collections::BTreeMap;

use sconce_core::card::GenerationCard;
use sconce_core::sourced::Sourced;
use sconce_engines::gguf::metadata::{Metadata, Value as Metavalue};
use serde_json::Value;

use super::error::CardError;
use super::json::Json;

/// The name of the template for callers that name none.
const DEFAULT: &str = "default";
const CONFIG: &str = "tokenizer_config.json";

/// Reads chat templates from a folder. A file of its own precedes the tokenizer config, as in transformers.
pub(super) fn read(json: &Json<'_>) -> Result<GenerationCard, CardError> {
    let config = json.optional(CONFIG)?.unwrap_or_default();
    let mut found = json.text("chat_template.jinja")?.map(|template| {
        Sourced::new(BTreeMap::from([(DEFAULT.to_owned(), template)]), "chat_template.jinja")
    });
    if found.is_none() {
        found = templates(&config).map(|templates| Sourced::new(templates, CONFIG));
    }
    if found.is_none() {
        let file = "chat_template.json";
        found = json.optional(file)?.and_then(|file| templates(&file)).map(|found| Sourced::new(found, file));
    }
    let special_tokens = tokens(&config).map(|tokens| Sourced::new(tokens, CONFIG));
    Ok(GenerationCard { chat_templates: found, special_tokens, ..GenerationCard::default() })
}

/// The templates under `chat_template`: one, or a list with names.
fn templates(config: &Value) -> Option<BTreeMap<String, String>> {
    let templates: BTreeMap<String, String> = match &config["chat_template"] {
        Value::String(template) => BTreeMap::from([(DEFAULT.to_owned(), template.clone())]),
        Value::Array(listed) => {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            listed
                .iter()
                .filter_map(|entry| Some((text(&entry["name"])?, text(&entry["template"])?)))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => BTreeMap::new(),
    };
    (!templates.is_empty()).then_some(templates)
}

/// The special tokens of a tokenizer config: a text each, or an object with `content`.
fn tokens(config: &Value) -> Option<BTreeMap<String, String>> {
    let token = |(name, value): (&String, &Value)| {
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        name.ends_with("_token").then(|| (name.clone(), text.to_owned()))
    };
    let tokens: BTreeMap<String, String> = config.as_object()?.iter().filter_map(token).collect();
    (!tokens.is_empty()).then_some(tokens)
}

/// Reads chat templates from the metadata of a GGUF file: `tokenizer.chat_template`, and further ones by name.
pub(super) fn read_gguf(metadata: &Metadata) -> GenerationCard {
    const KEY: &str = "tokenizer.chat_template";
    let template = |(key, value): (&str, &Metavalue)| {
        let name = match key.strip_prefix(KEY)? {
            "" => DEFAULT,
            name => name.strip_prefix('.')?,
        };
        Some((name.to_owned(), value.as_str()?.to_owned()))
    };
    let templates: BTreeMap<String, String> = metadata.iter().filter_map(template).collect();
    let vocabulary = metadata.get("tokenizer.ggml.tokens").and_then(Metavalue::as_strings);
    let names = [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")];
    let token = |(name, key): (&str, &str)| {
        let id = metadata.integer(&format!("tokenizer.ggml.{key}_token_id"))?;
        let text = vocabulary?.get(usize::try_from(id).ok()?)?;
        Some((format!("{name}_token"), text.to_owned()))
    };
    let tokens: BTreeMap<String, String> = names.into_iter().filter_map(token).collect();
    GenerationCard {
        chat_templates: (!templates.is_empty()).then(|| Sourced::new(templates, KEY)),
        special_tokens: (!tokens.is_empty()).then(|| Sourced::new(tokens, "tokenizer.ggml.*_token_id")),
        ..GenerationCard::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Metavalue {
        Metavalue::String(text.to_owned())
    }

    #[test]
    fn templates_are_one_or_a_list_and_files_of_their_own_precede() {
        let folder = tempfile::tempdir().expect("a folder");
        let write =
            |name: &str, content: &str| std::fs::write(folder.path().join(name), content).expect("a file");
        let read = || read(&Json::in_folder(folder.path())).expect("the files are valid");
        assert_eq!(read(), GenerationCard::default());
        write("chat_template.json", &json!({ "chat_template": "c" }).to_string());
        let by = |card: &GenerationCard| {
            let templates = card.chat_templates.clone().expect("there are templates");
            (templates.source, templates.value.into_iter().collect::<Vec<(String, String)>>())
        };
        let one = |name: &str, template: &str| (name.to_owned(), template.to_owned());
        assert_eq!(by(&read()), ("chat_template.json".to_owned(), vec![one("default", "c")]));
        let listed = json!([{ "name": "default", "template": "a" }, { "name": "tool_use", "template": "b" }]);
        let bos = json!({ "content": "<s>", "lstrip": false });
        let config = json!({
            "chat_template": listed, "bos_token": bos, "eos_token": "</s>", "pad_token": null, "add_bos_token": true,
        });
        write(CONFIG, &config.to_string());
        assert_eq!(by(&read()), (CONFIG.to_owned(), vec![one("default", "a"), one("tool_use", "b")]));
        let tokens = read().special_tokens.expect("there are tokens").value;
        assert_eq!(
            tokens.into_iter().collect::<Vec<_>>(),
            [one("bos_token", "<s>"), one("eos_token", "</s>")]
        );
        write("chat_template.jinja", "j");
        assert_eq!(by(&read()), ("chat_template.jinja".to_owned(), vec![one("default", "j")]));
        write("chat_template.jinja", "");
        std::fs::write(folder.path().join("chat_template.jinja"), [0xff]).expect("a file");
        let refused = super::read(&Json::in_folder(folder.path())).expect_err("it is no text").to_string();
        assert!(refused.contains("chat_template.jinja"), "{refused}");
    }

    #[test]
    fn the_metadata_of_a_gguf_file_name_templates_and_tokens() {
        let entries = [
            ("tokenizer.chat_template", text("a")),
            ("tokenizer.chat_template.tool_use", text("b")),
            ("tokenizer.chat_templates", text("no template")),
            ("tokenizer.ggml.bos_token_id", Metavalue::Unsigned(7)),
        ];
        let metadata = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let card = read_gguf(&metadata);
        let names = card.chat_templates.expect("there are templates").value.into_keys().collect::<Vec<_>>();
        assert_eq!(names, ["default", "tool_use"]);
        assert_eq!(card.special_tokens, None, "without a vocabulary");
    }
}
