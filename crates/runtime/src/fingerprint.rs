//! What evidence depends on beside the model: if any part changes, nothing that was found before is believed.

use sconce_core::device::Device;
use sconce_core::hardware::{Gpu, Hardware};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// What evidence depends on beside the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Fingerprint {
    /// The engine's version, sources and switches.
    pub(crate) build: String,
    /// The system.
    pub(crate) os: String,
    /// The processor family.
    pub(crate) arch: String,
    /// The processor.
    pub(crate) cpu: String,
    /// Its vector and matrix instructions.
    pub(crate) flags: Vec<String>,
    /// Its cores.
    pub(crate) cores: usize,
    /// The device, where it is not the processor.
    pub(crate) gpu: Option<String>,
    /// That device's driver.
    pub(crate) driver: Option<String>,
}

impl Fingerprint {
    /// The fingerprint of `device` on this machine, driven by an engine of this `build`.
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

/// A short hash of anything that can be written as JSON: the first half of its SHA-256, in hexadecimal.
pub(crate) fn hash(value: &impl Serialize) -> String {
    let digest = Sha256::digest(serde_json::to_vec(value).unwrap_or_default());
    digest.iter().take(16).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
