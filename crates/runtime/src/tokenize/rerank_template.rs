//! Prompt template of rerankers that are causal language models and answer `yes` or `no`.

use sconce_core::head::Template;

/// Default instruction of Qwen3-Reranker.
const DEFAULT_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// A rendered template. Only `text` may be truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RenderedTemplate {
    pub(crate) before: String,
    pub(crate) text: String,
    pub(crate) after: String,
}

/// The chat template that Qwen3-Reranker was trained with.
pub(crate) fn qwen3() -> Template {
    Template {
        prefix: "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                 Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
                 <|im_start|>user\n"
            .to_owned(),
        suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
        instruction: DEFAULT_INSTRUCTION.to_owned(),
        yes: "yes".to_owned(),
        no: "no".to_owned(),
    }
}

/// Renders `template` for a pair, with the template's instruction by default.
pub(crate) fn render(
    template: &Template,
    instruction: Option<&str>,
    query: &str,
    document: &str,
) -> RenderedTemplate {
    let instruction = instruction.unwrap_or(&template.instruction);
    RenderedTemplate {
        before: template.prefix.clone(),
        text: format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"),
        after: template.suffix.clone(),
    }
}

/// Logit difference of `yes` and `no`. Its sigmoid is the softmax probability of `yes`.
pub(crate) fn relevance_logit(no: f32, yes: f32) -> f32 {
    yes - no
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_rendered_between_parts_that_are_never_truncated() {
        let parts = render(&qwen3(), Some("Find code"), "sort a list", "list.sort()");
        assert!(parts.before.starts_with("<|im_start|>system\nJudge whether the Document meets"));
        assert!(parts.before.ends_with("<|im_end|>\n<|im_start|>user\n"));
        assert_eq!(parts.text, "<Instruct>: Find code\n<Query>: sort a list\n<Document>: list.sort()");
        assert_eq!(parts.after, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    }

    #[test]
    fn without_an_instruction_it_is_the_one_that_the_model_was_trained_on() {
        let RenderedTemplate { text, .. } = render(&qwen3(), None, "q", "d");
        assert!(text.starts_with(&format!("<Instruct>: {DEFAULT_INSTRUCTION}\n")), "{text}");
    }

    #[test]
    fn the_score_is_the_softmax_over_the_two_tokens() {
        let (no, yes) = (1.25_f32, -0.5_f32);
        let softmax = yes.exp() / (yes.exp() + no.exp());
        let sigmoid = 1.0 / (1.0 + (-relevance_logit(no, yes)).exp());
        assert!((softmax - sigmoid).abs() < 1e-6);
    }
}
