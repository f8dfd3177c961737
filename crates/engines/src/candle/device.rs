//! Candle devices of this build; the only file that reads a device feature.

use candle_core::{DType, Device as Handle};
use sconce_core::device::Device;
use sconce_core::obstacle::{BuildPart, Obstacle};
use sconce_core::placement::Dtype;

use crate::errors;

/// The version of Candle that this crate is pinned to.
pub(super) const CANDLE: &str = "0.11.1";

/// Features of this build that affect results.
pub(super) fn switches() -> String {
    let switches = [
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(target_os = "macos")),
        ("accelerate", cfg!(target_os = "macos")),
    ];
    let on: Vec<_> = switches.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
    on.join("+")
}

/// Whether this build supports `device`; opens nothing.
pub(super) fn supports(device: Device) -> Result<(), Obstacle> {
    let not_built = |what: &str, feature: Option<&str>| {
        Err(Obstacle::NotBuilt {
            part: BuildPart::Device,
            what: what.to_owned(),
            feature: feature.map(str::to_owned),
        })
    };
    match device {
        Device::Cpu => Ok(()),
        Device::Metal(_) if cfg!(target_os = "macos") => Ok(()),
        Device::Metal(_) => not_built("Metal, which is built on macOS alone", None),
        Device::Cuda(_) if cfg!(feature = "cuda") => Ok(()),
        Device::Cuda(_) => not_built("the feature `cuda`", Some("cuda")),
    }
}

/// Opens `device`.
pub(super) fn open(device: Device) -> Result<Handle, Obstacle> {
    supports(device)?;
    let handle = match device {
        Device::Cpu => return Ok(Handle::Cpu),
        Device::Metal(index) => Handle::new_metal(index as usize),
        Device::Cuda(index) => Handle::new_cuda(index as usize),
    };
    handle.map_err(|error| {
        let obstacle = errors::to_obstacle(&error);
        if let Obstacle::LoadFailed { reason } = obstacle {
            return Obstacle::NoSuchDevice { device, found: reason };
        }
        obstacle
    })
}

/// Runs `work` in an autorelease pool, so that Metal's temporary objects are freed at its end.
pub(super) fn with_autorelease<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "macos")]
    return objc2::rc::autoreleasepool(|_| work());
    #[cfg(not(target_os = "macos"))]
    work()
}

/// The dtype of activations. Candle multiplies quantized weights by f32 activations.
pub(super) fn dtype(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 | Dtype::Int8 | Dtype::Int4 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::Bf16 => DType::BF16,
    }
}
