//! A fake embedding server on loopback with the TEI and OpenAI APIs and injected failures.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Behavior of the fake server.
#[derive(Clone)]
pub(crate) enum Manner {
    /// These vectors by text, each scaled differently; other texts get an orthogonal vector.
    Honest(HashMap<String, Vec<f64>>),
    /// Vectors with this number of dimensions.
    Wide(usize),
    /// This error status and body, after `after` correct responses.
    Refusing { after: usize, status: u16, words: &'static str },
    /// This body.
    Nonsense(&'static str),
    /// No response.
    Hanging,
}

/// A request: path, `Authorization` header, body.
pub(crate) type Request = (String, Option<String>, Value);

pub(crate) struct EmbeddingServer {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl EmbeddingServer {
    /// Serves on a free port until the test process ends.
    pub(crate) fn start(manner: Manner) -> EmbeddingServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Ignore clients that disconnect.
                let _ = answer(stream, &manner, &seen);
            }
        });
        EmbeddingServer { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no test panics with it").clone()
    }
}

fn answer(mut stream: TcpStream, manner: &Manner, seen: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length, mut key) = (String::new(), 0, None);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "authorization" => key = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let before = {
        let mut seen = seen.lock().expect("no test panics with it");
        seen.push((path.clone(), key, body.clone()));
        seen.len() - 1
    };
    let inputs = if path == "/embed" { &body["inputs"] } else { &body["input"] };
    let texts: Vec<&str> = inputs.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (status, words) = match manner {
        Manner::Honest(vectors) => {
            let elsewhere = vec![1.0; vectors.values().next().map_or(1, Vec::len)];
            let all = texts.iter().map(|text| vectors.get(*text).unwrap_or(&elsewhere).clone());
            (200, shaped(&path, all.collect()))
        }
        Manner::Wide(width) => (200, shaped(&path, vec![vec![0.5; *width]; texts.len()])),
        Manner::Refusing { after, .. } if before < *after => {
            (200, shaped(&path, vec![vec![0.5; 32]; texts.len()]))
        }
        Manner::Refusing { status, words, .. } => (*status, (*words).to_owned()),
        Manner::Nonsense(words) => (200, (*words).to_owned()),
        Manner::Hanging => {
            thread::sleep(Duration::from_secs(30));
            return Ok(());
        }
    };
    let (length, location) =
        (words.len(), if status == 302 { "Location: http://127.0.0.1:1/\r\n" } else { "" });
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\n{location}Connection: close\r\n\r\n{words}"
    )
}

fn shaped(path: &str, vectors: Vec<Vec<f64>>) -> String {
    let value = if path == "/embed" {
        json!(vectors)
    } else {
        let item = |(index, vector): (usize, Vec<f64>)| json!({ "index": index, "embedding": vector });
        // The order of `data` is not guaranteed.
        json!({ "data": vectors.into_iter().enumerate().map(item).rev().collect::<Vec<_>>() })
    };
    value.to_string()
}
