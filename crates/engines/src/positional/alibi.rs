//! ALiBi: a bias of attention scores that falls linearly with distance, symmetric in both directions.

/// The slope of every head: powers of two, with interpolated slopes if the number of heads is not a power of two.
pub(crate) fn slopes(heads: usize) -> Vec<f32> {
    let whole = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let powers = |count: usize| {
        let step = 8.0 / count as f64;
        (1..=count).map(move |power| (-step * power as f64).exp2() as f32)
    };
    powers(whole).chain(powers(2 * whole).step_by(2)).take(heads).collect()
}

/// The bias at `distance`.
pub(crate) fn bias(slope: f32, distance: isize) -> f32 {
    -slope * distance.unsigned_abs() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper() {
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.031_25, 0.015_625, 0.007_812_5, 0.003_906_25]);
        let twelve = slopes(12);
        assert_eq!(twelve[..8], slopes(8)[..]);
        let between = [0.5f32.sqrt(), 0.125f32.sqrt(), 0.031_25f32.sqrt(), 0.007_812_5f32.sqrt()];
        assert!(twelve[8..].iter().zip(between).all(|(a, b)| (a - b).abs() < 1e-7), "{twelve:?}");
    }
}
