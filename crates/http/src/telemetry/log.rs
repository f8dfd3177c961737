//! The log: a line for each event on standard error, for people or as JSON, written by a thread of its own.

use std::fmt::Write as _;
use std::io::Write as _;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

/// Lines that may wait; more are let go and counted, so that a full pipe stops no request.
const WAITING: usize = 4096;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `2026-03-01T12:00:00.000Z info request route=/embed status=200`.
    #[default]
    Human,
    /// An object a line, with `time`, `level` and `event`.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "human" => Ok(LogFormat::Human),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("a log is `human` or `json`, not: `{text}`")),
        }
    }
}

impl LogFormat {
    /// A line about something that is as it should be, without its end.
    pub fn line(self, event: &str, fields: &[(&str, Value)]) -> String {
        self.written(SystemTime::now(), Level::Info, event, fields)
    }

    /// A line about something that went wrong, without its end.
    pub fn error(self, event: &str, fields: &[(&str, Value)]) -> String {
        self.written(SystemTime::now(), Level::Error, event, fields)
    }

    fn written(self, time: SystemTime, level: Level, event: &str, fields: &[(&str, Value)]) -> String {
        let time = humantime::format_rfc3339_millis(time).to_string();
        match self {
            LogFormat::Json => {
                let mut line = Map::new();
                for (name, text) in [("time", time.as_str()), ("level", level.name()), ("event", event)] {
                    line.insert(name.to_owned(), text.into());
                }
                line.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
                Value::Object(line).to_string()
            }
            LogFormat::Human => {
                let mut line = format!("{time} {} {event}", level.name());
                for (name, value) in fields {
                    let _ = match value {
                        // What holds a space or ends a line is quoted, so that a line stays one.
                        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                            write!(line, " {name}={text}")
                        }
                        Value::String(_)
                        | Value::Null
                        | Value::Bool(_)
                        | Value::Number(_)
                        | Value::Array(_)
                        | Value::Object(_) => write!(line, " {name}={value}"),
                    };
                }
                line
            }
        }
    }
}

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

enum Message {
    Line(String),
    Flush(SyncSender<()>),
}

/// The log of one server; without a format nothing is written.
#[derive(Clone)]
pub(crate) struct Log {
    writer: Option<(LogFormat, SyncSender<Message>)>,
    lost: Arc<AtomicU64>,
}

impl Log {
    pub(crate) fn start(format: Option<LogFormat>) -> Log {
        let writer = format.map(|format| {
            let (messages, received) = mpsc::sync_channel(WAITING);
            // Without a thread nothing is received, and all lines are let go.
            let _ = thread::Builder::new().name("sconce-log".to_owned()).spawn(move || {
                for message in received {
                    match message {
                        Message::Line(line) => {
                            let _ = writeln!(std::io::stderr().lock(), "{line}");
                        }
                        Message::Flush(done) => {
                            let _ = done.send(());
                        }
                    }
                }
            });
            (format, messages)
        });
        Log { writer, lost: Arc::default() }
    }

    pub(crate) fn write(&self, level: Level, event: &str, fields: &[(&str, Value)]) {
        let Some((format, messages)) = &self.writer else { return };
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut line = format.written(SystemTime::now(), level, event, fields);
        if lost > 0 {
            let before = format.line("lines were lost", &[("count", lost.into())]);
            line = format!("{before}\n{line}");
        }
        if messages.try_send(Message::Line(line)).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Waits until what was written before is out.
    pub(crate) fn flush(&self, limit: Duration) {
        let Some((_, messages)) = &self.writer else { return };
        let (done, waits) = mpsc::sync_channel(1);
        if messages.try_send(Message::Flush(done)).is_ok() {
            let _ = waits.recv_timeout(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_stays_a_line_in_both_forms() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_772_366_400_250);
        let fields = [("route", json!("/embed")), ("ms", json!(1.5)), ("why", json!("a \"b\"\nc"))];
        let written = |format: LogFormat| format.written(time, Level::Warn, "request", &fields);
        assert_eq!(
            written(LogFormat::Human),
            r#"2026-03-01T12:00:00.250Z warn request route=/embed ms=1.5 why="a \"b\"\nc""#
        );
        assert_eq!(
            written(LogFormat::Json),
            r#"{"time":"2026-03-01T12:00:00.250Z","level":"warn","event":"request","route":"/embed","ms":1.5,"why":"a \"b\"\nc"}"#
        );
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
