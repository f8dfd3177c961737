//! What a client is told when it gets no answer: one table from what went wrong to status, body and metric.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The most bytes of a message.
const LONGEST: usize = 2000;

/// Letters of a model's name that the log repeats.
const LONGEST_NAME: usize = 100;

/// The header that carries the code of a refusal, in every dialect.
pub const CODE_HEADER: HeaderName = HeaderName::from_static("x-sconce-code");

/// What the log tells of a request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its code.
    pub code: &'static str,
    /// The model that the request named.
    pub model: Option<String>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The body is no JSON.
    Syntax,
    /// A field is missing, wrong, or asks for what can't be done.
    Validation,
    /// There is nothing in it.
    Empty,
    /// A text is longer than the model takes, and was not to be cut.
    TooLong,
    /// A text is too long for the memory of the device.
    DoesNotFit,
    /// Placements do not agree on the result of a text.
    Unusual,
    /// The body, or what it asks for, is too large.
    TooLarge,
    /// It is encoded in a way that is not read.
    Encoding,
    /// The model is for something else.
    WrongTask,
    /// No such model.
    UnknownModel,
    /// No such page.
    NoRoute,
    /// The page takes another method.
    Method,
    /// No key, or a wrong one.
    Unauthorized,
    /// Not for whoever asks.
    Forbidden,
    /// Too much waits already.
    Overloaded,
    /// It took too long.
    TimedOut,
    /// Not open yet, or no longer.
    NotReady,
    /// The model's files are at fault.
    Model,
    /// No placement computes it.
    Machine,
}

/// Who asks: what an error looks like is their affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Text Embeddings Inference.
    Tei,
    /// OpenAI.
    OpenAi,
    /// Cohere and Jina.
    Rerank,
}

/// One line of the table.
struct Row {
    /// The status that TEI's clients know.
    tei: u16,
    /// The status for everybody else.
    status: u16,
    /// TEI's `error_type`.
    tei_type: &'static str,
    /// OpenAI's `type`.
    openai_type: &'static str,
    /// OpenAI's `code`, and the label of the metric.
    code: &'static str,
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
            Kind::TimedOut => row(503, 503, "Overloaded", server, "timed_out"),
            Kind::NotReady => row(503, 503, "Unhealthy", server, "not_ready"),
            Kind::Model => row(424, 500, "Backend", server, "model_fault"),
            Kind::Machine => row(424, 503, "Backend", server, "no_placement"),
        }
    }

    /// Whether trying again here may help.
    fn passes(self) -> bool {
        matches!(self, Kind::Overloaded | Kind::TimedOut | Kind::NotReady | Kind::Machine)
    }
}

/// Why there is no answer, in words, and when to try again.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The kind, which decides status and code.
    pub kind: Kind,
    /// The message.
    pub message: String,
    /// The model that was asked, where it is known.
    model: Option<String>,
    /// Seconds after which there may be one.
    after: f64,
    /// Whether the connection can't be used again, since something on it was not read.
    closes: bool,
}

impl Refusal {
    /// A refusal with a message, which is cut to a bounded length.
    pub fn new(kind: Kind, message: impl Into<String>) -> Refusal {
        let mut message = message.into();
        // What a request says is not repeated at length.
        message.truncate(message.floor_char_boundary(LONGEST));
        Refusal { kind, message, model: None, after: 1.0, closes: false }
    }

    /// The same, of a request for this model. The name may be a client's and is not repeated at length.
    #[must_use]
    pub fn of(mut self, model: &str) -> Refusal {
        self.model.get_or_insert_with(|| model.chars().take(LONGEST_NAME).collect());
        self
    }

    /// The same, to be tried again after so many seconds.
    #[must_use]
    pub fn after(mut self, seconds: f64) -> Refusal {
        self.after = seconds;
        self
    }

    /// The same, on a connection that is no longer of use.
    #[must_use]
    pub fn closing(mut self) -> Refusal {
        self.closes = true;
        self
    }

    /// The label of the metric.
    pub fn code(&self) -> &'static str {
        self.kind.row().code
    }

    /// The answer, as `dialect` has it.
    pub fn respond(&self, dialect: Dialect) -> Response {
        let row = self.kind.row();
        let (status, body): (u16, Value) = match dialect {
            Dialect::Tei => (row.tei, json!({ "error": self.message, "error_type": row.tei_type })),
            Dialect::OpenAi => {
                let error = json!({
                    "message": self.message, "type": row.openai_type, "param": null, "code": row.code,
                });
                (row.status, json!({ "error": error }))
            }
            // Cohere's clients read the one, Jina's the other.
            Dialect::Rerank => (row.status, json!({ "message": self.message, "detail": self.message })),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(body)).into_response();
        response.headers_mut().insert(CODE_HEADER, HeaderValue::from_static(row.code));
        response.extensions_mut().insert(Refused { code: row.code, model: self.model.clone() });
        if self.kind.passes() {
            let seconds = self.after.ceil().clamp(1.0, 600.0) as u64;
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
        assert_eq!(refusal.message.len(), LONGEST);
        assert_eq!(
            Refusal::new(Kind::UnknownModel, format!("a{}", refusal.message)).message.len(),
            LONGEST - 1
        );
    }

    #[test]
    fn who_may_try_again_is_told_when() {
        let refusal = Refusal::new(Kind::Overloaded, "full").after(2.2);
        let response = refusal.respond(Dialect::Rerank);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert!(!Refusal::new(Kind::Empty, "").respond(Dialect::Tei).headers().contains_key("retry-after"));
    }

    /// Every kind with what clients see of it: TEI's status and type, the others' status, OpenAI's type, the code,
    /// and whether it may be tried again.
    #[test]
    fn the_table_is_what_clients_know() {
        let (invalid, server, rate) = ("invalid_request_error", "server_error", "rate_limit_error");
        for (kind, tei, tei_type, status, openai_type, code, again) in [
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
            (Kind::TimedOut, 503, "Overloaded", 503, server, "timed_out", true),
            (Kind::NotReady, 503, "Unhealthy", 503, server, "not_ready", true),
            (Kind::Model, 424, "Backend", 500, server, "model_fault", false),
            (Kind::Machine, 424, "Backend", 503, server, "no_placement", true),
        ] {
            let refusal = Refusal::new(kind, "why").of("some").of("other");
            assert_eq!(refusal.code(), code);
            let refused = Refused { code, model: Some("some".to_owned()) };
            for (dialect, status, body) in [
                (Dialect::Tei, tei, json!({"error": "why", "error_type": tei_type})),
                (
                    Dialect::OpenAi,
                    status,
                    json!({"error": {"message": "why", "type": openai_type, "param": null, "code": code}}),
                ),
                (Dialect::Rerank, status, json!({"message": "why", "detail": "why"})),
            ] {
                let response = refusal.respond(dialect);
                assert_eq!(response.status().as_u16(), status, "{kind:?} {dialect:?}");
                assert_eq!(response.headers()[CODE_HEADER], code, "{dialect:?}");
                let retry = response.headers().get(header::RETRY_AFTER);
                assert_eq!(retry.is_some(), again, "{kind:?}");
                let asks = response.headers().contains_key(header::WWW_AUTHENTICATE);
                assert_eq!(asks, kind == Kind::Unauthorized, "{kind:?}");
                assert!(!response.headers().contains_key(header::CONNECTION));
                assert_eq!(response.extensions().get::<Refused>(), Some(&refused));
                assert_eq!(written(response), body, "{kind:?} {dialect:?}");
            }
        }
    }

    fn written(response: Response) -> Value {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let body = runtime.block_on(axum::body::to_bytes(response.into_body(), 1 << 20)).expect("a body");
        serde_json::from_slice(&body).expect("JSON")
    }

    #[test]
    fn a_time_to_come_back_has_its_bounds_and_a_connection_may_be_closed() {
        let after = |seconds: f64| {
            let response = Refusal::new(Kind::Overloaded, "full").after(seconds).respond(Dialect::OpenAi);
            response.headers()[header::RETRY_AFTER].to_str().expect("a number").to_owned()
        };
        assert_eq!([0.0, 1.0, 1.1, 600.0, 1e9, f64::NAN].map(after), ["1", "1", "2", "600", "600", "0"]);
        let closing = Refusal::new(Kind::Overloaded, "full").closing().respond(Dialect::Tei);
        assert_eq!(closing.headers()[header::CONNECTION], "close");
    }

    #[test]
    fn the_name_of_a_model_is_bounded() {
        let long = Refusal::new(Kind::UnknownModel, "").of(&"é".repeat(500));
        assert_eq!(long.model.map(|model| model.chars().count()), Some(LONGEST_NAME));
    }
}
