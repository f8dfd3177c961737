//! The prompt of a conversation, without a generation.

use std::sync::Arc;

use sconce::{ChatOptions, ChatPrompt, Message};
use sconce_http::refusal::Refusal;

use crate::errors::refusal;
use crate::operations::call_ids;
use crate::operations::context::RequestContext;
use crate::operations::generate::{check_bytes, conversation_bytes};
use crate::operations::tools::Tools;
use crate::state::slot::LoadedModel;

/// The prompt of a conversation.
pub(crate) async fn chat_prompt(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    mut messages: Vec<Message>,
    mut options: ChatOptions,
    tools: Tools,
) -> Result<ChatPrompt, Refusal> {
    // A key without tokens left costs no more work.
    context.app.edge.charge(context.principal, 0)?;
    let bytes = conversation_bytes(&messages, &tools);
    check_bytes(bytes)?;
    if tools.are_callable() {
        options.tools = Some(tools.definitions);
    }
    let own = Arc::clone(loaded);
    let render = move || {
        call_ids::for_template(own.model.chat_template(&options).map_err(refusal)?, &mut messages);
        own.model.chat_prompt(&messages, &options).map_err(refusal)
    };
    let prompt = context.on_text_thread(bytes, render).await??;
    context.app.edge.charge(context.principal, prompt.ids.len())?;
    Ok(prompt)
}
