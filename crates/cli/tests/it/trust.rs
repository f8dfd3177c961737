//! TLS servers with a private certificate authority: trusted with `SSL_CERT_FILE`, rejected without.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sconce_testkit::hub_server::HubServer;

use crate::harness::Sandbox;
use crate::hub::hub_model;
use crate::serve::terminate;

/// A private certificate authority, and its certificate for `localhost`.
struct Authority {
    /// The CA certificate in PEM format.
    root: String,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Authority {
    fn new() -> Authority {
        let own = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&own).expect("a certificate").pem();
        let (issuer, key) = (Issuer::new(params, own), KeyPair::generate().expect("a key"));
        let leaf = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = leaf.signed_by(&key, &issuer).expect("a certificate").der().clone();
        Authority { root, certificate, key }
    }

    /// Starts a TLS proxy to `upstream` and returns its URL.
    fn front(&self, upstream: SocketAddr) -> String {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .expect("a certificate and its key");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&config);
                thread::spawn(move || pass(stream, config, upstream));
            }
        });
        format!("https://localhost:{}", address.port())
    }
}

/// Proxies one request. A failed handshake ends it.
fn pass(stream: TcpStream, config: Arc<ServerConfig>, upstream: SocketAddr) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut client = BufReader::new(StreamOwned::new(connection, stream));
    let (head, body) = request(&mut client)?;
    // The response ends with the connection.
    let head = head.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let mut server = TcpStream::connect(upstream)?;
    server.write_all(&[head.as_bytes(), &body].concat())?;
    let client = client.get_mut();
    io::copy(&mut server, client)?;
    client.conn.send_close_notify();
    client.flush()
}

/// The head and the body of a request.
fn request(client: &mut impl BufRead) -> io::Result<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let from = head.len();
        if client.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[from..].trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body)?;
    Ok((head, body))
}

/// A server that accepts every request, and their request lines.
fn sink() -> (SocketAddr, Receiver<String>) {
    listen("HTTP/1.1 200 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}".to_owned())
}

/// A server with a fixed response.
fn listen(answer: String) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (heard, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Ok((lines, _)) = request(&mut BufReader::new(&stream)) else { continue };
            let _ = (&stream).write_all(answer.as_bytes());
            let _ = heard.send(lines.lines().next().unwrap_or_default().to_owned());
        }
    });
    (address, requests)
}

/// Starts a server and passes its log lines to `line` until it returns true.
fn serve(
    sandbox: &Sandbox,
    arguments: &[&str],
    root: Option<&str>,
    mut line: impl FnMut(&str) -> bool,
) -> Child {
    let fixed = ["serve", "tiny-bert", "--port", "0", "--engine", "candle", "--dtype", "f32"];
    let mut command = sandbox.command(&[&fixed, arguments].concat());
    command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR").stdin(Stdio::null());
    command.envs(root.map(|root| ("SSL_CERT_FILE", root)));
    let mut child = command.spawn().expect("it starts");
    let mut words = BufReader::new(child.stderr.take().expect("its words"));
    let mut text = String::new();
    while !line(&text) {
        text.clear();
        assert!(words.read_line(&mut text).expect("words") > 0, "it ended");
    }
    thread::spawn(move || io::copy(&mut words, &mut io::sink()));
    child
}

fn end(mut child: Child) {
    terminate(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn top_asks_a_server_whose_authority_is_named() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let root = sandbox.with("root.pem", &authority.root);
    let mut address = None;
    let child = serve(&sandbox, &["--offline"], None, |line| {
        address = line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok());
        address.is_some()
    });
    let url = authority.front(address.expect("an address"));
    let top = |root: Option<&str>| {
        let mut command = sandbox.command(&["top", &url, "--once", "--interval", "0.1"]);
        command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR").stdin(Stdio::null());
        command.envs(root.map(|root| ("SSL_CERT_FILE", root))).output().expect("it runs")
    };
    let seen = top(Some(&root));
    assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
    assert!(String::from_utf8_lossy(&seen.stdout).contains("tiny-bert"));
    for other in [None, Some("/no/such/file")] {
        let refused = top(other);
        assert_eq!(refused.status.code(), Some(2), "{other:?}");
        let words = String::from_utf8_lossy(&refused.stderr).to_lowercase();
        assert!(words.contains("certificate"), "{other:?}: {words}");
    }
    end(child);
}

#[test]
fn callbacks_go_to_a_manager_whose_authority_is_named() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let root = sandbox.with("root.pem", &authority.root);
    let (address, requests) = sink();
    let url = format!("{}/workers", authority.front(address));
    let arguments = ["--offline", "--callback-url", &url];
    let child = serve(&sandbox, &arguments, Some(&root), |line| line.contains("listening"));
    assert_eq!(requests.recv_timeout(Duration::from_mins(2)).as_deref(), Ok("POST /workers HTTP/1.1"));
    end(child);
    while requests.try_recv().is_ok() {}
    let child = serve(&sandbox, &arguments, None, |line| line.contains("callback failed"));
    assert!(requests.try_recv().is_err(), "nothing is sent to a server that is not trusted");
    end(child);
}

#[test]
fn traces_go_to_a_collector_whose_authority_is_named() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let root = sandbox.with("root.pem", &authority.root);
    let (address, requests) = sink();
    let url = authority.front(address);
    let arguments = ["--otlp-endpoint", &url];
    let mut own: Option<SocketAddr> = None;
    let mut listening = |line: &str| {
        own =
            own.or(line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok()));
        own.is_some()
    };
    let child = serve(&sandbox, &arguments, Some(&root), &mut listening);
    crate::serve::body(own.expect("an address"), "/v1/models");
    assert_eq!(requests.recv_timeout(Duration::from_mins(2)).as_deref(), Ok("POST /v1/traces HTTP/1.1"));
    end(child);
}

#[test]
fn the_hub_is_asked_where_its_authority_is_named() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let root = sandbox.with("root.pem", &authority.root);
    let hub = HubServer::start(vec![hub_model("owner/model", "tiny-bert")]);
    let address = hub.endpoint().trim_start_matches("http://").parse().expect("an address");
    let url = authority.front(address);
    let inspect = |root: Option<&str>| {
        let mut command = sandbox.command(&["inspect", "owner/model"]);
        command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR").env("HF_ENDPOINT", &url);
        command.envs(root.map(|root| ("SSL_CERT_FILE", root))).stdin(Stdio::null()).output().expect("it runs")
    };
    let refused = inspect(None);
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr).to_lowercase();
    assert!(words.contains("certificate"), "{words}");
    assert_eq!(hub.requests(), []);
    let seen = inspect(Some(&root));
    assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
}

#[test]
fn callbacks_and_traces_follow_no_redirect() {
    let sandbox = Sandbox::new();
    let (elsewhere, strangers) = sink();
    let head = format!("HTTP/1.1 307 x\r\nlocation: http://{elsewhere}/\r\n");
    let (address, requests) = listen(format!("{head}content-length: 0\r\nconnection: close\r\n\r\n"));
    let (callback, collector) = (format!("http://{address}/workers"), format!("http://{address}"));
    let mut own: Option<SocketAddr> = None;
    let child =
        serve(&sandbox, &["--callback-url", &callback, "--otlp-endpoint", &collector], None, |line| {
            own = own.or(line
                .trim()
                .strip_prefix("listening on http://")
                .and_then(|address| address.parse().ok()));
            own.is_some()
        });
    crate::serve::body(own.expect("an address"), "/v1/models");
    let mut wanted = vec!["POST /workers HTTP/1.1", "POST /v1/traces HTTP/1.1"];
    while !wanted.is_empty() {
        let request = requests.recv_timeout(Duration::from_mins(2)).expect("both are sent");
        wanted.retain(|line| *line != request);
    }
    // Shutdown waits for both.
    end(child);
    assert!(strangers.try_recv().is_err(), "a redirect was followed");
}
