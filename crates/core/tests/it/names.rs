//! Names: parsing is the inverse of formatting.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use sconce_core::card::{Format, PoolingMode, Task};
use sconce_core::device::{Device, DeviceKind, UnknownName};
use sconce_core::hardware::{Gpu, Hardware};
use sconce_core::head::{DenseActivation, Scoring};
use sconce_core::placement::{Dtype, EngineId, Placement};

/// Checks that each of `all` has its name, parses back and pads, and that an unknown name is rejected with the known
/// ones.
fn named<T: Copy + Debug + Display + PartialEq + FromStr<Err = UnknownName>>(
    all: &[T],
    names: &[&str],
    what: &str,
) {
    assert_eq!(all.len(), names.len());
    for (one, name) in all.iter().zip(names) {
        assert_eq!(one.to_string(), *name);
        assert_eq!(name.parse::<T>().ok(), Some(*one), "{name}");
        assert_eq!(format!("{one:>20}").len(), 20, "{name}");
    }
    let error = "nothing".parse::<T>().expect_err("no such name");
    assert_eq!((error.what, error.name.as_str()), (what, "nothing"));
    assert_eq!(error.known, names.join(", "));
    assert_eq!(error.to_string(), format!("unknown {what} `nothing`; known: {}", names.join(", ")));
}

#[test]
fn every_name_prints_as_it_is_read() {
    named(&Task::ALL, &["embed", "rerank", "classify", "sparse", "tokens", "generate"], "task");
    named(&Dtype::ALL, &["f32", "f16", "bf16", "int8", "int4"], "dtype");
    named(&EngineId::ALL, &["candle", "native", "onnx"], "engine");
    let modes = ["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last_token"];
    named(&PoolingMode::ALL, &modes, "pooling");
}

#[test]
fn tasks_say_what_they_do_and_which_give_scores() {
    assert_eq!(Task::ALL.map(Task::scores), [false, true, true, false, false, false]);
    let does = Task::ALL.map(Task::does);
    for (does, word) in does.iter().zip([
        "one vector",
        "against a query",
        "labels",
        "weights of words",
        "each token",
        "continues",
    ]) {
        assert!(does.contains(word), "{does}");
    }
}

#[test]
fn pooling_modes_have_the_keys_of_sentence_transformers() {
    let keys = PoolingMode::ALL.map(PoolingMode::key);
    let expected = [
        "cls_token",
        "max_tokens",
        "mean_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    ];
    assert_eq!(keys.map(|key| key.strip_prefix("pooling_mode_")), expected.map(Some));
}

#[test]
fn dtypes_have_their_bits() {
    assert_eq!(Dtype::ALL.map(Dtype::bits), [32, 16, 16, 8, 4]);
    assert_eq!(Dtype::FLOATS, [Dtype::F32, Dtype::F16, Dtype::Bf16]);
}

#[test]
fn formats_have_names_and_usual_files() {
    let all = [Format::Safetensors, Format::Gguf, Format::Onnx];
    assert_eq!(all.map(|format| format.to_string()), ["safetensors", "GGUF", "ONNX"]);
    assert_eq!(all.map(Format::is_graph), [false, false, true]);
    assert_eq!(all.map(Format::usual_name), ["model.safetensors", "model.gguf", "onnx/model.onnx"]);
    assert_eq!(format!("{:>12}", Format::Onnx).len(), 12);
}

#[test]
fn a_device_is_one_of_its_kind() {
    let devices = [Device::Cpu, Device::Metal(1), Device::Cuda(2)];
    let kinds = [DeviceKind::Cpu, DeviceKind::Metal, DeviceKind::Cuda];
    assert_eq!(devices.map(Device::kind), kinds);
    assert_eq!(kinds.map(|kind| kind.device(3)), [Device::Cpu, Device::Metal(3), Device::Cuda(3)]);
    assert_eq!(devices.map(|device| device.to_string()), ["cpu", "metal:1", "cuda:2"]);
    assert_eq!(devices.map(|device| format!("{device:>9}").len()), [9; 3]);
    for (text, device) in [
        ("cpu", Some(Device::Cpu)),
        ("cpu:0", Some(Device::Cpu)),
        ("cpu:1", None),
        ("cuda", Some(Device::Cuda(0))),
        ("metal:7", Some(Device::Metal(7))),
    ] {
        assert_eq!(text.parse().ok(), device, "{text}");
    }
    for device in devices {
        let json = serde_json::to_value(device).expect("it can be written");
        assert_eq!(json, device.to_string());
        assert_eq!(serde_json::from_value::<Device>(json).expect("it can be read"), device);
    }
    assert!(serde_json::from_value::<Device>("gpu".into()).is_err());
    assert_eq!(String::from(Device::Metal(1)), "metal:1");
}

#[test]
fn a_placement_prints_all_of_its_parts() {
    let placement = Placement {
        engine: EngineId::Onnx,
        device: Device::Cuda(1),
        weights: "onnx/model.onnx".to_owned(),
        dtype: Dtype::Int8,
    };
    assert_eq!(placement.to_string(), "onnx/cuda:1/int8 onnx/model.onnx");
}

#[test]
fn heads_print_their_parts() {
    let scoring = [Scoring::Raw, Scoring::Sigmoid, Scoring::Softmax];
    assert_eq!(scoring.map(|scoring| scoring.to_string()), ["raw", "sigmoid", "softmax"]);
    let activations = [
        DenseActivation::Identity,
        DenseActivation::Tanh,
        DenseActivation::Relu,
        DenseActivation::Gelu,
        DenseActivation::GeluTanh,
    ];
    let names = ["identity", "tanh", "relu", "gelu", "gelu_tanh"];
    assert_eq!(activations.map(|activation| activation.to_string()), names);
    assert_eq!(format!("{:>9}{:>9}", Scoring::Raw, DenseActivation::Relu).len(), 18);
}

#[test]
fn gpus_are_found_by_kind() {
    let gpu = |kind, index| Gpu {
        kind,
        index,
        name: String::new(),
        memory: None,
        driver: None,
        seen_by: String::new(),
    };
    let (cuda, metal) = (Some(DeviceKind::Cuda), Some(DeviceKind::Metal));
    let gpus = vec![gpu(None, 0), gpu(cuda, 0), gpu(metal, 0), gpu(cuda, 1)];
    let hardware = Hardware { gpus, ..Hardware::default() };
    let count = |kind| hardware.of_kind(kind).count();
    assert_eq!([DeviceKind::Cuda, DeviceKind::Metal, DeviceKind::Cpu].map(count), [2, 1, 0]);
    assert!(hardware.of_kind(DeviceKind::Cuda).map(|gpu| gpu.index).eq([0, 1]));
}
