//! `docs/reference/models.md` equals the family registry, tested on this machine.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sconce_core::placement::{Dtype, EngineId};
use sconce_engines::families::{FAMILIES, Family};
use sconce_engines::family_heads;
use serde_json::Value;

use crate::support::{load_on, spec};

const PAGE: &str = "docs/reference/models.md";
/// Set to write the page instead of comparing it.
const WRITE: &str = "SCONCE_WRITE_DOCS";

/// Whether every golden of a family loads on an engine in a dtype; where the processor lacks the instructions, what the
/// page says is believed.
fn cell(family: &Family, engine: EngineId, dtype: Dtype) -> Option<&'static str> {
    let mut cell = "yes";
    for name in [family.goldens, family.generation_goldens].concat() {
        match load_on(engine, &spec(name), dtype) {
            Ok(_) => {}
            Err(obstacle) if obstacle.to_string().contains("tiles (AMX)") => return None,
            Err(_) => cell = "no",
        }
    }
    Some(cell)
}

/// The tasks that a family has heads for.
fn tasks(family: &Family) -> String {
    let all = |has: &dyn Fn(&str) -> bool| family.model_types.iter().all(|name| has(name));
    let classifies = all(&|name| family_heads::classifier(name, &Value::Null, 1, 1).is_some());
    let masks = all(&|name| family_heads::masked_lm(name, &Value::Null, 1, 1).is_some());
    let generates = !family.generation_goldens.is_empty();
    let tasks = [("rerank, classify", classifies), ("sparse", masks), ("generate", generates)];
    let tasks: Vec<&str> = tasks.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    tasks.join(", ")
}

fn page(known: &str) -> String {
    let mut page = String::from(
        "# Models\n\
         Generated from the registry of families (`crates/engines/src/families`); a test holds it to that.\n\n\
         A family is known by the `model_type` of a model's `config.json`. What its config says and its description \
         can't honour is refused by name, and so is a tensor of a layer that has no place; an unknown `model_type` is \
         refused with the nearest known one and what is missing.\n\n\
         Weights are safetensors (f32, f16 or bf16, whole or in shards) or a GGUF file. Every \
         family embeds, and gives the vectors of its tokens. The models named have the family's config. `scripts/parts` downloads the \
         real models of the tests.\n\n\
         | family | `model_type` | other tasks | models of it |\n|---|---|---|---|\n",
    );
    for family in FAMILIES {
        let types: Vec<String> = family.model_types.iter().map(|name| format!("`{name}`")).collect();
        let when =
            family.condition.map(|(key, value)| format!(" with `{key}` `{value}`")).unwrap_or_default();
        _ = writeln!(
            page,
            "| {} | {}{when} | {} | {} |",
            family.name,
            types.join(", "),
            tasks(family),
            family.examples
        );
    }
    page.push_str(
        "\n## What was tested, and where\n\
         Hidden states at every length, alone and in mixed batches, beyond windows and up to 2100 tokens where a model \
         goes so far, against a tiny model of the family with large random weights: within 1e-4 in f32, cosine of \
         every token at least 0.999 in f16 and bf16. The reference is transformers; for JinaBERT v2, which it does not \
         carry, a plain one written from the paper (`scripts/goldens/jina.py`).\n\n\
         Families that generate: logits within 1e-4 and 64 greedy tokens after prompts of up to 300 tokens, against \
         transformers in double precision, with and without a KV cache.\n\n\
         Candle's cells are for the CPU. The path that it takes on Metal and CUDA is held to the same numbers on the \
         CPU; on such a device, evidence on the machine itself decides. bf16 of the native engine is that of matrix \
         tiles (Intel AMX) or vectors of bf16 (AVX-512); elsewhere its weights are bf16 and its products f32.\n\n\
         | family | goldens | candle f32 | candle f16 | candle bf16 | native f32 | native bf16 |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for family in FAMILIES {
        let goldens = [family.goldens, family.generation_goldens].concat();
        let goldens: Vec<String> = goldens.iter().map(|name| format!("`{name}`")).collect();
        _ = write!(page, "| {} | {} |", family.name, goldens.join(", "));
        let cells = [
            (EngineId::Candle, Dtype::F32),
            (EngineId::Candle, Dtype::F16),
            (EngineId::Candle, Dtype::Bf16),
            (EngineId::Native, Dtype::F32),
            (EngineId::Native, Dtype::Bf16),
        ];
        let row = format!("| {} | {} |", family.name, goldens.join(", "));
        let said =
            known.lines().find(|line| line.starts_with(&row)).and_then(|line| line.split('|').rev().nth(1));
        for (engine, dtype) in cells {
            let cell = cell(family, engine, dtype).or(said.map(str::trim)).unwrap_or("untried");
            _ = write!(page, " {cell} |");
        }
        page.push('\n');
    }
    page
}

#[test]
fn the_page_of_models_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let known = fs::read_to_string(&path).unwrap_or_default();
    let page = page(&known);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(&path, &page).expect("it can be written");
        return;
    }
    assert!(
        known == page,
        "`{PAGE}` is not current: {WRITE}=1 cargo nextest run --workspace -E 'test(page_of_models)'"
    );
}
