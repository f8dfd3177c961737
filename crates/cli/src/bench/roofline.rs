//! How near to what the machine gives at most: operations and bytes of a model, and their shares of the peaks.

use sconce::core::card::Sizes;
use sconce::{Device, Dtype, Peak, Placement};

/// What a model asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// Operations for each token in the products with weights.
    dense: f64,
    /// Operations for each pair of a token with one that it looks at.
    attention: f64,
    /// Numbers in the weights of all layers, which one pass reads at least once.
    weights: f64,
}

impl Work {
    pub(super) fn of(sizes: &Sizes) -> Work {
        let [layers, hidden, intermediate] =
            [sizes.layers, sizes.hidden, sizes.intermediate].map(|size| size as f64);
        let weights = layers * (4.0 * hidden * hidden + 2.0 * hidden * intermediate);
        Work { dense: 2.0 * weights, attention: layers * 4.0 * hidden, weights }
    }

    /// Operations for texts of these lengths.
    pub(super) fn flops(&self, lengths: &[usize]) -> f64 {
        lengths.iter().map(|&length| length as f64 * (self.dense + self.attention * length as f64)).sum()
    }

    /// Bytes of weights that one call reads at least.
    pub(super) fn bytes(&self, dtype: Dtype) -> f64 {
        self.weights * dtype.bits() as f64 / 8.0
    }
}

/// What share of the measured peak of products these operations reached; none where no peak was measured for it.
pub(super) fn gemm_share(peak: &Peak, placement: &Placement, gflops: f64) -> Option<f64> {
    let most = peak.gflops(placement.dtype).filter(|_| placement.device == Device::Cpu)?;
    Some(gflops / most)
}

/// What share of the measured bandwidth it takes to read all weights once in `seconds`.
pub(super) fn bandwidth_share(peak: &Peak, placement: &Placement, work: &Work, seconds: f64) -> Option<f64> {
    let most = Some(peak.bandwidth_gb_s).filter(|_| placement.device == Device::Cpu)?;
    Some(work.bytes(placement.dtype) / seconds / 1e9 / most)
}

#[cfg(test)]
mod tests {
    use sconce::EngineId;

    use super::*;

    const MINILM: Sizes =
        Sizes { layers: 6, hidden: 384, heads: 12, intermediate: 1536, vocabulary: 30522, positions: 512 };

    fn placement(device: Device, dtype: Dtype) -> Placement {
        Placement { engine: EngineId::Native, device, weights: String::new(), dtype }
    }

    #[test]
    fn operations_are_those_of_products_and_of_attention() {
        let work = Work::of(&MINILM);
        // 10.6 million weights in the layers, each used once a token.
        let same = |got: f64, want: f64| assert!((got - want).abs() < 0.5, "{got} instead of {want}");
        same(work.weights, 10_616_832.0);
        same(work.flops(&[1]), 2.0 * 10_616_832.0 + 6.0 * 4.0 * 384.0);
        same(work.flops(&[3, 3]), 2.0 * work.flops(&[3]));
        assert!(work.flops(&[6]) > 2.0 * work.flops(&[3]));
        same(work.bytes(Dtype::F32), 42_467_328.0);
        same(work.bytes(Dtype::Bf16), 21_233_664.0);
    }

    #[test]
    fn a_share_is_of_a_peak_that_was_measured() {
        let peak = Peak { f32_gflops: 200.0, bf16_gflops: None, bandwidth_gb_s: 10.0 };
        let cpu = placement(Device::Cpu, Dtype::F32);
        assert_eq!(gemm_share(&peak, &cpu, 50.0), Some(0.25));
        assert_eq!(gemm_share(&peak, &placement(Device::Cpu, Dtype::Bf16), 50.0), None);
        assert_eq!(gemm_share(&peak, &placement(Device::Metal(0), Dtype::F32), 50.0), None);
        let share = bandwidth_share(&peak, &cpu, &Work::of(&MINILM), 42_467_328e-9);
        assert!(share.is_some_and(|share| (share - 0.1).abs() < 1e-12), "{share:?}");
    }
}
