//! ONNX graphs of a repository: fetched if requested or if there are no safetensors, with their external data.

use std::fs;
use std::path::Path;

use sconce::hub::{Graphs, Hub, is_wanted};
use sconce_testkit::goldens;
use sconce_testkit::hub_server::{HubFile, HubModel};

use super::{COMMIT, ID, Scene, file, files, large};

/// A repository with several graphs, one of which has its numbers in another file.
fn model(safetensors: bool) -> HubModel {
    let golden = fs::read(goldens::folder("graphs").join("tiny-bert.onnx")).expect("the golden is there");
    let graph = |name: &str, bytes: Vec<u8>| HubFile { name: name.to_owned(), bytes, sha256: None };
    let mut all = vec![
        file("config.json", r#"{"model_type": "bert"}"#),
        file("tokenizer.json", r#"{"version": "1.0"}"#),
        graph("onnx/model.onnx", golden.clone()),
        graph("onnx/model_quantized.onnx", external()),
        large("onnx/model_quantized.onnx_data", 2_000),
        graph("onnx/model_O4.onnx", golden),
    ];
    if safetensors {
        all.push(large("model.safetensors", 1_000));
    }
    HubModel { id: ID.into(), revision: "main".into(), commit: COMMIT.into(), files: all }
}

/// A graph with one tensor, whose numbers lie in `model_quantized.onnx_data`.
fn external() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[(number << 3) | 2, bytes.len() as u8][..], bytes].concat();
    let place = [field(1, b"location"), field(2, b"model_quantized.onnx_data")].concat();
    let tensor = [&[1 << 3, 4, 2 << 3, 1][..], &field(8, b"w"), &field(13, &place), &[14 << 3, 1]].concat();
    field(7, &field(5, &tensor))
}

fn fetched(safetensors: bool, graphs: Graphs) -> (Scene, Vec<String>) {
    let mut scene = Scene::with(vec![model(safetensors)]);
    scene.hub.graphs = graphs;
    let folder = scene.fetch().expect("fetches");
    let names = files(&folder).into_iter().filter(|name| !name.contains(".json")).collect();
    (scene, names)
}

#[test]
fn one_graph_comes_with_its_numbers_where_it_is_asked_for_or_alone() {
    let by_name = Graphs::Named("onnx/model_quantized.onnx".to_owned());
    let quantised = ["onnx/model_quantized.onnx", "onnx/model_quantized.onnx_data"];
    for (safetensors, graphs, expected) in [
        (true, Graphs::IfNoSafetensors, &["model.safetensors"][..]),
        (true, Graphs::Default, &["model.safetensors", "onnx/model.onnx"]),
        (true, by_name.clone(), &["model.safetensors", quantised[0], quantised[1]]),
        (false, Graphs::IfNoSafetensors, &["onnx/model.onnx"]),
        (false, by_name, &quantised),
    ] {
        let (scene, names) = fetched(safetensors, graphs.clone());
        assert_eq!(names, expected, "{graphs:?}");
        scene.fetch_offline().expect("the cache has all of it");
    }
}

#[test]
fn offline_a_graph_that_was_not_fetched_is_named() {
    let (scene, _) = fetched(true, Graphs::IfNoSafetensors);
    let asking = |graphs: Graphs| {
        let hub = Hub { offline: true, graphs, ..scene.hub.clone() };
        hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect_err("it is not there").to_string()
    };
    let usual = asking(Graphs::Default);
    assert!(usual.contains("`onnx/model.onnx`"), "{usual}");
    let named = asking(Graphs::Named("onnx/model_O4.onnx".to_owned()));
    assert!(named.contains("`onnx/model_O4.onnx`"), "{named}");
}

#[test]
fn offline_a_graph_without_its_external_data_is_incomplete() {
    let (scene, _) = fetched(true, Graphs::Named("onnx/model_quantized.onnx".to_owned()));
    let folder = scene.fetch_offline().expect("the cache has all of it");
    fs::remove_file(folder.join("onnx/model_quantized.onnx_data")).expect("it was there");
    let error = scene.fetch_offline().expect_err("the numbers are gone").to_string();
    assert!(error.contains("`onnx/model_quantized.onnx_data`"), "{error}");
}

#[test]
fn a_graph_is_on_the_card_before_it_is_fetched() {
    let scene = Scene::with(vec![model(false)]);
    let peeked = scene.folder.path().join("peeked");
    scene.hub.peek(ID, "main", &is_wanted, &peeked).expect("the hub answers");
    let length = |folder: &Path, name: &str| fs::metadata(folder.join(name)).expect("it is there").len();
    assert_eq!(length(&peeked, "onnx/model.onnx"), length(&goldens::folder("graphs"), "tiny-bert.onnx"));
    assert!(scene.asked().iter().all(|path| !path.contains(".onnx")), "{:?}", scene.asked());
}
