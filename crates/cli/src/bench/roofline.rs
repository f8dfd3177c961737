//! Shares of the machine's measured peaks that a model reaches.

use sconce::{Device, ModelCost, Peak, Placement};

/// Share of the measured GEMM peak. `None` if no peak was measured for the device and dtype.
pub(super) fn gemm_share(peak: &Peak, placement: &Placement, gflops: f64) -> Option<f64> {
    let most = peak.gflops(placement.dtype).filter(|_| placement.device == Device::Cpu)?;
    Some(gflops / most)
}

/// Share of the measured memory bandwidth needed to read all weights once in `seconds`.
pub(super) fn bandwidth_share(
    peak: &Peak,
    placement: &Placement,
    work: &ModelCost,
    seconds: f64,
) -> Option<f64> {
    let most = Some(peak.bandwidth_gb_s).filter(|_| placement.device == Device::Cpu)?;
    Some(work.bytes(placement.dtype) / seconds / 1e9 / most)
}

#[cfg(test)]
mod tests {
    use sconce::{Dtype, EngineId};

    use super::*;

    fn placement(device: Device, dtype: Dtype) -> Placement {
        Placement { engine: EngineId::Native, device, weights: String::new(), dtype }
    }

    #[test]
    fn a_share_is_of_a_peak_that_was_measured() {
        let peak = Peak { f32_gflops: 200.0, bf16_gflops: None, bandwidth_gb_s: 10.0 };
        let cpu = placement(Device::Cpu, Dtype::F32);
        assert_eq!(gemm_share(&peak, &cpu, 50.0), Some(0.25));
        assert_eq!(gemm_share(&peak, &placement(Device::Cpu, Dtype::Bf16), 50.0), None);
        assert_eq!(gemm_share(&peak, &placement(Device::Metal(0), Dtype::F32), 50.0), None);
    }
}
