//! Layers and pooling against plain code in f64.

use sconce_core::card::PoolingMode;
use sconce_core::head::{LayerNorm, RowSelection};
use sconce_testkit::compare::max_difference;

use super::*;
use crate::testing::{erf, plain_pool};
use crate::weights::GeneratedTensors;

const ACTIVATIONS: [DenseActivation; 5] = [
    DenseActivation::Identity,
    DenseActivation::Tanh,
    DenseActivation::Relu,
    DenseActivation::Gelu,
    DenseActivation::GeluTanh,
];

/// Generated tensors with these names only.
struct Only<'a>(&'a [&'a str]);

impl Tensors for Only<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.contains(&name).then(Vec::new)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        self.shape(name).ok_or_else(|| WeightsError::Missing(name.to_owned()))?;
        GeneratedTensors.read(name, shape)
    }
}

fn generated(name: &str, shape: &[usize]) -> Vec<f32> {
    GeneratedTensors.read(name, shape).expect("generated")
}

fn dense(activation: DenseActivation) -> Dense {
    Dense {
        folder: None,
        weight: vec!["absent.weight".to_owned(), "dense.weight".to_owned()],
        bias: vec!["absent.bias".to_owned(), "dense.bias".to_owned()],
        selected_rows: None,
        input: 7,
        output: 5,
        activation,
    }
}

const THERE: Only<'static> = Only(&["dense.weight", "dense.bias", "norm.weight", "norm.bias"]);

fn load(step: Step, width: usize) -> HeadLayer {
    let files = ModelFiles::default();
    HeadLayer::load_all(&[step], width, &files, &THERE).expect("its tensors are there").remove(0)
}

fn plain_activation(activation: DenseActivation, x: f64) -> f64 {
    match activation {
        DenseActivation::Identity => x,
        DenseActivation::Tanh => x.tanh(),
        DenseActivation::Relu => x.max(0.0),
        DenseActivation::Gelu => x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        DenseActivation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x * 0.5 * (1.0 + inner.tanh())
        }
    }
}

/// `activation(x · weights + bias)` for rows of `weights`.
fn plain_dense(x: &[f32], weights: &[f32], bias: &[f32], activation: DenseActivation) -> Vec<f64> {
    let inputs = weights.len() / bias.len();
    let row = |x: &[f32]| {
        let one = |(row, &bias): (&[f32], &f32)| {
            let dot: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            plain_activation(activation, dot + f64::from(bias))
        };
        weights.chunks_exact(inputs).zip(bias).map(one).collect::<Vec<_>>()
    };
    x.chunks_exact(inputs).flat_map(row).collect()
}

#[test]
fn a_linear_layer_is_that_of_plain_code_with_every_activation() {
    let x = generated("embed x", &[4, 7]);
    let (weights, bias) = (generated("dense.weight", &[5, 7]), generated("dense.bias", &[5]));
    for activation in ACTIVATIONS {
        let (got, width) = load(Step::Dense(dense(activation)), 7).apply(x.clone(), 7);
        assert_eq!(width, 5);
        let off = max_difference(&got, &plain_dense(&x, &weights, &bias, activation));
        assert!(off < 1e-6, "{activation}: {off}");
        let unbiased = Dense { bias: Vec::new(), ..dense(activation) };
        let (got, _) = load(Step::Dense(unbiased), 7).apply(x.clone(), 7);
        let off = max_difference(&got, &plain_dense(&x, &weights, &[0.0; 5], activation));
        assert!(off < 1e-6, "{activation} without a bias: {off}");
    }
}

#[test]
fn the_largest_of_each_column_is_found_without_keeping_the_rows() {
    let x = generated("embed x", &[9, 7]);
    for activation in ACTIVATIONS {
        let HeadLayer::Dense(linear) = load(Step::Dense(dense(activation)), 7) else {
            panic!("a linear layer")
        };
        let monotonic = match activation {
            DenseActivation::Identity | DenseActivation::Tanh | DenseActivation::Relu => true,
            DenseActivation::Gelu | DenseActivation::GeluTanh => false,
        };
        assert_eq!(linear.is_monotonic(), monotonic, "{activation}");
        if monotonic {
            let rows = linear.apply(&x);
            let rows: Vec<&[f32]> = rows.chunks_exact(5).collect();
            let off = max_difference(&linear.largest(&x), &plain_pool(PoolingMode::Max, &rows, 0));
            assert!(off < 1e-6, "{activation}: {off}");
        }
    }
}

#[test]
fn only_the_picked_rows_of_a_table_are_used() {
    let picked = |rows: Vec<u32>| Dense {
        selected_rows: Some(RowSelection { of: 11, rows }),
        output: 2,
        ..unbiased()
    };
    let x = generated("embed x", &[4, 7]);
    let table = generated("dense.weight", &[11, 7]);
    let (got, width) = load(Step::Dense(picked(vec![9, 3])), 7).apply(x.clone(), 7);
    assert_eq!(width, 2);
    let weights = [&table[9 * 7..10 * 7], &table[3 * 7..4 * 7]].concat();
    let off = max_difference(&got, &plain_dense(&x, &weights, &[0.0; 2], DenseActivation::Identity));
    assert!(off < 1e-6, "{off}");
    let beyond = [Step::Dense(picked(vec![9, 11]))];
    let refused = HeadLayer::load_all(&beyond, 7, &ModelFiles::default(), &THERE).err();
    assert!(matches!(refused, Some(WeightsError::Missing(_))), "{refused:?}");
}

fn unbiased() -> Dense {
    Dense { bias: Vec::new(), ..dense(DenseActivation::Identity) }
}

#[test]
fn a_norm_is_that_of_plain_code_with_its_bias_or_without() {
    let (width, epsilon) = (6, 0.5);
    let x = generated("embed x", &[3, width]);
    let weight = generated("norm.weight", &[width]);
    for bias in [true, false] {
        let name = vec!["absent".to_owned(), "norm".to_owned()];
        let (got, after) = load(Step::Norm(LayerNorm { name, bias, epsilon }), width).apply(x.clone(), width);
        assert_eq!(after, width);
        let shift = if bias { generated("norm.bias", &[width]) } else { vec![0.0; width] };
        let row = |row: &[f32]| {
            let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let scaled = row.iter().map(|x| (x - mean) / (variance + epsilon).sqrt()).collect::<Vec<_>>();
            let parts = scaled.iter().zip(&weight).zip(&shift);
            parts.map(|((x, &w), &s)| x * f64::from(w) + f64::from(s)).collect::<Vec<_>>()
        };
        let want: Vec<f64> = x.chunks_exact(width).flat_map(row).collect();
        let off = max_difference(&got, &want);
        assert!(off < 1e-6, "bias {bias}: {off}");
    }
}

#[test]
fn a_layer_after_another_takes_its_width() {
    let second = Dense { input: 5, output: 3, ..dense(DenseActivation::Tanh) };
    let norm = LayerNorm { name: vec!["norm".to_owned()], bias: true, epsilon: 1e-5 };
    let steps = [Step::Dense(dense(DenseActivation::Relu)), Step::Norm(norm), Step::Dense(second)];
    let layers = HeadLayer::load_all(&steps, 7, &ModelFiles::default(), &THERE).expect("it loads");
    let x = generated("embed x", &[2, 7]);
    let (rows, width) = layers.iter().fold((x, 7), |(rows, width), layer| layer.apply(rows, width));
    assert_eq!((rows.len(), width), (6, 3));
}

#[test]
fn the_logarithm_of_what_is_positive_is_taken_as_often_as_asked() {
    let x = vec![-2.0, 0.0, 0.5, 30.0];
    for times in [1, 2] {
        let (got, width) = load(Step::LogRelu(times), 4).apply(x.clone(), 4);
        assert_eq!(width, 4);
        let once = |x: f64| x.max(0.0).ln_1p();
        let want = x.iter().map(|&x| (0..times).fold(f64::from(x), |x, _| once(x))).collect::<Vec<_>>();
        assert!(max_difference(&got, &want) < 1e-6, "{times}: {got:?}");
    }
    assert!(load(Step::LogRelu(1), 1).apply(vec![f32::NAN], 1).0[0].is_nan());
}

#[test]
fn rows_are_made_one_long_each() {
    let (got, width) = load(Step::Normalize, 2).apply(vec![3.0, 4.0, 0.0, -2.0], 2);
    assert_eq!(width, 2);
    assert!(max_difference(&got, &[0.6, 0.8, 0.0, -1.0]) < 1e-6, "{got:?}");
}

#[test]
fn every_pooling_is_that_of_plain_code() {
    let width = 5;
    for (count, skip) in [(1, 0), (2, 0), (2, 1), (9, 0), (9, 4), (9, 8)] {
        let tokens = generated("embed tokens", &[count, width]);
        let rows: Vec<&[f32]> = tokens.chunks_exact(width).collect();
        for modes in PoolingMode::ALL.into_iter().map(|mode| vec![mode]).chain([PoolingMode::ALL.to_vec()]) {
            let pooling = Pooling { modes: modes.clone(), include_prompt: false };
            let got = pool(&pooling, &tokens[skip * width..], width, skip);
            let want: Vec<f64> = modes.iter().flat_map(|&mode| plain_pool(mode, &rows, skip)).collect();
            let off = max_difference(&got, &want);
            assert!(off < 1e-6, "{modes:?} of {count} after {skip}: {off}");
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_the_largest() {
    let pooling = Pooling { modes: vec![PoolingMode::Max], include_prompt: true };
    for tokens in [[1.0, f32::NAN, 0.5], [f32::NAN, 1.0, 0.5], [1.0, 0.5, f32::NAN]] {
        assert!(pool(&pooling, &tokens, 1, 0)[0].is_nan(), "{tokens:?}");
    }
}
