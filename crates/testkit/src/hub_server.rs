//! A fake Hugging Face hub on loopback: serves models, records requests, and misbehaves on demand.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

/// A model at one revision; the same id may have several.
#[derive(Clone, Debug)]
pub struct HubModel {
    /// `owner/name`.
    pub id: String,
    /// The branch or tag of the commit.
    pub revision: String,
    /// The commit.
    pub commit: String,
    /// The files at that commit.
    pub files: Vec<HubFile>,
}

/// A file of a model.
#[derive(Clone, Debug)]
pub struct HubFile {
    /// Its path in the model.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
    /// The SHA-256 of a large file, which is listed with it and redirected.
    pub sha256: Option<String>,
}

impl HubFile {
    /// The blob name in the cache: the SHA-256 of a large file, or a 40-digit git hash.
    pub fn blob(&self) -> String {
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.sha256
            .clone()
            .unwrap_or_else(|| format!("{:040x}", self.bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash)))
    }
}

/// Misbehaviour of the hub; none by default.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Behaviour {
    /// Requests without this token are answered 401.
    pub token: Option<String>,
    /// Every request is answered with this status.
    pub status: Option<u16>,
    /// The connection is dropped after this many bytes of a file.
    pub drop_after: Option<usize>,
    /// Number of drops left.
    pub drops: usize,
    /// A pause before every kilobyte of a file.
    pub pause: Duration,
    /// The last bytes of every file are missing, and its length excludes them.
    pub cut: usize,
    /// This many bytes follow the end of every file.
    pub surplus: usize,
    /// Files have no `Content-Length`: the end of the connection is the end of the file.
    pub no_lengths: bool,
    /// The bytes of files are changed; the length stays.
    pub garble: bool,
    /// `Range` is ignored: every answer is the whole file.
    pub no_ranges: bool,
    /// The listing has names only, as some mirrors' do.
    pub names_only: bool,
    /// Large files are redirected to this address; empty means this server.
    pub redirect: Option<String>,
}

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path and the query.
    pub path: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The header `Range`.
    pub range: Option<String>,
}

/// A fake hub on loopback, until it is dropped.
#[derive(Debug)]
pub struct HubServer {
    address: SocketAddr,
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    models: Vec<HubModel>,
    behaviour: Mutex<Behaviour>,
    requests: Mutex<Vec<HubRequest>>,
    /// Bytes of files that were sent.
    sent: AtomicU64,
    is_over: AtomicBool,
}

impl HubServer {
    /// Starts a hub with these models on a free port.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub fn start(models: Vec<HubModel>) -> HubServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let state = Arc::new(State {
            models,
            behaviour: Mutex::default(),
            requests: Mutex::default(),
            sent: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = thread::spawn({
            let state = Arc::clone(&state);
            move || accept(&listener, &state)
        });
        HubServer { address, state, accepting: Some(accepting) }
    }

    /// The address for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the behaviour from the next request on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut hold(&self.state.behaviour));
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<HubRequest> {
        hold(&self.state.requests).clone()
    }

    /// Bytes of files that were sent so far.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }

    /// Clears the recorded requests and the count of bytes.
    pub fn forget(&self) {
        hold(&self.state.requests).clear();
        self.state.sent.store(0, Ordering::SeqCst);
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let state = Arc::clone(state);
        thread::spawn(move || serve(&stream, &state));
    }
}

/// Answers one request and closes the connection.
fn serve(stream: &TcpStream, state: &State) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let Some(request) = read(stream)? else { return Ok(()) };
    hold(&state.requests).push(request.clone());
    let answer = state.answer(&request);
    write(stream, state, &request, &answer)?;
    stream.shutdown(Shutdown::Both)
}

fn read(stream: &TcpStream) -> io::Result<Option<HubRequest>> {
    let mut lines = BufReader::new(stream.take(64 << 10)).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let mut words = first.split(' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    let mut request = HubRequest { method: word(), path: word(), authorization: None, range: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            "range" => request.range = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Ok(Some(request))
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    is_file: bool,
}

impl Answer {
    fn new(status: u16, mut headers: Vec<(&'static str, String)>, body: Vec<u8>, is_file: bool) -> Answer {
        headers.push(("content-length", body.len().to_string()));
        Answer { status, headers, body, is_file }
    }

    fn status(status: u16) -> Answer {
        Answer::new(status, Vec::new(), Vec::new(), false)
    }

    fn hide_lengths(&mut self) {
        self.headers.retain(|(name, _)| *name != "content-length");
        for (_, value) in self.headers.iter_mut().filter(|(name, _)| *name == "content-range") {
            if let Some((range, _)) = value.split_once('/') {
                *value = format!("{range}/*");
            }
        }
    }
}

impl State {
    fn answer(&self, request: &HubRequest) -> Answer {
        let behaviour = hold(&self.behaviour).clone();
        if let Some(status) = behaviour.status {
            return Answer::status(status);
        }
        let path = request.path.split('?').next().unwrap_or_default();
        // Redirect targets need no token, like signed addresses.
        if let Some(path) = path.strip_prefix("/moved/") {
            return self.file(path, None, request, &behaviour);
        }
        let expected = behaviour.token.as_ref().map(|token| format!("Bearer {token}"));
        if expected.is_some() && request.authorization != expected {
            return Answer::status(401);
        }
        match path.strip_prefix("/api/models/") {
            Some(path) => self.list(path, behaviour.names_only),
            None => {
                self.file(path.trim_start_matches('/'), behaviour.redirect.as_deref(), request, &behaviour)
            }
        }
    }

    fn find(&self, id: &str, revision: &str) -> Option<&HubModel> {
        let revision = decode(revision);
        self.models
            .iter()
            .find(|model| model.id == id && (model.revision == revision || model.commit == revision))
    }

    fn list(&self, path: &str, names_only: bool) -> Answer {
        let model = path.split_once("/revision/").and_then(|(id, revision)| self.find(id, revision));
        let Some(model) = model else { return Answer::status(404) };
        let siblings: Vec<Value> = model.files.iter().map(|file| sibling(file, names_only)).collect();
        let json = json!({ "id": model.id, "sha": model.commit, "private": false, "siblings": siblings });
        let headers = vec![("content-type", "application/json; charset=utf-8".to_owned())];
        Answer::new(200, headers, json.to_string().into_bytes(), false)
    }

    fn file(
        &self,
        path: &str,
        redirect: Option<&str>,
        request: &HubRequest,
        behaviour: &Behaviour,
    ) -> Answer {
        let found = path.split_once("/resolve/").and_then(|(id, rest)| {
            let (revision, name) = rest.split_once('/')?;
            let model = self.find(id, revision)?;
            let name = decode(name);
            Some((model, model.files.iter().find(|file| file.name == name)?))
        });
        let Some((model, file)) = found else { return Answer::status(404) };
        let quoted = |text: &str| format!("\"{text}\"");
        let mut headers =
            vec![("x-repo-commit", model.commit.clone()), ("accept-ranges", "bytes".to_owned())];
        if file.sha256.is_some() {
            headers.push(("x-linked-etag", quoted(&file.blob())));
            headers.push(("x-linked-size", file.bytes.len().to_string()));
            if let Some(base) = redirect {
                headers.push(("etag", quoted("of-the-redirect")));
                headers.push(("location", format!("{base}/moved/{path}")));
                return Answer::new(302, headers, Vec::new(), false);
            }
        }
        headers.push(("etag", quoted(&file.blob())));
        let mut bytes = file.bytes.clone();
        bytes.truncate(bytes.len().saturating_sub(behaviour.cut));
        bytes.resize(bytes.len() + behaviour.surplus, 0);
        if behaviour.garble {
            for byte in &mut bytes {
                *byte ^= 1;
            }
        }
        let range = request.range.as_deref().filter(|_| !behaviour.no_ranges);
        let mut answer = ranged(bytes, range, headers);
        if behaviour.no_lengths {
            answer.hide_lengths();
        }
        answer
    }
}

fn sibling(file: &HubFile, names_only: bool) -> Value {
    let size = file.bytes.len();
    let mut value = json!({ "rfilename": file.name });
    if !names_only {
        value["size"] = size.into();
        value["blobId"] = HubFile { sha256: None, ..file.clone() }.blob().into();
        if let Some(sha256) = &file.sha256 {
            value["lfs"] = json!({ "sha256": sha256, "size": size, "pointerSize": 134 });
        }
    }
    value
}

fn ranged(bytes: Vec<u8>, range: Option<&str>, mut headers: Vec<(&'static str, String)>) -> Answer {
    let total = bytes.len();
    let parsed = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')).map(|(start, end)| {
        let end = end.parse().map_or(total, |end: usize| end.saturating_add(1).min(total));
        (start.parse().unwrap_or(0), end)
    });
    let Some((start, end)) = parsed else {
        return Answer::new(200, headers, bytes, true);
    };
    if start >= end {
        headers.push(("content-range", format!("bytes */{total}")));
        return Answer::new(416, headers, Vec::new(), true);
    }
    headers.push(("content-range", format!("bytes {start}-{}/{total}", end - 1)));
    Answer::new(206, headers, bytes[start..end].to_vec(), true)
}

fn write(mut stream: &TcpStream, state: &State, request: &HubRequest, answer: &Answer) -> io::Result<()> {
    use std::fmt::Write as _;

    let length = answer.body.len();
    let mut head = format!("HTTP/1.1 {} -\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let (end, pause) = if answer.is_file { state.faults(length) } else { (length, Duration::ZERO) };
    for chunk in answer.body[..end].chunks(1 << 10) {
        thread::sleep(pause);
        if answer.is_file {
            // Counted first: the client may be done before this thread goes on.
            state.sent.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
        stream.write_all(chunk)?;
    }
    stream.flush()
}

impl State {
    /// Where the body of a file of this length ends, and the pause before each piece of it.
    fn faults(&self, length: usize) -> (usize, Duration) {
        let mut behaviour = hold(&self.behaviour);
        match behaviour.drop_after {
            Some(after) if behaviour.drops > 0 && after < length => {
                behaviour.drops -= 1;
                (after, behaviour.pause)
            }
            Some(_) | None => (length, behaviour.pause),
        }
    }
}

/// Decodes percent-encoding.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code =
            (first == b'%').then(|| tail.get(..2)).flatten().and_then(|code| std::str::from_utf8(code).ok());
        if let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
