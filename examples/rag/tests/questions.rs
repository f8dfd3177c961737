//! The example over the repository's own docs, with real models from `scripts/parts`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Questions of 20 whose page must be among the sources. Changed pages move it by one or two; before a release, 18 are
/// required (`SCONCE_RAG_REQUIRED`).
const REQUIRED: usize = 16;

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the example in `folder` and returns its standard output and standard error.
fn rag(folder: &Path, arguments: &[&str]) -> (String, String) {
    let minilm = root().join("target/parts/minilm");
    assert!(minilm.is_dir(), "no MiniLM: run `scripts/parts minilm smollm2`");
    let output = Command::new(env!("CARGO_BIN_EXE_rag"))
        .current_dir(folder)
        .args(["--embedder", minilm.to_str().unwrap()])
        .args(arguments)
        .output()
        .expect("the example runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{error}");
    (out, error)
}

/// They use all cores: the runner runs one at a time, by this name.
mod minilm {
    use super::*;

    #[test]
    fn finds_the_right_pages_for_questions_about_the_docs() {
        let scratch = tempfile::tempdir().unwrap();
        let index = scratch.path().join("index");
        let questions = Path::new(env!("CARGO_MANIFEST_DIR")).join("questions.jsonl");
        let arguments =
            ["docs", "README.md", "--no-rerank", "--no-answer", "--index", index.to_str().unwrap()];
        let asked = [&arguments[..], &["--questions", questions.to_str().unwrap()]].concat();
        let (out, error) = rag(&root(), &asked);
        assert!(error.contains(" 0 unchanged, 0 removed; chunks: "), "{error}");
        let count = |text: &str| out.lines().filter(|line| line.starts_with(text)).count();
        assert_eq!(count("cited as") + count("not cited"), 20, "{out}");
        let required = env::var("SCONCE_RAG_REQUIRED").map_or(REQUIRED, |count| count.parse().unwrap());
        assert!(count("cited as") >= required, "{out}");

        let (_, error) = rag(&root(), &arguments);
        assert!(error.starts_with("files: 0 changed, "), "a second run embeds nothing: {error}");
        assert!(error.contains(" chunks: 0 embedded of "), "{error}");
    }

    #[test]
    fn a_reranker_and_a_language_model_answer_with_a_citation() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("pages")).unwrap();
        let page = |name: &str, text: &str| fs::write(scratch.path().join("pages").join(name), text).unwrap();
        page("sort.md", "# Sort\n`list.sort()` sorts a list in place.\n");
        page("harbour.md", "# Harbour\nThe harbour is quiet at night.\n");
        let generator = root().join("target/parts/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
        // A tiny model with random weights: it shows that passages are reranked, not that the order is good.
        let reranker = root().join("crates/testkit/goldens/tiny-bert-rerank");
        let models = ["--generator", generator.to_str().unwrap(), "--reranker", reranker.to_str().unwrap()];
        let ask = ["pages", "--ask", "How do I sort a list?"];
        let (out, error) = rag(scratch.path(), &[&ask[..], &models].concat());
        assert!(
            error.starts_with("files: 2 changed, 0 unchanged, 0 removed; chunks: 2 embedded of 2"),
            "{error}"
        );
        assert!(
            out.contains("] pages/sort.md:1  Sort") && out.contains("] pages/harbour.md:1  Harbour"),
            "{out}"
        );
        let (answer, _sources) = out.split_once("\n\n[1] pages/").unwrap();
        assert!(answer.len() > 20 && (answer.contains(" [1]") || answer.contains(" [2]")), "{out}");

        let quoted = [&ask[..], &models, &["--quote"]].concat();
        let (out, _) = rag(scratch.path(), &quoted);
        let sentences = ["`list.sort()` sorts a list in place. [", "The harbour is quiet at night. ["];
        assert!(sentences.iter().any(|sentence| out.starts_with(sentence)), "{out}");

        page("sort.md", "# Sort\n`sorted(list)` makes a sorted copy.\n");
        fs::remove_file(scratch.path().join("pages/harbour.md")).unwrap();
        let (out, error) = rag(scratch.path(), &["pages", "--ask", "sort", "--no-answer", "--no-rerank"]);
        assert!(
            error.starts_with("files: 1 changed, 0 unchanged, 1 removed; chunks: 1 embedded of 1"),
            "{error}"
        );
        assert_eq!(out, "[1] pages/sort.md:1  Sort\n");
    }
}
