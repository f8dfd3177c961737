//! A reranker that is a causal language model, from text to score: template, instruction, `yes` and `no`.

use std::fs;

use sconce::operations::rerank;
use sconce::{RerankOptions, Scoring, Task};
use sconce_testkit::goldens::{self, Golden, apart};

use crate::support::Home;

const NAME: &str = "tiny-qwen3-instruct";
type Pair = (Option<String>, String, String);

fn pairs() -> Vec<Pair> {
    let text = fs::read(goldens::folder(NAME).join("pairs.json")).expect("the golden has pairs");
    serde_json::from_slice(&text).expect("pairs")
}

#[test]
fn a_pair_in_its_chat_has_the_tokens_and_the_score_that_the_model_card_computes() {
    let home = Home::new();
    let model = home.model(&goldens::folder(NAME)).task(Task::Rerank).open().expect("the golden opens");
    let golden = Golden::read(NAME, "golden.safetensors");
    let counts = golden.ids("counts");
    for (number, (instruction, query, document)) in pairs().into_iter().enumerate() {
        let options = RerankOptions { instruction, ..RerankOptions::default() };
        let encoded = rerank::sequence(model.context(), &query, &document, &options).expect("tokens");
        assert_eq!(encoded.ids.len(), counts[number] as usize, "{query}");
        if number == 2 {
            assert_eq!(encoded.ids, golden.ids("pair.ids"));
        }
        let likely = model.rerank(&query, &[&document], &options).expect("a score");
        let off = apart(&[likely.ranked[0].score], &[golden.numbers("given")[number]]);
        assert!(off < 1e-5, "{query} is off by {off}");
        assert_eq!(likely.metadata.truncated.len(), usize::from(number == 3), "{query}");
        let raw = RerankOptions { scoring: Some(Scoring::Raw), ..options };
        let raw = model.rerank(&query, &[&document], &raw).expect("a score").ranked[0].score;
        let words = golden.rows("logits.pairs")[number];
        assert!(apart(&[raw], &[words[1] - words[0]]) < 1e-4, "{query}: {raw} for {words:?}");
    }
}
