//! Memory account: bytes by device and purpose.

use std::collections::BTreeMap;

use sconce_core::device::Device;
use serde::Serialize;

/// Purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryPurpose {
    /// Weights of loaded placements.
    Weights,
    /// Buffers of running batches.
    Scratch,
    /// Key-value caches.
    Cache,
    /// Prover processes.
    Prover,
}

/// Memory in bytes, by device and purpose. Purposes that are not measured are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryAccount {
    bytes: BTreeMap<(Device, MemoryPurpose), u64>,
}

impl MemoryAccount {
    /// Adds `bytes` on a device.
    pub fn add(&mut self, device: Device, purpose: MemoryPurpose, bytes: u64) {
        if bytes > 0 {
            *self.bytes.entry((device, purpose)).or_default() += bytes;
        }
    }

    /// Adds all entries of another account.
    pub fn merge(&mut self, other: &MemoryAccount) {
        for (device, purpose, bytes) in other.iter() {
            self.add(device, purpose, bytes);
        }
    }

    /// Memory on a device for one purpose.
    pub fn get(&self, device: Device, purpose: MemoryPurpose) -> u64 {
        self.bytes.get(&(device, purpose)).copied().unwrap_or(0)
    }

    /// Memory on a device for all purposes.
    pub fn total(&self, device: Device) -> u64 {
        self.iter().filter(|(other, ..)| *other == device).map(|(.., bytes)| bytes).sum()
    }

    /// All entries, sorted by device and purpose.
    pub fn iter(&self) -> impl Iterator<Item = (Device, MemoryPurpose, u64)> {
        self.bytes.iter().map(|(&(device, purpose), &bytes)| (device, purpose, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_add_up_by_device_and_purpose() {
        let (cpu, cuda) = (Device::Cpu, Device::Cuda(0));
        let mut account = MemoryAccount::default();
        account.add(cuda, MemoryPurpose::Weights, 5);
        account.add(cpu, MemoryPurpose::Prover, 3);
        account.add(cpu, MemoryPurpose::Scratch, 0);
        let mut all = account.clone();
        all.merge(&account);
        all.add(cpu, MemoryPurpose::Weights, 1);
        assert_eq!(all.get(cuda, MemoryPurpose::Weights), 10);
        assert_eq!((all.total(cpu), all.total(cuda), all.total(Device::Metal(0))), (7, 10, 0));
        let entries: Vec<_> = all.iter().filter(|(device, ..)| *device == cpu).collect();
        assert_eq!(entries, [(cpu, MemoryPurpose::Weights, 1), (cpu, MemoryPurpose::Prover, 6)]);
    }
}
