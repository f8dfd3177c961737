//! Reads texts from arguments, files or standard input, with the other fields of their lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// A text and all fields of its line, including the text.
pub(crate) struct Record {
    pub(crate) text: String,
    pub(crate) fields: Map<String, Value>,
}

impl Record {
    fn plain(text: String) -> Record {
        let fields = Map::from_iter([("text".to_owned(), Value::String(text.clone()))]);
        Record { text, fields }
    }

    fn from_json(line: &str) -> anyhow::Result<Record> {
        let fields: Map<String, Value> = serde_json::from_str(line).context("not a JSON object")?;
        let Some(text) = fields.get("text").and_then(Value::as_str) else {
            let found: Vec<String> = fields.keys().map(|name| format!("`{name}`")).collect();
            bail!("missing string field `text`; it has {}", found.join(", "));
        };
        Ok(Record { text: text.to_owned(), fields })
    }
}

/// A source of texts.
pub(crate) struct Input {
    lines: Box<dyn Iterator<Item = io::Result<String>>>,
    name: String,
    kind: Kind,
    count: Option<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Json,
    /// JSON lines if the first line starts with `{`.
    Unknown,
}

impl Input {
    pub(crate) fn texts(texts: Vec<String>) -> Input {
        let count = Some(texts.len());
        Input {
            lines: Box::new(texts.into_iter().map(Ok)),
            name: "arguments".to_owned(),
            kind: Kind::Plain,
            count,
        }
    }

    pub(crate) fn open(path: &Path) -> anyhow::Result<Input> {
        let name = path.display().to_string();
        if path == Path::new("-") {
            if io::stdin().is_terminal() {
                eprintln!("note: reading texts from standard input, one per line");
            }
            let lines = Box::new(BufReader::new(io::stdin()).lines());
            return Ok(Input { lines, name: "standard input".to_owned(), kind: Kind::Unknown, count: None });
        }
        let open = || File::open(path).with_context(|| format!("could not read: `{name}`"));
        let file = open()?;
        // A pipe can be read only once, so its lines are not counted.
        let count =
            if file.metadata()?.is_file() { Some(BufReader::new(open()?).lines().count()) } else { None };
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl" | "ndjson") => Kind::Json,
            Some("json") => Kind::Unknown,
            Some(format @ ("csv" | "tsv" | "parquet")) => bail!(
                "could not read: `{name}`: `{format}` is not supported\n\
                 hint: write JSON lines with a field `text`, or one text per line"
            ),
            Some(_) | None => Kind::Plain,
        };
        Ok(Input { lines: Box::new(BufReader::new(file).lines()), name: format!("`{name}`"), kind, count })
    }

    /// Number of texts, if known in advance.
    pub(crate) fn count(&self) -> Option<usize> {
        self.count
    }

    /// Reads all records.
    pub(crate) fn all(self) -> anyhow::Result<Vec<Record>> {
        let chunks: Vec<Vec<Record>> = self.chunks(usize::MAX).collect::<anyhow::Result<_>>()?;
        Ok(chunks.into_iter().flatten().collect())
    }

    /// Reads the records in chunks of `size`.
    pub(crate) fn chunks(self, size: usize) -> impl Iterator<Item = anyhow::Result<Vec<Record>>> {
        let Input { lines, name, mut kind, .. } = self;
        let records = lines.enumerate().filter_map(move |(number, line)| {
            let record = line.map_err(anyhow::Error::from).and_then(|line| {
                if kind == Kind::Unknown {
                    // Standard input may be plain text.
                    if name.ends_with(".json`") && line.trim_start().starts_with('[') {
                        bail!(
                            "a JSON array, not one object per line\n\
                             hint: `jq -c '.[]' FILE.json > FILE.jsonl` writes JSON lines"
                        );
                    }
                    kind = if line.trim_start().starts_with('{') { Kind::Json } else { Kind::Plain };
                }
                match kind {
                    Kind::Json if line.trim().is_empty() => Ok(None),
                    Kind::Json => Record::from_json(&line).map(Some),
                    Kind::Plain | Kind::Unknown => Ok(Some(Record::plain(line))),
                }
            });
            record.with_context(|| format!("{name} at line {}", number + 1)).transpose()
        });
        let mut records = records.fuse();
        std::iter::from_fn(move || {
            let chunk: anyhow::Result<Vec<Record>> = records.by_ref().take(size).collect();
            match chunk {
                Ok(chunk) if chunk.is_empty() => None,
                chunk => Some(chunk),
            }
        })
    }
}
