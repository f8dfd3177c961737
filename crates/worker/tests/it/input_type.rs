//! Queries and documents: the fields of each API that select a prompt.

use serde_json::{Value, json};

use crate::client::post;
use crate::harness::tiny;

#[test]
fn queries_and_documents_get_the_prompts_of_the_model() {
    let server = tiny("tiny-bert");
    let openai =
        |body: Value| post(*server, "/v1/embeddings", &body).expect(200)["data"][0]["embedding"].clone();
    let cohere = |kind: &str| {
        let body = json!({"texts": ["a lamp"], "input_type": kind});
        post(*server, "/v2/embed", &body).expect(200)["embeddings"]["float"][0].clone()
    };
    let tei = |name: &str| {
        post(*server, "/embed", &json!({"inputs": "a lamp", "prompt_name": name})).expect(200)[0].clone()
    };
    let query = openai(json!({"input": "query: a lamp"}));
    let document = openai(json!({"input": "passage: a lamp"}));
    assert_ne!(query, document);
    for kind in ["query", "search_query", "retrieval.query"] {
        assert_eq!(openai(json!({"input": "a lamp", "input_type": kind})), query, "{kind}");
        assert_eq!(openai(json!({"input": "a lamp", "task": kind})), query, "{kind}");
        assert_eq!(cohere(kind), query, "{kind}");
    }
    for kind in ["document", "passage", "search_document", "retrieval.passage"] {
        assert_eq!(openai(json!({"input": "a lamp", "input_type": kind})), document, "{kind}");
        assert_eq!(openai(json!({"input": "a lamp", "task": kind})), document, "{kind}");
        assert_eq!(cohere(kind), document, "{kind}");
    }
    assert_eq!([tei("query"), tei("passage")], [query, document]);
    let plain = openai(json!({"input": "a lamp"}));
    for kind in ["classification", "clustering", "text-matching", "separation"] {
        assert_eq!(
            openai(json!({"input": "a lamp", "input_type": kind})),
            plain,
            "the model has no such prompt"
        );
    }
}

#[test]
fn unknown_and_contradictory_purposes_are_rejected() {
    let server = tiny("tiny-bert");
    for (body, word) in [
        (json!({"input": "a", "input_type": "poem"}), "unknown `input_type`: `poem`"),
        (json!({"input": "a", "task": "poem"}), "unknown `task`: `poem`"),
        (json!({"input": "a", "task": "query", "input_type": "query"}), "mutually exclusive"),
        (json!({"input": "a", "prompt_name": "query", "input_type": "query"}), "mutually exclusive"),
    ] {
        let refused = post(*server, "/v1/embeddings", &body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.json().to_string().contains(word), "{}", refused.json());
    }
}
