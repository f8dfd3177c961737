//! Renders what transformers rendered, byte for byte.

use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use sconce_testkit::goldens;
use serde::Deserialize;

use super::*;

/// What `scripts/goldens/chat_templates.py` writes.
#[derive(Deserialize)]
struct Golden {
    now: u64,
    conversations: Vec<Conversation>,
    templates: BTreeMap<String, Rendered>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    variables: Map<String, Value>,
}

#[derive(Deserialize)]
struct Rendered {
    template: String,
    tokens: BTreeMap<String, String>,
    /// For each conversation the text with and without the generation prompt; null if transformers refuses it. A number
    /// is the length of a start of the first text, in characters.
    texts: Vec<(Option<String>, Unprompted)>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Unprompted {
    Start(u64),
    Text(Option<String>),
}

#[test]
fn every_conversation_is_rendered_as_by_transformers() {
    let file = goldens::folder("chat-templates").join("chat-templates.json");
    let golden: Golden = serde_json::from_slice(&fs::read(file).expect("it is there")).expect("it is valid");
    let now = Some(UNIX_EPOCH + Duration::from_secs(golden.now));
    let (mut rendered, mut refused, mut of_caller) = (0, 0, 0);
    for (name, Rendered { template, tokens, texts }) in &golden.templates {
        assert_eq!(texts.len(), golden.conversations.len());
        for (conversation, (prompted, unprompted)) in golden.conversations.iter().zip(texts) {
            let start =
                |length: u64| prompted.iter().flat_map(|text| text.chars()).take(length as usize).collect();
            let unprompted = match unprompted {
                Unprompted::Start(length) => Some(start(*length)),
                Unprompted::Text(text) => text.clone(),
            };
            for (add_generation_prompt, expected) in [(true, prompted), (false, &unprompted)] {
                let (tools, variables) = (conversation.tools.clone(), conversation.variables.clone());
                let options = ChatOptions { tools, variables, template: None, add_generation_prompt, now };
                match (render_chat(template, tokens, &conversation.messages, &options), expected) {
                    (Ok(rendering), Some(expected)) => {
                        assert_eq!(&rendering.text, expected, "{name}: {:?}", conversation.messages);
                        rendered += 1;
                        of_caller += usize::from(!rendering.caller.is_empty());
                    }
                    (Err(_), None) => refused += 1,
                    (Ok(rendering), None) => {
                        panic!("{name} must refuse {:?}: {}", conversation.messages, rendering.text)
                    }
                    (Err(error), Some(_)) => panic!("{name}: {:?}: {error}", conversation.messages),
                }
            }
        }
    }
    assert!(rendered > 1800 && refused > 100 && of_caller > 1500, "{rendered}, {refused}, {of_caller}");
}

#[test]
fn the_template_is_the_named_one_or_that_for_tools() {
    let templates = ["default", "tool_use", "rag"].map(|name| (name.to_owned(), format!("{name}!")));
    let templates = BTreeMap::from(templates);
    let options = |tools: Option<Vec<Value>>, template: Option<&str>| ChatOptions {
        tools,
        template: template.map(str::to_owned),
        ..ChatOptions::default()
    };
    assert_eq!(choose(&templates, &options(None, None)), Ok("default!"));
    assert_eq!(choose(&templates, &options(Some(Vec::new()), None)), Ok("tool_use!"));
    assert_eq!(choose(&templates, &options(None, Some("rag"))), Ok("rag!"));
    let unknown = choose(&templates, &options(None, Some("raag"))).expect_err("there is none").to_string();
    assert_eq!(unknown, "no chat template is called `raag`; the model has: default, rag, tool_use");
    let only = BTreeMap::from([("default".to_owned(), "d".to_owned())]);
    assert_eq!(choose(&only, &options(Some(Vec::new()), None)), Ok("d"));
}

#[test]
fn an_empty_conversation_is_refused_and_variables_of_the_caller_come_last() {
    let empty = render_chat("x", &BTreeMap::new(), &[], &ChatOptions::default());
    assert!(empty.expect_err("it is empty").to_string().contains("at least one message"));
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let variables = Map::from_iter([("bos_token".to_owned(), Value::from("<t>"))]);
    let options = ChatOptions { variables, ..ChatOptions::default() };
    let rendering =
        render_chat("{{ bos_token }}", &tokens, &[Message::user("x")], &options).expect("it is valid");
    assert_eq!((rendering.text.as_str(), rendering.caller.first()), ("<t>", Some(&(0..3))));
}
