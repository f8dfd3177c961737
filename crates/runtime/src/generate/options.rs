//! Options of a generation and their validation.

use std::collections::BTreeMap;

use super::structured_output::StructuredOutput;

/// Maximum of `n`.
const MAX_CHOICES: usize = 128;
/// Maximum of `logprobs`.
const MAX_LOGPROBS: usize = 20;
/// Maximum number of stop strings.
const MAX_STOP_STRINGS: usize = 64;
/// Maximum length of a stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;

/// Options of a generation. Names and meanings are those of OpenAI and vLLM.
///
/// Logits are transformed in this order: logit bias, repetition, frequency and presence penalty, temperature, top-k,
/// top-p, min-p.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Maximum number of generated tokens, at least 1. Default `None`: as many as the context has left.
    pub max_tokens: Option<usize>,
    /// Minimum number of tokens before an end token can be sampled or a stop string can begin, at most `max_tokens`.
    /// Default 0.
    pub min_tokens: usize,
    /// Divides the logits, at least 0. 0 is greedy decoding: the most likely token, the lowest id on ties. Default 1.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens. Default 0: all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities sum to at least `top_p`, and always one. From 0 to 1.
    /// Default 1: all.
    pub top_p: f32,
    /// Keeps tokens that are at least `min_p` times as likely as the most likely one. From 0 to 1. Default 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or output. Above 1 discourages
    /// repetition. Greater than 0. Default 1: none.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of a token for each time that it is in the output. From -2 to 2. Default 0.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of a token that is in the output. From -2 to 2. Default 0.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens, in greedy decoding too. From -100 to 100. Default empty.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the draws. Equal seeds and logits give equal tokens, whatever else is in the batch. Default `None`: a
    /// random seed.
    pub seed: Option<u64>,
    /// Strings that end the generation: at most 64, of 1 to 1024 bytes. They are not part of the output. Default empty.
    pub stop: Vec<String>,
    /// Tokens that end the generation, in addition to the end tokens of the model. Default empty.
    pub stop_tokens: Vec<u32>,
    /// Tokens that may be sampled, at least one. End tokens must be among them to end the output. Default `None`: all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Number of most likely tokens to report at each position with their log probabilities, at most 20. 0 reports the
    /// sampled token only. Log probabilities are those of the unmodified logits. Default `None`: no log probabilities.
    pub logprobs: Option<usize>,
    /// Number of independent outputs. From 1 to 128. Default 1.
    pub n: usize,
    /// Whether generation continues after an end token of the model. Default false.
    pub ignore_eos: bool,
    /// What the output must match. It ends where nothing can follow; end tokens are sampled only where it is complete. At
    /// the maximum number of tokens, or at a stop string or stop token, it may be incomplete. Default `None`: any text.
    pub structured_output: Option<StructuredOutput>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: None,
            min_tokens: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            allowed_tokens: None,
            logprobs: None,
            n: 1,
            ignore_eos: false,
            structured_output: None,
        }
    }
}

/// An option with a value outside of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` must be {allowed}: {value}")]
pub struct InvalidOption {
    /// The field, as in a request.
    pub field: &'static str,
    /// The allowed range.
    pub allowed: String,
    /// The value.
    pub value: String,
}

impl GenerateOptions {
    /// Whether decoding is greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether the repetition penalty changes logits.
    #[expect(clippy::float_cmp, reason = "the default is exactly 1")]
    pub(crate) fn has_repetition_penalty(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// Checks the range of every field.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        if let Some(max_tokens) = self.max_tokens {
            integer("max_tokens", max_tokens, 1, usize::MAX)?;
            integer("min_tokens", self.min_tokens, 0, max_tokens)?;
        }
        number("temperature", self.temperature, 0.0, f32::MAX)?;
        number("top_p", self.top_p, 0.0, 1.0)?;
        number("min_p", self.min_p, 0.0, 1.0)?;
        check(
            "repetition_penalty",
            self.repetition_penalty,
            || "a number greater than 0".to_owned(),
            |&value| value > 0.0 && value.is_finite(),
        )?;
        number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        number("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        for &bias in self.logit_bias.values() {
            number("logit_bias", bias, -100.0, 100.0)?;
        }
        integer("logprobs", self.logprobs.unwrap_or(0), 0, MAX_LOGPROBS)?;
        integer("n", self.n, 1, MAX_CHOICES)?;
        if let Some(tokens) = &self.allowed_tokens {
            integer("the number of `allowed_tokens`", tokens.len(), 1, usize::MAX)?;
        }
        self.validate_stop()
    }

    /// Checks that every token id is below the size of the vocabulary.
    pub fn validate_tokens(&self, vocabulary: usize) -> Result<(), InvalidOption> {
        let allowed = || format!("token ids below {vocabulary}");
        let is_known = |&token: &u32| (token as usize) < vocabulary;
        for &token in self.logit_bias.keys() {
            check("logit_bias", token, allowed, is_known)?;
        }
        for &token in self.allowed_tokens.iter().flatten() {
            check("allowed_tokens", token, allowed, is_known)?;
        }
        self.stop_tokens.iter().try_for_each(|&token| check("stop_tokens", token, allowed, is_known))
    }

    fn validate_stop(&self) -> Result<(), InvalidOption> {
        let strings = || format!("at most {MAX_STOP_STRINGS} strings");
        check("stop", self.stop.len(), strings, |&count| count <= MAX_STOP_STRINGS)?;
        let bytes = || format!("strings of 1 to {MAX_STOP_BYTES} bytes");
        let mut lengths = self.stop.iter().map(String::len);
        lengths.try_for_each(|length| {
            check("stop", length, bytes, |length| (1..=MAX_STOP_BYTES).contains(length))
        })
    }
}

fn number(field: &'static str, value: f32, min: f32, max: f32) -> Result<(), InvalidOption> {
    let allowed = || match max {
        f32::MAX => format!("a number of at least {min}"),
        _ => format!("a number from {min} to {max}"),
    };
    check(field, value, allowed, |value| (min..=max).contains(value))
}

fn integer(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), InvalidOption> {
    let allowed = || match max {
        usize::MAX => format!("an integer of at least {min}"),
        _ => format!("an integer from {min} to {max}"),
    };
    check(field, value, allowed, |value| (min..=max).contains(value))
}

fn check<T: Copy + ToString>(
    field: &'static str,
    value: T,
    allowed: impl Fn() -> String,
    is_allowed: impl Fn(&T) -> bool,
) -> Result<(), InvalidOption> {
    if is_allowed(&value) {
        return Ok(());
    }
    Err(InvalidOption { field, allowed: allowed(), value: value.to_string() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(change: impl Fn(&mut GenerateOptions)) -> String {
        let mut options = GenerateOptions::default();
        change(&mut options);
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_valid_and_change_no_logit() {
        let options = GenerateOptions::default();
        assert_eq!(options.validate(), Ok(()));
        assert_eq!(options.validate_tokens(0), Ok(()));
        assert!(!options.is_greedy());
    }

    #[test]
    fn refusals_name_field_range_and_value() {
        assert_eq!(refusal(|o| o.temperature = -0.5), "`temperature` must be a number of at least 0: -0.5");
        assert_eq!(
            refusal(|o| o.temperature = f32::NAN),
            "`temperature` must be a number of at least 0: NaN"
        );
        assert_eq!(refusal(|o| o.top_p = 1.5), "`top_p` must be a number from 0 to 1: 1.5");
        assert_eq!(refusal(|o| o.min_p = -0.1), "`min_p` must be a number from 0 to 1: -0.1");
        assert_eq!(
            refusal(|o| o.repetition_penalty = 0.0),
            "`repetition_penalty` must be a number greater than 0: 0"
        );
        assert_eq!(
            refusal(|o| o.frequency_penalty = 3.0),
            "`frequency_penalty` must be a number from -2 to 2: 3"
        );
        assert_eq!(
            refusal(|o| o.presence_penalty = -3.0),
            "`presence_penalty` must be a number from -2 to 2: -3"
        );
        assert_eq!(refusal(|o| o.max_tokens = Some(0)), "`max_tokens` must be an integer of at least 1: 0");
        assert_eq!(refusal(|o| o.n = 0), "`n` must be an integer from 1 to 128: 0");
        assert_eq!(refusal(|o| o.logprobs = Some(21)), "`logprobs` must be an integer from 0 to 20: 21");
        assert_eq!(
            refusal(|o| o.logit_bias = [(1, 101.0)].into()),
            "`logit_bias` must be a number from -100 to 100: 101"
        );
    }

    #[test]
    fn min_tokens_is_at_most_max_tokens() {
        let refused = refusal(|o| (o.max_tokens, o.min_tokens) = (Some(4), 5));
        assert_eq!(refused, "`min_tokens` must be an integer from 0 to 4: 5");
        let unlimited = GenerateOptions { min_tokens: 5, ..Default::default() };
        assert_eq!(unlimited.validate(), Ok(()));
    }

    #[test]
    fn stop_strings_are_limited() {
        assert_eq!(refusal(|o| o.stop = vec![String::new()]), "`stop` must be strings of 1 to 1024 bytes: 0");
        assert_eq!(
            refusal(|o| o.stop = vec!["a".repeat(1025)]),
            "`stop` must be strings of 1 to 1024 bytes: 1025"
        );
        assert_eq!(refusal(|o| o.stop = vec!["a".to_owned(); 65]), "`stop` must be at most 64 strings: 65");
    }

    #[test]
    fn tokens_outside_of_the_vocabulary_are_refused() {
        let stop = GenerateOptions { stop_tokens: vec![9, 10], ..Default::default() };
        assert_eq!(
            stop.validate_tokens(10).unwrap_err().to_string(),
            "`stop_tokens` must be token ids below 10: 10"
        );
        let bias = GenerateOptions { logit_bias: [(10, 1.0)].into(), ..Default::default() };
        assert!(bias.validate_tokens(10).is_err() && bias.validate_tokens(11).is_ok());
    }

    proptest! {
        #[test]
        fn every_number_is_accepted_or_refused_by_its_range(value in proptest::num::f32::ANY) {
            let accepts = |change: fn(&mut GenerateOptions, f32)| {
                let mut options = GenerateOptions::default();
                change(&mut options, value);
                options.validate().is_ok()
            };
            prop_assert_eq!(accepts(|o, x| o.temperature = x), value.is_finite() && value >= 0.0);
            prop_assert_eq!(accepts(|o, x| o.top_p = x), (0.0..=1.0).contains(&value));
            prop_assert_eq!(accepts(|o, x| o.min_p = x), (0.0..=1.0).contains(&value));
            prop_assert_eq!(accepts(|o, x| o.repetition_penalty = x), value.is_finite() && value > 0.0);
            prop_assert_eq!(accepts(|o, x| o.presence_penalty = x), (-2.0..=2.0).contains(&value));
            prop_assert_eq!(accepts(|o, x| o.frequency_penalty = x), (-2.0..=2.0).contains(&value));
        }
    }
}
