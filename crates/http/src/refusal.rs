//! The refusal table: maps each kind of refusal to HTTP status, error body per dialect, `Retry-After` and metric label.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Maximum bytes of a message.
const MAX_MESSAGE: usize = 2000;

/// Maximum characters of a model name in the log.
const MAX_NAME: usize = 100;

/// The header that carries the code of a refusal, in every dialect.
pub const CODE_HEADER: HeaderName = HeaderName::from_static("x-sconce-code");

/// Response extension of a refused request, for log and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The code of the refusal.
    pub code: &'static str,
    /// The model that the request named.
    pub model: Option<String>,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The body is not valid JSON, or incomplete.
    Syntax,
    /// A field is missing, invalid or unsupported.
    Validation,
    /// The list of inputs is empty.
    Empty,
    /// A text exceeds the maximum length of the model, and truncation is off.
    TooLong,
    /// A text does not fit into the memory of the device.
    DoesNotFit,
    /// Two placements disagree on the result of a text.
    Unusual,
    /// The body or the response is too large.
    TooLarge,
    /// The `content-encoding` is not supported.
    Encoding,
    /// The model has another task.
    WrongTask,
    /// No model has the requested name.
    UnknownModel,
    /// No route has this path.
    NoRoute,
    /// The route does not support the method.
    Method,
    /// The API key is missing or invalid.
    Unauthorized,
    /// The principal is not allowed to do this.
    Forbidden,
    /// A queue, rate limit or memory budget is exhausted.
    Overloaded,
    /// The rate limit of the API key is exceeded.
    RateLimited,
    /// The request timed out.
    TimedOut,
    /// The model is not loaded, or the server is shutting down.
    NotReady,
    /// An operator has paused the server.
    Paused,
    /// The model files are invalid.
    Model,
    /// No placement can compute the request.
    Machine,
    /// No worker serves the numerics class that the request is pinned to.
    ClassUnavailable,
    /// The workers of a pool failed or could not be reached.
    WorkerFailed,
}

/// The API dialect of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Text Embeddings Inference.
    Tei,
    /// OpenAI.
    OpenAi,
    /// Cohere and Jina.
    Cohere,
    /// Ollama.
    Ollama,
    /// Anthropic.
    Anthropic,
}

impl Dialect {
    /// The dialect of errors on a path.
    pub fn of_path(path: &str) -> Dialect {
        match path {
            "/v1/rerank" | "/v2/rerank" | "/v2/embed" => Dialect::Cohere,
            "/v1/messages" | "/v1/messages/count_tokens" => Dialect::Anthropic,
            "/embeddings" | "/apply-template" => Dialect::OpenAi,
            path if path.starts_with("/v1/") => Dialect::OpenAi,
            path if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::Tei,
        }
    }
}

/// One row of the table.
struct Row {
    /// HTTP status in TEI's dialect.
    tei: u16,
    /// HTTP status in all other dialects.
    status: u16,
    /// TEI's `error_type`.
    tei_type: &'static str,
    /// OpenAI's `type`.
    openai_type: &'static str,
    /// OpenAI's `code`, the value of [`CODE_HEADER`], and the metric label.
    code: &'static str,
}

impl Row {
    /// Anthropic's `type`.
    fn anthropic_type(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            500 | 502 => "api_error",
            503 => "overloaded_error",
            _ => "invalid_request_error",
        }
    }
}

const fn row(
    tei: u16,
    status: u16,
    tei_type: &'static str,
    openai_type: &'static str,
    code: &'static str,
) -> Row {
    Row { tei, status, tei_type, openai_type, code }
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 23] = [
        Kind::Syntax,
        Kind::Validation,
        Kind::Empty,
        Kind::TooLong,
        Kind::DoesNotFit,
        Kind::Unusual,
        Kind::TooLarge,
        Kind::Encoding,
        Kind::WrongTask,
        Kind::UnknownModel,
        Kind::NoRoute,
        Kind::Method,
        Kind::Unauthorized,
        Kind::Forbidden,
        Kind::Overloaded,
        Kind::RateLimited,
        Kind::TimedOut,
        Kind::NotReady,
        Kind::Paused,
        Kind::Model,
        Kind::Machine,
        Kind::ClassUnavailable,
        Kind::WorkerFailed,
    ];

    /// The kind with this code.
    pub fn of_code(code: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The code, which is also the metric label.
    pub fn code(self) -> &'static str {
        self.row().code
    }

    fn row(self) -> Row {
        let (invalid, server) = ("invalid_request_error", "server_error");
        match self {
            Kind::Syntax => row(400, 400, "Validation", invalid, "invalid_json"),
            Kind::Validation => row(422, 400, "Validation", invalid, "invalid_request"),
            Kind::Empty => row(400, 400, "Empty", invalid, "empty"),
            Kind::TooLong => row(422, 400, "Tokenizer", invalid, "context_length_exceeded"),
            Kind::DoesNotFit => row(413, 413, "Validation", invalid, "does_not_fit"),
            Kind::Unusual => row(422, 422, "Validation", invalid, "unusual_input"),
            Kind::TooLarge => row(413, 413, "Validation", invalid, "too_large"),
            Kind::Encoding => row(415, 415, "Validation", invalid, "unsupported_encoding"),
            Kind::WrongTask => row(424, 400, "Backend", invalid, "wrong_task"),
            Kind::UnknownModel => row(404, 404, "Validation", invalid, "model_not_found"),
            Kind::NoRoute => row(404, 404, "Validation", invalid, "no_such_route"),
            Kind::Method => row(405, 405, "Validation", invalid, "method_not_allowed"),
            Kind::Unauthorized => row(401, 401, "Unauthorized", invalid, "invalid_api_key"),
            Kind::Forbidden => row(403, 403, "Unauthorized", invalid, "forbidden"),
            Kind::Overloaded => row(429, 429, "Overloaded", "rate_limit_error", "overloaded"),
            Kind::RateLimited => row(429, 429, "Overloaded", "rate_limit_error", "rate_limited"),
            Kind::TimedOut => row(503, 503, "Overloaded", server, "timed_out"),
            Kind::NotReady => row(503, 503, "Unhealthy", server, "not_ready"),
            Kind::Paused => row(503, 503, "Unhealthy", server, "paused"),
            Kind::Model => row(424, 500, "Backend", server, "model_fault"),
            Kind::Machine => row(424, 503, "Backend", server, "no_placement"),
            Kind::ClassUnavailable => row(503, 503, "Unhealthy", server, "class_unavailable"),
            Kind::WorkerFailed => row(502, 502, "Unhealthy", server, "worker_failed"),
        }
    }

    /// Whether the request may succeed later on the same server.
    fn is_retryable(self) -> bool {
        matches!(
            self,
            Kind::Overloaded
                | Kind::RateLimited
                | Kind::TimedOut
                | Kind::NotReady
                | Kind::Paused
                | Kind::Machine
                | Kind::ClassUnavailable
                | Kind::WorkerFailed
        )
    }
}

/// A refused request: the kind, a message, and when to retry.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The kind, which determines status and code.
    pub kind: Kind,
    /// The error message for the client.
    pub message: String,
    /// The requested model, if known.
    model: Option<String>,
    /// Seconds for `Retry-After`.
    retry_after: f64,
    /// Whether the connection must be closed, because the body was not read to its end.
    closes: bool,
}

impl Refusal {
    /// A refusal with a message, truncated to a bounded length.
    pub fn new(kind: Kind, message: impl Into<String>) -> Refusal {
        let mut message = message.into();
        // Messages may quote the request.
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Refusal { kind, message, model: None, retry_after: 1.0, closes: false }
    }

    /// Sets the requested model for the log, unless it is set. The name may come from the client and is truncated.
    #[must_use]
    pub fn for_model(mut self, model: &str) -> Refusal {
        self.model.get_or_insert_with(|| model.chars().take(MAX_NAME).collect());
        self
    }

    /// Sets `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, seconds: f64) -> Refusal {
        self.retry_after = seconds;
        self
    }

    /// Closes the connection after the response.
    #[must_use]
    pub fn closing(mut self) -> Refusal {
        self.closes = true;
        self
    }

    /// The code of the refusal, which is also its metric label.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// The error body in a dialect.
    pub fn body(&self, dialect: Dialect) -> Value {
        let row = self.kind.row();
        match dialect {
            Dialect::Tei => json!({ "error": self.message, "error_type": row.tei_type }),
            Dialect::OpenAi => {
                let error = json!({
                    "message": self.message, "type": row.openai_type, "param": null, "code": row.code,
                });
                json!({ "error": error })
            }
            // Cohere's clients read `message`, Jina's read `detail`.
            Dialect::Cohere => json!({ "message": self.message, "detail": self.message }),
            Dialect::Ollama => json!({ "error": self.message }),
            Dialect::Anthropic => {
                json!({ "type": "error", "error": { "type": row.anthropic_type(), "message": self.message } })
            }
        }
    }

    /// The response in a dialect.
    pub fn respond(&self, dialect: Dialect) -> Response {
        let (row, body) = (self.kind.row(), self.body(dialect));
        let status = if dialect == Dialect::Tei { row.tei } else { row.status };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(body)).into_response();
        response.headers_mut().insert(CODE_HEADER, HeaderValue::from_static(row.code));
        response.extensions_mut().insert(Refused { code: row.code, model: self.model.clone() });
        if self.kind.is_retryable() {
            let seconds = self.retry_after.ceil().clamp(1.0, 600.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.kind == Kind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_bounded() {
        let refusal = Refusal::new(Kind::UnknownModel, "é".repeat(1 << 20));
        assert_eq!(refusal.message.len(), MAX_MESSAGE);
        assert_eq!(
            Refusal::new(Kind::UnknownModel, format!("a{}", refusal.message)).message.len(),
            MAX_MESSAGE - 1
        );
    }

    #[test]
    fn a_retryable_refusal_has_retry_after() {
        let refusal = Refusal::new(Kind::Overloaded, "full").retry_after(2.2);
        let response = refusal.respond(Dialect::Cohere);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert!(!Refusal::new(Kind::Empty, "").respond(Dialect::Tei).headers().contains_key("retry-after"));
    }

    /// Each kind with TEI's status and type, the status of the other dialects, OpenAI's type, the code, and whether it is
    /// retryable.
    #[test]
    fn the_table_matches_the_dialects_of_the_clients() {
        let (invalid, server, rate) = ("invalid_request_error", "server_error", "rate_limit_error");
        for (kind, tei, tei_type, status, openai_type, code, retryable) in [
            (Kind::Syntax, 400, "Validation", 400, invalid, "invalid_json", false),
            (Kind::Validation, 422, "Validation", 400, invalid, "invalid_request", false),
            (Kind::Empty, 400, "Empty", 400, invalid, "empty", false),
            (Kind::TooLong, 422, "Tokenizer", 400, invalid, "context_length_exceeded", false),
            (Kind::TooLarge, 413, "Validation", 413, invalid, "too_large", false),
            (Kind::Encoding, 415, "Validation", 415, invalid, "unsupported_encoding", false),
            (Kind::WrongTask, 424, "Backend", 400, invalid, "wrong_task", false),
            (Kind::UnknownModel, 404, "Validation", 404, invalid, "model_not_found", false),
            (Kind::NoRoute, 404, "Validation", 404, invalid, "no_such_route", false),
            (Kind::Method, 405, "Validation", 405, invalid, "method_not_allowed", false),
            (Kind::Unauthorized, 401, "Unauthorized", 401, invalid, "invalid_api_key", false),
            (Kind::Forbidden, 403, "Unauthorized", 403, invalid, "forbidden", false),
            (Kind::Overloaded, 429, "Overloaded", 429, rate, "overloaded", true),
            (Kind::RateLimited, 429, "Overloaded", 429, rate, "rate_limited", true),
            (Kind::TimedOut, 503, "Overloaded", 503, server, "timed_out", true),
            (Kind::NotReady, 503, "Unhealthy", 503, server, "not_ready", true),
            (Kind::Paused, 503, "Unhealthy", 503, server, "paused", true),
            (Kind::Model, 424, "Backend", 500, server, "model_fault", false),
            (Kind::Machine, 424, "Backend", 503, server, "no_placement", true),
            (Kind::ClassUnavailable, 503, "Unhealthy", 503, server, "class_unavailable", true),
            (Kind::WorkerFailed, 502, "Unhealthy", 502, server, "worker_failed", true),
        ] {
            let refusal = Refusal::new(kind, "why").for_model("some").for_model("other");
            assert_eq!((refusal.code(), Kind::of_code(code)), (code, Some(kind)));
            let refused = Refused { code, model: Some("some".to_owned()) };
            for (dialect, status, body) in [
                (Dialect::Tei, tei, json!({"error": "why", "error_type": tei_type})),
                (
                    Dialect::OpenAi,
                    status,
                    json!({"error": {"message": "why", "type": openai_type, "param": null, "code": code}}),
                ),
                (Dialect::Cohere, status, json!({"message": "why", "detail": "why"})),
                (Dialect::Ollama, status, json!({"error": "why"})),
                (
                    Dialect::Anthropic,
                    status,
                    json!({"type": "error", "error": {"type": anthropic(status), "message": "why"}}),
                ),
            ] {
                let response = refusal.respond(dialect);
                assert_eq!(response.status().as_u16(), status, "{kind:?} {dialect:?}");
                assert_eq!(response.headers()[CODE_HEADER], code, "{dialect:?}");
                let retry = response.headers().get(header::RETRY_AFTER);
                assert_eq!(retry.is_some(), retryable, "{kind:?}");
                let challenges = response.headers().contains_key(header::WWW_AUTHENTICATE);
                assert_eq!(challenges, kind == Kind::Unauthorized, "{kind:?}");
                assert!(!response.headers().contains_key(header::CONNECTION));
                assert_eq!(response.extensions().get::<Refused>(), Some(&refused));
                assert_eq!(written(response), body, "{kind:?} {dialect:?}");
            }
        }
    }

    /// The `type` that Anthropic documents for a status.
    fn anthropic(status: u16) -> &'static str {
        let types = [
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
        ];
        types.iter().find(|(known, _)| *known == status).map_or("invalid_request_error", |(_, kind)| kind)
    }

    fn written(response: Response) -> Value {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let body = runtime.block_on(axum::body::to_bytes(response.into_body(), 1 << 20)).expect("a body");
        serde_json::from_slice(&body).expect("JSON")
    }

    #[test]
    fn retry_after_is_bounded_and_a_connection_may_be_closed() {
        let after = |seconds: f64| {
            let response =
                Refusal::new(Kind::Overloaded, "full").retry_after(seconds).respond(Dialect::OpenAi);
            response.headers()[header::RETRY_AFTER].to_str().expect("a number").to_owned()
        };
        assert_eq!([0.0, 1.0, 1.1, 600.0, 1e9, f64::NAN].map(after), ["1", "1", "2", "600", "600", "0"]);
        let closing = Refusal::new(Kind::Overloaded, "full").closing().respond(Dialect::Tei);
        assert_eq!(closing.headers()[header::CONNECTION], "close");
    }

    #[test]
    fn the_model_name_is_bounded() {
        let long = Refusal::new(Kind::UnknownModel, "").for_model(&"é".repeat(500));
        assert_eq!(long.model.map(|model| model.chars().count()), Some(MAX_NAME));
    }
}
