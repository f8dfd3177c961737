//! Rerankers that are language models: a pair in a chat with an instruction, and the answer `yes` or `no`.

use sconce_core::head::Template;

/// What is asked of Qwen3-Reranker where the caller gives no instruction.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// A pair in its template: only `text` may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) before: String,
    pub(crate) text: String,
    pub(crate) after: String,
}

/// The chat that Qwen3-Reranker was trained on.
pub(crate) fn qwen3() -> Template {
    Template {
        prefix: "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                 Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
                 <|im_start|>user\n"
            .to_owned(),
        suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
        instruction: INSTRUCTION.to_owned(),
        yes: "yes".to_owned(),
        no: "no".to_owned(),
    }
}

/// `query` and `document` in `template`, under the caller's instruction or its own.
pub(crate) fn parts(template: &Template, instruction: Option<&str>, query: &str, document: &str) -> Parts {
    let instruction = instruction.unwrap_or(&template.instruction);
    Parts {
        before: template.prefix.clone(),
        text: format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"),
        after: template.suffix.clone(),
    }
}

/// How much likelier `yes` is than `no`, as one raw score: its sigmoid is the probability of `yes` among the two.
pub(crate) fn relevance(no: f32, yes: f32) -> f32 {
    yes - no
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_stands_between_the_words_that_are_never_cut() {
        let parts = parts(&qwen3(), Some("Find code"), "sort a list", "list.sort()");
        assert!(parts.before.starts_with("<|im_start|>system\nJudge whether the Document meets"));
        assert!(parts.before.ends_with("<|im_end|>\n<|im_start|>user\n"));
        assert_eq!(parts.text, "<Instruct>: Find code\n<Query>: sort a list\n<Document>: list.sort()");
        assert_eq!(parts.after, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    }

    #[test]
    fn without_an_instruction_it_is_the_one_that_the_model_was_trained_on() {
        let Parts { text, .. } = parts(&qwen3(), None, "q", "d");
        assert!(text.starts_with(&format!("<Instruct>: {INSTRUCTION}\n")), "{text}");
    }

    #[test]
    fn the_score_is_the_softmax_over_the_two_words() {
        let (no, yes) = (1.25_f32, -0.5_f32);
        let softmax = yes.exp() / (yes.exp() + no.exp());
        let sigmoid = 1.0 / (1.0 + (-relevance(no, yes)).exp());
        assert!((softmax - sigmoid).abs() < 1e-6);
    }
}
