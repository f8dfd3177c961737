//! Tests of the sampler: transforms, distributions, determinism and errors.

use proptest::prelude::*;

use super::*;

const INFINITY: f32 = f32::INFINITY;

fn greedy() -> GenerateOptions {
    GenerateOptions { temperature: 0.0, ..Default::default() }
}

fn sampler(options: &GenerateOptions, prompt: &[u32]) -> Sampler {
    Sampler::new(options, options.seed.unwrap_or(0), 0, prompt, &[])
}

/// Samples one token without a mask.
fn sample(sampler: &mut Sampler, logits: &[f32]) -> Result<Sampled, SampleError> {
    sampler.sample(&mut logits.to_vec(), None)
}

/// The share of each token in many first draws.
fn shares(options: &GenerateOptions, logits: &[f32]) -> Vec<f64> {
    const DRAWS: u32 = 20_000;
    let mut shares = vec![0.0; logits.len()];
    for seed in 0..DRAWS {
        let mut sampler = Sampler::new(options, seed.into(), 0, &[], &[]);
        shares[sample(&mut sampler, logits).unwrap().token as usize] += 1.0 / f64::from(DRAWS);
    }
    shares
}

fn logs(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64]) {
    let is_close = found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 0.015);
    assert!(is_close, "{found:?} are not {expected:?}");
}

#[test]
fn greedy_takes_the_lowest_id_on_ties() {
    let logits = [1.0, 3.0, 2.0, 3.0];
    assert_eq!(sample(&mut sampler(&greedy(), &[]), &logits).unwrap().token, 1);
}

#[test]
fn draws_follow_the_softmax() {
    let logits = logs(&[0.1, 0.2, 0.3, 0.4]);
    assert_close(&shares(&GenerateOptions::default(), &logits), &[0.1, 0.2, 0.3, 0.4]);
}

#[test]
fn temperature_divides_logits() {
    let options = GenerateOptions { temperature: 0.5, ..Default::default() };
    assert_close(
        &shares(&options, &logs(&[0.1, 0.2, 0.3, 0.4])),
        &[1.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0, 16.0 / 30.0],
    );
}

#[test]
fn extreme_temperatures_give_tokens() {
    for temperature in [f32::MIN_POSITIVE / 8.0, 1e-6, 1e6, f32::MAX] {
        let options = GenerateOptions { temperature, ..Default::default() };
        let token = sample(&mut sampler(&options, &[]), &[-3e38, 3e38, 0.0]).unwrap().token;
        assert!(temperature > 1.0 || token == 1, "temperature {temperature}");
    }
}

#[test]
fn top_k_keeps_the_most_likely_tokens() {
    let options = GenerateOptions { top_k: 2, ..Default::default() };
    assert_close(&shares(&options, &logs(&[0.1, 0.2, 0.3, 0.4])), &[0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]);
}

#[test]
fn top_p_keeps_the_token_that_reaches_it() {
    let logits = logs(&[0.1, 0.2, 0.3, 0.4]);
    let options = GenerateOptions { top_p: 0.5, ..Default::default() };
    assert_close(&shares(&options, &logits), &[0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]);
    let options = GenerateOptions { top_p: 0.0, ..Default::default() };
    assert_close(&shares(&options, &logits), &[0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn top_p_is_relative_to_the_tokens_that_top_k_keeps() {
    // Of 0.3 and 0.4, the latter alone has 0.57 of the probability.
    let options = GenerateOptions { top_k: 2, top_p: 0.55, ..Default::default() };
    assert_close(&shares(&options, &logs(&[0.1, 0.2, 0.3, 0.4])), &[0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn min_p_is_relative_to_the_most_likely_token() {
    let logits = logs(&[0.1, 0.2, 0.3, 0.4]);
    for (top_k, top_p) in [(0, 1.0), (4, 1.0), (0, 0.999)] {
        let options = GenerateOptions { min_p: 0.7, top_k, top_p, ..Default::default() };
        assert_close(&shares(&options, &logits), &[0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]);
    }
}

#[test]
fn top_p_of_a_flat_distribution_grows_its_selection() {
    let options = GenerateOptions { top_p: 0.5, ..Default::default() };
    let logits = vec![0.0; 5000];
    let tokens: Vec<u32> = (0..200)
        .map(|seed| Sampler::new(&options, seed, 0, &[], &[]))
        .map(|mut s| sample(&mut s, &logits).unwrap().token)
        .collect();
    assert!(tokens.iter().all(|&token| token < 2500) && tokens.iter().any(|&token| token > 2000));
}

#[test]
fn logit_bias_applies_before_penalties() {
    // 1 + 3 = 4, halved to 2: less than 2.5. Halved first it would be 3.5.
    let options =
        GenerateOptions { logit_bias: [(0, 3.0), (99, 1.0)].into(), repetition_penalty: 2.0, ..greedy() };
    assert_eq!(sample(&mut sampler(&options, &[0]), &[1.0, 2.5]).unwrap().token, 1);
    assert_eq!(sample(&mut sampler(&options, &[]), &[1.0, 2.5]).unwrap().token, 0);
}

#[test]
fn repetition_penalty_counts_prompt_and_output_once() {
    let options = GenerateOptions { repetition_penalty: 2.0, ..greedy() };
    let mut sampler = sampler(&options, &[0, 0, 77]);
    assert_eq!(sample(&mut sampler, &[4.0, 1.9, -1.0]).unwrap().token, 0, "4 is halved to 2");
    assert_eq!(sample(&mut sampler, &[4.0, 2.1, -1.0]).unwrap().token, 1, "4 is halved once, not twice");
    assert_eq!(sample(&mut sampler, &[-1.0, -1.0, -1.5]).unwrap().token, 2, "-1 is doubled to -2");
}

#[test]
fn frequency_and_presence_penalties_count_the_output_alone() {
    let options = GenerateOptions { frequency_penalty: 0.5, presence_penalty: 1.0, ..greedy() };
    let mut sampler = sampler(&options, &[0, 0, 0]);
    assert_eq!(sample(&mut sampler, &[1.0, 0.9]).unwrap().token, 0, "the prompt is not penalized");
    assert_eq!(sample(&mut sampler, &[2.6, 1.0]).unwrap().token, 0, "once: minus 1.5");
    assert_eq!(sample(&mut sampler, &[2.9, 1.0]).unwrap().token, 1, "twice: minus 2");
}

#[test]
fn end_tokens_are_excluded_before_min_tokens() {
    let options = GenerateOptions { min_tokens: 1, stop_tokens: vec![1], ..greedy() };
    let mut sampler = Sampler::new(&options, 0, 0, &[], &[2]);
    assert_eq!(sample(&mut sampler, &[1.0, 2.0, 3.0]).unwrap().token, 0);
    assert_eq!(sample(&mut sampler, &[1.0, 2.0, 3.0]).unwrap().token, 2);
    let ignoring = GenerateOptions { ignore_eos: true, ..options };
    let mut sampler = Sampler::new(&ignoring, 0, 0, &[], &[2]);
    assert_eq!(sample(&mut sampler, &[1.0, 2.0, 3.0]).unwrap().token, 2, "it does not end the sequence");
}

#[test]
fn masks_limit_tokens() {
    let mut mask = TokenMask::new(4);
    let mut sampler = sampler(&GenerateOptions::default(), &[]);
    assert_eq!(sampler.sample(&mut [1.0, 2.0, 3.0, 4.0], Some(&mask)), Err(SampleError::NoAllowedToken));
    mask.allow(2);
    assert_eq!(sampler.sample(&mut [1.0, 2.0, 3.0, 4.0], Some(&mask)).unwrap().token, 2);
}

#[test]
fn invalid_logits_are_errors() {
    for options in [greedy(), GenerateOptions { seed: Some(1), logprobs: Some(2), ..Default::default() }] {
        let mut sampler = sampler(&options, &[]);
        let error = sample(&mut sampler, &[0.0, f32::NAN]).unwrap_err();
        assert_eq!(error.to_string(), "the logit of token 1 is not finite: NaN");
        let error = sample(&mut sampler, &[INFINITY, 0.0]).unwrap_err();
        assert_eq!(error, SampleError::NotFinite { token: 0, value: INFINITY });
        assert_eq!(sample(&mut sampler, &[-INFINITY; 2]), Err(SampleError::NoFiniteLogit(2)));
        assert_eq!(sample(&mut sampler, &[]), Err(SampleError::NoFiniteLogit(0)));
        assert_eq!(sample(&mut sampler, &[-INFINITY, -5.0]).unwrap().token, 1);
    }
}

#[test]
fn logprobs_are_those_of_the_unmodified_logits() {
    let options = GenerateOptions {
        logprobs: Some(2),
        logit_bias: [(0, 100.0)].into(),
        temperature: 0.1,
        ..Default::default()
    };
    let sampled = sample(&mut sampler(&options, &[]), &logs(&[0.125, 0.25, 0.5, 0.125])).unwrap();
    assert_eq!(sampled.token, 0);
    assert!((sampled.logprob.unwrap() - 0.125_f32.ln()).abs() < 1e-6);
    assert_eq!(sampled.top.iter().map(|top| top.0).collect::<Vec<_>>(), [2, 1]);
    assert!((sampled.top[0].1 - 0.5_f32.ln()).abs() < 1e-6);
    let none = sample(&mut sampler(&GenerateOptions::default(), &[]), &[0.0, 1.0]).unwrap();
    assert_eq!((none.logprob, none.top), (None, Vec::new()));
}

#[test]
fn choices_of_a_request_draw_independently() {
    let tokens = |choice| -> Vec<u32> {
        let mut sampler = Sampler::new(&GenerateOptions::default(), 7, choice, &[], &[]);
        (0..32).map(|_| sample(&mut sampler, &[0.0; 16]).unwrap().token).collect()
    };
    assert_eq!(tokens(0), tokens(0));
    assert_ne!(tokens(0), tokens(1));
    assert_ne!(tokens(0)[1..], tokens(1)[..31]);
}

#[test]
fn random_numbers_are_uniform() {
    let mut buckets = [0_u32; 16];
    for (seed, step) in (0..400).flat_map(|seed| (0..400).map(move |step| (seed, step))) {
        buckets[(uniform(seed, step) * 16.0) as usize] += 1;
    }
    assert!(buckets.iter().all(|&count| count.abs_diff(10_000) < 500), "{buckets:?}");
}

fn options() -> impl Strategy<Value = GenerateOptions> {
    let draws = (0.0_f32..2.0, 0_usize..40, 0.0_f32..=1.0, 0.0_f32..=1.0);
    let penalties = (0.5_f32..2.0, -2.0_f32..2.0, -2.0_f32..2.0, any::<Option<u64>>());
    (draws, penalties).prop_map(
        |((temperature, top_k, top_p, min_p), (repetition, frequency, presence, seed))| GenerateOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            seed,
            logprobs: Some(3),
            ..Default::default()
        },
    )
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(prop_oneof![8 => -10.0_f32..10.0, 1 => Just(-INFINITY)], 1..400)
        .prop_filter("one is finite", |logits| logits.iter().any(|logit| logit.is_finite()))
}

proptest! {
    #[test]
    fn a_sampler_repeats_itself_and_resumes_from_records(
        options in options(), logits in logits(), prompt in proptest::collection::vec(0_u32..500, 0..20),
    ) {
        let mut first = sampler(&options, &prompt);
        let mut resumed = sampler(&options, &prompt);
        for _ in 0..6 {
            let mut again = resumed.clone();
            let sampled = sample(&mut first, &logits).unwrap();
            prop_assert!(logits[sampled.token as usize].is_finite());
            prop_assert!(sampled.logprob.unwrap() <= 0.0);
            prop_assert_eq!(&sampled, &sample(&mut again, &logits).unwrap());
            resumed.record(sampled.token);
        }
    }

    #[test]
    fn the_token_is_within_top_k_top_p_and_min_p(mut options in options(), logits in logits(), seed in any::<u64>()) {
        (options.temperature, options.seed) = (options.temperature + 0.1, Some(seed));
        let token = sample(&mut sampler(&options, &[]), &logits).unwrap().token;
        let chosen = logits[token as usize];
        let above = logits.iter().filter(|&&logit| logit > chosen).count();
        prop_assert!(options.top_k == 0 || above < options.top_k);
        let ratio = ((chosen - maximum(&logits)) / options.temperature).exp();
        prop_assert!(ratio >= options.min_p * 0.999);
        let mut sorted: Vec<f32> = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.truncate(if options.top_k == 0 { sorted.len() } else { options.top_k });
        let mass = |count: usize| -> f32 {
            sorted[..count].iter().map(|logit| ((logit - sorted[0]) / options.temperature).exp()).sum()
        };
        let share = mass(above) / mass(sorted.len());
        prop_assert!(above == 0 || share < options.top_p * 1.001, "{share} is above {chosen}");
    }

    #[test]
    fn masked_tokens_are_never_sampled(options in options(), logits in logits(), bits in any::<[u64; 7]>()) {
        let mut mask = TokenMask::new(logits.len());
        (0..448).filter(|&token| bits[token as usize / 64] >> (token % 64) & 1 == 1).for_each(|token| mask.allow(token));
        match sampler(&options, &[]).sample(&mut logits.clone(), Some(&mask)) {
            Ok(sampled) => prop_assert!(mask.allows(sampled.token)),
            Err(error) => prop_assert_eq!(error, SampleError::NoAllowedToken),
        }
    }

    #[test]
    fn an_invalid_logit_is_never_a_token(
        options in options(), logits in logits(), at in any::<prop::sample::Index>(), nan in any::<bool>(),
    ) {
        let (mut logits, value) = (logits, if nan { f32::NAN } else { INFINITY });
        let token = at.index(logits.len());
        logits[token] = value;
        let error = sample(&mut sampler(&options, &[]), &logits).unwrap_err();
        let is_expected = matches!(error, SampleError::NotFinite { token: found, .. } if found == token);
        prop_assert!(is_expected);
    }
}
