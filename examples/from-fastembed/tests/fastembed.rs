//! The example computes what fastembed computes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sconce::{Band, Model, cosine};
use serde_json::Value;

/// Output of the program with fastembed 7.5.0, on an ONNX graph of the same weights (`scripts/parts minilm-graphs`).
const PRINTED: &str = include_str!("fastembed.txt");

/// Vectors of fastembed, from the same graph. The last text has more than 256 tokens.
const VECTORS: &str = include_str!("fastembed.jsonl");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> String {
    let folder = root().join("target/parts/minilm-trio");
    assert!(folder.is_dir(), "no MiniLM: run `scripts/parts minilm-trio`");
    folder.display().to_string()
}

#[test]
fn the_page_shows_the_program_and_its_output() {
    let page = fs::read_to_string(root().join("docs/guides/from-fastembed.md")).expect("the page is there");
    let program = include_str!("../src/main.rs");
    let code = &program[program.find("\nuse ").expect("the program imports names") + 1..];
    assert!(page.contains(&format!("```rust,no_run\n{code}```\n")), "the page has another program");
    assert!(page.contains(&format!("\n{PRINTED}```\n")), "the page has another output");
}

/// They use all cores: the runner runs one at a time, by this name.
mod minilm {
    use super::*;

    #[test]
    fn the_program_prints_what_fastembed_prints() {
        let output = Command::new(env!("CARGO_BIN_EXE_from-fastembed")).arg(folder()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), PRINTED);
    }

    #[test]
    fn vectors_are_those_of_fastembed() {
        // fastembed truncates at 512 tokens, the model's files say 256.
        let model = Model::builder(&folder()).band(Band::Exact).max_length(512).open().unwrap();
        let lines: Vec<Value> = VECTORS.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let texts: Vec<&str> = lines.iter().map(|line| line["text"].as_str().unwrap()).collect();
        let embeddings = model.embed(&texts).unwrap();
        assert_eq!(embeddings.len(), 5);
        for (line, embedding) in lines.iter().zip(&embeddings) {
            let values = line["embedding"].as_array().unwrap().iter();
            let expected: Vec<f32> = values.map(|value| value.as_f64().unwrap() as f32).collect();
            assert_eq!(embedding.len(), expected.len());
            let similarity = cosine(embedding, &expected);
            assert!(similarity > 0.99999, "{similarity}: {}", line["text"]);
        }
    }
}
