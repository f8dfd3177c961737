//! The routes that a gateway forwards, which are those of a worker.

use axum::http::Method;

/// How the body of a route names its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyName {
    /// It does not.
    None,
    /// By `model`.
    Model,
    /// By `model`, where an empty name means none and `NAME:latest` may mean `NAME`.
    Ollama,
    /// By `model` or `name`, as [`Ollama`](Self::Ollama).
    OllamaShow,
}

/// A route that is forwarded to a worker.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// Tasks of models that can answer; empty means all.
    pub(super) tasks: &'static [&'static str],
    /// How the body names the model.
    pub(super) body_name: BodyName,
}

impl Route {
    /// Whether the route generates text. Answers of other routes depend only on the request.
    pub(super) fn generates(&self) -> bool {
        self.tasks == GENERATE && !matches!(self.path, "/apply-template" | "/v1/messages/count_tokens")
    }

    /// Whether a successful answer names the numerics class of its values.
    pub(super) fn has_class(&self) -> bool {
        !self.tasks.is_empty() && self.tasks != GENERATE
    }

    /// Whether a model with this task can answer.
    pub(super) fn admits(&self, task: &str) -> bool {
        self.tasks.is_empty() || self.tasks.contains(&task)
    }
}

const GENERATE: &[&str] = &["generate"];

const fn route(path: &'static str, body_name: BodyName, tasks: &'static [&'static str]) -> Route {
    Route { method: Method::POST, path, tasks, body_name }
}

/// All routes that are forwarded.
pub(super) static ROUTES: [Route; 26] = [
    Route { method: Method::GET, path: "/info", tasks: &[], body_name: BodyName::None },
    route("/", BodyName::None, &[]),
    route("/embed", BodyName::None, &["embed"]),
    route("/embed_all", BodyName::None, &["embed", "tokens"]),
    route("/embed_sparse", BodyName::None, &["sparse"]),
    route("/rerank", BodyName::None, &["rerank", "tokens"]),
    route("/predict", BodyName::None, &["classify"]),
    route("/similarity", BodyName::None, &["embed", "sparse", "tokens"]),
    route("/tokenize", BodyName::None, &[]),
    route("/decode", BodyName::None, &[]),
    route("/v1/embeddings", BodyName::Model, &["embed"]),
    route("/embeddings", BodyName::Model, &["embed"]),
    route("/v2/embed", BodyName::Model, &["embed"]),
    route("/api/embed", BodyName::Ollama, &["embed"]),
    route("/api/embeddings", BodyName::Ollama, &["embed"]),
    route("/api/show", BodyName::OllamaShow, &[]),
    route("/v1/rerank", BodyName::Model, &["rerank", "tokens"]),
    route("/v2/rerank", BodyName::Model, &["rerank", "tokens"]),
    route("/v1/chat/completions", BodyName::Model, GENERATE),
    route("/v1/completions", BodyName::Model, GENERATE),
    route("/v1/responses", BodyName::Model, GENERATE),
    route("/v1/messages", BodyName::Model, GENERATE),
    route("/v1/messages/count_tokens", BodyName::Model, GENERATE),
    route("/apply-template", BodyName::Model, GENERATE),
    route("/api/chat", BodyName::Ollama, GENERATE),
    route("/api/generate", BodyName::Ollama, GENERATE),
];

/// The route with this path.
pub(super) fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_generate_are_told_from_those_that_may_be_repeated() {
        let generating: Vec<&str> =
            ROUTES.iter().filter(|route| route.generates()).map(|route| route.path).collect();
        let expected = [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/api/chat",
            "/api/generate",
        ];
        assert_eq!(generating, expected);
        assert!(find("/v1/embeddings").is_some_and(|route| route.admits("embed") && !route.admits("rerank")));
        assert!(find("/tokenize").is_some_and(|route| route.admits("rerank") && !route.has_class()));
        assert!(find("/v1/drain").is_none());
    }
}
