//! Cards read from a hub on loopback, without fetching weights.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sconce::card::{self, Overrides};
use sconce::hub::{Graphs, Hub, HubError, is_wanted};
use sconce_testkit::goldens;
use sconce_testkit::hub_server::{HubFile, HubModel, HubServer};
use tempfile::TempDir;

const ID: &str = "owner/model";

fn files(folder: &Path, below: &str) -> Vec<HubFile> {
    let entries = fs::read_dir(folder.join(below)).expect("the golden is there").flatten();
    let read = entries.flat_map(|entry| {
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            return files(folder, &format!("{name}/"));
        }
        vec![HubFile { bytes: fs::read(entry.path()).expect("it can be read"), name, sha256: None }]
    });
    read.collect()
}

struct Scene {
    server: HubServer,
    hub: Hub,
    folder: TempDir,
}

/// A hub that has a golden.
fn scene(golden: &str) -> Scene {
    let model = HubModel {
        id: ID.to_owned(),
        revision: "main".to_owned(),
        commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
        files: files(&goldens::folder(golden), ""),
    };
    let server = HubServer::start(vec![model]);
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

#[test]
fn a_card_from_headers_is_the_card_of_the_full_model() {
    for golden in ["tiny-distilbert", "tiny-bert-rerank", "tiny-mpnet-sparse", "tiny-bert-tokens-filled"] {
        let scene = scene(golden);
        let peeked = scene.folder.path().join("peeked");
        scene.hub.peek(ID, "main", &is_wanted, &peeked).expect("the hub answers");
        let card = |folder: &Path| {
            let mut card = card::read("model", folder, &Overrides::default()).expect("a model").card;
            card.weights.iter_mut().for_each(|weights| weights.identity.clear());
            card
        };
        assert_eq!(card(&peeked), card(&goldens::folder(golden)), "{golden}");
        assert!(!peeked.join("tokenizer.json").exists(), "{golden}");
        assert!(!scene.hub.cache.exists(), "nothing is kept in the cache");
        let header = fs::read(peeked.join("model.safetensors")).expect("a header and a hole");
        let whole = fs::read(goldens::folder(golden).join("model.safetensors")).expect("the weights");
        assert_eq!(header.len(), whole.len(), "{golden}");
        assert!(header[header.len() - 4000..].iter().all(|&byte| byte == 0), "the numbers were not fetched");
        let asked = scene.server.requests();
        assert!(asked.iter().all(|request| !request.path.ends_with("tokenizer.json")), "{golden}");
    }
}

#[test]
fn a_hub_that_knows_no_ranges_or_cuts_its_files_is_noticed() {
    let whole = scene("tiny-bert");
    whole.server.behave(|behaviour| behaviour.no_ranges = true);
    let peeked = whole.folder.path().join("peeked");
    whole.hub.peek(ID, "main", &is_wanted, &peeked).expect("the header is read all the same");
    card::read("model", &peeked, &Overrides::default()).expect("a model");

    let refused = scene("tiny-bert");
    refused.server.behave(|behaviour| behaviour.status = Some(500));
    let error = refused.hub.peek(ID, "main", &is_wanted, &refused.folder.path().join("peeked"));
    assert!(matches!(error, Err(HubError::Status { status: 500, .. })), "{error:?}");

    let offline = scene("tiny-bert");
    let hub = Hub { offline: true, ..offline.hub.clone() };
    let error = hub.peek(ID, "main", &is_wanted, &offline.folder.path().join("peeked"));
    assert!(matches!(error, Err(HubError::NotCached { .. })), "{error:?}");
    assert!(offline.server.requests().is_empty(), "no socket was opened");
}
