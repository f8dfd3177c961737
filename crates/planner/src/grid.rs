//! The grid: every possible placement of a model, with the obstacles that are known before probing.

use sconce_core::card::{Format, ModelCard, Weights};
use sconce_core::device::{Device, DeviceKind};
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::{BuildPart, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};

/// An engine on a device, as the build supports it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The engine.
    pub engine: EngineId,
    /// The device.
    pub device: Device,
    /// The weight formats that the engine reads.
    pub formats: &'static [Format],
    /// Dtypes to try.
    pub dtypes: Vec<Dtype>,
    /// Why no placement on it can be used.
    pub obstacle: Option<Obstacle>,
}

/// The devices to list: those of the machine, and the first of each kind that it lacks, so that plans report its absence.
pub fn devices(hardware: &Hardware) -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    for kind in [DeviceKind::Metal, DeviceKind::Cuda] {
        let count = hardware.of_kind(kind).count().max(1) as u32;
        devices.extend((0..count).map(|index| kind.device(index)));
    }
    devices
}

/// The obstacle of `device`, from the build and the hardware. A missing device comes before missing support for it: no
/// build would help.
pub fn obstacle(device: Device, build: Result<(), Obstacle>, hardware: &Hardware) -> Option<Obstacle> {
    let lacks_engine = matches!(build, Err(Obstacle::NotBuilt { part: BuildPart::Engine, .. }));
    if lacks_engine || device == Device::Cpu {
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

/// Every placement of the card's model on `candidates`, with known obstacles. An engine without weights in its format
/// gets one cell with `no_weights`: no device would help.
pub fn grid(card: &ModelCard, candidates: &[Candidate]) -> Vec<(Placement, Option<Obstacle>)> {
    let cells = candidates.iter().flat_map(|candidate| {
        let Candidate { engine, device, formats, ref dtypes, ref obstacle } = *candidate;
        let cell =
            move |weights: &str, dtype| Placement { engine, device, weights: weights.to_owned(), dtype };
        let reads = |weights: &&Weights| formats.contains(&weights.format);
        let sets: Vec<&Weights> = card.weights.iter().filter(reads).collect();
        if let (true, false, Some(&format)) = (sets.is_empty(), dtypes.is_empty(), formats.first()) {
            let obstacle = Obstacle::NoWeights { format };
            return vec![(cell(format.usual_name(), Dtype::F32), Some(obstacle))];
        }
        let cells = sets.into_iter().flat_map(|weights| {
            let own = [weights.stored];
            let dtypes = if weights.format.is_graph() && !dtypes.is_empty() { &own[..] } else { dtypes };
            // Quantized weights are computed with as they are stored, or converted to floats.
            let is_possible = |dtype: &&Dtype| dtype.is_float() || **dtype == weights.stored;
            let cells = dtypes.iter().filter(is_possible);
            cells.map(|&dtype| (cell(&weights.name, dtype), obstacle.clone())).collect::<Vec<_>>()
        });
        cells.collect()
    });
    cells.collect()
}

/// The obstacle if the weights and `beside` bytes, such as a KV cache, exceed the memory, as far as both are known.
pub fn does_not_fit(
    card: &ModelCard,
    placement: &Placement,
    hardware: &Hardware,
    beside: u64,
) -> Option<Obstacle> {
    let weights = card.weights_named(&placement.weights)?;
    let need = weights.bytes_in(placement.dtype).saturating_add(beside);
    let have = hardware.memory_of(placement.device)?;
    (need > have).then_some(Obstacle::DoesNotFit { need: Some(need), have: Some(have) })
}

/// The reference placement: f32 on the CPU, on the first engine that has it, with the widest weights. If f32 does not fit
/// in memory, the dtype of the file, whose weights are not rounded, then the widest. If only graphs can run, the graph with
/// the widest dtype.
pub fn reference<'a>(
    card: &ModelCard,
    placements: impl IntoIterator<Item = &'a Placement>,
) -> Option<&'a Placement> {
    let rank = |placement: &Placement| {
        let weights = card.weights_named(&placement.weights);
        weights.map(|weights| {
            let bits = if weights.format.is_graph() { 0 } else { placement.dtype.bits() };
            let is_f32 = bits > 0 && placement.dtype == Dtype::F32;
            let is_stored = bits > 0 && placement.dtype == weights.stored;
            (bits > 0, is_f32, is_stored, bits, weights.stored.bits())
        })
    };
    let fit = |placement: &&Placement| placement.device == Device::Cpu;
    placements.into_iter().filter(fit).reduce(|best, next| if rank(next) > rank(best) { next } else { best })
}

/// The reference of twins: f32 on the CPU, also if the model itself does not fit in memory.
pub fn twin_reference<'a>(
    card: &ModelCard,
    grid: impl IntoIterator<Item = &'a (Placement, Option<Obstacle>)>,
) -> Option<&'a Placement> {
    let is_open = |obstacle: &Option<Obstacle>| matches!(obstacle, None | Some(Obstacle::DoesNotFit { .. }));
    let open = grid.into_iter().filter(|(_, obstacle)| is_open(obstacle)).map(|(placement, _)| placement);
    reference(card, open)
}
