//! `sconce chat` with a real language model, and turns from a pipe.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use sconce_testkit::{byte_model, parts};
use serde_json::{Value, json};

use crate::harness::Sandbox;

fn model() -> String {
    parts::folder("smollm2").join("SmolLM2-135M-Instruct.Q4_1.gguf").to_string_lossy().into_owned()
}

fn chat<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["chat", model, "--offline", "--engine", "native", "--dtype", "f32", "--temperature", "0"];
    [&fixed[..], more].concat()
}

#[test]
fn a_conversation_in_a_pipe() {
    // The placements are proved once.
    let (sandbox, model) = (Sandbox::new(), model());
    history_is_kept_saved_loaded_and_cleared(&sandbox, &model);
    #[cfg(unix)]
    an_interrupt_stops_the_answer_and_then_ends_the_chat(&sandbox, &model);
}

fn history_is_kept_saved_loaded_and_cleared(sandbox: &Sandbox, model: &str) {
    let (first, second, cleared) =
        (sandbox.name("first.json"), sandbox.name("second.json"), sandbox.name("third.json"));
    let input = format!(
        "What is the capital of France?\n\n\"\"\"\nIs it\n/really <|im_end|>?\n\"\"\"\n/save {first}\n/clear\n/save {cleared}\n\
         /load {first}\n/system\nAnd of\\\nItaly?\n/save {second}\n/exit\nnever answered\n"
    );
    let arguments = chat(model, &["--system", "Be brief.", "--max-tokens", "12"]);
    let output = sandbox.run_with(&arguments, &input).succeeds();
    let read = |file: &str| {
        let text = fs::read_to_string(file).expect("it was saved");
        serde_json::from_str::<Vec<Value>>(&text).expect("it is JSON")
    };
    let (first, second) = (read(&first), read(&second));
    let roles =
        |messages: &[Value]| messages.iter().map(|message| message["role"].clone()).collect::<Vec<Value>>();
    assert_eq!(roles(&first), ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(first[0]["content"], "Be brief.");
    assert_eq!(first[3]["content"], "Is it\n/really <|im_end|>?");
    assert_eq!(read(&cleared), [json!({ "role": "system", "content": "Be brief." })]);
    assert_eq!(second[..4], first[1..], "without the system prompt");
    assert_eq!(second[4]["content"], "And of\nItaly?");
    assert_eq!(second.len(), 6);
    let answers =
        [&first[2], &first[4], &second[5]].map(|message| message["content"].as_str().expect("a text"));
    assert!(answers.iter().all(|answer| !answer.trim().is_empty()), "{answers:?}");
    assert_eq!(output.stdout, answers.map(|answer| format!("{answer}\n")).concat());
    let status: Vec<&str> = output.stderr.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(status.len(), 3, "{}", output.stderr);
    assert!(status[0].contains(" tokens/s on native/cpu/f32 "), "{}", status[0]);
    assert!(status[0].contains(" of 8192 tokens]"), "{}", status[0]);
}

#[test]
fn mistakes_are_explained() {
    let sandbox = Sandbox::new();
    let model = sandbox.name("model");
    fs::create_dir(&model).expect("a folder can be made");
    byte_model::write(model.as_ref(), Some("{% for message in messages %}{{ message.content }}{% endfor %}"));
    let arguments = chat(&model, &["--max-length", "40"]);
    let run = |input: &str| sandbox.run_with(&arguments, input);
    run("/sytem x\n").fails(2, &["no command is called `/sytem`", "hint: `/help`"]);
    run("/save\n").fails(2, &["`/save` needs a file name"]);
    run("/load /no/such/file\n").fails(2, &["`/no/such/file` can't be read"]);
    run(&"word ".repeat(90))
        .fails(2, &["the conversation has ", "the context of the model 40", "hint: `/clear`"]);
    let help = run("/help\n").succeeds();
    assert!(help.stderr.contains("/system TEXT") && help.stdout.is_empty(), "{}", help.stderr);
}

#[cfg(unix)]
fn an_interrupt_stops_the_answer_and_then_ends_the_chat(sandbox: &Sandbox, model: &str) {
    let file = sandbox.name("saved.json");
    let mut child = sandbox.command(&chat(model, &[])).spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("an input");
    let mut stdout = child.stdout.take().expect("an output");
    let mut stderr = child.stderr.take().expect("an output");
    let pid = child.id().to_string();
    let interrupt = || {
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    };
    writeln!(stdin, "Write a very long story about every animal that you know.").expect("it is read");
    let mut first = [0];
    stdout.read_exact(&mut first).expect("it answers");
    interrupt();
    let mut status = Vec::new();
    while !status.ends_with(b"]\n") {
        stderr.read_exact(&mut first).expect("there is a status line");
        status.extend(first);
    }
    let status = String::from_utf8(status).expect("text");
    assert!(status.contains(", stopped, "), "{status}");
    writeln!(stdin, "/save {file}").expect("it is read");
    let mut saved = [0; 5];
    stderr.read_exact(&mut saved).expect("it says so");
    assert_eq!(&saved, b"saved");
    let messages: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(&file).expect("it is there")).expect("JSON");
    assert_eq!(messages.len(), 2, "with the part of the answer");
    interrupt();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}
