//! Fingerprint of the build, system and device. Evidence is valid only for an equal fingerprint.

use sconce_core::device::Device;
use sconce_core::hardware::{Gpu, Hardware};
use serde::Serialize;

/// Facts that evidence depends on, beside the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Fingerprint {
    /// Engine version, source hash and build flags.
    pub(crate) build: String,
    /// Operating system.
    pub(crate) os: String,
    /// CPU architecture.
    pub(crate) arch: String,
    /// CPU model.
    pub(crate) cpu: String,
    /// Vector and matrix instruction sets.
    pub(crate) flags: Vec<String>,
    /// Number of cores.
    pub(crate) cores: usize,
    /// Name and memory of the accelerator.
    pub(crate) gpu: Option<String>,
    /// Driver version of the accelerator.
    pub(crate) driver: Option<String>,
}

impl Fingerprint {
    /// The fingerprint of `device` on this machine, for an engine build.
    pub(crate) fn new(build: String, hardware: &Hardware, device: Device) -> Fingerprint {
        let gpu = match device {
            Device::Cpu => None,
            Device::Metal(index) | Device::Cuda(index) => hardware.of_kind(device.kind()).nth(index as usize),
        };
        let named = |gpu: &Gpu| format!("{} {}", gpu.name, gpu.memory.unwrap_or(0));
        Fingerprint {
            build,
            os: hardware.os.clone(),
            arch: hardware.arch.clone(),
            cpu: hardware.cpu.model.clone(),
            flags: hardware.cpu.flags.clone(),
            cores: hardware.cpu.cores,
            gpu: gpu.map(named),
            driver: gpu.and_then(|gpu| gpu.driver.clone()),
        }
    }
}
