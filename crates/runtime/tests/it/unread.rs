//! Unused tensors are reported, except those that checkpoints usually carry.

use sconce::card::Overrides;
use sconce::{ModelSource, Task, inspect};
use sconce_engines::families::FAMILIES;
use sconce_testkit::goldens::{self, CLASSIFY, RERANK, SPARSE, TOKENS, WIDER_HEADS};

use crate::support::{Copy, Tensor, read_tensors, write_tensors};

fn unread(folder: &std::path::Path, task: Option<Task>) -> Vec<String> {
    let source = ModelSource::Folder(folder.to_owned());
    let overrides = Overrides { task, ..Overrides::default() };
    let inspection = inspect(&source, &overrides, true).expect("it is a model");
    inspection.unread.into_values().flatten().collect()
}

#[test]
fn every_tensor_of_every_golden_is_read_or_known_to_be_idle() {
    let families = FAMILIES.iter().flat_map(|family| family.goldens).copied();
    let heads = RERANK.into_iter().chain(CLASSIFY).chain(SPARSE).chain(WIDER_HEADS).chain(TOKENS);
    for name in families.chain(heads) {
        assert_eq!(unread(&goldens::folder(name), None), [] as [&str; 0], "{name}");
    }
}

#[test]
fn a_part_that_no_description_has_is_named() {
    for name in ["tiny-bert", "tiny-t5", "tiny-modernbert", "tiny-qwen3", "tiny-deberta-v3"] {
        let copy = Copy::of(name);
        let file = copy.file("model.safetensors");
        let mut tensors = read_tensors(&file);
        let extra = |name: &str| Tensor { name: name.to_owned(), shape: vec![2], values: vec![0.5; 2] };
        tensors.extend(["adapter.down.weight", "embeddings.position_ids", "lm_head.bias"].map(extra));
        write_tensors(&file, &tensors);
        assert_eq!(unread(copy.path(), None), ["adapter.down.weight"], "{name}");
    }
}

#[test]
fn a_head_that_is_not_used_is_named() {
    let copy = Copy::of("tiny-bert-rerank");
    std::fs::create_dir(copy.file("1_Pooling")).expect("a folder");
    let golden = |file: &str| {
        std::fs::read_to_string(goldens::folder("tiny-bert").join(file)).expect("the golden has it")
    };
    let copy = copy
        .with("modules.json", golden("modules.json"))
        .with("1_Pooling/config.json", golden("1_Pooling/config.json"));
    assert_eq!(unread(copy.path(), Some(Task::Embed)), ["classifier.bias", "classifier.weight"]);
}
