//! Which devices this build of Candle can drive, and opening them: the one file that reads a device's feature.

use candle_core::{DType, Device as Handle};
use sconce_core::device::Device;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Dtype;

use crate::errors;

/// The version of Candle that this crate is pinned to.
pub(super) const CANDLE: &str = "0.11.1";

/// The switches of this build that change what a device computes.
pub(super) fn switches() -> String {
    let switches = [
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(target_os = "macos")),
        ("accelerate", cfg!(target_os = "macos")),
    ];
    let on: Vec<_> = switches.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
    on.join("+")
}

/// Whether this build can drive `device`; opens nothing.
pub(super) fn supports(device: Device) -> Result<(), Obstacle> {
    let not_built = |what: &str, feature: Option<&str>| {
        Err(Obstacle::NotBuilt { what: what.to_owned(), feature: feature.map(str::to_owned) })
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
        if let Obstacle::LoadFailed { says } = obstacle {
            return Obstacle::NoSuchDevice { device, found: says };
        }
        obstacle
    })
}

/// Runs `work` so that what Metal's objects leave behind is freed at its end and not at the thread's.
pub(super) fn with_autorelease<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "macos")]
    return objc2::rc::autoreleasepool(|_| work());
    #[cfg(not(target_os = "macos"))]
    work()
}

/// Candle's name for a dtype that models compute in.
pub(super) fn dtype(dtype: Dtype) -> Result<DType, Obstacle> {
    match dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::F16 => Ok(DType::F16),
        Dtype::Bf16 => Ok(DType::BF16),
        Dtype::Int8 | Dtype::Int4 => Err(Obstacle::OpMissing {
            op: format!("{dtype} products"),
            says: "encoders compute in f32, f16 and bf16 here".to_owned(),
        }),
    }
}
