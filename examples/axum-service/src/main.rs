//! A web service with an embedding model in its own process: no second server, no client library.
//!
//! ```sh
//! cargo run --release --bin axum-service -- minilm
//! curl localhost:3000/rank -H 'content-type: application/json' \
//!     -d '{"query": "how do I sort a list?", "documents": ["list.sort() orders it", "the harbour at night"]}'
//! ```

use std::sync::Arc;
use std::{env, error};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use sconce::{Model, Prompt, SimilarityOptions};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Requests that compute or wait for the model. More get 503: without a limit, each would have a blocking thread.
const MAX_REQUESTS: usize = 64;

/// The state of the service. A model is cheap to clone; requests share it.
#[derive(Clone)]
struct Service {
    model: Model,
    requests: Arc<Semaphore>,
}

/// Documents to rank.
#[derive(Deserialize)]
struct Request {
    query: String,
    documents: Vec<String>,
}

/// A document and its similarity to the query.
#[derive(Serialize)]
struct Ranked {
    document: String,
    score: f32,
}

/// Ranks documents by their similarity to a query.
async fn rank(
    State(service): State<Service>,
    Json(request): Json<Request>,
) -> Result<Json<Vec<Ranked>>, (StatusCode, String)> {
    let busy = |_| (StatusCode::SERVICE_UNAVAILABLE, "too many requests".to_owned());
    let permit = service.requests.try_acquire_owned().map_err(busy)?;
    // The model computes on its own threads and blocks its caller, which must not be a thread of the async runtime.
    let ranked = spawn_blocking(move || {
        let _permit = permit;
        compute(&service.model, request)
    });
    let failed = |error: &dyn error::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    match ranked.await {
        Ok(Ok(ranked)) => Ok(Json(ranked)),
        Ok(Err(error)) => Err(failed(&error)),
        Err(panic) => Err(failed(&panic)),
    }
}

fn compute(model: &Model, request: Request) -> Result<Vec<Ranked>, sconce::Error> {
    let options = SimilarityOptions { prompt: Prompt::Query, other_prompt: Prompt::Document };
    let scores = model.similarity_with(&request.query, &request.documents, &options)?.scores;
    let documents = request.documents.into_iter().zip(scores);
    let mut ranked: Vec<Ranked> = documents.map(|(document, score)| Ranked { document, score }).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(ranked)
}

fn routes(model: Model) -> Router {
    let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
    Router::new().route("/rank", post(rank)).with_state(Service { model, requests })
}

fn main() -> Result<(), Box<dyn error::Error>> {
    sconce::init();
    let name = env::args().nth(1).unwrap_or("minilm".to_owned());
    // Before the runtime starts: opening a model downloads and proves it, which blocks too.
    let model = Model::open(&name)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:3000").await?;
        println!("listening on http://{}", listener.local_addr()?);
        axum::serve(listener, routes(model)).await
    })?;
    Ok(())
}

#[cfg(test)]
mod minilm {
    use std::path::Path;

    use serde_json::{Value, json};
    use tokio::runtime::Runtime;

    use super::*;

    #[test]
    fn ranks_documents_for_concurrent_clients() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/parts/minilm");
        assert!(folder.is_dir(), "no MiniLM: run `scripts/parts minilm`");
        let model = Model::open(&folder.display().to_string()).unwrap();
        let runtime = Runtime::new().unwrap();
        let url = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/rank", listener.local_addr().unwrap());
            tokio::spawn(async { axum::serve(listener, routes(model)).await });
            url
        });
        let ask = |url: String| {
            let documents = ["the harbour at night", "list.sort() orders it in place"];
            let request = json!({ "query": "how do I sort a list?", "documents": documents });
            let mut answer = ureq::post(url).send_json(request).unwrap();
            answer.body_mut().read_json::<Value>().unwrap()
        };
        let clients: Vec<_> =
            (0..8).map(|_| url.clone()).map(|url| std::thread::spawn(move || ask(url))).collect();
        for client in clients {
            let ranked = client.join().unwrap();
            assert_eq!(ranked[0]["document"], "list.sort() orders it in place");
            let score = |at: usize| ranked[at]["score"].as_f64().unwrap();
            assert!(score(0) > 0.7 && score(1) < 0.2, "{ranked}");
        }
    }
}
