//! Tensors of files that tests write.

use std::fs;
use std::path::Path;

use sconce_testkit::gguf::{self, Tensor, Value};
use sconce_testkit::goldens;

use super::*;
use crate::weights::SafetensorsFiles;

/// A matrix `[rows, 2]` of f32 with the values 0, 1, 2, ….
fn counted(name: &str, rows: u64) -> Tensor {
    let bytes = (0..2 * rows).flat_map(|value| (value as f32).to_le_bytes()).collect();
    Tensor { name: name.to_owned(), sizes: vec![2, rows], kind: 0, bytes }
}

fn architecture(name: &str) -> (&'static str, Value) {
    ("general.architecture", Value::String(name.to_owned()))
}

fn write(folder: &Path, name: &str, metadata: &[(&str, Value)], tensors: &[Tensor]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, gguf::file(metadata, tensors)).expect("a file can be written");
    path
}

#[test]
fn rows_of_llama_queries_and_keys_are_reordered() {
    let folder = tempfile::tempdir().expect("a folder");
    let heads = ("llama.attention.head_count", Value::U32(2));
    let kv_heads = ("llama.attention.head_count_kv", Value::U32(1));
    let tensors = [
        counted("blk.0.attn_q.weight", 8),
        counted("blk.0.attn_k.weight", 8),
        counted("blk.0.attn_v.weight", 8),
    ];
    let path = write(folder.path(), "m.gguf", &[architecture("llama"), heads, kv_heads], &tensors);
    let files = GgufFiles::open(&[path]).expect("a valid file");
    let rows = |part: &str| {
        let values =
            files.read(&format!("layers.0.self_attn.{part}_proj.weight"), &[8, 2]).expect("it is there");
        values.chunks_exact(2).map(|row| row[0] as usize / 2).collect::<Vec<_>>()
    };
    assert_eq!(rows("q"), [0, 2, 1, 3, 4, 6, 5, 7]);
    assert_eq!(rows("k"), [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(rows("v"), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn one_is_subtracted_from_norms_of_gemma() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = [counted("blk.0.attn_q_norm.weight", 2), counted("blk.0.ffn_up.weight", 2)];
    let path = write(folder.path(), "m.gguf", &[architecture("gemma3")], &tensors);
    let files = GgufFiles::open(&[path]).expect("a valid file");
    let read = |name: &str| files.read(name, &[2, 2]).expect("it is there");
    assert_eq!(read("layers.0.self_attn.q_norm.weight"), [-1.0, 0.0, 1.0, 2.0]);
    assert_eq!(read("layers.0.mlp.up_proj.weight"), [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn tensors_without_a_name_on_the_hub_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |name: &str, tensor: &str| {
        let path = write(folder.path(), "m.gguf", &[architecture(name)], &[counted(tensor, 2)]);
        GgufFiles::open(&[path]).err().expect("it is rejected").to_string()
    };
    assert!(
        open("llama", "blk.0.attn_rot_embd.weight").contains("`blk.0.attn_rot_embd.weight` has no place")
    );
    assert!(open("bert", "rope_freqs.weight").contains("`rope_freqs.weight` has no place"));
    assert!(open("mamba", "token_embd.weight").contains("`mamba`; known: bert"));
    let path = write(folder.path(), "m.gguf", &[architecture("llama")], &[counted("blk.0.attn_q.weight", 3)]);
    let error = GgufFiles::open(&[path]).err().expect("odd rows").to_string();
    assert!(error.contains("3 rows for 1 heads"), "{error}");
}

#[test]
fn files_of_a_split_model_are_read_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let split = |number: u16, count: u16| {
        [
            ("split.no", Value::U16(number)),
            ("split.count", Value::U16(count)),
            ("split.tensors.count", Value::I32(2)),
        ]
    };
    let [a, b, c] = split(0, 2);
    let first = write(
        folder.path(),
        "m-00001-of-00002.gguf",
        &[architecture("bert"), a, b, c],
        &[counted("token_embd.weight", 2)],
    );
    let second = |number, count, tensor: &str| {
        write(folder.path(), "m-00002-of-00002.gguf", &split(number, count), &[counted(tensor, 3)])
    };
    second(1, 2, "position_embd.weight");
    let paths = split::files(&first);
    let files = GgufFiles::open(&paths).expect("a whole set");
    assert_eq!(files.shape("embeddings.position_embeddings.weight"), Some(vec![3, 2]));
    assert!(files.read("embeddings.word_embeddings.weight", &[2, 2]).is_ok());
    let rejects = |expected: &str| {
        let error = GgufFiles::open(&paths).err().expect("it is rejected").to_string();
        assert!(error.contains(expected), "{error}");
    };
    second(0, 2, "position_embd.weight");
    rejects("`split.no` is 0, and by its name it should be 1");
    second(1, 3, "position_embd.weight");
    rejects("`split.count` is 3, and there are 2 files");
    second(1, 2, "token_embd.weight");
    rejects("the tensor `token_embd.weight` is in two files");
    fs::remove_file(&paths[1]).expect("it is there");
    rejects("can't be read");
    let alone = GgufFiles::open(&paths[..1]).err().expect("half a model").to_string();
    assert!(alone.contains("`split.count` is 2, and there are 1 files"), "{alone}");
}

#[test]
fn tensors_equal_those_of_the_hub() {
    for (name, prefixes) in [
        ("tiny-bert", &["", "bert."][..]),
        ("tiny-nomic", &[""]),
        ("tiny-llama", &["", "model."]),
        ("tiny-qwen3", &["", "model."]),
        ("tiny-gemma3", &["", "model."]),
    ] {
        let hub =
            SafetensorsFiles::open(&[goldens::folder(name).join("model.safetensors")]).expect("a golden");
        let own = GgufFiles::open(&[goldens::folder("gguf").join(format!("{name}.gguf"))]).expect("a golden");
        assert!(own.names().len() > 10, "{name}");
        for tensor in own.names() {
            let shape = own.shape(&tensor).expect("it is listed");
            let full = prefixes.iter().map(|prefix| format!("{prefix}{tensor}"));
            let full = full.into_iter().find(|full| hub.shape(full).is_some());
            let full = full.unwrap_or_else(|| panic!("{name}: the hub has no `{tensor}`"));
            let read = |tensors: &dyn Tensors, name: &str| tensors.read(name, &shape).expect("it is there");
            let (hub, own) = (read(&hub, &full), read(&own, &tensor));
            let wide: Vec<f64> = hub.iter().map(|&value| f64::from(value)).collect();
            // Adding one and subtracting it rounds.
            let tolerance = if name == "tiny-gemma3" && shape.len() == 1 { 1e-6 } else { 0.0 };
            assert!(goldens::apart(&own, &wide) <= tolerance, "{name}: `{tensor}` differs");
        }
    }
}
