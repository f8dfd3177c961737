//! Texts from arguments, files or standard input, with the fields that came along.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// A text and the fields of its line, the text among them.
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
        match fields.get("text").and_then(Value::as_str) {
            Some(text) => Ok(Record { text: text.to_owned(), fields }),
            None => bail!("no field `text` that is a string"),
        }
    }
}

/// Where texts come from.
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
    /// Standard input: JSON if its first line opens an object.
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
                eprintln!("note: texts are read from standard input, one a line");
            }
            let lines = Box::new(BufReader::new(io::stdin()).lines());
            return Ok(Input { lines, name: "standard input".to_owned(), kind: Kind::Unknown, count: None });
        }
        let open = || File::open(path).with_context(|| format!("`{name}` can't be read"));
        let file = open()?;
        // A pipe can be read only once.
        let count =
            if file.metadata()?.is_file() { Some(BufReader::new(open()?).lines().count()) } else { None };
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl" | "ndjson") => Kind::Json,
            Some(_) | None => Kind::Plain,
        };
        Ok(Input { lines: Box::new(BufReader::new(file).lines()), name: format!("`{name}`"), kind, count })
    }

    /// How many texts there are, where that is known beforehand.
    pub(crate) fn count(&self) -> Option<usize> {
        self.count
    }

    /// All records at once.
    pub(crate) fn all(self) -> anyhow::Result<Vec<Record>> {
        let chunks: Vec<Vec<Record>> = self.chunks(usize::MAX).collect::<anyhow::Result<_>>()?;
        Ok(chunks.into_iter().flatten().collect())
    }

    /// The records, `size` at a time.
    pub(crate) fn chunks(self, size: usize) -> impl Iterator<Item = anyhow::Result<Vec<Record>>> {
        let Input { lines, name, mut kind, .. } = self;
        let records = lines.enumerate().filter_map(move |(number, line)| {
            let record = line.map_err(anyhow::Error::from).and_then(|line| {
                if kind == Kind::Unknown {
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
