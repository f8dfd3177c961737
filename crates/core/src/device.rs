//! Device names; never handles.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A compute device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The Apple GPU with this index.
    Metal(u32),
    /// The NVIDIA GPU with this index.
    Cuda(u32),
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// CPUs.
    Cpu,
    /// Apple GPUs.
    Metal,
    /// NVIDIA GPUs.
    Cuda,
}

impl Device {
    /// The first Apple GPU.
    pub const METAL: Device = Device::Metal(0);
    /// The first NVIDIA GPU.
    pub const CUDA: Device = Device::Cuda(0);

    /// The device's kind.
    pub fn kind(self) -> DeviceKind {
        match self {
            Device::Cpu => DeviceKind::Cpu,
            Device::Metal(_) => DeviceKind::Metal,
            Device::Cuda(_) => DeviceKind::Cuda,
        }
    }
}

impl DeviceKind {
    /// The device of this kind with this index; the CPU for any index.
    pub fn device(self, index: u32) -> Device {
        match self {
            DeviceKind::Cpu => Device::Cpu,
            DeviceKind::Metal => Device::Metal(index),
            DeviceKind::Cuda => Device::Cuda(index),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.pad("cpu"),
            Device::Metal(n) => f.pad(&format!("metal:{n}")),
            Device::Cuda(n) => f.pad(&format!("cuda:{n}")),
        }
    }
}

impl FromStr for Device {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let (kind, index) = text.split_once(':').unwrap_or((text, "0"));
        let unknown = || UnknownName {
            what: "device",
            name: text.to_owned(),
            known: "cpu, metal, metal:N, cuda, cuda:N",
        };
        let index: u32 = index.parse().map_err(|_| unknown())?;
        match kind {
            "cpu" if index == 0 => Ok(Device::Cpu),
            "metal" => Ok(Device::Metal(index)),
            "cuda" => Ok(Device::Cuda(index)),
            _ => Err(unknown()),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}

impl TryFrom<String> for Device {
    type Error = UnknownName;

    fn try_from(text: String) -> Result<Self, UnknownName> {
        text.parse()
    }
}

/// A name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{name}`; known: {known}")]
pub struct UnknownName {
    /// What the name should denote: `device`, `dtype`, ….
    pub what: &'static str,
    /// The name.
    pub name: String,
    /// The known names.
    pub known: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_reads_back_what_it_prints() {
        for device in [Device::Cpu, Device::Metal(0), Device::Cuda(3)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("metal".parse(), Ok(Device::Metal(0)));
    }

    #[test]
    fn a_word_that_is_no_device_is_refused_with_the_known_ones() {
        for text in ["", "gpu", "cpu:1", "metal:-1", "cuda:99999999999"] {
            let error = text.parse::<Device>().expect_err(text);
            assert!(error.to_string().contains("metal:N"), "{error}");
        }
    }
}
