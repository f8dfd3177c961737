//! A minimal HTTP/1.1 client that sends exactly the bytes of a test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Asserts the status and returns the JSON body.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

/// A keep-alive connection.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_mins(4)))?;
        stream.set_write_timeout(Some(Duration::from_mins(4)))?;
        stream.set_nodelay(true)?;
        Ok(Connection { reader: BufReader::new(stream) })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Reads the next response.
    pub(crate) fn read(&mut self) -> io::Result<Answer> {
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| broken(&line))?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length: usize = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
            while let Some(chunk) = self.chunk()? {
                body.extend(chunk);
            }
        }
        Ok(Answer { status, headers, body })
    }

    /// Reads the next line.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line)
    }

    /// Reads the next chunk of a chunked body; none at its end.
    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let broken = |line: &str| io::Error::new(io::ErrorKind::InvalidData, line.to_owned());
        let line = self.line()?;
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(|_| broken(&line))?;
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk)?;
        chunk.truncate(length);
        Ok((length > 0).then_some(chunk))
    }

    pub(crate) fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.write(request)?;
        self.read()
    }
}

/// The bytes of a request. GET has no body.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let first = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    let mut lines: Vec<String> = vec![first];
    lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
    if method == "GET" {
        return [lines.concat().as_bytes(), b"\r\n"].concat();
    }
    lines.push(format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    [lines.concat().as_bytes(), b"\r\n", body].concat()
}

/// Sends one request on a new connection.
pub(crate) fn send(address: SocketAddr, bytes: &[u8]) -> io::Result<Answer> {
    Connection::open(address)?.ask(bytes)
}

pub(crate) fn post_with(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let bytes = request("POST", path, headers, body.to_string().as_bytes());
    send(address, &bytes).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    post_with(address, path, &[], body)
}

pub(crate) fn get_with(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(address, &request("GET", path, headers, b"")).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    get_with(address, path, &[])
}

/// The sum of a metric over all labels.
pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = get(address, "/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with(name));
    let of_it = lines.filter(|line| line[name.len()..].starts_with([' ', '{']));
    of_it.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
