//! The log: a `tracing` subscriber that writes one line per event to standard error, for people or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tracing::dispatcher::{Dispatch, with_default};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// Maximum number of lines that wait to be written.
const MAX_PENDING_LINES: usize = 4096;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `2026-03-01T12:00:00.000Z info request route=/embed status=200`.
    #[default]
    Human,
    /// One object per line, with `time`, `level` and `event`.
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
    /// A line of level info, without line ending.
    pub fn line(self, event: &str, fields: &[(&str, Value)]) -> String {
        self.written(SystemTime::now(), Level::INFO, event, fields)
    }

    /// A line of level error, without line ending.
    pub fn error(self, event: &str, fields: &[(&str, Value)]) -> String {
        self.written(SystemTime::now(), Level::ERROR, event, fields)
    }

    fn written(self, time: SystemTime, level: Level, event: &str, fields: &[(&str, Value)]) -> String {
        let time = humantime::format_rfc3339_millis(time).to_string();
        let level = level.as_str().to_ascii_lowercase();
        match self {
            LogFormat::Json => {
                let mut line = Map::new();
                for (name, text) in [("time", time.as_str()), ("level", level.as_str()), ("event", event)] {
                    line.insert(name.to_owned(), text.into());
                }
                line.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
                Value::Object(line).to_string()
            }
            LogFormat::Human => {
                let mut line = format!("{time} {level} {event}");
                for (name, value) in fields {
                    let _ = match value {
                        // Text with spaces or control characters is quoted, so that a line stays one.
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

/// Writes an event as one line.
impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let (time, level, mut fields) = (SystemTime::now(), event.metadata().level(), Fields::default());
        event.record(&mut fields);
        writeln!(writer, "{}", self.written(time, *level, &fields.message, &fields.others))
    }
}

/// The message and the other fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.others.push((name, value.into())),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), value.into()));
    }
}

#[derive(Debug)]
enum Message {
    Lines(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Sends lines to the thread that writes them. Lines that do not fit in its channel are dropped and counted, so that
/// a full pipe blocks no request.
#[derive(Clone, Debug)]
struct LineWriter {
    format: LogFormat,
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl LineWriter {
    fn start(format: LogFormat) -> LineWriter {
        let (messages, received) = mpsc::sync_channel(MAX_PENDING_LINES);
        // Without a thread nothing is received, and all lines are dropped.
        let _ = thread::Builder::new().name("sconce-log".to_owned()).spawn(move || {
            for message in received {
                // A closed standard error ends nothing.
                let _ = match message {
                    Message::Lines(lines) => io::stderr().lock().write_all(&lines).is_ok(),
                    Message::Flush(done) => done.send(()).is_ok(),
                };
            }
        });
        LineWriter { format, messages, dropped: Arc::default() }
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let mut lines = Vec::new();
        if dropped > 0 {
            writeln!(lines, "{}", self.format.line("lines were lost", &[("count", dropped.into())]))?;
        }
        lines.extend(line);
        if self.messages.try_send(Message::Lines(lines)).is_err() {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of one server. Without a format nothing is written.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    subscriber: Dispatch,
    writer: Option<LineWriter>,
}

impl Log {
    pub(crate) fn start(format: Option<LogFormat>) -> Log {
        match format {
            Some(format) => Log::to(LineWriter::start(format)),
            None => Log { subscriber: Dispatch::none(), writer: None },
        }
    }

    fn to(writer: LineWriter) -> Log {
        let lines = fmt::layer().event_format(writer.format).with_writer({
            let writer = writer.clone();
            move || writer.clone()
        });
        // Spans stay with the subscriber of the application.
        let events = tracing_subscriber::registry().with(filter_fn(|metadata| !metadata.is_span()));
        Log { subscriber: Dispatch::new(events.with(lines)), writer: Some(writer) }
    }

    /// Writes the events that `emit` emits.
    pub(crate) fn scope(&self, emit: impl FnOnce()) {
        with_default(&self.subscriber, emit);
    }

    /// Waits until pending lines are written.
    pub(crate) fn flush(&self, limit: Duration) {
        let Some(writer) = &self.writer else { return };
        let (done, flushed) = mpsc::sync_channel(1);
        if writer.messages.try_send(Message::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(limit);
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
        let written = |format: LogFormat| format.written(time, Level::WARN, "request", &fields);
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

    #[test]
    fn events_are_lines_with_fields_in_order_and_dropped_lines_are_counted() {
        let (messages, received) = mpsc::sync_channel(1);
        let log = Log::to(LineWriter { format: LogFormat::Json, messages, dropped: Arc::default() });
        let next = || match received.try_recv() {
            Ok(Message::Lines(lines)) => String::from_utf8(lines).expect("text"),
            other => panic!("{other:?}"),
        };
        let (route, code, model) = ("/embed".to_owned(), None::<&str>, Some("a b"));
        let emit = || tracing::warn!(route, ms = 2.0, code, model, aborted = true, why = %"c", "request");
        log.scope(emit);
        log.scope(emit);
        let line = next();
        assert_eq!(
            line.split_once(',').expect("a time").1,
            r#""level":"warn","event":"request","route":"/embed","ms":2.0,"model":"a b","aborted":true,"why":"c"}
"#
        );
        log.scope(emit);
        let lines = next();
        assert!(lines.lines().next().is_some_and(|line| line.ends_with(r#""lines were lost","count":1}"#)));
        assert!(lines.ends_with(&line[line.find(',').expect("a time")..]), "{lines}");
    }
}
