//! The hub client against a hub that fails, returns wrong data or attacks.

use super::*;

#[test]
fn redirects_that_do_not_end_are_given_up() {
    let scene = Scene::new();
    let endpoint = scene.server.endpoint();
    scene.server.behave(|behaviour| {
        behaviour.redirect = Some(format!("{endpoint}/{ID}/resolve/{COMMIT}/model.safetensors?"));
    });
    let error = scene.fetch().expect_err("a loop");
    assert!(matches!(error, HubError::Hostile { .. }), "{error}");
}

#[test]
fn a_dropped_connection_goes_on_where_it_stopped() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| (behaviour.drop_after, behaviour.drops) = (Some(15_000), 2));
    let folder = scene.fetch().expect("fetches");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
    let ranges: Vec<_> =
        scene.server.requests().into_iter().filter(|r| r.path.ends_with("/model.safetensors")).collect();
    let ranges: Vec<_> =
        ranges.iter().filter(|r| !r.path.contains("Dense")).map(|r| r.range.as_deref()).collect();
    assert_eq!(ranges, [Some("bytes=0-"), Some("bytes=15000-"), Some("bytes=30000-")]);
}

#[test]
fn a_fetch_that_is_given_up_leaves_no_half_file_and_the_next_one_goes_on() {
    let scene = Scene::new();
    // Sixteen kilobytes, then three attempts that bring nothing.
    scene.server.behave(|behaviour| (behaviour.drop_after, behaviour.drops) = (Some(16_000), 1));
    let mut stopped = false;
    let mut stop = |progress: Progress<'_>| {
        if let Progress::File { name: "model.safetensors", done, .. } = progress
            && done >= 16_000
            && !stopped
        {
            stopped = true;
            scene.server.behave(|behaviour| (behaviour.drop_after, behaviour.drops) = (Some(0), 3));
        }
    };
    let error = scene.hub.fetch(ID, "main", &is_wanted, &mut stop).expect_err("dropped");
    assert!(matches!(error, HubError::Interrupted { done: 16_000, total: 40_000, .. }), "{error}");
    let snapshot = scene.repository().join("snapshots").join(COMMIT);
    assert!(!snapshot.join("model.safetensors").exists());
    assert!(!scene.repository().join("refs/main").exists());
    assert!(matches!(scene.fetch_offline(), Err(HubError::NotCached { .. })));

    scene.server.forget();
    let folder = scene.fetch().expect("goes on");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
    assert!(scene.server.requests().iter().any(|request| request.range.as_deref() == Some("bytes=16000-")));
}

#[test]
fn a_model_interrupted_between_files_is_incomplete_offline_and_the_former_one_still_complete() {
    let mut next = model();
    next.commit = NEXT_COMMIT.into();
    next.files[2] = large("model.safetensors", WEIGHTS + 1);
    let scene = Scene::new();
    let old = scene.fetch().expect("fetches");
    let moved = HubServer::start(vec![next]);
    moved.behave(|behaviour| (behaviour.drop_after, behaviour.drops) = (Some(0), 3));
    let hub = Hub { endpoint: moved.endpoint(), ..scene.hub.clone() };
    let mut said = String::new();
    let mut report = |progress: Progress<'_>| {
        if let Progress::FromCache { why } = progress {
            said = why.to_string();
        }
    };
    assert_eq!(hub.fetch(ID, "main", &is_wanted, &mut report).expect("the former one"), old);
    assert!(said.contains("stopped at 0 of"), "{said}");
    assert_eq!(scene.fetch_offline().expect("the former one"), old);
    assert_ne!(hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect("fetches"), old);
}

#[test]
fn a_hub_that_can_not_be_used_leaves_what_the_cache_has() {
    let scene = Scene::new();
    let folder = scene.fetch().expect("fetches");
    let Scene { server, hub, folder: _cache } = scene;
    let fetch = || {
        let mut said = None;
        let mut report = |progress: Progress<'_>| {
            if let Progress::FromCache { why } = progress {
                said = Some(why.to_string());
            }
        };
        let result = hub.fetch(ID, "main", &is_wanted, &mut report);
        (result, said.unwrap_or_default())
    };
    server.behave(|behaviour| behaviour.status = Some(503));
    let (result, said) = fetch();
    assert_eq!(result.expect("is cached"), folder);
    assert!(said.contains("503"), "{said}");
    drop(server);
    let (result, said) = fetch();
    assert_eq!(result.expect("is cached"), folder);
    assert!(said.contains("can't be reached"), "{said}");
}

#[test]
fn a_hub_that_can_not_be_used_and_an_empty_cache_is_an_error_with_its_source() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.status = Some(500));
    assert!(matches!(scene.fetch(), Err(HubError::Status { status: 500, .. })));
    let Scene { server, hub, folder: _cache } = scene;
    drop(server);
    let error = hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect_err("nobody there");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn a_silent_hub_is_waited_for_no_longer_than_its_patience() {
    let scene = Scene::new();
    // Whoever waits for it does not come back within the time that a test has.
    scene.server.behave(|behaviour| behaviour.pause = Duration::from_hours(1));
    let hub = Hub { timeout: Duration::from_secs(1), ..scene.hub.clone() };
    let error = hub.fetch(ID, "main", &is_wanted, &mut |_| {}).expect_err("silent");
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
}

#[test]
fn a_file_of_the_wrong_length_is_refused() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.cut = 1);
    let error = scene.fetch().expect_err("too short");
    assert!(matches!(error, HubError::Corrupt { .. }), "{error}");
    assert!(!scene.repository().join("snapshots").exists());
}

#[test]
fn a_large_file_with_other_bytes_is_refused_and_fetched_anew() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.garble = true);
    let error = scene.fetch().expect_err("other bytes");
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(matches!(scene.fetch_offline(), Err(HubError::NotCached { .. })));
    scene.server.behave(|behaviour| behaviour.garble = false);
    let folder = scene.fetch().expect("fetches");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
}

#[test]
fn a_part_that_is_longer_than_the_file_or_not_of_it_is_thrown_away() {
    for left in [vec![1; WEIGHTS + 5], vec![1; 10], vec![1; WEIGHTS]] {
        let scene = Scene::new();
        let blobs = scene.repository().join("blobs");
        fs::create_dir_all(&blobs).expect("a folder");
        let blob = large("", WEIGHTS).blob();
        fs::write(blobs.join(format!("{blob}.part")), &left).expect("writes");
        // A part with foreign bytes is found out by its digest; the next fetch starts anew.
        let folder = scene.fetch().or_else(|_| scene.fetch()).expect("fetches");
        assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
    }
}

#[test]
fn a_content_that_lost_its_end_is_fetched_anew() {
    let scene = Scene::new();
    let folder = scene.fetch().expect("fetches");
    let blob = fs::canonicalize(folder.join("model.safetensors")).expect("resolves");
    fs::write(&blob, "short").expect("writes");
    scene.fetch().expect("fetches");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
}

#[test]
fn a_hub_that_knows_no_ranges_and_lists_only_names_serves_as_well() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| {
        (behaviour.no_ranges, behaviour.names_only) = (true, true);
        (behaviour.drop_after, behaviour.drops) = (Some(20_000), 2);
    });
    let folder = scene.fetch().expect("fetches");
    assert_eq!(files(&folder), WANTED);
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
    let blob = scene.repository().join("blobs").join(large("", WEIGHTS).blob());
    assert!(blob.is_file());
}

#[test]
fn hostile_file_names_are_refused_before_anything_is_written() {
    for name in
        ["../../../evil.json", "/tmp/evil.json", "..\\evil.json", "a/../../evil.json", "C:\\evil.json"]
    {
        let mut hostile = model();
        hostile.files.push(file(name, "{}"));
        let scene = Scene::with(vec![hostile]);
        let error = scene.hub.fetch(ID, "main", &|_| true, &mut |_| {}).expect_err(name);
        assert!(matches!(error, HubError::Hostile { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(files(scene.folder.path()), Vec::<String>::new());
    }
}

#[test]
fn a_hostile_commit_or_etag_is_refused() {
    let mut hostile = model();
    hostile.commit = "../../../evil".into();
    let scene = Scene::with(vec![hostile]);
    assert!(matches!(scene.fetch(), Err(HubError::Hostile { what: "commit", .. })));
    let mut hostile = model();
    hostile.files = vec![HubFile { sha256: Some("../../../evil".into()), ..file("config.json", "{}") }];
    let scene = Scene::with(vec![hostile]);
    assert!(matches!(scene.fetch(), Err(HubError::Hostile { .. })));
    scene.server.behave(|behaviour| behaviour.names_only = true);
    assert!(matches!(scene.fetch(), Err(HubError::Hostile { what: "etag", .. })));
    assert_eq!(files(scene.folder.path()), Vec::<String>::new());
}

#[test]
fn a_file_without_a_length_that_stops_early_is_not_complete() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| {
        behaviour.no_lengths = true;
        (behaviour.drop_after, behaviour.drops) = (Some(15_000), 2);
    });
    let folder = scene.fetch().expect("fetches");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("reads"), bytes_of("model.safetensors"));
}

#[test]
fn a_file_without_a_length_that_does_not_end_is_refused() {
    let scene = Scene::new();
    scene.server.behave(|behaviour| (behaviour.no_lengths, behaviour.surplus) = (true, 1));
    let error = scene.fetch().expect_err("too long");
    assert!(error.to_string().contains("more than"), "{error}");
    assert!(!scene.repository().join("snapshots").exists());
}

#[test]
fn a_refusal_by_the_host_of_large_files_is_not_taken_for_a_gated_model() {
    let elsewhere = HubServer::start(vec![model()]);
    elsewhere.behave(|behaviour| behaviour.status = Some(403));
    let scene = Scene::new();
    scene.server.behave(|behaviour| behaviour.redirect = Some(elsewhere.endpoint()));
    assert!(matches!(scene.fetch(), Err(HubError::Status { status: 403, .. })));
}
