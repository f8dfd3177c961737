//! Obstacles: codes, messages and remedies.

use sconce_core::card::Format;
use sconce_core::device::Device;
use sconce_core::obstacle::{BuildPart, Distance, Obstacle, bytes};
use sconce_core::placement::{Dtype, EngineId, Placement};

fn words(text: &str) -> String {
    text.to_owned()
}

/// Each obstacle with its code, and parts of its message and its remedy.
#[expect(clippy::too_many_lines, reason = "a table of all kinds")]
fn every() -> Vec<(Obstacle, &'static str, &'static str, &'static str)> {
    let than =
        Placement { engine: EngineId::Candle, device: Device::Cpu, weights: words("w"), dtype: Dtype::F32 };
    let error = Distance(Some(0.5));
    let unknown = |missing: &[&str]| Obstacle::UnknownArchitecture {
        architecture: words("lstm"),
        known: vec![words("bert"), words("t5")],
        nearest: words("bert"),
        missing: missing.iter().map(|key| words(key)).collect(),
    };
    let provider =
        |provider: &str| Obstacle::ProviderFailed { provider: words(provider), reason: words("no") };
    let absent = |device| Obstacle::NoSuchDevice { device, found: words("nothing") };
    let missing = |says: &str| Obstacle::OpMissing { op: words("gelu"), reason: words(says) };
    vec![
        (
            Obstacle::NotBuilt { part: BuildPart::Device, what: words("CUDA"), feature: Some(words("cuda")) },
            "not_built",
            "this build lacks CUDA",
            "--features cuda`",
        ),
        (
            Obstacle::NotBuilt { part: BuildPart::Device, what: words("CUDA"), feature: None },
            "not_built",
            "this build lacks CUDA",
            "none: no build",
        ),
        (
            Obstacle::NoWeights { format: Format::Onnx },
            "no_weights",
            "no ONNX weights",
            "ONNX weights of the model at `onnx/model.onnx`",
        ),
        (
            Obstacle::LibraryMissing { library: words("ort"), searched: vec![words("a"), words("b")] },
            "library_missing",
            "`ort` was not found; looked in: a, b",
            "`pip install ort`",
        ),
        (
            Obstacle::LibraryTooOld { library: words("ort"), found: words("1"), needed: words("2") },
            "library_too_old",
            "`ort` is version 1, needed is 2 or newer",
            "--upgrade",
        ),
        (
            provider("CUDAExecutionProvider"),
            "provider_failed",
            "could not be registered: no",
            "onnxruntime-gpu`",
        ),
        (provider("CoreML"), "provider_failed", "`CoreML` could not", "that has `CoreML`"),
        (absent(Device::Metal(0)), "no_such_device", "no device `metal:0`: nothing", "needs a Mac"),
        (absent(Device::Cuda(0)), "no_such_device", "no device `cuda:0`", "`nvidia-smi`"),
        (absent(Device::Cpu), "no_such_device", "no device `cpu`", "none"),
        (
            Obstacle::DriverTooOld { found: words("1"), needed: words("2") },
            "driver_too_old",
            "found 1, needed 2",
            "install driver 2 or newer",
        ),
        (
            unknown(&[]),
            "unknown_architecture",
            "the architecture `lstm`",
            "has nothing that `bert` does not know. All that are known: bert, t5",
        ),
        (
            unknown(&["a", "b"]),
            "unknown_architecture",
            "`lstm`",
            "nearest known is `bert`; for it, this is missing: a, b. All",
        ),
        (
            missing("no metal implementation for"),
            "op_missing",
            "`gelu` is missing: no metal",
            "`sconce doctor --manifest .`",
        ),
        (
            missing("no cuda implementation for"),
            "op_missing",
            "`gelu` is missing",
            "`sconce doctor --manifest .`",
        ),
        (missing("other"), "op_missing", "`gelu` is missing: other", "`sconce doctor --json`"),
        (
            Obstacle::OpWrong { op: words("gelu"), shape: vec![7, 3], error, tolerance: 1e-5 },
            "op_wrong",
            "`gelu` at [7, 3] is wrong: 5.0e-1, allowed 1e-5",
            "`sconce doctor --json`",
        ),
        (
            Obstacle::ModelWrong { case: words("twin"), error: Distance(None), tolerance: 1e-3 },
            "model_wrong",
            "wrong at twin: not finite, allowed 1e-3",
            "the next placement serves",
        ),
        (
            Obstacle::Crashed { case: words("twin"), cause: words("signal 6") },
            "crashed",
            "crashed at twin: signal 6",
            "`sconce doctor --fresh`",
        ),
        (
            Obstacle::TimedOut { case: words("twin"), seconds: 2.5 },
            "timed_out",
            "no answer at twin in 2.5 s",
            "`sconce doctor --fresh`",
        ),
        (
            Obstacle::DoesNotFit { need: Some(2_000_000), have: Some(1_000) },
            "does_not_fit",
            "needs 2 MB, has 1 kB",
            "a narrower `--dtype`",
        ),
        (
            Obstacle::DoesNotFit { need: Some(2_000_000), have: None },
            "does_not_fit",
            "memory: needs 2 MB",
            "smaller model",
        ),
        (
            Obstacle::DoesNotFit { need: None, have: None },
            "does_not_fit",
            "does not fit in memory",
            "another `--device`",
        ),
        (
            Obstacle::Slower { than, ratio: 1.25 },
            "slower",
            "1.2x slower than candle/cpu/f32",
            "`--device cpu --dtype f32` is the faster",
        ),
        (
            Obstacle::LoadFailed { reason: words("no tensor") },
            "load_failed",
            "could not be loaded: no tensor",
            "`sconce plan MODEL --full`",
        ),
        (
            Obstacle::Quarantined { reason: words("NaN") },
            "quarantined",
            "taken out of service: NaN",
            "`sconce doctor --fresh`",
        ),
    ]
}

#[test]
fn every_obstacle_has_its_code_its_words_and_its_remedy() {
    for (obstacle, code, says, remedy) in every() {
        assert_eq!(obstacle.code(), code);
        assert!(obstacle.to_string().contains(says), "{obstacle}");
        assert!(obstacle.remedy().to_string().contains(remedy), "{code}: {}", obstacle.remedy());
        let json = serde_json::to_value(&obstacle).expect("it can be written");
        assert_eq!(json["code"], code);
        assert_eq!(serde_json::from_value::<Obstacle>(json).expect("it can be read"), obstacle);
    }
}

#[test]
fn a_missing_engine_is_not_built() {
    let obstacle = Obstacle::engine_not_in_this_version(EngineId::Onnx);
    assert_eq!(obstacle.to_string(), "this build lacks the onnx engine, which is not in this version");
    assert!(matches!(obstacle, Obstacle::NotBuilt { feature: None, .. }));
}

#[test]
fn a_distance_lies_within_its_tolerance_and_not_beyond() {
    let distance = Distance(Some(0.25));
    assert!(distance.within(0.25) && distance.within(0.3) && !distance.within(0.24));
    assert!(!Distance(Some(f64::NAN)).within(1.0) && !Distance(None).within(1.0));
    assert_eq!(
        [Distance::ZERO, distance, Distance(None)].map(|distance| distance.to_string()),
        ["0", "2.5e-1", "not finite"]
    );
    assert_eq!(
        [Distance::ZERO, distance, Distance(None)].map(|distance| format!("{distance:>12}").len()),
        [12; 3]
    );
}

#[test]
fn bytes_are_counted_in_thousands() {
    let counts = [0, 1_499, 999_999, 1_000_000, 999_000_000, 1_000_000_000, 2_550_000_000];
    assert_eq!(counts.map(bytes), ["0 kB", "1 kB", "1000 kB", "1 MB", "999 MB", "1.0 GB", "2.5 GB"]);
}
