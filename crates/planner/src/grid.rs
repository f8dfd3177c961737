//! Every placement that a model could have, and what is known against it before anything is tried.

use sconce_core::card::{Format, ModelCard, Weights};
use sconce_core::device::{Device, DeviceKind};
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};

/// One engine on one device: what the build says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The engine.
    pub engine: EngineId,
    /// The device.
    pub device: Device,
    /// The weights that the engine reads.
    pub format: Format,
    /// The number formats to try.
    pub dtypes: Vec<Dtype>,
    /// Why it can't be sat on.
    pub obstacle: Option<Obstacle>,
}

/// The devices to ask an engine about: those the machine has, and the first of each kind even where it has none,
/// so that its absence is said.
pub fn devices(hardware: &Hardware) -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    for kind in [DeviceKind::Metal, DeviceKind::Cuda] {
        let count = hardware.of_kind(kind).count().max(1) as u32;
        devices.extend((0..count).map(|index| kind.device(index)));
    }
    devices
}

/// What stands against `device`, from what the build says and what the machine has. Where the machine lacks the
/// device that is said first: no build would help.
pub fn obstacle(device: Device, build: Result<(), Obstacle>, hardware: &Hardware) -> Option<Obstacle> {
    let engine_absent = matches!(&build, Err(Obstacle::NotBuilt { what, .. }) if what.contains("engine"));
    if engine_absent || device == Device::Cpu {
        return build.err();
    }
    let gpu = hardware.of_kind(device.kind()).nth(match device {
        Device::Cpu => 0,
        Device::Metal(index) | Device::Cuda(index) => index as usize,
    });
    let Some(gpu) = gpu else {
        let found = match device.kind() {
            DeviceKind::Metal if !hardware.os.starts_with("macos") => {
                format!("this is {}, not macOS", hardware.os)
            }
            DeviceKind::Metal => "system_profiler lists no GPU with Metal".to_owned(),
            DeviceKind::Cuda | DeviceKind::Cpu => {
                "neither the PCI bus nor nvidia-smi shows an NVIDIA GPU".to_owned()
            }
        };
        return Some(Obstacle::NoSuchDevice { device, found });
    };
    if device.kind() == DeviceKind::Cuda && gpu.driver.is_none() {
        let found =
            format!("{} is in the machine ({}), but its driver does not answer", gpu.name, gpu.seen_by);
        return Some(Obstacle::NoSuchDevice { device, found });
    }
    build.err()
}

/// Every placement of `card`'s model on `candidates`, with what stands against it already. An engine for whose format
/// the model has no weights is listed as such: no device would help.
pub fn grid(card: &ModelCard, candidates: &[Candidate]) -> Vec<(Placement, Option<Obstacle>)> {
    let cells = candidates.iter().flat_map(|candidate| {
        let Candidate { engine, device, format, ref dtypes, ref obstacle } = *candidate;
        let cell =
            move |weights: &str, dtype| Placement { engine, device, weights: weights.to_owned(), dtype };
        let sets: Vec<&Weights> = card.weights.iter().filter(|weights| weights.format == format).collect();
        if sets.is_empty() && !dtypes.is_empty() {
            let obstacle = Obstacle::NoWeights { format };
            return vec![(cell(format.usual_name(), Dtype::F32), Some(obstacle))];
        }
        let cells = sets.into_iter().flat_map(|weights| {
            let own = [weights.stored];
            let dtypes = if format.is_graph() && !dtypes.is_empty() { &own[..] } else { dtypes };
            let cells = dtypes.iter().map(|&dtype| (cell(&weights.name, dtype), obstacle.clone()));
            cells.collect::<Vec<_>>()
        });
        cells.collect()
    });
    cells.collect()
}

/// Whether the weights alone are more than the memory there is, as far as both are known.
pub fn does_not_fit(card: &ModelCard, placement: &Placement, hardware: &Hardware) -> Option<Obstacle> {
    let weights = card.weights_named(&placement.weights)?;
    let need = weights.bytes_in(placement.dtype);
    let have = match placement.device {
        Device::Cpu => hardware.memory,
        Device::Metal(index) | Device::Cuda(index) => {
            hardware.of_kind(placement.device.kind()).nth(index as usize)?.memory?
        }
    };
    (have > 0 && need > have).then_some(Obstacle::DoesNotFit { need: Some(need), have: Some(have) })
}

/// The placement that all others are compared with: f32 on the CPU, on the first engine that has it, with the
/// widest weights. Where only graphs can run it is the one with the widest numbers.
pub fn reference<'a>(
    card: &ModelCard,
    placements: impl IntoIterator<Item = &'a Placement>,
) -> Option<&'a Placement> {
    let rank = |placement: &Placement| {
        let weights = card.weights_named(&placement.weights);
        weights.map_or((false, 0), |weights| (!weights.format.is_graph(), weights.stored.bits()))
    };
    let fit = |placement: &&Placement| {
        placement.device == Device::Cpu && (placement.dtype == Dtype::F32 || !rank(placement).0)
    };
    placements.into_iter().filter(fit).reduce(|best, next| if rank(next) > rank(best) { next } else { best })
}
