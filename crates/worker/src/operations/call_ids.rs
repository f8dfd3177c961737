//! Ids of tool calls in a form that the chat template accepts.

use sconce::Message;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::operations::output_parser::ToolFormat;

/// Length of the ids that templates of Mistral accept: they refuse others.
const MISTRAL_LENGTH: usize = 9;

/// Replaces the ids that a chat template would refuse. A call and its result keep the same id.
pub(crate) fn for_template(template: &str, messages: &mut [Message]) {
    if ToolFormat::of(template) != Some(ToolFormat::Mistral) {
        return;
    }
    for Message(fields) in messages {
        fields.get_mut("tool_call_id").into_iter().for_each(shorten);
        let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(shorten);
    }
}

/// Replaces an id that is not nine letters and digits by the first digits of its hash.
fn shorten(id: &mut Value) {
    let Some(text) = id.as_str() else { return };
    if text.len() != MISTRAL_LENGTH || !text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        let digest = format!("{:x}", Sha256::digest(text));
        *id = digest[..MISTRAL_LENGTH].into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_and_its_result_have_the_same_short_id_for_mistral_only() {
        let conversation = json!([
            {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0123456789abcdef"}, {"id": "a1B2c3D4e"}]},
            {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": "1"},
            {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": "2"},
        ]);
        let of = |template| {
            let mut messages: Vec<Message> =
                serde_json::from_value(conversation.clone()).expect("they are messages");
            for_template(template, &mut messages);
            serde_json::to_value(messages).expect("they are JSON")
        };
        assert_eq!(of("<tool_call>"), conversation);
        let short = of("[TOOL_CALLS]");
        let id = short[1]["tool_call_id"].as_str().expect("it has an id");
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(short[0]["tool_calls"][0]["id"], id);
        assert_eq!(short[0]["tool_calls"][1]["id"], "a1B2c3D4e");
        assert_eq!(short[2]["tool_call_id"], "a1B2c3D4e");
    }
}
