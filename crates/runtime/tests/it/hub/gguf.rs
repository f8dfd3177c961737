//! One quantization of a repository with GGUF files.

use std::fs;

use sconce::ModelSource;
use sconce::hub::{Hub, HubError};
use sconce_testkit::hub_server::HubModel;

use super::{COMMIT, ID, Scene, file, files, large};

fn scene() -> Scene {
    let all = vec![
        file("config.json", r#"{"model_type": "llama"}"#),
        file("README.md", "# model"),
        large("model-Q4_K_M.gguf", 3_000),
        large("model-Q8_0.gguf", 5_000),
        large("big/model-F16-00001-of-00002.gguf", 2_000),
        large("big/model-F16-00002-of-00002.gguf", 1_000),
        large("onnx/model.onnx", 100),
    ];
    Scene::with(vec![HubModel { id: ID.into(), revision: "main".into(), commit: COMMIT.into(), files: all }])
}

#[test]
fn one_quantization_is_fetched_and_found_in_the_cache() {
    let scene = scene();
    let offline = Hub { offline: true, ..scene.hub.clone() };
    let fetch = |hub: &Hub, quantization: &str| hub.fetch_gguf(ID, "main", quantization, &mut |_| {});
    let error = fetch(&offline, "Q4_K_M").expect_err("nothing is cached").to_string();
    assert!(error.contains("`sconce pull owner/model:Q4_K_M`"), "{error}");
    let path = fetch(&scene.hub, "Q4_K_M").expect("fetches");
    let snapshot = scene.repository().join("snapshots").join(COMMIT);
    assert_eq!(path, snapshot.join("model-Q4_K_M.gguf"));
    assert_eq!(fs::metadata(&path).expect("it is there").len(), 3_000);
    assert_eq!(files(&snapshot), ["model-Q4_K_M.gguf"], "and nothing else");
    assert_eq!(fetch(&offline, "q4_k_m").expect("it is cached"), path);
    assert!(matches!(fetch(&offline, "Q8_0"), Err(HubError::NotCached { .. })));
    let error = fetch(&scene.hub, "Q5_K_M").expect_err("there is none").to_string();
    assert!(error.contains("`model-Q8_0.gguf`"), "{error}");
}

#[test]
fn all_files_of_a_split_model_are_fetched() {
    let scene = scene();
    let path = scene.hub.fetch_gguf(ID, "main", "F16", &mut |_| {}).expect("fetches");
    let snapshot = scene.repository().join("snapshots").join(COMMIT);
    let parts = ["big/model-F16-00001-of-00002.gguf", "big/model-F16-00002-of-00002.gguf"];
    assert_eq!((path, files(&snapshot)), (snapshot.join(parts[0]), parts.map(str::to_owned).to_vec()));
    fs::remove_file(snapshot.join(parts[1])).expect("it is there");
    let offline = Hub { offline: true, ..scene.hub.clone() };
    let half = offline.fetch_gguf(ID, "main", "F16", &mut |_| {});
    assert!(matches!(half, Err(HubError::NotCached { .. })), "{half:?}");
}

#[test]
fn a_quantization_follows_the_id() {
    let parse = |text: &str| ModelSource::parse(text, None);
    let wanted = |quantization: &str| ModelSource::HubGguf {
        id: ID.to_owned(),
        revision: "main".to_owned(),
        quantization: quantization.to_owned(),
    };
    for quantization in ["Q4_K_M", "model-Q8_0.gguf"] {
        let source = parse(&format!("{ID}:{quantization}"));
        assert_eq!(source, wanted(quantization));
        assert_eq!(source.name(), format!("{ID}:{quantization}"));
    }
    for path in ["C:/models/a.gguf", "/models/a:b.gguf", "./owner/model:Q4_K_M", "a:b"] {
        assert!(!matches!(parse(path), ModelSource::HubGguf { .. }), "{path}");
    }
}
