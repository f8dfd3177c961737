//! A real language model from a quantized GGUF file.

use std::time::Duration;

use sconce::{ChatOptions, Dtype, EngineId, FinishReason, GenerateOptions, Message, Model, Runtime};
use sconce_testkit::parts;
use tempfile::TempDir;

const QUESTION: &str = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";

fn open(home: &TempDir, engine: EngineId, dtype: Dtype) -> Model {
    let runtime =
        Runtime::builder().home(home.path()).offline(true).time_limit(Duration::from_mins(10)).build();
    let file = parts::folder("smollm2").join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let builder = Model::builder(&file.to_string_lossy()).runtime(&runtime);
    builder.engine(engine).dtype(dtype).open().expect("it opens")
}

#[test]
fn it_knows_the_capital_of_france_with_weights_as_they_are_stored() {
    let home = tempfile::tempdir().expect("a folder");
    let greedy =
        |most| GenerateOptions { max_tokens: Some(most), temperature: 0.0, ..GenerateOptions::default() };
    let native = open(&home, EngineId::Native, Dtype::Int4);
    let mut generation = native.generate(QUESTION, &greedy(40)).expect("a valid request");
    let text: String = generation.by_ref().map(|piece| piece.expect("it generates").text).collect();
    assert_eq!(text, "The capital of France is Paris.");
    let summary = generation.summary();
    assert_eq!((summary.prompt_tokens, summary.generated_tokens), (16, 8));
    assert_eq!(summary.finish_reasons, [Some(FinishReason::Stop)]);
    let messages = [Message::system(""), Message::user("What is the capital of France?")];
    let prompt = native.chat_prompt(&messages, &ChatOptions::default()).expect("it has a template");
    assert!(prompt.text.ends_with(QUESTION), "{}", prompt.text);
    let answer = native.chat(&messages, &greedy(40)).expect("a valid request").text().expect("it generates");
    assert_eq!(
        answer,
        native.generate(&prompt.text, &greedy(40)).expect("a valid request").text().expect("it runs")
    );
}
