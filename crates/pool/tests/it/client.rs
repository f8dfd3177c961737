//! An HTTP client of tests.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// An HTTP client.
#[derive(Clone)]
pub(crate) struct Client {
    client: HyperClient<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as it should.
    pub(crate) complete: bool,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    /// Whether the request succeeded.
    pub(crate) fn is_ok(&self) -> bool {
        self.status == 200 && self.complete
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Client {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Client { client: HyperClient::builder(TokioExecutor::new()).build(connector), address }
    }

    /// Sends a request and returns its answer, whose body may still arrive.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> hyper::Response<Incoming> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        self.client.request(request).await.unwrap()
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let start = Instant::now();
        let (parts, mut incoming) = self.send(method, path, headers, body).await.into_parts();
        let (mut body, mut complete) = (Vec::new(), true);
        while let Some(frame) = incoming.frame().await {
            let Ok(frame) = frame else {
                complete = false;
                break;
            };
            body.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            complete,
            took: start.elapsed(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.request("POST", path, headers, body).await
    }

    /// Embeds one text with the model of the tests.
    pub(crate) async fn embed(&self, headers: &[(&str, &str)]) -> Answer {
        self.post("/v1/embeddings", headers, r#"{"model": "m", "input": "On a sconce."}"#).await
    }
}
