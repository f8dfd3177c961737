//! Models by short name, prompts of the catalogue, and the script that compares the catalogue with a hub.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use sconce::card::{self, Overrides};
use sconce::hub::Graphs;
use sconce::{ModelSource, Prompt, Task, catalogue};
use sconce_testkit::goldens::{self, Golden, apart};
use sconce_testkit::hub_server::{HubFile, HubModel, HubServer};

use crate::support::{Home, texts};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn hub(id: &str, revision: &str) -> ModelSource {
    ModelSource::Hub { id: id.to_owned(), revision: revision.to_owned(), graphs: Graphs::default() }
}

#[test]
fn a_short_name_is_a_repository_of_the_hub() {
    let parse = |text: &str| ModelSource::parse(text, None);
    let revision = |name: &str| {
        let model = catalogue::by_name(name).expect("it is in the catalogue");
        model.revision.clone().unwrap_or_else(|| "main".to_owned())
    };
    let e5 = hub("intfloat/e5-small-v2", &revision("e5-small"));
    assert_eq!([parse("e5-small"), parse("E5-small-v2")], [e5.clone(), e5]);
    assert_eq!(ModelSource::parse("e5-small", Some("v1")), hub("intfloat/e5-small-v2", "v1"));
    assert_eq!(parse("e5-small").name(), "intfloat/e5-small-v2");
    let quantized = ModelSource::HubGguf {
        id: "Qwen/Qwen3-0.6B-GGUF".to_owned(),
        revision: "main".to_owned(),
        quantization: "Q8_0".to_owned(),
    };
    assert_eq!(parse("qwen3-0.6b:Q8_0"), quantized);
    assert_eq!(parse("e5-smal"), hub("e5-smal", "main"), "an unknown name is an id");
    assert!(!matches!(parse("e5-small:Q8_0"), ModelSource::HubGguf { .. }), "it has no GGUF files");
}

/// A copy of `tiny-bert` without prompts, in a folder of this name.
fn without_prompts(parent: &Path, name: &str) -> std::path::PathBuf {
    let folder = goldens::copy("tiny-bert", &parent.join(name));
    fs::remove_file(folder.join("config_sentence_transformers.json")).expect("the file is there");
    folder
}

#[test]
fn prompts_that_the_files_omit_come_from_the_catalogue() {
    let parent = tempfile::tempdir().expect("a folder");
    let read = |name: &str, folder: &Path| {
        card::read(name, folder, &Overrides::default()).expect("a model").card.prompts
    };
    let other = without_prompts(parent.path(), "model");
    assert!(read("./model", &other).value.is_empty());
    for prompts in [
        read("intfloat/e5-small-v2", &other),
        read("./e5-small-v2", &without_prompts(parent.path(), "e5-small-v2")),
    ] {
        assert_eq!(prompts.source, "catalogue");
        assert_eq!(
            (prompts.value["query"].as_str(), prompts.value["document"].as_str()),
            ("query: ", "passage: ")
        );
    }
    let empty = r#"{"prompts": {"query": "", "document": ""}}"#;
    fs::write(other.join("config_sentence_transformers.json"), empty).expect("a file can be written");
    assert_eq!(read("intfloat/e5-small-v2", &other).source, "catalogue", "empty prompts are none");
    let own = read("intfloat/e5-small-v2", &goldens::folder("tiny-bert"));
    assert_eq!(own.source, "config_sentence_transformers.json", "the files come first");
    let others = read("nomic-ai/nomic-embed-text-v1.5", &without_prompts(parent.path(), "another"));
    assert!(others.value.is_empty(), "another architecture is another model");
}

#[test]
fn queries_and_documents_of_e5_embed_as_sentence_transformers_embeds_them() {
    let home = Home::new();
    let parent = tempfile::tempdir().expect("a folder");
    let model = home.model(&without_prompts(parent.path(), "e5-small-v2")).open().expect("opens");
    let golden = Golden::read("tiny-bert", "golden.safetensors");
    let queries: Vec<f32> =
        texts("tiny-bert").iter().flat_map(|text| model.embed_query(text).expect("embeds")).collect();
    let off = apart(&queries, golden.numbers("embed.query"));
    assert!(off < 1e-5, "queries are off by {off}");
    let documents = model.embed_documents(&texts("tiny-bert")).expect("embeds").into_vectors().concat();
    let off = apart(&documents, golden.numbers("embed.document"));
    assert!(off < 1e-5, "documents are off by {off}");
}

#[test]
fn a_missing_prompt_is_told_once() {
    let home = Home::new();
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    assert_eq!(model.take_prompt_warning(&Prompt::Query, &["a lamp"]), None);
    assert_eq!(model.take_prompt_warning(&Prompt::Default, &["query: a lamp"]), None);
    let warning = model.take_prompt_warning(&Prompt::Default, &["a lamp"]).expect("a warning");
    assert!(warning.contains("\"passage: \" before documents"), "{warning}");
    assert_eq!(model.take_prompt_warning(&Prompt::Default, &["a lamp"]), None, "only once");
}

/// Runs `scripts/check-catalogue` on a catalogue with one row against a hub with one model.
fn check(row: &str, arguments: &[&str]) -> (i32, String, String) {
    let text = |name: &str, text: &str| HubFile { name: name.into(), bytes: text.into(), sha256: None };
    let files = vec![
        text("config.json", r#"{"model_type": "bert", "hidden_size": 384, "max_position_embeddings": 512}"#),
        text("sentence_bert_config.json", r#"{"max_seq_length": 256}"#),
        text(
            "config_sentence_transformers.json",
            r#"{"prompts": {"query": "query: ", "passage": "passage: "}}"#,
        ),
        text("model.safetensors", ""),
    ];
    let model = HubModel { id: "o/m".into(), revision: "main".into(), commit: COMMIT.into(), files };
    let server = HubServer::start(vec![model]);
    let folder = tempfile::tempdir().expect("a folder");
    let catalogue = folder.path().join("catalogue.toml");
    fs::write(&catalogue, row).expect("a file can be written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/check-catalogue");
    let output = Command::new("python3")
        .arg(script)
        .args(arguments)
        .env("HF_ENDPOINT", server.endpoint())
        .env_remove("HF_TOKEN")
        .env("SCONCE_CATALOGUE", &catalogue)
        .output()
        .expect("python3 runs");
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().unwrap_or(-1), told, fs::read_to_string(catalogue).expect("the file is there"))
}

#[test]
fn the_script_compares_the_catalogue_with_a_hub_and_fills_revisions() {
    let row = "[[model]]\nname = \"m\"\nid = \"o/m\"\ntask = \"embed\"\nmodel_type = \"bert\"\ndimensions = 384\n\
               max_length = 256\nprompts = { query = \"query: \", document = \"passage: \" }\ngood_for = \"x\"\n";
    let (code, told, same) = check(row, &[]);
    assert_eq!((code, same.as_str()), (0, row), "{told}");
    assert!(told.contains(&format!("m: same at {COMMIT}")), "{told}");
    let (code, told, filled) = check(row, &["--write"]);
    assert_eq!(code, 0, "{told}");
    assert_eq!(filled, row.replace("task =", &format!("revision = \"{COMMIT}\"\ntask =")));
    assert_eq!(check(&filled, &["--write", "m"]).2, filled, "it is filled once");

    for (cell, wrong, hub) in [
        ("dimensions = 384", "dimensions = 768", "dimensions is 768, on the hub 384"),
        ("max_length = 256", "max_length = 512", "max_length is 512, on the hub 256"),
        ("\"bert\"", "\"mpnet\"", "model_type is 'mpnet', on the hub 'bert'"),
        ("\"passage: \"", "\"document: \"", "prompts.document is 'document: ', on the hub 'passage: '"),
        ("o/m", "o/none", "can't be read"),
    ] {
        let row = row.replace(cell, wrong);
        let (code, told, unchanged) = check(&row, &["--write"]);
        assert_eq!((code, unchanged), (1, row), "{told}");
        assert!(told.contains(hub), "no `{hub}` in: {told}");
    }
}

/// The page with the catalogue as tables.
fn page() -> String {
    let mut page = String::from(
        "# Models by name\n\
         Generated from the catalogue (`crates/runtime/src/catalogue/catalogue.toml`); a test holds it to that. \
         `sconce models --recommended` prints the same. Parameters are in millions. An empty cell was not checked.\n",
    );
    for (task, title) in [(Task::Embed, "Embedding"), (Task::Rerank, "Reranking"), (Task::Generate, "Chat")] {
        let is_embed = task == Task::Embed;
        let (dimensions, line) = if is_embed { ("dimensions | ", "---|") } else { ("", "") };
        _ = write!(
            page,
            "\n## {title}\n| name | repository | parameters | {dimensions}tokens | languages | license | good for |\n\
             |---|---|---|{line}---|---|---|---|\n"
        );
        for model in catalogue::models().iter().filter(|model| model.task == task) {
            let cell = |value: Option<String>| value.unwrap_or_default();
            let number = |value: Option<usize>| cell(value.map(|value| value.to_string()));
            let gated = if model.gated { ", gated" } else { "" };
            let dimensions =
                if is_embed { format!("{} | ", number(model.dimensions)) } else { String::new() };
            _ = writeln!(
                page,
                "| `{}` | `{}` | {} | {dimensions}{} | {} | {}{gated} | {} |",
                model.name,
                model.id,
                cell(model.parameters.map(|millions| millions.to_string())),
                number(model.max_length),
                cell(model.languages.clone()),
                cell(model.license.clone()),
                model.good_for
            );
        }
    }
    page
}

#[test]
fn the_page_of_the_catalogue_is_generated() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/catalogue.md");
    if std::env::var_os("SCONCE_WRITE_DOCS").is_some() {
        fs::write(&path, page()).expect("the page can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let hint = "SCONCE_WRITE_DOCS=1 cargo nextest run --workspace -E 'test(page_of_the_catalogue)'";
    assert!(written == page(), "the page is not up to date; write it: {hint}");
}
