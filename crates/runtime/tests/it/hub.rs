//! The hub client against a hub on loopback: its requests and its cache.

mod faults;
mod gguf;
mod graphs;
mod remove;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sconce::hub::{Graphs, Hub, HubError, Progress, is_wanted};
use sconce_testkit::hub_server::{HubFile, HubModel, HubServer};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const ID: &str = "owner/model";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NEXT_COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";
const WEIGHTS: usize = 40_000;
const WANTED: [&str; 8] = [
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "config.json",
    "model.safetensors",
    "modules.json",
    "tokenizer.json",
    "vocab.txt",
];

fn file(name: &str, text: &str) -> HubFile {
    HubFile { name: name.into(), bytes: text.into(), sha256: None }
}

fn large(name: &str, length: usize) -> HubFile {
    let bytes: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
    let hex = Sha256::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    HubFile { name: name.into(), bytes, sha256: Some(hex) }
}

fn model() -> HubModel {
    let modules = r#"[
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;
    let files = vec![
        file(".gitattributes", "*.bin"),
        file("README.md", "# model"),
        large("model.safetensors", WEIGHTS),
        large("pytorch_model.bin", 100),
        large("onnx/model.onnx", 100),
        file("modeling_custom.py", "import os"),
        file("config.json", r#"{"model_type": "bert"}"#),
        file("modules.json", modules),
        file("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#),
        file("2_Dense/config.json", r#"{"in_features": 2}"#),
        large("2_Dense/model.safetensors", 3_000),
        file("tokenizer.json", r#"{"version": "1.0"}"#),
        file("vocab.txt", ""),
    ];
    HubModel { id: ID.into(), revision: "main".into(), commit: COMMIT.into(), files }
}

/// A hub with one model, and an empty cache.
struct Scene {
    server: HubServer,
    hub: Hub,
    folder: TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(vec![model()])
    }

    fn with(models: Vec<HubModel>) -> Scene {
        let server = HubServer::start(models);
        let folder = tempfile::tempdir().expect("a folder");
        let hub = Hub {
            cache: folder.path().join("hub"),
            endpoint: server.endpoint(),
            token: None,
            offline: false,
            timeout: Duration::from_secs(10),
            graphs: Graphs::default(),
        };
        Scene { server, hub, folder }
    }

    fn fetch(&self) -> Result<PathBuf, HubError> {
        self.hub.fetch(ID, "main", &is_wanted, &mut |_| {})
    }

    fn fetch_offline(&self) -> Result<PathBuf, HubError> {
        Hub { offline: true, ..self.hub.clone() }.fetch(ID, "main", &is_wanted, &mut |_| {})
    }

    fn repository(&self) -> PathBuf {
        self.hub.cache.join("models--owner--model")
    }

    /// The paths that the server was asked for, without the model's id.
    fn asked(&self) -> Vec<String> {
        self.server.requests().into_iter().map(|request| request.path.replace(ID, "ID")).collect()
    }
}

/// The files below a folder, by their path from it.
fn files(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("text");
        if entry.file_type().expect("a type").is_dir() {
            names.extend(files(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
        } else {
            names.push(name);
        }
    }
    names.sort();
    names
}

fn bytes_of(name: &str) -> Vec<u8> {
    model().files.into_iter().find(|file| file.name == name).expect("a file").bytes
}

#[test]
fn the_wanted_files_are_fetched_and_nothing_else() {
    let scene = Scene::new();
    let folder = scene.fetch().expect("fetches");
    assert_eq!(files(&folder), WANTED);
    for name in WANTED {
        assert_eq!(fs::read(folder.join(name)).expect("reads"), bytes_of(name), "{name}");
    }
    // One list, and one request for each file that is not empty.
    assert_eq!(scene.asked().len(), 1 + WANTED.len() - 1, "{:?}", scene.asked());
}

#[test]
fn a_second_fetch_downloads_nothing() {
    let scene = Scene::new();
    let first = scene.fetch().expect("fetches");
    scene.server.forget();
    assert_eq!(scene.fetch().expect("fetches"), first);
    assert_eq!(scene.asked(), ["/api/models/ID/revision/main?blobs=true"]);
}

#[test]
fn the_cache_is_laid_out_as_pythons_tools_expect_it() {
    let scene = Scene::new();
    let folder = scene.fetch().expect("fetches");
    let repository = scene.repository();
    assert_eq!(fs::read_to_string(repository.join("refs/main")).expect("reads"), COMMIT);
    assert_eq!(folder, repository.join("snapshots").join(COMMIT));
    for hub_file in model().files.iter().filter(|file| WANTED.contains(&file.name.as_str())) {
        let blob = repository.join("blobs").join(hub_file.blob());
        let content = fs::canonicalize(folder.join(&hub_file.name)).expect("resolves");
        assert_eq!(content, fs::canonicalize(blob).expect("resolves"), "{}", hub_file.name);
        if cfg!(unix) {
            assert!(fs::read_link(folder.join(&hub_file.name)).expect("a link").is_relative());
        }
    }
    let blobs = files(&repository.join("blobs"));
    assert!(!blobs.iter().any(|name| name.contains(".part")), "{blobs:?}");
}

#[test]
fn progress_names_each_file_and_ends_at_its_size() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.pause = Duration::from_millis(2));
    let mut listed = None;
    let mut weights = Vec::new();
    let mut report = |progress: Progress<'_>| match progress {
        Progress::Listed { files, bytes } => listed = Some((files, bytes)),
        Progress::File { name: "model.safetensors", done, total } => weights.push((done, total)),
        Progress::File { .. } | Progress::Waiting { .. } | Progress::FromCache { .. } => {}
    };
    scene.hub.fetch(ID, "main", &is_wanted, &mut report).expect("fetches");
    let bytes = WANTED.iter().map(|name| bytes_of(name).len() as u64).sum();
    assert_eq!(listed, Some((WANTED.len(), Some(bytes))));
    assert!(weights.len() > 2 && weights.is_sorted(), "{weights:?}");
    assert_eq!((weights.first(), weights.last()), (Some(&(0, 40_000)), Some(&(40_000, 40_000))));
}

#[test]
fn a_revision_is_fetched_beside_the_main_one() {
    let mut other = model();
    (other.revision, other.commit) = ("refs/pr/1".into(), NEXT_COMMIT.into());
    other.files[6] = file("config.json", r#"{"model_type": "other"}"#);
    let scene = Scene::with(vec![model(), other]);
    let main = scene.fetch().expect("fetches");
    scene.server.forget();
    let folder = scene.hub.fetch(ID, "refs/pr/1", &is_wanted, &mut |_| {}).expect("fetches");
    assert_ne!(folder, main);
    assert!(fs::read_to_string(folder.join("config.json")).expect("reads").contains("other"));
    assert_eq!(fs::read_to_string(scene.repository().join("refs/refs/pr/1")).expect("reads"), NEXT_COMMIT);
    // What both revisions share is not fetched twice.
    let resolve = format!("/ID/resolve/{NEXT_COMMIT}/config.json");
    assert_eq!(scene.asked(), ["/api/models/ID/revision/refs%2Fpr%2F1?blobs=true", resolve.as_str()]);
}

#[test]
fn a_commit_is_a_revision_that_needs_no_reference() {
    let scene = Scene::new();
    let folder = scene.hub.fetch(ID, COMMIT, &is_wanted, &mut |_| {}).expect("fetches");
    assert!(!scene.repository().join("refs").exists());
    let offline = Hub { offline: true, ..scene.hub.clone() };
    assert_eq!(offline.fetch(ID, COMMIT, &is_wanted, &mut |_| {}).expect("is cached"), folder);
}

#[test]
fn a_gated_model_asks_for_a_token() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.token = Some("hf_right".into()));
    for token in [None, Some("hf_wrong".to_owned())] {
        let error =
            Hub { token, ..scene.hub.clone() }.fetch(ID, "main", &is_wanted, &mut |_| {}).expect_err("gated");
        assert!(matches!(error, HubError::Forbidden { status: 401, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("`HF_TOKEN`") && text.contains("licence") && text.contains("hint: "), "{text}");
        assert!(!text.contains("hf_wrong"), "{text}");
    }
    let hub = Hub { token: Some("hf_right".into()), ..scene.hub.clone() };
    hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect("fetches");
}

#[test]
fn the_token_goes_to_the_endpoint_and_to_no_other_host() {
    let elsewhere = HubServer::start(vec![model()]);
    let scene = Scene::new();
    scene.server.behave(|behaviour| {
        behaviour.token = Some("hf_secret".into());
        behaviour.redirect = Some(elsewhere.endpoint());
    });
    let hub = Hub { token: Some("hf_secret".into()), ..scene.hub.clone() };
    let folder = hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect("fetches");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
    let bearer = Some("Bearer hf_secret".to_owned());
    assert!(scene.server.requests().iter().all(|request| request.authorization == bearer));
    assert_eq!(elsewhere.requests().len(), 2, "{:?}", elsewhere.requests());
    assert!(
        elsewhere.requests().iter().all(|request| request.authorization.is_none()),
        "{:?}",
        elsewhere.requests()
    );
}

#[test]
fn a_redirect_within_the_endpoint_keeps_the_token() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.redirect = Some(String::new()));
    let hub = Hub { token: Some("hf_secret".into()), ..scene.hub.clone() };
    hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect("fetches");
    let moved: Vec<_> =
        scene.server.requests().into_iter().filter(|r| r.path.starts_with("/moved/")).collect();
    assert_eq!(moved.len(), 2);
    assert!(moved.iter().all(|request| request.authorization.as_deref() == Some("Bearer hf_secret")));
}

#[test]
fn a_model_or_revision_that_does_not_exist_is_named() {
    let scene = Scene::new();
    for (id, revision) in [("owner/no-such-model", "main"), (ID, "no-such-revision")] {
        let error = scene.hub.fetch(id, revision, &is_wanted, &mut |_| {}).expect_err("missing");
        assert!(matches!(error, HubError::NotFound { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(id) && text.contains(revision), "{text}");
    }
    assert!(!scene.hub.cache.exists());
}

#[test]
fn offline_with_a_full_cache_answers_and_asks_nothing() {
    let scene = Scene::new();
    let folder = scene.fetch().expect("fetches");
    scene.server.forget();
    assert_eq!(scene.fetch_offline().expect("is cached"), folder);
    assert_eq!(scene.server.requests(), []);
}

#[test]
fn offline_with_an_empty_cache_says_what_is_missing_and_how_to_fetch_it() {
    let scene = Scene::new();
    let error = scene.fetch_offline().expect_err("nothing there");
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("`owner/model` at `main`")
            && text.contains("missing: all files")
            && text.contains("`sconce pull owner/model`"),
        "{text}"
    );
    assert_eq!(scene.server.requests(), []);
}

#[test]
fn offline_names_each_file_that_others_left_out() {
    for name in ["config.json", "model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors"] {
        let scene = Scene::new();
        let folder = scene.fetch().expect("fetches");
        fs::remove_file(folder.join(name)).expect("removes");
        let error = scene.fetch_offline().expect_err(name);
        assert!(matches!(&error, HubError::NotCached { missing, .. } if missing == &[name]), "{error}");
    }
}

#[test]
fn offline_wants_every_shard_that_the_index_names() {
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let mut sharded = model();
    sharded.files[2] = large("model-00001-of-00002.safetensors", 2_000);
    sharded.files.push(large("model-00002-of-00002.safetensors", 1_000));
    sharded.files.push(file("model.safetensors.index.json", index));
    let scene = Scene::with(vec![sharded]);
    let folder = scene.fetch().expect("fetches");
    scene.fetch_offline().expect("is whole");
    fs::remove_file(folder.join("model-00002-of-00002.safetensors")).expect("removes");
    let error = scene.fetch_offline().expect_err("a shard is missing");
    assert!(error.to_string().contains("missing: `model-00002-of-00002.safetensors`"), "{error}");
}

#[test]
fn invalid_ids_revisions_and_endpoints_are_rejected_without_a_request() {
    let scene = Scene::new();
    let fetch = |hub: &Hub, id: &str, revision: &str| hub.fetch(id, revision, &is_wanted, &mut |_| {});
    for id in ["../etc", "a/b/c", "", "a b", "owner/model?x=1"] {
        assert!(matches!(fetch(&scene.hub, id, "main"), Err(HubError::BadId { .. })), "{id}");
    }
    for revision in ["../main", "", "/etc/passwd"] {
        assert!(matches!(fetch(&scene.hub, ID, revision), Err(HubError::BadRevision { .. })), "{revision}");
    }
    let endpoint = "file:///etc".to_owned();
    let error = fetch(&Hub { endpoint, ..scene.hub.clone() }, ID, "main").expect_err("no address");
    assert!(matches!(error, HubError::BadEndpoint { .. }), "{error}");
    let token = Some("hf_x\r\nHost: evil".to_owned());
    let error = fetch(&Hub { token, ..scene.hub.clone() }, ID, "main").expect_err("no token");
    assert!(matches!(error, HubError::BadToken), "{error}");
    assert_eq!(scene.server.requests(), []);
}

#[test]
fn a_model_without_a_wanted_file_is_an_error() {
    let scene = Scene::new();
    let error = scene.hub.fetch(ID, "main", &|_| false, &mut |_| {}).expect_err("nothing wanted");
    assert!(matches!(error, HubError::NoUsableFiles { .. }), "{error}");
}

#[test]
fn two_concurrent_fetches_give_one_complete_model() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.pause = Duration::from_millis(3));
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| scene.fetch().expect("fetches"))).collect();
        for run in runs {
            let folder = run.join().expect("ends");
            assert_eq!(
                fs::read(folder.join("model.safetensors")).expect("reads"),
                bytes_of("model.safetensors")
            );
        }
    });
    let weights = scene
        .asked()
        .into_iter()
        .filter(|path| path.ends_with(&format!("{COMMIT}/model.safetensors")))
        .count();
    assert_eq!(weights, 1);
}

#[test]
fn the_cache_lists_its_models() {
    let scene = Scene::new();
    assert_eq!(scene.hub.cached(), []);
    let folder = scene.fetch().expect("fetches");
    let cached = scene.hub.cached();
    assert_eq!(cached.len(), 1);
    assert_eq!(
        (cached[0].id.as_str(), cached[0].revision.as_str(), cached[0].commit.as_str()),
        (ID, "main", COMMIT)
    );
    let bytes: u64 = WANTED.iter().map(|name| bytes_of(name).len() as u64).sum();
    assert_eq!((cached[0].bytes, &cached[0].folder, cached[0].complete), (bytes, &folder, true));
    fs::remove_file(folder.join("config.json")).expect("removes");
    assert!(!scene.hub.cached()[0].complete);
}
