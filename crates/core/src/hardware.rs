//! The machine's hardware, as detected without opening a device.

use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceKind};

/// The machine's hardware.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Operating system and version: `linux 6.1`, `macos 15.5`.
    pub os: String,
    /// CPU architecture: `x86_64`, `aarch64`.
    pub arch: String,
    /// The CPU.
    pub cpu: Cpu,
    /// Main memory in bytes.
    pub memory: u64,
    /// GPUs, usable or not.
    pub gpus: Vec<Gpu>,
    /// Vendor tools that were run.
    pub tools: Vec<Tool>,
}

/// A CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Model name.
    pub model: String,
    /// Cores available to this process.
    pub cores: usize,
    /// Relevant instruction sets: `avx2`, `avx512f`, `amx_bf16`, `neon`, ….
    pub flags: Vec<String>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its device kind; none if no engine supports the vendor.
    pub kind: Option<DeviceKind>,
    /// Index among devices of its kind.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Memory in bytes, if known.
    pub memory: Option<u64>,
    /// Driver version; none if no driver responds.
    pub driver: Option<String>,
    /// Where it was detected: `nvidia-smi`, `/sys/bus/pci`, `system_profiler`.
    pub seen_by: String,
}

/// A vendor tool that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Run time in seconds.
    pub seconds: f64,
    /// Outcome: `answered`, `not installed`, `gave no answer in 5 s`, `failed: …`.
    pub outcome: String,
}

impl Hardware {
    /// GPUs of this kind.
    pub fn of_kind(&self, kind: DeviceKind) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(move |gpu| gpu.kind == Some(kind))
    }

    /// Memory of `device` in bytes, if it is known.
    pub fn memory_of(&self, device: Device) -> Option<u64> {
        let memory = match device {
            Device::Cpu => Some(self.memory),
            Device::Metal(index) | Device::Cuda(index) => {
                self.of_kind(device.kind()).nth(index as usize)?.memory
            }
        };
        memory.filter(|memory| *memory > 0)
    }
}
