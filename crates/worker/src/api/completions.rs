//! OpenAI's route `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{GeneratedToken, Task};
use sconce_http::event_stream::EventFormat;
use sconce_http::refusal::{Dialect, Refusal};
use serde_json::{Value, json};

use crate::api::completion::{ChunkWriter, Completion, answer};
use crate::api::handle::handle;
use crate::api::logprobs;
use crate::api::sampling::completion_body;
use crate::operations::context::invalid;
use crate::operations::generate::{
    self, EndReason, EventWriter, FinishedOutput, Generating, PromptInput, TokenUsage,
};
use crate::operations::inputs::Inputs;
use crate::operations::output_parser::Delta;
use crate::operations::token_ids_rejected;
use crate::state::app::App;
use crate::state::slot::LoadedModel;

/// Tokens of an output without `max_tokens`, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

completion_body! {
    /// Prompts to continue.
    struct CompletionBody {
        #[schema(value_type = Object, example = "Once upon a time")]
        prompt: Inputs,
        /// Number of most likely tokens at each position, at most 20.
        logprobs: Option<usize>,
    }
}

/// Continues prompts.
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", request_body(content = CompletionBody, example = json!({"prompt": "Once upon a time", "max_tokens": 32})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::OpenAi, METHOD, request, |context, mut body: CompletionBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Generate]).await?;
        body.max_tokens = Some(body.max_tokens.unwrap_or(DEFAULT_TOKENS));
        let mut options = body.options()?;
        options.logprobs = body.logprobs;
        options.validate().map_err(|error| invalid(error.to_string()))?;
        if !loaded.token_ids && body.prompt.has_ids() {
            return Err(invalid(token_ids_rejected(&loaded.name)));
        }
        let prompts = prompts(std::mem::replace(&mut body.prompt, Inputs::Texts(Vec::new())));
        context.check_sizes(&vec![0; prompts.len()], 0)?;
        let generating = generate::start(&context, &loaded, METHOD, prompts, options).await?;
        let (completion, includes_usage) = (Completion::new("cmpl-", &loaded), body.includes_usage());
        let chunks = ChunkWriter { completion, kind: "text_completion", includes_usage };
        let writer = CompletionWriter { chunks, loaded, written: vec![0; generating.choices()] };
        let whole = |writer: CompletionWriter, outputs: Vec<FinishedOutput>, usage| {
            let choices =
                outputs.iter().enumerate().map(|(index, output)| choice(&writer.loaded, index, output));
            writer.chunks.completion.object("text_completion", &choices.collect::<Vec<_>>(), Some(usage))
        };
        Ok(answer(context, generating, writer, body.stream, whole))
    })
    .await
}

const METHOD: &str = "completions";

fn prompts(inputs: Inputs) -> Vec<PromptInput> {
    match inputs {
        Inputs::One(text) => vec![PromptInput::Text(text)],
        Inputs::Texts(texts) => texts.into_iter().map(PromptInput::Text).collect(),
        Inputs::Ids(ids) => vec![PromptInput::Ids(ids)],
        Inputs::ManyIds(many) => many.into_iter().map(PromptInput::Ids).collect(),
    }
}

fn choice(loaded: &LoadedModel, index: usize, output: &FinishedOutput) -> Value {
    let logprobs =
        (!output.tokens.is_empty()).then(|| logprobs::completion(&loaded.model, &output.tokens, 0));
    json!({
        "index": index,
        "text": output.text,
        "logprobs": logprobs,
        "finish_reason": output.reason.map(EndReason::name),
    })
}

/// Writes chunks of a text completion.
struct CompletionWriter {
    chunks: ChunkWriter,
    loaded: Arc<LoadedModel>,
    /// Characters that were written of each output.
    written: Vec<usize>,
}

impl EventWriter for CompletionWriter {
    const FORMAT: EventFormat = EventFormat::Sse;

    fn start(&mut self, _: &Generating, _: &mut Vec<u8>) {}

    fn deltas(
        &mut self,
        choice: usize,
        deltas: Vec<Delta>,
        token: Option<GeneratedToken>,
        output: &mut Vec<u8>,
    ) {
        let text: String = deltas.into_iter().map(Delta::into_text).collect();
        let written = &mut self.written[choice];
        let offset = *written;
        *written += text.chars().count();
        let token = token.filter(|token| token.logprob.is_some()).map(|token| (token, text.clone()));
        let logprobs = token.map(|token| logprobs::completion(&self.loaded.model, &[token], offset));
        if !text.is_empty() || logprobs.is_some() {
            let choice =
                json!({ "index": choice, "text": text, "logprobs": logprobs, "finish_reason": null });
            self.chunks.chunk(choice, output);
        }
    }

    fn end(&mut self, choice: usize, reason: EndReason, output: &mut Vec<u8>) {
        let end = json!({ "index": choice, "text": "", "logprobs": null, "finish_reason": reason.name() });
        self.chunks.chunk(end, output);
    }

    fn finish(&mut self, tokens: TokenUsage, output: &mut Vec<u8>) {
        self.chunks.finish(tokens, output);
    }

    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>) {
        ChunkWriter::fail(refusal, output);
    }
}
