//! Conversations through the library: the template's prompt, its tokens, and errors.

use sconce::{
    ChatOptions, Device, Dtype, EngineId, Error, ErrorCause, GenerateOptions, Message, Model, Task,
    TemplateError,
};
use serde_json::{Map, Value, json};

use crate::support::{Copy, Home};

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' }} {{ m.content }} <|end|>{% endfor %}\
    {% if tools %}{{ tools|tojson }}{% endif %}{% if loud %} w9{% endif %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// A decoder with words `w0`, `w1`, …, control tokens and a chat template.
fn folder(config: &Value) -> Copy {
    let vocabulary: Map<String, Value> = (0..110).map(|id| (format!("w{id}"), json!(id))).collect();
    let token = |(id, content): (u32, &str)| {
        json!({
            "id": id, "content": content, "special": true, "normalized": false, "lstrip": false, "rstrip": false,
            "single_word": false,
        })
    };
    let tokens =
        [(110, "<s>"), (111, "<|user|>"), (112, "<|assistant|>"), (113, "<|end|>"), (114, "<|system|>")];
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": tokens.map(token),
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [110], "tokens": ["<s>"] } },
        },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "w3" },
    });
    let folder = Copy::of("tiny-llama").with("tokenizer.json", tokenizer.to_string());
    let folder = folder.setting("config.json", "tie_word_embeddings", json!(true));
    folder.with("tokenizer_config.json", config.to_string())
}

fn open(home: &Home, folder: &Copy) -> Model {
    let builder = home.model(folder.path()).task(Task::Generate).engine(EngineId::Native);
    builder.dtype(Dtype::F32).device(Device::Cpu).open().expect("it opens")
}

fn config() -> Value {
    json!({ "chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "<|end|>" })
}

#[test]
fn a_conversation_is_the_prompt_of_the_template_with_one_begin_token() {
    let (home, folder) = (Home::new(), folder(&config()));
    let model = open(&home, &folder);
    let templates = model.card().generation.chat_templates.as_ref().expect("it has a template");
    assert_eq!(templates.source, "tokenizer_config.json");
    let messages = [Message::user("w5 w6"), Message::assistant("w7"), Message::user("w8 <|end|>")];
    let prompt = model.chat_prompt(&messages, &ChatOptions::default()).expect("it is valid");
    assert_eq!(
        prompt.text,
        "<s><|user|> w5 w6 <|end|><|assistant|> w7 <|end|><|user|> w8 <|end|> <|end|><|assistant|>"
    );
    let ids = &prompt.ids;
    assert_eq!(ids[..8], [110, 111, 5, 6, 113, 112, 7, 113]);
    assert_eq!(ids.iter().filter(|id| **id == 113).count(), 3, "that of the message is text");
    assert_eq!(ids.iter().filter(|id| **id == 110).count(), 1);
    assert_eq!(ids[ids.len() - 2..], [113, 112]);
    let greedy = GenerateOptions { max_tokens: Some(12), temperature: 0.0, ..GenerateOptions::default() };
    let chat = model.chat(&messages, &greedy).expect("it is valid");
    assert_eq!(chat.summary().prompt_tokens, ids.len());
    let expected =
        model.generate_from_ids(ids.clone(), &greedy).expect("it is valid").text().expect("it runs");
    assert_eq!(chat.text().expect("it runs"), expected);
}

#[test]
fn tools_and_variables_reach_the_template_and_the_end_token_ends_a_turn() {
    let (home, folder) = (Home::new(), folder(&config()));
    let model = open(&home, &folder);
    let options = ChatOptions {
        tools: Some(vec![json!({ "name": "w4 <|end|>" })]),
        variables: Map::from_iter([("loud".to_owned(), json!(true))]),
        add_generation_prompt: false,
        ..ChatOptions::default()
    };
    let prompt = model.chat_prompt(&[Message::user("w5")], &options).expect("it is valid");
    assert_eq!(prompt.text, "<s><|user|> w5 <|end|>[{\"name\": \"w4 <|end|>\"}] w9");
    assert_eq!(prompt.ids.iter().filter(|id| **id == 113).count(), 1);
    assert_eq!(prompt.ids.last(), Some(&9));
    // Only the end token of the tokenizer config is allowed, and it ends the answer.
    let options = GenerateOptions {
        max_tokens: Some(9),
        temperature: 0.0,
        allowed_tokens: Some(vec![113]),
        ..GenerateOptions::default()
    };
    let mut generation = model.chat(&[Message::user("w5")], &options).expect("it is valid");
    while generation.next().is_some() {}
    assert_eq!(generation.summary().generated_tokens, 1);
}

#[test]
fn conversations_that_can_not_be_rendered_are_refused() {
    let home = Home::new();
    let without = open(&home, &folder(&json!({})));
    let refused = |model: &Model, messages: &[Message]| {
        model.chat_prompt(messages, &ChatOptions::default()).expect_err("it is refused")
    };
    let missing = refused(&without, &[Message::user("w1")]);
    assert!(matches!(missing, Error::Template(TemplateError::Missing)), "{missing}");
    assert_eq!(missing.cause(), ErrorCause::Request);
    let template =
        "{% if messages[0].role != 'user' %}{{ raise_exception('users first') }}{% endif %}{{ 1 + '' }}";
    let model = open(&home, &folder(&json!({ "chat_template": template })));
    let raised = refused(&model, &[Message::system("w1")]);
    assert!(raised.to_string().contains("users first"), "{raised}");
    assert_eq!(raised.cause(), ErrorCause::Request);
    let failed = refused(&model, &[Message::user("w1")]);
    assert_eq!(
        (failed.cause(), failed.to_string().contains("line 1")),
        (ErrorCause::Request, true),
        "{failed}"
    );
    assert!(refused(&model, &[]).to_string().contains("at least one message"));
    let embedder = home.model(folder(&config()).path()).open().expect("it opens");
    let wrong = refused(&embedder, &[Message::user("w1")]).to_string();
    assert!(wrong.contains("`chat` needs another model"), "{wrong}");
}
