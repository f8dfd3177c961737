//! Cards of complete, incomplete, broken and malicious folders.

use std::fs;

use safetensors::tensor::{Dtype as Stored, TensorView};
use sconce::card::{self, CardError, Overrides};
use sconce::prove::ProofDepth;
use sconce::{Constraints, Embeddings, Error, KvCacheDtype, ModelSource, Plan, PoolingMode};
use sconce_core::card::Dimensions;
use sconce_core::head::Step;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId};
use sconce_engines::describe::describe;
use sconce_planner::plan::Refusal;
use sconce_testkit::compare::{largest, max_difference};
use sconce_testkit::{goldens, parts};
use serde_json::{Value, json};

use crate::support::{Copy, Home, INTERPRETERS, Tensor, read_tensors, spec, texts, write_tensors};

/// The error and its causes, as the command prints them.
fn refusal(copy: &Copy) -> String {
    error_chain(&copy.read().expect_err("is refused"))
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", error_chain(cause))).unwrap_or_default();
    format!("{error}{cause}")
}

fn assert_contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
}

fn open_error(copy: &Copy) -> Error {
    Home::new().model(copy.path()).open().err().expect("does not open")
}

/// The obstacles of a model that could not be opened.
fn obstacles(error: &Error) -> Vec<&Obstacle> {
    let Error::NoPlacement { plan, .. } = error else { panic!("expected a plan, got: {error}") };
    let refused = plan.refused.iter().filter_map(|refused| match &refused.why {
        Refusal::Obstacle(obstacle) => Some(obstacle),
        Refusal::Band { .. } | Refusal::NotRequested | Refusal::NotTried => None,
    });
    refused.collect()
}

fn plan(home: &Home, copy: &Copy) -> Plan {
    let source = ModelSource::Folder(copy.path().to_owned());
    let spec =
        home.runtime.model_spec(&source, &Overrides::default(), &mut |_| {}).expect("the folder is a model");
    home.runtime.plan(&spec, &Constraints::default(), ProofDepth::Twin, &mut |_| {}).expect("plans")
}

fn embed(copy: &Copy) -> Embeddings {
    let model = Home::new().model(copy.path()).engine(EngineId::Candle).open().expect("opens");
    model.embed(&texts("tiny-bert")).expect("embeds")
}

#[test]
fn each_fact_carries_the_file_that_said_it() {
    let bert = spec("tiny-bert").card;
    assert_eq!(
        (bert.architecture.value.as_str(), bert.architecture.source.as_str()),
        ("bert", "config.json")
    );
    assert_eq!((bert.sizes.value.hidden, bert.sizes.source.as_str()), (32, "config.json"));
    assert_eq!((bert.max_length.value, bert.max_length.source.as_str()), (128, "sentence_bert_config.json"));
    assert_eq!(bert.pooling.source, "1_Pooling/config.json");
    assert_eq!((&bert.steps.value[..], bert.steps.source.as_str()), (&[Step::Normalize][..], "modules.json"));
    assert_eq!(bert.prompts.value["query"], "query: ");
    assert_eq!(bert.prompts.source, "config_sentence_transformers.json");
    assert_eq!((bert.default_prompt, bert.dimensions), (None, None));

    let camembert = spec("tiny-camembert").card;
    assert_eq!(
        (camembert.max_length.value, camembert.max_length.source.as_str()),
        (512, "tokenizer_config.json")
    );
    let distilbert = spec("tiny-distilbert").card;
    assert_eq!((distilbert.width(), distilbert.steps.value.len()), (16, 2));
}

#[test]
fn lengths_to_cut_to_come_from_the_file_that_declares_them() {
    let declared = |file: &str, key: &str, value: Value| {
        let card = Copy::of("tiny-bert").setting(file, key, value).read().expect("a model").card;
        card.dimensions.map(|said| (said.value, said.source))
    };
    let (config, sentence) = ("config.json", "config_sentence_transformers.json");
    let only = |lengths: &[usize], by: &str| Some((Dimensions::Only(lengths.to_vec()), by.to_owned()));
    assert_eq!(declared(config, "matryoshka_dimensions", json!([8, 16])), only(&[8, 16], config));
    assert_eq!(declared(sentence, "truncate_dim", json!(16)), only(&[16], sentence));
    assert_eq!(declared(config, "is_matryoshka", json!(true)), Some((Dimensions::Any, config.to_owned())));
    assert_eq!(declared(config, "is_matryoshka", json!(false)), None);
    assert_eq!(declared(sentence, "truncate_dim", json!(null)), None);
}

#[test]
fn undeclared_facts_are_requested_by_flag() {
    let copy = Copy::of("tiny-bert").without("modules.json");
    let read = |pooling, normalize| {
        card::read("copy", copy.path(), &Overrides { pooling, normalize, ..Overrides::default() })
    };
    let text = error_chain(&read(None, None).expect_err("is half configured"));
    assert_contains(&text, &["`modules.json` is missing", "hint: ", "--pooling", "--normalize"]);
    let text = error_chain(&read(Some(PoolingMode::Mean), None).expect_err("is half configured"));
    assert_contains(&text, &["normalization", "--normalize"]);
    assert!(!text.contains("--pooling"), "{text}");
    let text = error_chain(&read(None, Some(true)).expect_err("is half configured"));
    assert_contains(&text, &["--pooling"]);
    assert!(!text.contains("--normalize"), "{text}");

    let card = read(Some(PoolingMode::Cls), Some(false)).expect("is said by flags").card;
    assert_eq!(
        (&card.pooling.value.modes[..], card.pooling.source.as_str()),
        (&[PoolingMode::Cls][..], "--pooling")
    );
    assert_eq!((card.steps.value.len(), card.steps.source.as_str()), (0, "--normalize"));
}

#[test]
fn a_folder_without_modules_opens_with_overrides() {
    let copy = Copy::of("tiny-bert").without("modules.json");
    let builder = Home::new().model(copy.path()).engine(EngineId::Candle);
    let builder = builder.pooling(PoolingMode::Mean).normalize(true);
    let got = builder.max_length(128).open().expect("opens").embed(&texts("tiny-bert")).expect("embeds");
    assert_eq!(got.into_vectors(), embed(&Copy::of("tiny-bert")).into_vectors());
}

#[test]
fn modules_without_pooling_are_not_called_missing() {
    for modules in ["[]", "{}", r#"[{"path": "", "type": "sentence_transformers.models.Transformer"}]"#] {
        let text = refusal(&Copy::of("tiny-bert").with("modules.json", modules));
        assert_contains(&text, &["`modules.json` names no pooling", "--pooling"]);
    }
}

#[test]
fn pickled_weights_are_refused_with_the_way_to_convert_them() {
    let copy = Copy::of("tiny-bert").without("model.safetensors").with("pytorch_model.bin", "pickle");
    let text = refusal(&copy);
    assert_contains(&text, &["only `pytorch_model.bin`", "hint: ", "python", "save_pretrained"]);
    let shards =
        Copy::of("tiny-bert").without("model.safetensors").with("pytorch_model-00001-of-00002.bin", "pickle");
    assert_contains(&refusal(&shards), &["only `pytorch_model-00001-of-00002.bin`"]);
    let dense = Copy::of("tiny-distilbert")
        .without("2_Dense/model.safetensors")
        .with("2_Dense/pytorch_model.bin", "pickle");
    assert_contains(&refusal(&dense), &["only `2_Dense/pytorch_model.bin`", "save_pretrained"]);
}

#[test]
fn what_is_missing_is_named() {
    let text = refusal(&Copy::of("tiny-bert").without("model.safetensors"));
    assert_contains(&text, &["no weights", "model*.safetensors"]);
    assert_contains(
        &refusal(&Copy::of("tiny-bert").without("config.json")),
        &["`config.json` is missing in"],
    );
    let text = refusal(&Copy::of("tiny-bert").without("1_Pooling/config.json"));
    assert_contains(&text, &["`1_Pooling/config.json` is missing in"]);
    let text = refusal(&Copy::of("tiny-distilbert").without("2_Dense/model.safetensors"));
    assert_contains(&text, &["`2_Dense/model.safetensors` is missing in"]);
    let copy = Copy::of("tiny-bert");
    let nowhere = card::read("copy", &copy.file("nowhere"), &Overrides::default()).expect_err("is nowhere");
    assert!(matches!(nowhere, CardError::NoFolder { .. }), "{nowhere}");
}

#[test]
fn broken_json_is_reported_with_its_file_and_line() {
    for file in ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"] {
        for broken in ["{\n\"model_type\": ", "", "\0", "{\"a\": 1}}"] {
            let text = refusal(&Copy::of("tiny-bert").with(file, broken));
            assert_contains(&text, &[&format!("`{file}` is not valid JSON"), "line"]);
        }
    }
    let deep = "[".repeat(100_000);
    assert_contains(&refusal(&Copy::of("tiny-bert").with("config.json", deep)), &["recursion limit"]);
}

#[test]
fn json_of_another_shape_is_rejected_with_a_message() {
    for other in ["[]", "null", "3", "\"bert\"", "{\"model_type\": 3}"] {
        let text = refusal(&Copy::of("tiny-bert").with("config.json", other));
        assert_contains(&text, &["no `model_type`", "hint: "]);
    }
    for other in ["[]", "null", "{}", r#"{"pooling_mode": "middle"}"#, r#"{"pooling_mode": ["mean", 3]}"#] {
        let text = refusal(&Copy::of("tiny-bert").with("1_Pooling/config.json", other));
        assert_contains(&text, &["unsupported value in `1_Pooling/config.json`: `pooling_mode`"]);
    }
    let text = refusal(&Copy::of("tiny-distilbert").setting("2_Dense/config.json", "in_features", json!(-1)));
    assert_contains(&text, &["`2_Dense/config.json`: `in_features`: `-1`"]);
    let odd = json!("torch.nn.modules.activation.Softplus");
    let text =
        refusal(&Copy::of("tiny-distilbert").setting("2_Dense/config.json", "activation_function", odd));
    assert_contains(&text, &["`activation_function`: `Softplus`"]);
    let text = refusal(&Copy::of("tiny-distilbert").setting("2_Dense/config.json", "in_features", json!(31)));
    assert_contains(&text, &["`2_Dense` has input width 31, and the module before it has output width 32"]);
}

#[test]
fn an_unknown_architecture_is_refused_with_those_that_are_known() {
    let copy = Copy::of("tiny-bert")
        .setting("config.json", "model_type", json!("bert_with_memory"))
        .setting("config.json", "memory_tokens", json!(4))
        .setting("config.json", "max_position_embeddings", json!(null))
        .setting("config.json", "vocab_size", json!(null));
    let error = open_error(&copy);
    let unknown = obstacles(&error).into_iter().filter(|obstacle| obstacle.code() == "unknown_architecture");
    assert!(unknown.count() >= INTERPRETERS.len(), "{error}");
    let known = ["`bert_with_memory`", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "qwen3"];
    assert_contains(&error.to_string(), &known);
    assert_contains(
        &error.to_string(),
        &["the nearest known is `bert`", "this is missing: ", "memory_tokens"],
    );
    let plan = plan(&Home::new(), &copy);
    assert!(plan.chosen.is_none() && plan.explain().contains("unknown_architecture"));
}

#[test]
fn a_known_architecture_with_unknown_parts_is_refused() {
    for (key, value) in [
        ("hidden_act", json!("mish")),
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("num_attention_heads", json!(5)),
        ("num_attention_heads", json!(0)),
        ("num_hidden_layers", json!(0)),
    ] {
        let said = value.to_string().replace('"', "");
        let copy = Copy::of("tiny-bert").setting("config.json", key, value);
        let explained = plan(&Home::new(), &copy).explain();
        assert_contains(&explained, &["chosen: none", "unknown_architecture"]);
        if key == "hidden_act" {
            assert_contains(&explained, &[key, &said]);
        }
    }
}

#[test]
fn an_unknown_module_is_named() {
    for (kind, path) in
        [("sentence_transformers.models.CNN", "1_CNN"), ("custom_st.Transformer", "0_Custom"), ("", "")]
    {
        let modules = json!([{ "path": path, "type": kind }]).to_string();
        let text = refusal(&Copy::of("tiny-bert").with("modules.json", modules));
        assert_contains(&text, &["`modules.json`", kind, "unsupported module"]);
    }
}

#[test]
fn no_name_leads_out_of_the_folder() {
    for path in ["../elsewhere", "/etc", "1_Pooling/../..", "..\\elsewhere", "./1_Pooling"] {
        let modules = json!([{ "path": path, "type": "sentence_transformers.models.Pooling" }]).to_string();
        let text = refusal(&Copy::of("tiny-bert").with("modules.json", modules));
        assert_contains(&text, &["`modules.json` names a path outside", path]);
        let index = json!({ "weight_map": { "a": path } }).to_string();
        let copy = Copy::of("tiny-bert").without("model.safetensors");
        let text = refusal(&copy.with("model.safetensors.index.json", index));
        assert_contains(&text, &["`model.safetensors.index.json` names a path outside", path]);
    }
}

/// tiny-bert with its weights in two files.
fn sharded() -> Copy {
    let copy = Copy::of("tiny-bert");
    let tensors = read_tensors(&copy.file("model.safetensors"));
    let mut map = serde_json::Map::new();
    for (number, part) in tensors.chunks(tensors.len() / 2 + 1).enumerate() {
        let file = format!("model-{:05}-of-00002.safetensors", number + 1);
        write_tensors(&copy.file(&file), part);
        map.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(file))));
    }
    copy.without("model.safetensors")
        .with("model.safetensors.index.json", json!({ "weight_map": map }).to_string())
}

#[test]
fn weights_in_shards_give_the_same_vectors() {
    let copy = sharded();
    let card = copy.read().expect("a model").card;
    assert_eq!(card.weights.len(), 1);
    assert_eq!(card.weights[0].bytes, spec("tiny-bert").card.weights[0].bytes);
    assert_eq!(embed(&copy).into_vectors(), embed(&Copy::of("tiny-bert")).into_vectors());
}

#[test]
fn a_missing_shard_is_named() {
    let text = refusal(&sharded().without("model-00002-of-00002.safetensors"));
    assert_contains(&text, &["model-00002-of-00002.safetensors", "can't be read"]);
    let empty = Copy::of("tiny-bert").without("model.safetensors").with("model.safetensors.index.json", "{}");
    assert_contains(&refusal(&empty), &["`model.safetensors.index.json`: `weight_map`"]);
}

/// The nearest f16 below, for numbers of ordinary size.
fn halved(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    match (bits >> 23) & 0xff {
        exponent @ 113..143 => sign | ((exponent - 112) << 10) as u16 | (bits >> 13) as u16 & 0x3ff,
        _ => sign,
    }
}

fn write_halves(copy: &Copy, file: &str, tensors: &[Tensor]) {
    let bytes =
        |tensor: &Tensor| tensor.values.iter().flat_map(|&x| halved(x).to_le_bytes()).collect::<Vec<u8>>();
    let bytes: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        (
            &tensor.name,
            TensorView::new(Stored::F16, tensor.shape.clone(), bytes).expect("shape and bytes agree"),
        )
    });
    safetensors::serialize_to_file(views, None, &copy.file(file)).expect("weights can be written");
}

#[test]
fn a_second_set_of_weights_is_a_second_row_of_the_plan() {
    let copy = Copy::of("tiny-bert");
    write_halves(&copy, "model.fp16.safetensors", &read_tensors(&copy.file("model.safetensors")));
    let card = copy.read().expect("a model").card;
    let sets: Vec<_> = card.weights.iter().map(|set| (set.name.as_str(), set.stored)).collect();
    assert_eq!(sets, [("model.safetensors", Dtype::F32), ("model.fp16.safetensors", Dtype::F16)]);
    assert_eq!(card.weights[0].bytes, card.weights[1].bytes * 2);

    let home = Home::new();
    let identified = crate::fakes::spec(&home.runtime, copy.path()).card;
    assert_ne!(identified.weights[0].identity, identified.weights[1].identity);
    assert_eq!(card.weights[0].identity, "", "nothing is hashed to read what a model says of itself");
    let plan = plan(&home, &copy);
    for name in ["model.fp16.safetensors", "model.safetensors"] {
        assert!(plan.viable().any(|viable| viable.placement.weights == name), "{}", plan.explain());
    }
    let half = Constraints { weights: Some("model.fp16.safetensors".to_owned()), ..Constraints::default() };
    let model = home.model(copy.path()).constraints(half).open().expect("opens");
    assert_eq!(model.placement().expect("serves").weights, "model.fp16.safetensors");
    let whole = embed(&Copy::of("tiny-bert"));
    let got = model.embed(&texts("tiny-bert")).expect("embeds");
    let off = largest(got.iter().zip(&whole).map(|(a, b)| max_difference(a, b)));
    assert!(off > 0.0 && off < 0.02, "{off}");
}

#[test]
fn a_cut_weight_file_is_refused_wherever_it_was_cut() {
    let whole = fs::read(goldens::folder("tiny-bert").join("model.safetensors")).expect("weights");
    for length in [0, 1, 7, 8, 9, 100, whole.len() / 2, whole.len() - 1] {
        let text = refusal(&Copy::of("tiny-bert").with("model.safetensors", &whole[..length]));
        assert_contains(&text, &["model.safetensors` is not a whole safetensors file"]);
    }
    let longer = [&whole[..], b"more"].concat();
    assert_contains(&refusal(&Copy::of("tiny-bert").with("model.safetensors", longer)), &["should have"]);
}

/// A weight file with this header and no tensors.
fn headed(length: u64, header: &str) -> Copy {
    let bytes = [&length.to_le_bytes()[..], header.as_bytes()].concat();
    Copy::of("tiny-bert").with("model.safetensors", bytes)
}

#[test]
fn a_header_that_lies_about_sizes_is_refused_before_memory_is_taken() {
    for claimed in [1 << 60, u64::MAX, u64::MAX - 7, 99_000_000] {
        assert_contains(&refusal(&headed(claimed, "{}")), &["its header claims", &claimed.to_string()]);
    }
    for header in [
        r#"{"a": {"dtype": "F32", "shape": [1152921504606846976], "data_offsets": [0, 4611686018427387904]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [18446744073709551608, 18446744073709551615]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}"#,
        r#"{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}"#,
        r#"{"a": 3}"#,
        "[]",
    ] {
        let text = refusal(&headed(header.len() as u64, header));
        assert_contains(&text, &["is not a whole safetensors file"]);
    }
}

#[test]
fn no_byte_of_a_header_can_cause_a_panic() {
    let copy = Copy::of("tiny-bert");
    let path = copy.file("model.safetensors");
    let whole = fs::read(&path).expect("weights");
    for place in (0..8).chain((8..4000).step_by(13)) {
        for byte in [0, 0xff, b'9', b'"', b'}'] {
            let mut changed = whole.clone();
            changed[place] = byte;
            fs::write(&path, changed).expect("writes");
            let _ = copy.read();
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_named_as_the_obstacle() {
    let copy = Copy::of("tiny-bert").setting("config.json", "intermediate_size", json!(63));
    let error = open_error(&copy);
    let failed: Vec<_> = obstacles(&error).into_iter().filter(|o| o.code() == "load_failed").collect();
    assert_eq!(failed.len(), INTERPRETERS.len(), "{error}");
    let words = ["`encoder.layer.0.intermediate.dense.weight`", "[64, 32]", "[63, 32]"];
    for obstacle in failed {
        assert_contains(&obstacle.to_string(), &words);
    }
}

#[test]
fn a_tensor_that_is_not_there_is_named_as_the_obstacle() {
    let copy = Copy::of("tiny-bert");
    let mut tensors = read_tensors(&copy.file("model.safetensors"));
    tensors.retain(|tensor| tensor.name != "encoder.layer.1.output.dense.bias");
    write_tensors(&copy.file("model.safetensors"), &tensors);
    assert_contains(
        &open_error(&copy).to_string(),
        &["load_failed", "no tensor `encoder.layer.1.output.dense.bias`"],
    );
}

#[test]
fn a_config_larger_than_its_weights_is_refused_before_memory_is_taken() {
    for (key, size) in [
        ("hidden_size", 1u64 << 16),
        ("vocab_size", 1 << 24),
        ("max_position_embeddings", 1 << 22),
        ("num_hidden_layers", 1 << 12),
        ("intermediate_size", 1 << 20),
        ("type_vocab_size", 1 << 50),
    ] {
        let text = refusal(&Copy::of("tiny-bert").setting("config.json", key, json!(size)));
        assert_contains(&text, &["`config.json` declares", "parameters"]);
    }
    let buckets =
        Copy::of("tiny-mpnet").setting("config.json", "relative_attention_num_buckets", json!(1u64 << 50));
    assert_contains(&refusal(&buckets), &["`config.json` declares"]);
}

#[test]
fn sizes_that_no_model_has_are_refused_by_name() {
    for (key, size) in [
        ("hidden_size", 1u64 << 40),
        ("num_attention_heads", 1 << 40),
        ("vocab_size", u64::MAX),
        ("max_position_embeddings", 1 << 50),
        ("num_hidden_layers", 1 << 50),
        ("intermediate_size", 1 << 50),
    ] {
        let text = refusal(&Copy::of("tiny-bert").setting("config.json", key, json!(size)));
        assert_contains(
            &text,
            &[&format!("`config.json` sets `{key}` to {size}, and the limit is "), "hint: "],
        );
        // A family that is not known has no description that would check its sizes.
        let unknown = Copy::of("tiny-bert").setting("config.json", "model_type", json!("unheard_of"));
        let text = refusal(&unknown.setting("config.json", key, json!(size)));
        assert_contains(&text, &[&format!("`{key}` to {size}")]);
    }
    // The widths of heads and biases by distance are sizes of their own.
    for (name, key, size) in [
        ("tiny-llama", "head_dim", 1u64 << 60),
        ("tiny-t5", "d_kv", 1 << 60),
        ("tiny-t5", "n_positions", 1 << 20),
        ("tiny-jina", "max_position_embeddings", 1 << 20),
        ("tiny-mpnet", "relative_attention_num_buckets", 1),
    ] {
        let copy = Copy::of(name).setting("config.json", key, json!(size));
        let explained = plan(&Home::new(), &copy).explain();
        assert_contains(&explained, &["chosen: none", "unknown_architecture", &size.to_string()]);
    }
}

#[test]
fn a_key_that_may_change_the_result_is_refused_by_name_for_known_families() {
    for name in ["tiny-bert", "tiny-qwen3", "tiny-t5", "tiny-clip"] {
        let within = if name == "tiny-clip" { "/text_config" } else { "" };
        let with = |key: &str, value: Value| {
            Copy::of(name).json("config.json", |config| {
                config.pointer_mut(within).expect("it is there")[key] = value;
            })
        };
        let described = |copy: Copy| describe(&copy.read().expect("a model").card);
        let obstacle = described(with("memory_tokens", json!(4))).expect_err("nobody reads this key");
        assert_eq!(obstacle.code(), "unknown_architecture");
        assert_contains(&obstacle.to_string(), &["memory_tokens 4"]);
        for (key, value) in [
            ("memory_tokens", json!(null)),
            ("memory_tokens", json!(false)),
            ("memory_tokens", json!(0)),
            ("memory_tokens", json!([])),
            ("memory_dropout", json!(0.1)),
            ("_memory", json!(4)),
            ("task_specific_params", json!({ "a": 1 })),
        ] {
            let described = described(with(key, value.clone()));
            assert!(described.is_ok(), "{name} with {key} {value}: {described:?}");
        }
    }
    let copy = Copy::of("tiny-bert").setting("config.json", "memory_tokens", json!(4));
    assert_contains(&plan(&Home::new(), &copy).explain(), &["chosen: none", "memory_tokens 4"]);
}

#[test]
fn no_golden_and_no_real_model_has_a_key_that_is_refused() {
    let goldens = fs::read_dir(goldens::folder("")).expect("the goldens are there");
    let goldens = goldens.map(|entry| entry.expect("a folder").path());
    let parts = ["minilm", "minilm-trio", "mpnet", "pairs"].map(parts::folder);
    let mut seen = 0;
    for folder in goldens.filter(|folder| folder.join("config.json").is_file()).chain(parts) {
        let overrides =
            Overrides { pooling: Some(PoolingMode::Mean), normalize: Some(true), ..Overrides::default() };
        let card = card::read("it", &folder, &overrides).expect("a model").card;
        let described = describe(&card);
        assert!(described.is_ok(), "{}: {described:?}", folder.display());
        seen += 1;
    }
    assert!(seen > 40, "{seen} models were looked at");
}

#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_in_a_models_folder_is_refused_and_not_waited_for() {
    use std::os::unix::fs::symlink;
    use std::process::Command;
    for file in ["config.json", "modules.json", "model.safetensors", "1_Pooling/config.json"] {
        let pipe = Copy::of("tiny-bert").without(file);
        assert!(Command::new("mkfifo").arg(pipe.file(file)).status().expect("mkfifo runs").success());
        assert_contains(&refusal(&pipe), &["not a regular file"]);
        let device = Copy::of("tiny-bert").without(file);
        symlink("/dev/zero", device.file(file)).expect("a link can be made");
        assert_contains(&refusal(&device), &["not a regular file"]);
    }
}

#[test]
fn a_file_that_is_too_long_to_be_one_is_not_read() {
    let long = |file: &str, bytes: u64| {
        let copy = Copy::of("tiny-bert");
        fs::File::create(copy.file(file)).expect("a file").set_len(bytes).expect("it may be sparse");
        copy
    };
    let text = refusal(&long("config.json", (16 << 20) + 1));
    assert_contains(&text, &["`config.json` can't be read", "16777217 bytes, and at most 16777216 are read"]);
    let text = open_error(&long("tokenizer.json", 1 << 40)).to_string();
    assert_contains(&text, &["tokenizer.json` can't be read"]);
}

#[test]
fn a_length_asked_for_lies_within_the_models_positions() {
    // RoBERTa counts positions from its padding id: 514 rows are 512 places.
    for (name, positions) in [("tiny-bert", 512), ("tiny-roberta", 512), ("tiny-mpnet", 512)] {
        let read = |length| {
            let overrides = Overrides { max_length: Some(length), ..Overrides::default() };
            card::read(name, &goldens::folder(name), &overrides)
        };
        for length in [0, positions + 1, usize::MAX] {
            let text = error_chain(&read(length).expect_err("is out of bounds"));
            assert_contains(&text, &["1 to 512", "`--max-length`", &length.to_string()]);
        }
        let said = read(positions).expect("is within bounds").card.max_length;
        assert_eq!((said.value, said.source.as_str()), (positions, "--max-length"));
    }
}

#[test]
fn files_never_promise_more_tokens_than_there_are_positions() {
    for said in [json!(100_000), json!(513)] {
        let copy = Copy::of("tiny-bert").setting("sentence_bert_config.json", "max_seq_length", said);
        let length = copy.read().expect("a model").card.max_length;
        assert_eq!((length.value, length.source.as_str()), (512, "config.json"));
    }
    for unsaid in [json!(null), json!(0), json!(-3), json!("long"), json!(1e30)] {
        let copy = Copy::of("tiny-bert")
            .setting("sentence_bert_config.json", "max_seq_length", unsaid.clone())
            .setting("tokenizer_config.json", "model_max_length", json!(1e30));
        let length = copy.read().expect("a model").card.max_length;
        assert_eq!((length.value, length.source.as_str()), (512, "config.json"), "{unsaid}");
    }
}

#[test]
fn only_a_model_that_generates_has_a_kv_cache() {
    let overrides = Overrides { kv_cache_dtype: Some(KvCacheDtype::Q8_0), ..Overrides::default() };
    let dtype = |name: &str| {
        let card = card::read(name, &goldens::folder(name), &overrides).expect("a model").card;
        card.generation.kv_cache_dtype
    };
    assert_eq!([dtype("tiny-bert"), dtype("tiny-qwen3-generate")], [KvCacheDtype::Auto, KvCacheDtype::Q8_0]);
}
