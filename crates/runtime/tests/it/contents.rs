//! Content hashes of a model's files: identity by content, hashed once, verified after loading.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sconce::card::Overrides;
use sconce::{Event, Model, ModelSource, Runtime};
use sconce_testkit::fake::{BatchFault, Fault};

use crate::fakes::{METAL, Stage, TEXTS, candle};
use crate::support::Copy;

fn open(runtime: &Runtime, folder: &Path) -> Model {
    Model::builder(&folder.to_string_lossy()).runtime(runtime).open().expect("it serves")
}

fn class(stage: &Stage, folder: &Path) -> String {
    open(&stage.in_process().build(), folder).class().expect("it serves")
}

/// The files that are hashed when a runtime reads what the model says of itself.
fn hashed(runtime: &Runtime, folder: &Path) -> Vec<PathBuf> {
    let source = ModelSource::parse(&folder.to_string_lossy(), None);
    let mut files = Vec::new();
    let mut hear = |event: Event<'_>| {
        if let Event::Hashing { file, done: 0, total } = event {
            assert_eq!(fs::metadata(file).expect("the file is there").len(), total);
            files.push(PathBuf::from(file));
        }
    };
    runtime.model_spec(&source, &Overrides::default(), &mut hear).expect("the golden is a model");
    files.sort();
    files
}

/// Flips a byte of a file and keeps its times, as a fault of a disk would.
fn flip(path: &Path, at: usize) {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a time");
    let mut bytes = fs::read(path).expect("the file is there");
    let place = bytes.len() - 1 - at;
    bytes[place] ^= 0x55;
    fs::write(path, bytes).expect("the file can be written");
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_modified(modified))
        .expect("a time can be set");
}

/// Has the runtime's record of a file say that it holds something else.
fn forge(stage: &Stage, file: &Path) {
    let folder = stage.home.path().join("contents");
    let file = file.canonicalize().expect("the file is there");
    for entry in fs::read_dir(folder).expect("hashes are kept").flatten() {
        let mut record: serde_json::Value =
            serde_json::from_slice(&fs::read(entry.path()).expect("a record")).expect("JSON");
        if record["path"] == file.to_string_lossy().as_ref() {
            record["sha256"] = "0".repeat(64).into();
            fs::write(entry.path(), record.to_string()).expect("a record can be written");
            return;
        }
    }
    panic!("no record of {}", file.display());
}

#[test]
fn a_copy_of_a_model_is_of_the_same_class() {
    let stage = Stage::new(candle());
    let one = Copy::of("tiny-bert");
    let weights = fs::read(one.file("model.safetensors")).expect("the golden has weights");
    let another = Copy::of("tiny-bert").with("model.safetensors", weights);
    assert_eq!(class(&stage, one.path()), class(&stage, another.path()));
    let elsewhere = Stage::new(candle());
    assert_eq!(class(&elsewhere, another.path()), class(&stage, one.path()), "the home does not matter");
}

#[test]
fn other_content_is_another_class_whatever_its_times_say() {
    let stage = Stage::new(candle());
    let folder = Copy::of("tiny-bert");
    let weights = folder.file("model.safetensors");
    let mut classes = vec![class(&stage, folder.path())];
    // Neither at the ends nor in the middle, where a sample would look.
    for at in [fs::metadata(&weights).expect("the weights are there").len() as usize / 3, 7] {
        flip(&weights, at);
        classes.push(class(&stage, folder.path()));
    }
    let mut tokenizer = fs::read(folder.file("tokenizer.json")).expect("the golden has a tokenizer");
    tokenizer.push(b'\n');
    let folder = folder.with("tokenizer.json", tokenizer);
    classes.push(class(&stage, folder.path()));
    let all = classes.len();
    classes.sort();
    classes.dedup();
    assert_eq!(classes.len(), all, "{classes:?}");
}

#[test]
fn a_file_is_hashed_once_with_an_event() {
    let stage = Stage::new(candle());
    let folder = Copy::of("tiny-bert");
    let files = hashed(&stage.in_process().build(), folder.path());
    assert!(files.contains(&folder.file("model.safetensors")), "{files:?}");
    assert_eq!(hashed(&stage.in_process().build(), folder.path()), Vec::<PathBuf>::new());
    flip(&folder.file("model.safetensors"), 9);
    assert_eq!(hashed(&stage.in_process().build(), folder.path()), [folder.file("model.safetensors")]);
}

#[test]
fn content_that_differs_from_its_hash_is_found_after_loading_and_its_placements_are_retired() {
    let stage = Stage::new(candle());
    let folder = Copy::of("tiny-bert");
    let right = class(&stage, folder.path());
    let weights = folder.file("model.safetensors");
    forge(&stage, &weights);
    let model = open(&stage.in_process().build(), folder.path());
    assert_ne!(model.class(), Some(right.clone()), "the forged hash is believed at first");
    let began = Instant::now();
    while model.placement().is_some() {
        assert!(began.elapsed() < Duration::from_mins(1), "nobody noticed");
        thread::sleep(Duration::from_millis(5));
    }
    let error = model.embed(&TEXTS).map(|_| ()).expect_err("nothing is left").to_string();
    assert!(error.contains("[content_changed]") && error.contains("model.safetensors"), "{error}");
    let downgrades = model.drain_downgrades();
    assert!(downgrades.iter().any(|downgrade| downgrade.why.code() == "content_changed"), "{downgrades:?}");
    assert_eq!(class(&stage, folder.path()), right, "the next start hashes it anew");
}

#[test]
fn a_placement_that_is_loaded_later_has_the_files_that_were_opened_or_none() {
    // The accelerator fails at its second batch; then the CPU loads the weights.
    for (changes, says) in [(true, Some("[content_changed]")), (false, None)] {
        let stage = Stage::new(candle().with(METAL, Fault::FromBatch(2, BatchFault::Nan)));
        let folder = Copy::of("tiny-bert");
        let model = open(&stage.in_process().build(), folder.path());
        let before = model.embed(&TEXTS).expect("it serves");
        let weights = folder.file("model.safetensors");
        if changes {
            flip(&weights, 1000);
        } else {
            // New metadata alone is no change.
            let content = fs::read(&weights).expect("the file is there");
            fs::write(&weights, content).expect("the file can be written");
        }
        let after = model.embed(&TEXTS);
        match says {
            Some(says) => {
                let error = after.map(|_| ()).expect_err("nothing is left").to_string();
                assert!(error.contains(says) && error.contains("model.safetensors"), "{error}");
            }
            None => assert_eq!(after.expect("the CPU serves").len(), before.len()),
        }
    }
}

#[test]
fn a_check_in_the_foreground_names_the_file() {
    let stage = Stage::new(candle());
    let folder = Copy::of("tiny-bert");
    let runtime = stage.in_process().build();
    let spec = crate::fakes::spec(&runtime, folder.path());
    runtime.check_contents(&spec, &mut |_| {}).expect("all is as it was");
    let weights = folder.file("model.safetensors");
    forge(&stage, &weights);
    let mut read = 0;
    let error = runtime.check_contents(&spec, &mut |_| read += 1).expect_err("it differs").to_string();
    assert!(error.contains(&*weights.to_string_lossy()) && error.contains("hint:"), "{error}");
    assert!(read > 0, "progress is told");
    runtime.check_contents(&spec, &mut |_| {}).expect("what differed is hashed anew");
}
