//! Maps errors of the runtime to refusals.

use std::fmt::Write as _;

use sconce::{Error, ErrorCause, Retry, SequenceError, Task};
use sconce_http::refusal::{Kind, Refusal};

/// The refusal for an error of the runtime.
#[expect(clippy::needless_pass_by_value, reason = "the signature of `map_err`")]
pub(crate) fn refusal(error: Error) -> Refusal {
    let kind = match (&error, error.cause(), error.retry()) {
        (Error::WrongTask { .. }, ..) => Kind::WrongTask,
        (Error::Sequence(SequenceError::DoesNotFit { .. }), ..) => Kind::DoesNotFit,
        (Error::Sequence(SequenceError::Unusual { .. }), ..) => Kind::Unusual,
        (_, ErrorCause::Request, _) => Kind::Validation,
        (_, ErrorCause::Model, _) => Kind::Model,
        (_, ErrorCause::Machine, Retry::Later) => Kind::NotReady,
        (_, ErrorCause::Machine, Retry::Never | Retry::Elsewhere) => Kind::Machine,
    };
    Refusal::new(kind, message(&error))
}

/// The error and its sources without hints, which are commands for the operator.
fn message(error: &Error) -> String {
    let mut lines: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
    lines.retain(|line| !line.trim_start().starts_with("hint:"));
    let mut text = lines.join("\n");
    if let Error::WrongTask { has, .. } = error {
        let _ = write!(text, "; its routes are {}", routes(*has));
    }
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// The routes of a task.
fn routes(task: Task) -> &'static str {
    match task {
        Task::Embed => "`/embed`, `/embed_all`, `/similarity`, `/v1/embeddings` and `/api/embed`",
        Task::Rerank => "`/rerank`, `/v1/rerank` and `/v2/rerank`",
        Task::Classify => "`/predict`",
        Task::Sparse => "`/embed_sparse` and `/similarity`",
        Task::Tokens => "`/embed_all`, `/rerank`, `/v1/rerank`, `/v2/rerank` and `/similarity`",
        Task::Generate => {
            "`/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`, `/api/chat` and `/api/generate`"
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use sconce_http::refusal::Dialect;

    use super::*;

    #[test]
    fn every_fault_of_the_runtime_has_a_kind() {
        let request = refusal(Error::Request("no".to_owned()));
        assert_eq!(request.kind, Kind::Validation);
        assert_eq!(request.respond(Dialect::Tei).status(), 422);
        assert_eq!(request.respond(Dialect::OpenAi).status(), 400);
        let plan = sconce::Plan {
            reference: None,
            chosen: None,
            fallbacks: Vec::new(),
            refused: Vec::new(),
            downgrades: Vec::new(),
        };
        let machine = refusal(Error::NoPlacement { plan: Box::new(plan), constraints: Box::default() });
        assert_eq!(machine.kind, Kind::Machine);
        let response = machine.respond(Dialect::OpenAi);
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(machine.respond(Dialect::Tei).status(), 424);
        let lacking = refusal(Error::Machine("cannot spawn a thread".to_owned()));
        for dialect in [Dialect::Tei, Dialect::OpenAi, Dialect::Cohere, Dialect::Ollama, Dialect::Anthropic] {
            let response = lacking.respond(dialect);
            assert_eq!(response.status(), 503, "{dialect:?}");
            assert!(response.headers().contains_key(header::RETRY_AFTER));
        }
    }

    #[test]
    fn a_text_that_cannot_be_computed_has_its_own_code() {
        let placement = sconce::Placement {
            engine: sconce::EngineId::Candle,
            device: sconce::Device::Cpu,
            weights: "model.safetensors".to_owned(),
            dtype: sconce::Dtype::F32,
        };
        let why = "no two agree".to_owned();
        for (error, status, code) in [
            (SequenceError::DoesNotFit { tokens: 9000, placement }, 413, "does_not_fit"),
            (SequenceError::Unusual { tokens: 256, why }, 422, "unusual_input"),
            (SequenceError::Malformed("no such id".to_owned()), 400, "invalid_request"),
        ] {
            let refused = refusal(Error::from(error));
            assert_eq!(refused.code(), code);
            assert!(!refused.message.contains("hint:"), "{}", refused.message);
            let response = refused.respond(Dialect::OpenAi);
            assert_eq!(response.status(), status);
            assert!(!response.headers().contains_key(header::RETRY_AFTER), "trying again does not help");
        }
    }

    #[test]
    fn messages_reach_the_client_without_hints() {
        let refused = refusal(Error::Request("no such thing\nhint: `sconce plan`".to_owned()));
        assert_eq!(refused.message, "no such thing");
    }
}
