//! Sampling of the next token of one sequence from its logits.

use std::collections::{HashMap, HashSet};

use super::mask::TokenMask;
use super::options::GenerateOptions;
use super::select::{Candidate, argmax, maximum, top_k};

/// Size of the first selection for top-p. It grows by [`TOP_P_GROWTH`] until it holds enough probability.
const TOP_P_FIRST: usize = 256;
const TOP_P_GROWTH: usize = 8;

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    /// The token.
    pub(crate) token: u32,
    /// Its log probability: the log-softmax of the unmodified logits, before bias, penalties, mask and temperature.
    /// `None` unless log probabilities are requested.
    pub(crate) logprob: Option<f32>,
    /// The most likely tokens of the unmodified logits with their log probabilities, descending.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Logits from which no token can be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum SampleError {
    /// A logit is NaN or positive infinity.
    #[error("the logit of token {token} is not finite: {value}")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// No logit is above negative infinity.
    #[error("no token has a finite logit: the vocabulary has {0} tokens")]
    NoFiniteLogit(usize),
    /// The mask and the minimum length leave no token.
    #[error("no token is allowed: the mask or `min_tokens` excludes every token with a finite logit")]
    NoAllowedToken,
}

/// Samples the tokens of one sequence.
///
/// A token depends on the options, the seed, the logits, and the tokens before it. It does not depend on other sequences,
/// batches or time: the random number of a step is a function of the seed and the step.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    options: GenerateOptions,
    seed: u64,
    /// Tokens that end the sequence, excluded before `min_tokens`.
    end_tokens: Vec<u32>,
    /// Distinct tokens of the prompt, for the repetition penalty.
    prompt: HashSet<u32>,
    /// Tokens of the output and how often each occurs.
    output: HashMap<u32, u32>,
    /// Number of tokens of the output.
    step: u64,
}

impl Sampler {
    /// A sampler for output `choice` of a request. `seed` is the seed of the request, or a random one without it.
    /// `eos_tokens` are the end tokens of the model.
    pub(crate) fn new(
        options: &GenerateOptions,
        seed: u64,
        choice: usize,
        prompt: &[u32],
        eos_tokens: &[u32],
    ) -> Self {
        let eos_tokens = if options.ignore_eos { &[] } else { eos_tokens };
        let penalized: &[u32] = if options.has_repetition_penalty() { prompt } else { &[] };
        Self {
            seed: mix(seed ^ mix(choice as u64)),
            end_tokens: eos_tokens.iter().chain(&options.stop_tokens).copied().collect(),
            prompt: penalized.iter().copied().collect(),
            output: HashMap::new(),
            step: 0,
            options: options.clone(),
        }
    }

    /// Samples the next token and records it. Modifies `logits`. On error, nothing is recorded.
    pub(crate) fn sample(
        &mut self,
        logits: &mut [f32],
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SampleError> {
        check_finite(logits)?;
        let raw = self.options.logprobs.map(|top| (logits.to_vec(), top));
        self.bias(logits);
        self.penalize(logits);
        if let Some(mask) = mask {
            mask.apply(logits);
        }
        if self.step < self.options.min_tokens as u64 {
            self.end_tokens.iter().for_each(|&token| update(logits, token, |_| f32::NEG_INFINITY));
        }
        let best = argmax(logits).ok_or(SampleError::NoAllowedToken)?;
        let token = if self.options.is_greedy() { best as u32 } else { self.draw(logits, best) };
        self.record(token);
        let (logprob, top) = match raw {
            Some((raw, count)) => logprobs(&raw, token, count),
            None => (None, Vec::new()),
        };
        Ok(Sampled { token, logprob, top })
    }

    /// Records a token of the output that was sampled elsewhere, such as before a migration.
    pub(crate) fn record(&mut self, token: u32) {
        *self.output.entry(token).or_default() += 1;
        self.step += 1;
    }

    fn bias(&self, logits: &mut [f32]) {
        for (&token, &bias) in &self.options.logit_bias {
            update(logits, token, |logit| logit + bias);
        }
    }

    fn penalize(&self, logits: &mut [f32]) {
        let GenerateOptions { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.options;
        if self.options.has_repetition_penalty() {
            let repeated = self.output.keys().filter(|token| !self.prompt.contains(token));
            for &token in self.prompt.iter().chain(repeated) {
                update(logits, token, |logit| {
                    if logit < 0.0 { logit * repetition_penalty } else { logit / repetition_penalty }
                });
            }
        }
        if frequency_penalty != 0.0 || presence_penalty != 0.0 {
            for (&token, &count) in &self.output {
                update(logits, token, |logit| logit - count as f32 * frequency_penalty - presence_penalty);
            }
        }
    }

    /// Draws from the softmax of `logits` after temperature, top-k, top-p and min-p. `best` is the most likely token.
    fn draw(&self, logits: &mut [f32], best: usize) -> u32 {
        let GenerateOptions { temperature, top_k: k, top_p, min_p, .. } = self.options;
        let uniform = uniform(self.seed, self.step);
        // Relative to the maximum, so that no temperature overflows and the most likely token has weight 1.
        let max = logits[best];
        for logit in &mut *logits {
            *logit = (*logit - max) / temperature;
        }
        let token = if k == 0 && top_p >= 1.0 {
            for logit in &mut *logits {
                *logit = weight(*logit, min_p);
            }
            pick((0..).zip(logits.iter().copied()), uniform)
        } else {
            let mut candidates = Vec::new();
            if k == 0 {
                top_p_of_all(logits, top_p, &mut candidates);
            } else {
                top_k(logits, k, &mut candidates);
                let mass = f64::from(top_p) * exponentiate(&mut candidates);
                candidates.truncate(nucleus(&candidates, mass).unwrap_or(candidates.len()));
            }
            candidates.retain(|&(_, weight)| weight >= min_p);
            pick(candidates.into_iter(), uniform)
        };
        token.unwrap_or(best as u32)
    }
}

/// The exponential of a logit, or 0 if it is below `min_p`.
fn weight(logit: f32, min_p: f32) -> f32 {
    let weight = logit.exp();
    if weight >= min_p { weight } else { 0.0 }
}

/// Replaces logits by their exponentials. Returns the sum.
fn exponentiate(candidates: &mut [Candidate]) -> f64 {
    for (_, value) in &mut *candidates {
        *value = value.exp();
    }
    candidates.iter().map(|&(_, weight)| f64::from(weight)).sum()
}

/// The most likely tokens of the vocabulary whose probabilities sum to at least `top_p`, with their weights.
fn top_p_of_all(logits: &[f32], top_p: f32, candidates: &mut Vec<Candidate>) {
    let total: f64 = logits.iter().map(|logit| f64::from(logit.exp())).sum();
    let mut count = TOP_P_FIRST;
    loop {
        top_k(logits, count, candidates);
        exponentiate(candidates);
        match nucleus(candidates, f64::from(top_p) * total) {
            Some(kept) => return candidates.truncate(kept),
            None if candidates.len() < count => return,
            None => count *= TOP_P_GROWTH,
        }
    }
}

/// The length of the shortest prefix whose weights sum to at least `mass`, at least 1. `None` if there is none.
fn nucleus(candidates: &[Candidate], mass: f64) -> Option<usize> {
    let mut sum = 0.0;
    candidates
        .iter()
        .position(|&(_, weight)| {
            sum += f64::from(weight);
            sum >= mass
        })
        .map(|last| last + 1)
}

/// The candidate at quantile `uniform` of the total weight. `None` if every weight is 0.
fn pick(candidates: impl Iterator<Item = Candidate> + Clone, uniform: f64) -> Option<u32> {
    let total: f64 = candidates.clone().map(|(_, weight)| f64::from(weight)).sum();
    let (target, mut sum, mut last) = (uniform * total, 0.0, None);
    for (token, weight) in candidates.filter(|&(_, weight)| weight > 0.0) {
        sum += f64::from(weight);
        last = Some(token);
        if sum > target {
            break;
        }
    }
    last
}

/// The log probability of `token`, and the `count` most likely tokens with theirs.
fn logprobs(raw: &[f32], token: u32, count: usize) -> (Option<f32>, Vec<(u32, f32)>) {
    let max = maximum(raw);
    let sum: f64 = raw.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - sum.ln()) as f32;
    let mut candidates = Vec::new();
    top_k(raw, count, &mut candidates);
    let top = candidates.iter().map(|&(token, logit)| (token, logprob(logit))).collect();
    (raw.get(token as usize).map(|&logit| logprob(logit)), top)
}

fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    let is_invalid = |logit: f32| logit.is_nan() || logit == f32::INFINITY;
    // A count has no early exit, so that the loop is vectorized.
    let invalid = logits.iter().filter(|&&logit| is_invalid(logit)).count();
    let first = if invalid > 0 { logits.iter().position(|&logit| is_invalid(logit)) } else { None };
    match first {
        Some(token) => Err(SampleError::NotFinite { token, value: logits[token] }),
        None if maximum(logits) == f32::NEG_INFINITY => Err(SampleError::NoFiniteLogit(logits.len())),
        None => Ok(()),
    }
}

/// Changes the logit of a token, if the vocabulary has it. A result above the range of f32 is its maximum.
fn update(logits: &mut [f32], token: u32, change: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = change(*logit).min(f32::MAX);
    }
}

/// A number in [0, 1) for a step: the 53 upper bits of a hash of seed and step.
fn uniform(seed: u64, step: u64) -> f64 {
    const SCALE: f64 = 1.0 / (1_u64 << 53) as f64;
    (mix(seed.wrapping_add(mix(step))) >> 11) as f64 * SCALE
}

/// The output function of `SplitMix64`: a bijection in which each input bit changes about half of the output bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests;
