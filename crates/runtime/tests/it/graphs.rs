//! ONNX graphs as placements on the real library: beside other weights, alone, and broken.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sconce::planner::accuracy::AccuracyMetric;
use sconce::planner::band::Band;
use sconce::planner::plan::{Constraints, Plan, Refusal, Viable};
use sconce::prove::ProofDepth;
use sconce::{ClassifyOptions, Device, Dtype, EngineId, Model, Obstacle, Placement, Runtime};
use sconce_core::card::ModelCard;
use sconce_core::engine::{Encoder, Engine, LoadProgress, ModelSpec};
use sconce_core::probe::{ProbeCase, Sample};
use sconce_engines::candle::CandleEngine;
use sconce_engines::native::NativeEngine;
use sconce_engines::onnx::OnnxEngine;
use sconce_testkit::compare::{largest, smallest};
use sconce_testkit::goldens::{Golden, apart, cosine};
use sconce_testkit::parts;
use tempfile::TempDir;

use crate::fakes::{self, CUDA, METAL};
use crate::support::{Copy, read_tensors, worst};
use crate::tasks::worst_score;

/// Every engine, ONNX Runtime with the library that `scripts/parts` fetched.
pub(crate) fn engines() -> Vec<Arc<dyn Engine>> {
    vec![
        Arc::new(CandleEngine::new(2)),
        Arc::new(NativeEngine::new(2)),
        Arc::new(OnnxEngine::with_library(2, &parts::onnxruntime())),
    ]
}

/// A runtime of Candle in f32 and ONNX Runtime.
fn runtime(home: &TempDir, slower: f64) -> Runtime {
    let engines: Vec<Arc<dyn Engine>> = vec![
        Arc::new(Plain(CandleEngine::new(2), slower)),
        Arc::new(OnnxEngine::with_library(2, &parts::onnxruntime())),
    ];
    Runtime::builder().engines(engines).home(home.path()).offline(true).build()
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn plan(home: &TempDir, folder: &Path, constraints: &Constraints, depth: ProofDepth) -> Plan {
    let runtime = runtime(home, 1.0);
    let spec = fakes::spec(&runtime, folder);
    let plan = runtime.plan(&spec, constraints, depth, &mut |_| {}).expect("a plan can be made");
    println!("{}", plan.explain());
    plan
}

fn viable<'a>(plan: &'a Plan, engine: EngineId, dtype: Dtype, weights: &str) -> &'a Viable {
    let is_it = |viable: &&Viable| {
        let placement = &viable.placement;
        placement.engine == engine && placement.dtype == dtype && placement.weights == weights
    };
    plan.viable().find(is_it).unwrap_or_else(|| panic!("{engine}/{dtype} {weights} is not viable"))
}

/// The real model's folder with other weights beside it or instead of it.
fn minilm(home: &TempDir, graphs: &[(&str, &str)]) -> std::path::PathBuf {
    let folder = home.path().join("model");
    fs::create_dir_all(folder.join("onnx")).expect("a folder can be made");
    fs::create_dir_all(folder.join("1_Pooling")).expect("a folder can be made");
    let minilm = parts::folder("minilm");
    for file in [
        "config.json",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
    ] {
        fs::copy(minilm.join(file), folder.join(file)).expect("the part has this file");
    }
    for (from, to) in graphs {
        std::os::unix::fs::symlink(parts::folder("").join(from), folder.join(to))
            .expect("a link can be made");
    }
    folder
}

#[test]
fn three_sets_of_weights_are_placements_of_one_model_each_with_its_accuracy_report() {
    let home = home();
    let trio = parts::folder("minilm-trio");
    let plan_by =
        |band| plan(&home, &trio, &Constraints { band, ..Constraints::default() }, ProofDepth::Canary);
    let coarse = plan_by(Band::Coarse);
    let reference = viable(&coarse, EngineId::Candle, Dtype::F32, "model.safetensors");
    assert_eq!(coarse.reference.as_ref(), Some(&reference.placement));
    let half = viable(&coarse, EngineId::Candle, Dtype::F32, "model.fp16.safetensors");
    let quantised = viable(&coarse, EngineId::Onnx, Dtype::Int8, "onnx/model_quantized.onnx");
    for (viable, least) in [(reference, 0.999_999), (half, 0.999_99), (quantised, 0.99)] {
        let accuracy = viable.findings.accuracy().expect("real weights have an accuracy");
        println!("{} {}: {:?} {accuracy}", viable.placement, viable.band, viable.findings.error());
        let AccuracyMetric::Vectors { min_cosine: found, .. } = accuracy.metric else {
            panic!("{accuracy:?}")
        };
        assert!(accuracy.texts >= 40 && found >= least && accuracy.rank_correlation > 0.99, "{accuracy:?}");
    }
    let Some(Ok(canary)) = &quantised.findings.canary else { panic!("it was tried") };
    assert!(canary.nodes["CPUExecutionProvider"] > 50, "{:?}", canary.nodes);

    // Its vectors of the shortest texts stray farther than half precision does, and the plan says how far.
    assert_eq!(quantised.band, Band::Coarse);
    let default = plan_by(Band::Half);
    viable(&default, EngineId::Candle, Dtype::F32, "model.fp16.safetensors");
    let refused = default.refused.iter().find(|refused| refused.placement == quantised.placement);
    let Some(Refusal::Band { band: Band::Coarse, error, accuracy: Some(accuracy) }) =
        refused.map(|refused| &refused.why)
    else {
        panic!("it is passed over for its band: {refused:?}");
    };
    assert_eq!(Some(error.to_string()), quantised.findings.error().map(|error| error.to_string()));
    assert_eq!(Some(accuracy.to_string()), quantised.findings.accuracy().map(ToString::to_string));
}

#[test]
fn a_naively_quantised_graph_is_coarse_and_passed_over_unless_asked_for() {
    let home = home();
    let folder = minilm(
        &home,
        &[
            ("minilm/model.safetensors", "model.safetensors"),
            ("minilm-graphs/model_naive.onnx", "onnx/model_naive.onnx"),
        ],
    );
    let default = plan(&home, &folder, &Constraints::default(), ProofDepth::Twin);
    let naive =
        |refused: &&sconce::planner::plan::Refused| refused.placement.weights == "onnx/model_naive.onnx";
    let refused =
        default.refused.iter().find(|refused| naive(refused) && refused.placement.device == Device::Cpu);
    let Some(Refusal::Band { band: Band::Coarse, error, accuracy: Some(accuracy) }) =
        refused.map(|found| &found.why)
    else {
        panic!("it should be passed over for its band: {refused:?}");
    };
    println!("{error} {accuracy}");
    assert!(default.explain().contains(&format!("its accuracy is coarse: {error}")), "{}", default.explain());
    assert!(default.chosen.is_some_and(|chosen| chosen.placement.engine != EngineId::Onnx));

    let open = |constraints: Constraints| {
        Model::builder(&folder.to_string_lossy())
            .runtime(&runtime(&home, 1.0))
            .constraints(constraints)
            .open()
    };
    let asked = Constraints { weights: Some("onnx/model_naive.onnx".to_owned()), ..Constraints::default() };
    assert!(open(asked.clone()).is_err(), "asked for by name it is coarse still");
    let model = open(Constraints { band: Band::Coarse, ..asked }).expect("asked for with its band it serves");
    let got = model.embed(&["a lamp", "a candle"]).expect("embeds");
    assert_eq!(got.placements[0].dtype, Dtype::Int8);
    assert!(got.class(0).ends_with("-coarse") && got.class(1) == got.class(0), "{:?}", got.classes);
}

#[test]
fn a_graph_in_f32_gives_the_vectors_of_sentence_transformers() {
    let home = home();
    let folder = minilm(&home, &[("minilm-graphs/model.onnx", "model.onnx")]);
    let model =
        Model::builder(&folder.to_string_lossy()).runtime(&runtime(&home, 1.0)).open().expect("it opens");
    let texts = crate::minilm::texts();
    let wanted = Golden::read("minilm", "reference.safetensors");
    let wanted: Vec<&[f64]> = wanted.rows("embed").into_iter().step_by(20).collect();
    let texts: Vec<String> = texts.into_iter().step_by(20).collect();
    let got = model.embed(&texts).expect("embeds");
    let least = smallest(got.iter().zip(wanted).map(|(got, want)| cosine(got, want)));
    println!("least cosine {least}");
    assert!(least >= 0.99999, "{least}");
    assert!(got.placements.iter().all(|placement| placement.engine == EngineId::Onnx));
}

#[test]
fn a_folder_of_graphs_alone_is_compared_with_its_widest() {
    let home = home();
    let folder = minilm(
        &home,
        &[
            ("minilm-graphs/model.onnx", "onnx/model.onnx"),
            ("minilm-int8/model.onnx", "onnx/model_quantized.onnx"),
        ],
    );
    let plan =
        plan(&home, &folder, &Constraints { band: Band::Coarse, ..Constraints::default() }, ProofDepth::Twin);
    let reference = plan.reference.clone().expect("there is one");
    assert_eq!((reference.engine, reference.dtype), (EngineId::Onnx, Dtype::F32));
    assert_eq!(viable(&plan, EngineId::Onnx, Dtype::F32, "onnx/model.onnx").band, Band::Exact);
    viable(&plan, EngineId::Onnx, Dtype::Int8, "onnx/model_quantized.onnx");
    let candle = plan.refused.iter().find(|refused| refused.placement.engine == EngineId::Candle);
    assert!(
        matches!(candle.map(|refused| &refused.why), Some(Refusal::Obstacle(o)) if o.code() == "no_weights")
    );
}

#[test]
fn a_quantised_graph_alone_has_an_unknown_band_and_is_never_exact() {
    let home = home();
    let folder = minilm(&home, &[("minilm-int8/model.onnx", "onnx/model_quantized.onnx")]);
    let found = plan(&home, &folder, &Constraints::default(), ProofDepth::Twin);
    let chosen = found.chosen.as_ref().expect("it serves");
    assert_eq!((chosen.placement.dtype, chosen.band), (Dtype::Int8, Band::Unknown));
    assert!(chosen.is_own_reference && found.reference.as_ref() == Some(&chosen.placement));
    assert!(found.explain().contains("band unknown, reference: itself"), "{}", found.explain());
    let model = Model::builder(&folder.to_string_lossy()).runtime(&runtime(&home, 1.0));
    let open = model.clone().open().expect("it serves");
    let class = open.class().expect("it serves");
    assert!(class.ends_with("-unknown"), "{class}");
    let error = model.band(Band::Exact).open().map(|_| ()).expect_err("it is not exact").to_string();
    assert!(error.contains("its accuracy against f32 is unknown"), "{error}");
}

/// The only graph of a golden, loaded.
fn load(folder: &Copy) -> (ModelSpec, Box<dyn Encoder>) {
    let spec = folder.read().expect("the golden is a model");
    let weights = spec.card.weights.iter().find(|weights| weights.format.is_graph());
    let weights = weights.expect("there is one");
    assert_eq!((weights.name.as_str(), weights.stored), ("model.onnx", Dtype::F32));
    let (engine, device) = (EngineId::Onnx, Device::Cpu);
    let placement = Placement { engine, device, weights: weights.name.clone(), dtype: Dtype::F32 };
    let encoder = engines()[2].load(&spec, &placement).expect("it loads");
    (spec, encoder)
}

#[test]
fn a_graph_of_a_golden_gives_its_hidden_states() {
    let (_, encoder) = load(&Copy::of("tiny-bert").with_graph("tiny-bert.onnx", "model.onnx"));
    let off = worst(&Golden::read("tiny-bert", "golden.safetensors"), encoder.as_ref());
    println!("off by {off}");
    assert!(off <= 1e-4, "{off}");
}

#[test]
fn graphs_of_rerankers_and_classifiers_give_the_scores_of_transformers() {
    for name in ["tiny-bert-rerank", "tiny-bert-classify"] {
        let folder = Copy::of(name).with_graph(&format!("{name}.onnx"), "model.onnx");
        let (spec, encoder) = load(&folder);
        let off = worst_score(&spec, encoder.as_ref(), name);
        println!("{name} is off by {off}");
        assert!(off <= 1e-4, "{name}: {off}");
    }
}

#[test]
fn a_classifier_of_a_graph_alone_is_planned_and_labels_as_candle_does() {
    let name = "tiny-bert-classify";
    let whole = Copy::of(name);
    let graph = Copy::of(name).with_graph(&format!("{name}.onnx"), "model.onnx").without("model.safetensors");
    let home = home();
    let runtime = runtime(&home, 1.0);
    let label = |folder: &Copy| {
        let model = Model::builder(&folder.path().to_string_lossy()).runtime(&runtime).open().expect("opens");
        let engine = model.placement().expect("it serves").engine;
        (
            engine,
            model
                .classify(&["the harbour at night", "a letter"], &ClassifyOptions::default())
                .expect("it labels"),
        )
    };
    let ((by_graph, got), (by_candle, want)) = (label(&graph), label(&whole));
    assert_eq!((by_graph, by_candle), (EngineId::Onnx, EngineId::Candle));
    for (got, want) in got.texts.iter().zip(&want.texts) {
        let off = largest(got.iter().zip(want).map(|(a, b)| (a.score - b.score).abs()));
        assert!(off < 1e-4 && got[0].label == want[0].label, "{got:?} {want:?}");
    }
}

#[test]
fn a_provider_that_does_not_register_is_an_obstacle_and_no_run_on_the_processor() {
    let folder = Copy::of("tiny-bert").with_graph("tiny-bert.onnx", "model.onnx");
    let spec = folder.read().expect("the golden is a model");
    for (device, provider) in [(CUDA, "CUDAExecutionProvider"), (METAL, "CoreMLExecutionProvider")] {
        if device == METAL && cfg!(target_os = "macos") {
            continue;
        }
        let placement =
            Placement { engine: EngineId::Onnx, device, weights: "model.onnx".to_owned(), dtype: Dtype::F32 };
        let Err(obstacle) = engines()[2].load(&spec, &placement) else { panic!("{device} is not there") };
        println!("{obstacle}\nhint: {}", obstacle.remedy());
        assert_eq!(obstacle.code(), "provider_failed");
        assert!(obstacle.to_string().contains(provider), "{obstacle}");
    }
}

/// Candle in f32 alone, so many times slower than it is.
struct Plain(CandleEngine, f64);

impl Engine for Plain {
    fn id(&self) -> EngineId {
        self.0.id()
    }

    fn build(&self) -> String {
        self.0.build()
    }

    fn supports(&self, device: Device) -> Result<(), Obstacle> {
        self.0.supports(device)
    }

    fn dtypes(&self, _device: Device) -> Vec<Dtype> {
        vec![Dtype::F32]
    }

    fn describe(&self, card: &ModelCard) -> Result<String, Obstacle> {
        self.0.describe(card)
    }

    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle> {
        let slower = if matches!(case, ProbeCase::Speed { .. }) { self.1 } else { 1.0 };
        let sample = self.0.probe(model, placement, case)?;
        Ok(Sample { seconds: sample.seconds * slower, ..sample })
    }

    fn load_with_progress(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        progress: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle> {
        self.0.load_with_progress(model, placement, progress)
    }
}

#[test]
fn nan_from_a_graph_is_replayed_on_candle() {
    let folder = Copy::of("tiny-bert").with_graph("tiny-bert.onnx", "model.onnx");
    let rare = poison(&folder);
    let home = home();
    let runtime = runtime(&home, 1e3);
    let model = Model::builder(&folder.path().to_string_lossy()).runtime(&runtime).open().expect("it opens");

    let viable = model.embed(&["the harbour"]).expect("the graph serves");
    assert_eq!(viable.placements[0].engine, EngineId::Onnx);
    let got = model.embed(&[rare.as_str(), "the harbour"]).expect("the other engine serves");
    assert_eq!(got.placements.len(), 1);
    assert_eq!(got.placements[0].engine, EngineId::Candle);
    assert!(got[0].iter().all(|x| x.is_finite()));
    let before: Vec<f64> = viable[0].iter().map(|&x| f64::from(x)).collect();
    assert!(apart(&got[1], &before) < 1e-4, "the numbers stay what they were");
    let words = model.plan().explain();
    assert!(words.contains("[quarantined] taken out of service: a value that is not finite"), "{words}");
    assert_ne!(viable.class(0), got.class(0), "the answer names the other weights");
}

/// Makes the vector of a word that no built-in text has not a number, in the graph alone; returns the word.
fn poison(folder: &Copy) -> String {
    let vocabulary = fs::read_to_string(folder.file("vocab.txt")).expect("the golden has a vocabulary");
    let words: Vec<&str> = vocabulary.lines().collect();
    let built_in: String = sconce::planner::cases::CANARIES
        .into_iter()
        .chain(sconce::planner::accuracy::sentences())
        .collect::<Vec<_>>()
        .join(" ")
        .to_lowercase();
    let rare = words.iter().rposition(|word| {
        word.len() > 1 && word.chars().all(|letter| letter.is_ascii_lowercase()) && !built_in.contains(word)
    });
    let rare = rare.expect("the golden has a word that the texts have not");
    let tensors = read_tensors(&folder.file("model.safetensors"));
    let table = tensors.iter().find(|tensor| tensor.name.ends_with("word_embeddings.weight"));
    let table = table.expect("the golden has a table");
    let width = table.shape[1];
    let row: Vec<u8> =
        table.values[rare * width..(rare + 1) * width].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut graph = fs::read(folder.file("model.onnx")).expect("the graph is there");
    let at = graph.windows(row.len()).position(|bytes| bytes == row).expect("the graph has the row");
    graph[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(folder.file("model.onnx"), graph).expect("the graph can be written");
    words[rare].to_owned()
}
