//! Elementwise functions, exact to the last bits, that the compiler vectorizes.

/// `e^x` with a relative error of about 1e-7; finite for x <= 0.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 rounds to an integer and leaves it in the low bits, without a conversion.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-86.0, 88.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    // ln 2 in two parts: the first times any power is exact.
    let rest = (x - power * 0.693_359_4) + power * 2.121_944_4e-4;
    let curve = TAIL.iter().rev().fold(0.0, |sum, c| f32::mul_add(sum, rest, *c));
    let tail = 1.0 + rest + rest * rest * curve;
    f32::from_bits((rounded.to_bits() << 23).wrapping_add(tail.to_bits()))
}

/// GELU with the exact error function: `x/2 · (1 + erf(x/√2))`.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// GELU with the tanh approximation (`gelu_new`).
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    // tanh(u) = 1 - 2/(e^2u + 1)
    x * (1.0 - 1.0 / (exp(2.0 * inner) + 1.0))
}

/// The hyperbolic tangent, with an absolute error of about 1e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// GELU with the sigmoid approximation (CLIP).
#[inline(always)]
pub fn quick_gelu(x: f32) -> f32 {
    x / (1.0 + exp(-1.702 * x))
}

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let x = x.clamp(-ERF_ONE, ERF_ONE);
    let square = x * x;
    let above = ERF_ABOVE.iter().rev().fold(0.0, |sum, c| f32::mul_add(sum, square, *c));
    let below = ERF_BELOW.iter().rev().fold(0.0, |sum, c| f32::mul_add(sum, square, *c));
    x * above / below
}

/// erf rounds to 1 in f32 beyond this value.
const ERF_ONE: f32 = 3.92;
/// Numerator and denominator of a rational approximation of `erf(x)/x` in `x²`, relative error 2e-9 on ±3.92.
const ERF_ABOVE: [f32; 7] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    0.185_122_31,
    0.054_232_5,
    0.003_836_847_4,
    0.000_376_321_46,
    4.597_615_3e-6,
    -1.273_727_3e-8,
];
const ERF_BELOW: [f32; 6] = [1.0, 0.497_393_8, 0.113_859_76, 0.015_424_941, 0.001_300_581, 6.229_012e-5];
/// `(e^r - 1 - r) / r²` for |r| <= ln 2 / 2.
const TAIL: [f32; 6] = [0.5, 0.166_666_65, 0.041_665_796, 0.008_333_452, 0.001_398_2, 0.000_198_756_92];

#[cfg(test)]
mod tests {
    use super::*;

    /// The error function as a series in f64.
    fn erf_series(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn erf_is_exact_to_the_last_bits() {
        for step in -4500..=4500 {
            let x = step as f32 / 1000.0;
            let error = (f64::from(erf(x)) - erf_series(f64::from(x))).abs();
            assert!(error < 5e-7, "erf({x}) is off by {error}");
        }
        assert!((erf(50.0) - 1.0).abs() < 5e-7 && (erf(-50.0) + 1.0).abs() < 5e-7);
    }

    #[test]
    fn exp_is_exact_to_the_last_bits() {
        for step in -8500..=8500 {
            let x = step as f32 / 100.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 3e-7, "exp({x}): {got} for {want}");
        }
        assert!(exp(-1e30) < 1e-36 && (exp(0.0) - 1.0).abs() < 1e-7);
    }

    #[test]
    fn tanh_is_exact_to_the_last_bits() {
        for step in -9000..=9000 {
            let x = step as f32 / 100.0;
            let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
            assert!(error < 3e-7, "tanh({x}) is off by {error}");
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        assert!(gelu(f32::NAN).is_nan() && exp(f32::NAN).is_nan() && gelu_tanh(f32::NAN).is_nan());
        assert!(silu(f32::NAN).is_nan() && tanh(f32::NAN).is_nan() && quick_gelu(f32::NAN).is_nan());
    }
}
