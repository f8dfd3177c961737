//! What the machine has, as far as it can be seen without opening any device.

use serde::{Deserialize, Serialize};

use crate::device::DeviceKind;

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// System and its version: `linux 6.1`, `macos 15.5`.
    pub os: String,
    /// Processor family: `x86_64`, `aarch64`.
    pub arch: String,
    /// The processor.
    pub cpu: Cpu,
    /// Bytes of main memory.
    pub memory: u64,
    /// Graphics processors, usable or not.
    pub gpus: Vec<Gpu>,
    /// The vendor's tools that were asked, and how long each took.
    pub tools: Vec<Tool>,
}

/// A processor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its name.
    pub model: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The vector and matrix instructions that matter here: `avx2`, `avx512f`, `amx_bf16`, `neon`, ….
    pub flags: Vec<String>,
}

/// A graphics processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// The kind of device it would be; none for a make that no engine drives.
    pub kind: Option<DeviceKind>,
    /// Its number among those of its kind.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Bytes of its own memory, where known.
    pub memory: Option<u64>,
    /// The version of its driver; none where no driver answers.
    pub driver: Option<String>,
    /// Where it was seen: `nvidia-smi`, `/sys/bus/pci`, `system_profiler`.
    pub seen_by: String,
}

/// A tool of the vendor's that was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Seconds until it answered or was given up.
    pub seconds: f64,
    /// What came of it: `answered`, `not installed`, `gave no answer in 5 s`, `failed: …`.
    pub outcome: String,
}

impl Hardware {
    /// The GPUs of this kind.
    pub fn of_kind(&self, kind: DeviceKind) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(move |gpu| gpu.kind == Some(kind))
    }
}
