//! Commands end to end: data on standard output, everything else on standard error.

use std::fs;

use sconce_testkit::{goldens, parts};
use serde_json::Value;

use crate::harness::{CommandOutput, Sandbox, numbers};

#[test]
fn texts_become_json_lines_and_nothing_else_is_data() {
    let sandbox = Sandbox::new();
    let answer = sandbox.run(&["embed", "tiny-bert", "--prefix", "", "a text", "another"]).succeeds();
    let lines = answer.lines();
    assert_eq!(lines.iter().map(|line| &line["text"]).collect::<Vec<_>>(), ["a text", "another"]);
    for line in &lines {
        let length = numbers(&line["embedding"]).iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    assert!(answer.stderr.starts_with("2 texts, 12 tokens in "), "{}", answer.stderr);
    assert!(answer.stderr.contains(" texts/s) on "), "{}", answer.stderr);
    // Values are written with the precision of f32.
    assert!(answer.stdout.len() < 2 * 32 * 16, "{}", answer.stdout);
}

#[test]
fn files_and_standard_input_give_the_vectors_of_the_same_texts() {
    let sandbox = Sandbox::new();
    let embed = |more: &[&str], input: &str| {
        let answer = sandbox.run_with(&[&["embed", "tiny-bert", "--dtype", "f32"], more].concat(), input);
        answer.succeeds()
    };
    let want = embed(&["one", "two words"], "").lines();

    let jsonl =
        "{\"id\": 7, \"text\": \"one\", \"tags\": [\"a\"], \"embedding\": 0}\n\n{\"text\": \"two words\"}\n";
    let got = embed(&["--input", &sandbox.with("x.jsonl", jsonl)], "").lines();
    assert_eq!((&got[0]["id"], &got[0]["tags"][0]), (&Value::from(7), &Value::from("a")));
    for (got, want) in got.iter().zip(&want) {
        assert_eq!((&got["text"], &got["embedding"]), (&want["text"], &want["embedding"]));
    }
    assert_eq!(embed(&["--input", &sandbox.with("x.txt", "one\r\ntwo words")], "").lines(), want);
    assert_eq!(embed(&["--input", "-"], "one\ntwo words\n").lines(), want);
    assert_eq!(embed(&[], "{\"text\": \"one\"}\n{\"text\": \"two words\"}").lines(), want);
    if cfg!(unix) {
        assert_eq!(embed(&["--input", "/dev/stdin"], "one\ntwo words\n").lines(), want);
    }
    let nothing = embed(&["--input", &sandbox.with("empty.txt", "")], "");
    assert_eq!((nothing.stdout.as_str(), nothing.stderr.as_str()), ("", "no texts\n"));
}

#[test]
fn vectors_are_written_to_files() {
    let sandbox = Sandbox::new();
    let embed = ["embed", "tiny-distilbert", "--dtype", "f32", "one", "two words", "three"];
    let want = sandbox.run(&embed).succeeds().lines();
    let with = |file: &str| {
        let answer = sandbox.run(&[&embed[..], &["--output", &sandbox.name(file)]].concat()).succeeds();
        assert_eq!(answer.stdout, "");
        fs::read(sandbox.file(file)).expect("the file is written")
    };
    let lines = String::from_utf8(with("out.jsonl")).expect("text");
    assert_eq!(CommandOutput { code: 0, stdout: lines, stderr: String::new() }.lines(), want);

    let npy = with("out.npy");
    assert_eq!(&npy[..8], b"\x93NUMPY\x01\x00");
    let header = u16::from_le_bytes([npy[8], npy[9]]) as usize;
    assert_eq!((10 + header) % 64, 0);
    let (header, data) = npy[10..].split_at(header);
    let header = std::str::from_utf8(header).expect("text");
    assert!(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 16), }"), "{header}");
    assert!(header.ends_with('\n'));
    let got: Vec<f64> =
        data.as_chunks::<4>().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect();
    let want: Vec<f64> = want.iter().flat_map(|line| numbers(&line["embedding"])).collect();
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-7));
}

#[test]
fn prompts_dimensions_and_truncation_reach_the_model() {
    let sandbox = Sandbox::new();
    let embed = |more: &[&str]| sandbox.run(&[&["embed", "tiny-bert", "--dtype", "f32"], more].concat());
    let named = embed(&["--prompt", "query", "text"]).succeeds().lines();
    let written = embed(&["query: text"]).succeeds().lines();
    assert_eq!(named[0]["embedding"], written[0]["embedding"]);
    assert_eq!(named[0]["text"], "text");

    embed(&["--prefix", "", "--dimensions", "8", "text"])
        .fails(2, &["`dimensions`: 8", "hint: `--force-dimensions`"]);
    let cut = embed(&["--dimensions", "8", "--force-dimensions", "text"]).succeeds().lines();
    assert_eq!(numbers(&cut[0]["embedding"]).len(), 8);

    let long = embed(&[&"word ".repeat(300), "short"]).succeeds();
    assert_eq!(long.lines()[0]["truncated"]["used"], 128);
    assert_eq!(long.lines()[1].get("truncated"), None);
    let note = "note: 1 text is longer than the model's 128 tokens and was truncated\n";
    assert!(long.stderr.ends_with(note), "{}", long.stderr);

    let summary = embed(&["--json", "text"]).succeeds().stderr;
    let summary: Value = serde_json::from_str(&summary).expect("the summary is JSON");
    assert_eq!((&summary["texts"], &summary["truncated"]), (&Value::from(1), &Value::from(0)));
    assert!(
        summary["warnings"][0].as_str().is_some_and(|warning| warning.starts_with("no prompt: ")),
        "{summary}"
    );
    let placement = summary["placements"][0].as_str().expect("a placement");
    assert!(placement.ends_with("/cpu/f32 model.safetensors"), "{placement}");
}

#[test]
fn a_bad_line_is_named_by_file_and_number() {
    let sandbox = Sandbox::new();
    let embed = |name: &str, content: &[u8], words: &[&str]| {
        let file = sandbox.with(name, content);
        let answer = sandbox.run(&["embed", "tiny-bert", "--dtype", "f32", "--input", &file]);
        answer.fails(2, &[&[file.as_str()], words].concat());
    };
    embed("a.jsonl", b"{\"text\": \"a\"}\n{\"id\": 2}\n", &["` at line 2: missing string field `text`"]);
    embed("b.jsonl", b"{\"text\": \"a\"}\n\n{\"text\": \n", &["` at line 3: not a JSON object"]);
    embed("c.jsonl", b"[\"a\"]\n", &["` at line 1: not a JSON object"]);
    embed("d.jsonl", b"{\"text\": 3}\n", &["` at line 1: missing string field `text`"]);
    embed("d.json", b"{\"id\": 3}\n", &["` at line 1: missing string field `text`", "it has `id`"]);
    embed("e.txt", b"fine\n\xff\xfe\n", &["` at line 2", "UTF-8"]);
    embed("f.json", b"[{\"text\": \"a\"}]\n", &["a JSON array", "hint: `jq "]);
    embed("g.csv", b"text\na\n", &["`csv` is not supported", "hint: "]);
    let words = ["standard input at line 1: not a JSON object"];
    sandbox.run_with(&["embed", "tiny-bert", "--dtype", "f32"], "{broken\n").fails(2, &words);
}

#[test]
fn evidence_that_can_not_be_stored_is_told() {
    let sandbox = Sandbox::unproved();
    let home = sandbox.with("file", "not a folder");
    let arguments = ["embed", "tiny-bert", "--dtype", "f32", "--engine", "native", "text"];
    let output = sandbox.command(&arguments).env("SCONCE_HOME", home).output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("warning: evidence can't be stored") && told.contains("hint: set `SCONCE_HOME`"),
        "{told}"
    );
}

#[test]
fn missing_files_are_named() {
    let sandbox = Sandbox::new();
    let embed = |more: &[&str]| sandbox.run(&[&["embed"], more].concat());
    embed(&["tiny-bert", "--input", "none.jsonl"])
        .fails(2, &["could not read: `none.jsonl`", "No such file"]);
    embed(&["./nowhere", "text"]).fails(2, &["no folder `./nowhere`"]);
    embed(&["./tiny-brt", "text"]).fails(2, &["no folder `./tiny-brt`\nhint: did you mean `./tiny-bert`?"]);
    for command in ["embed", "plan", "inspect"] {
        let typed = [command, "tiny-brt", "text", "--offline"];
        let typed = if command == "embed" { &typed[..] } else { &[command, "tiny-brt", "--offline"] };
        let words = ["no folder `tiny-brt` here, and from the hub: ", "hint: did you mean `tiny-bert`?"];
        sandbox.run(typed).fails(2, &words);
    }
    let cached = sandbox.file("hub/hub/models--intfloat--e5-small-v2");
    fs::create_dir_all(cached.join("snapshots/0123")).expect("a folder");
    fs::create_dir_all(cached.join("refs")).expect("a folder");
    fs::write(cached.join("refs/main"), "0123").expect("a file");
    let words = ["intfloat/e5-smal-v2", "hint: did you mean `intfloat/e5-small-v2`?"];
    embed(&["intfloat/e5-smal-v2", "text", "--offline"]).fails(2, &words);
    embed(&["owner/model", "text", "--offline"]).fails(2, &["`owner/model`", "cache", "hint: "]);
    let listed = embed(&["e5-base", "text", "--offline"]);
    assert!(!listed.stderr.contains("did you mean"), "its name is right: {}", listed.stderr);
    listed.fails(2, &["`intfloat/e5-base-v2`"]);
    embed(&["tiny-bert", "--input", ".", "--dtype", "f32"]).fails(2, &["`.` at line 1"]);
    for command in ["plan", "embed"] {
        sandbox.run(&[command]).fails(2, &["<MODEL>"]);
    }
}

#[test]
fn a_refused_output_leaves_files_as_they_are() {
    let sandbox = Sandbox::new();
    let (csv, npy) = (sandbox.with("x.csv", "mine"), sandbox.with("x.npy", "mine"));
    let embed = |model: &str, output: &str| sandbox.run(&["embed", model, "text", "--output", output]);
    embed("tiny-bert", &csv).fails(2, &["`.jsonl` or `.npy`"]);
    embed("./nowhere", &npy).fails(2, &["no folder"]);
    embed("tiny-bert", &sandbox.name("no/folder.npy")).fails(2, &["could not write"]);
    assert_eq!(
        (fs::read(csv).expect("reads"), fs::read(npy).expect("reads")),
        (b"mine".to_vec(), b"mine".to_vec())
    );
}

#[test]
fn an_incomplete_model_names_the_missing_override() {
    let sandbox = Sandbox::new();
    goldens::copy("tiny-bert", &sandbox.file("model"));
    fs::remove_file(sandbox.file("model/modules.json")).expect("removes");
    let model = sandbox.name("model");
    let words = ["`modules.json` is missing", "\nhint: set it with `--pooling ", "`--normalize true|false`"];
    sandbox.run(&["embed", &model, "text"]).fails(2, &words);
    sandbox.run(&["plan", &model]).fails(2, &words);
    let overrides = ["--pooling", "mean", "--normalize", "true", "--dtype", "f32"];
    let embedded = sandbox.run(&[&["embed", &model, "text"], &overrides[..]].concat()).succeeds().lines();
    let whole = sandbox.run(&["embed", "tiny-bert", "text", "--dtype", "f32"]).succeeds().lines();
    assert_eq!(embedded[0]["embedding"], whole[0]["embedding"]);
}

#[test]
fn unknown_values_are_rejected_with_the_known_ones() {
    let sandbox = Sandbox::new();
    for (flag, word, known) in [
        ("--dtype", "f64", "f32, f16, bf16"),
        ("--device", "tpu", "cpu, metal"),
        ("--engine", "torch", "candle, native, onnx"),
        ("--pooling", "middle", "weighted_mean"),
        ("--band", "sloppy", "coarse"),
        ("--normalize", "maybe", "true"),
        ("--max-length", "-1", "--max-length"),
        ("--threads", "0", "zero"),
        ("--weights", "none.safetensors", "there are: model.safetensors"),
    ] {
        let set = format!("{flag}={word}");
        sandbox.run(&["embed", "tiny-bert", "text", &set]).fails(2, &[word, known]);
    }
    sandbox.run(&["embed", "tiny-bert", "text", "--max-length", "513"]).fails(2, &["1 to 512", "513"]);
}

/// Whether the machine has AMX and no accelerator, so that its output is reproducible.
fn is_plain(sandbox: &Sandbox) -> bool {
    let plan = sandbox.run(&["plan", "tiny-bert", "--dtype", "f32", "--json"]).json();
    let refused = plan["plan"]["refused"].as_array().expect("a list").iter();
    let tiles = refused
        .clone()
        .any(|refused| refused["placement"]["engine"] == "native" && refused["why"] == "not_requested");
    let absent = refused.filter(|refused| refused["why"]["obstacle"]["code"] == "no_such_device");
    cfg!(target_os = "linux")
        && tiles
        && absent.filter(|refused| refused["placement"]["engine"] == "candle").count() == 6
}

/// Output without what differs between machines and runs: measurements, alignment, versions.
fn steady(page: &str) -> String {
    let mut steady = String::new();
    let mut in_table = false;
    for line in page.lines() {
        in_table = if in_table { !line.is_empty() } else { line.contains(" engine  device ") };
        let words = line.split(' ').filter(|word| !in_table || !word.is_empty());
        let mut before = "";
        let words = words.map(|word| {
            let figure = in_table && word.parse::<f64>().is_ok() || before == "linux";
            before = word;
            match word.strip_suffix(',') {
                Some(_) if figure => "N,",
                None if figure => "N",
                Some(_) | None => word,
            }
        });
        steady += &words.collect::<Vec<_>>().join(" ");
        steady += "\n";
    }
    steady
}

#[test]
fn a_plan_is_rendered() {
    let sandbox = Sandbox::unproved();
    if !is_plain(&sandbox) {
        return;
    }
    let plan = sandbox.run(&["plan", "tiny-bert", "--engine", "candle", "--dtype", "f32"]).succeeds();
    assert_eq!(plan.stderr, "");
    insta::assert_snapshot!("plan", steady(&plan.stdout));
    let none = sandbox.run(&["plan", "tiny-bert", "--device", "cuda"]);
    assert_eq!((none.code, none.stderr.as_str()), (1, ""));
    insta::assert_snapshot!("plan_without_a_choice", steady(&none.stdout));
}

#[test]
fn constraints_that_cannot_be_met_are_explained_with_alternatives() {
    let sandbox = Sandbox::unproved();
    if !is_plain(&sandbox) {
        return;
    }
    let answer = sandbox.run(&["embed", "tiny-bert", "text", "--device", "cuda"]);
    answer.fails(2, &["with `--device cuda:0`: no device `cuda:0`", "hint: ", "hint: use `--device cpu`\n"]);
    insta::assert_snapshot!("no_placement", steady(&answer.stderr));
}

#[test]
fn a_device_of_another_system_is_refused_without_a_list_of_the_others() {
    let sandbox = Sandbox::new();
    let absent = if cfg!(target_os = "macos") { "cuda" } else { "metal" };
    let answer = sandbox.run(&["embed", "tiny-bert", "text", "--device", absent]);
    let asked =
        format!("no placement works for this model with `--device {absent}:0`: no device `{absent}:0`");
    answer.fails(2, &[&asked, "hint: use `--device cpu`"]);
    for other in ["candle", "native", "onnx", "not_requested", "no_weights"] {
        assert!(!answer.stderr.contains(other), "`{other}` in: {}", answer.stderr);
    }
    sandbox
        .run(&["embed", "tiny-bert", "text", "--device", "cuda:9"])
        .fails(2, &["this model has no placement with `--device cuda:9`", "hint: use `--device cpu`"]);
}

#[test]
fn a_plan_lists_every_dtype_and_full_measures_the_real_weights() {
    let sandbox = Sandbox::unproved();
    let plan = sandbox.run(&["plan", "tiny-bert", "--device", "cpu"]).succeeds();
    for dtype in [" f32 ", " f16 ", " bf16 "] {
        assert!(plan.stdout.contains(dtype), "{}", plan.stdout);
    }
    assert!(plan.stdout.contains("`--full` loads them") && plan.stdout.contains('~'), "{}", plan.stdout);
    let full = sandbox.run(&["plan", "tiny-bert", "--device", "cpu", "--full"]).succeeds();
    assert!(!full.stdout.contains("`--full`") && !full.stdout.contains('~'), "{}", full.stdout);

    let json = sandbox.run(&["plan", "tiny-bert", "--device", "cpu", "--full", "--json"]).succeeds().json();
    assert_eq!(json["card"]["max_length"]["source"], "sentence_bert_config.json");
    assert_eq!(json["constraints"]["device"], "cpu");
    let chosen = &json["plan"]["chosen"];
    assert_eq!(chosen["placement"]["device"], "cpu");
    assert!(chosen["findings"]["canary"]["Ok"]["tokens_per_second"].as_f64() > Some(0.0), "{chosen}");
    let refused = json["plan"]["refused"].as_array().expect("a list");
    let obstacles: Vec<&Value> = refused.iter().filter_map(|it| it["why"].get("obstacle")).collect();
    assert!(!obstacles.is_empty());
    for obstacle in obstacles {
        for field in ["code", "message", "remedy"] {
            assert!(obstacle[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {obstacle}");
        }
    }
}

#[test]
fn doctor_reports_the_machine_the_build_and_every_op() {
    let sandbox = Sandbox::unproved();
    let page = sandbox.run(&["doctor"]).succeeds();
    for start in ["sconce ", "system   ", "cpu      ", "gpu      ", "engine   candle: ", "engine   onnx: "]
        .into_iter()
        .chain(["evidence ", "hub      ", " works  candle  cpu ", "refused  onnx/cpu/f32  [library_missing]"])
        .chain(["ops      candle/cpu/f32: "])
    {
        assert!(
            page.stdout.lines().any(|line| line.starts_with(start)),
            "no line `{start}` in:\n{}",
            page.stdout
        );
    }
    assert!(page.stdout.lines().all(|line| line == line.trim_end()), "{}", page.stdout);
    assert_eq!(page.stderr, "");

    let json = sandbox.run(&["doctor", "--json"]).succeeds().json();
    assert_eq!(json["engines"][0]["engine"], "candle");
    assert!(json["hardware"]["cpu"]["cores"].as_u64() > Some(0));
    assert!(json["evidence"]["findings"].as_u64() > Some(0));
    assert_eq!((&json["hub"]["models"], &json["hub"]["token"]), (&Value::from(0), &Value::from(false)));
    assert!(json["ops"][0]["tried"].as_u64() > Some(0));
    the_library_and_the_search_paths_are_reported(&sandbox, &page.stdout);
}

fn the_library_and_the_search_paths_are_reported(sandbox: &Sandbox, page: &str) {
    assert!(page.contains("no-such-library`, which ORT_DYLIB_PATH names"), "{page}");
    assert!(page.contains("hint: `pip install onnxruntime`, or set ORT_DYLIB_PATH"), "{page}");

    let library = parts::onnxruntime();
    let output = sandbox.command(&["doctor"]).env("ORT_DYLIB_PATH", &library).output().expect("it runs");
    let page = String::from_utf8(output.stdout).expect("text");
    let found =
        format!("engine   onnx: onnxruntime 1.31.1 in {} (found by ORT_DYLIB_PATH", library.display());
    assert!(page.contains(&found) && !page.contains("onnx/cpu/f32"), "{page}");
}

#[test]
fn a_graph_is_planned_with_its_accuracy_report_and_nodes_in_a_child() {
    let sandbox = Sandbox::unproved();
    let folder = goldens::copy("tiny-bert", &sandbox.file("model"));
    fs::create_dir(folder.join("onnx")).expect("a folder can be made");
    let graph = goldens::folder("graphs").join("tiny-bert.onnx");
    fs::copy(graph, folder.join("onnx/model.onnx")).expect("a graph can be copied");
    let mut command = sandbox.command(&["plan", &sandbox.name("model"), "--engine", "onnx"]);
    let output = command.env("ORT_DYLIB_PATH", parts::onnxruntime()).output().expect("it runs");
    let page = String::from_utf8(output.stdout).expect("text");
    for part in
        ["chosen  onnx    cpu     f32    onnx/model.onnx", "48 built-in texts", " exact  1.000000", " by CPU"]
    {
        assert!(page.contains(part), "no `{part}` in:\n{page}{}", String::from_utf8_lossy(&output.stderr));
    }
    let missing = sandbox.run(&["plan", &sandbox.name("model"), "--engine", "onnx"]);
    assert!(missing.code == 1 && missing.stdout.contains("[library_missing]"), "{}", missing.stdout);
}

#[test]
fn an_empty_cache_lists_no_models() {
    let sandbox = Sandbox::unproved();
    let none = sandbox.run(&["models"]).succeeds();
    assert_eq!(none.stdout, "");
    assert!(
        none.stderr.starts_with("no models in: `") && none.stderr.contains("\nhint: "),
        "{}",
        none.stderr
    );
    assert_eq!(sandbox.run(&["models", "--json"]).succeeds().json(), Value::Array(Vec::new()));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.command(&["models", "--json"]).spawn().expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn help_is_stable() {
    let sandbox = Sandbox::new();
    for command in [
        "",
        "doctor",
        "plan",
        "embed",
        "rerank",
        "classify",
        "similarity",
        "generate",
        "chat",
        "inspect",
        "verify",
        "bench",
        "serve",
        "config",
        "models",
        "pull",
        "rm",
        "top",
        "bundle",
        "completions",
        "man",
    ] {
        let arguments: Vec<&str> = [command, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
        let help = sandbox.run(&arguments).succeeds();
        assert_eq!(help.stderr, "");
        let name = if command.is_empty() { "help".to_owned() } else { format!("help_{command}") };
        insta::assert_snapshot!(name, help.stdout);
    }
}
