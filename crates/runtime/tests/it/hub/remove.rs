//! Models are removed from the cache, and contents that another revision uses stay.

use std::fs::{self, File};

use sconce::hub::{HubError, is_wanted};
use sconce_testkit::hub_server::HubModel;

use super::{COMMIT, ID, NEXT_COMMIT, Scene, WANTED, bytes_of, file, files, large, model};

fn size(names: &[&str]) -> u64 {
    names.iter().map(|name| bytes_of(name).len() as u64).sum()
}

#[test]
fn a_removed_model_leaves_nothing() {
    let scene = Scene::new();
    scene.fetch().expect("fetches");
    let removed = scene.hub.remove(ID, None).expect("removes");
    assert_eq!((removed.files, removed.bytes), (WANTED.len(), size(&WANTED)));
    assert_eq!(scene.hub.cached(), []);
    assert!(!scene.repository().exists());
    let error = scene.hub.remove(ID, None).expect_err("nothing is left");
    assert!(matches!(error, HubError::NothingToRemove { .. }), "{error}");
    assert!(error.to_string().contains("`sconce models`"), "{error}");
}

#[test]
fn contents_of_another_revision_stay() {
    let mut other = model();
    (other.revision, other.commit) = ("next".into(), NEXT_COMMIT.into());
    other.files[6] = file("config.json", r#"{"model_type": "other"}"#);
    let scene = Scene::with(vec![model(), other]);
    let main = scene.fetch().expect("fetches");
    let next = scene.hub.fetch(ID, "next", &is_wanted, &mut |_| {}).expect("fetches");
    let removed = scene.hub.remove(ID, Some("main")).expect("removes");
    assert_eq!((removed.files, removed.bytes), (WANTED.len(), size(&["config.json"])));
    assert!(!main.exists() && !scene.repository().join("refs/main").exists());
    assert_eq!(files(&next), WANTED);
    assert_eq!(fs::read(next.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
    let cached = scene.hub.cached();
    assert_eq!(cached.len(), 1);
    assert_eq!((cached[0].revision.as_str(), cached[0].complete), ("next", true));
}

#[test]
fn one_quantization_is_removed_and_another_stays() {
    let all = vec![large("model-Q4_K_M.gguf", 3_000), large("model-Q8_0.gguf", 5_000)];
    let model = HubModel { id: ID.into(), revision: "main".into(), commit: COMMIT.into(), files: all };
    let scene = Scene::with(vec![model]);
    for quantization in ["Q4_K_M", "Q8_0"] {
        scene.hub.fetch_gguf(ID, "main", quantization, &mut |_| {}).expect("fetches");
    }
    assert!(scene.hub.cached()[0].complete, "a GGUF file is a model");
    let removed = scene.hub.remove_gguf(ID, None, "Q4_K_M").expect("removes");
    assert_eq!((removed.files, removed.bytes), (1, 3_000));
    assert_eq!(files(&scene.repository().join("snapshots").join(COMMIT)), ["model-Q8_0.gguf"]);
    assert!(matches!(scene.hub.remove_gguf(ID, None, "Q4_K_M"), Err(HubError::NothingToRemove { .. })));
    scene.hub.remove_gguf(ID, None, "Q8_0").expect("removes");
    assert!(!scene.repository().exists());
}

#[test]
fn a_model_that_is_downloaded_is_not_removed() {
    let scene = Scene::new();
    scene.fetch().expect("fetches");
    let lock = File::create(scene.repository().join("blobs/0123.lock")).expect("a file");
    lock.lock().expect("a lock");
    let error = scene.hub.remove(ID, None).expect_err("it is in use");
    assert!(matches!(error, HubError::Busy { .. }), "{error}");
    drop(lock);
    scene.hub.remove(ID, None).expect("removes");
}
