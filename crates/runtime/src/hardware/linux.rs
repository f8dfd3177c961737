//! Hardware of a Linux machine, from `/proc`, `/sys`, `/dev`, and `nvidia-smi` if there is an NVIDIA card.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sconce_core::device::DeviceKind;
use sconce_core::hardware::{Gpu, Hardware};

use super::roots::Roots;
use super::run::{RunTool, ToolOutput};
use super::{cpu, memory};

/// Machines without a persistence daemon initialize their cards one by one.
const NVIDIA_SMI_LIMIT: Duration = Duration::from_secs(10);
const NVIDIA_SMI_QUERY: &[&str] =
    &["--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits"];

/// Detects the hardware under these roots.
pub(super) fn detect(roots: &Roots, run_tool: RunTool) -> Hardware {
    let cpu = cpu::parse_cpuinfo(&read(&roots.proc.join("cpuinfo")));
    let release = read(&roots.proc.join("sys/kernel/osrelease"));
    let os = if release.is_empty() { String::new() } else { format!("linux {}", major_minor(&release)) };
    let mut gpus = cards(roots);
    let mut tools = Vec::new();
    if let Some(output) = run_nvidia_smi(roots, &gpus, run_tool) {
        let listed = parse_nvidia_smi(&output.text);
        if !listed.is_empty() {
            gpus.retain(|gpu| gpu.kind != Some(DeviceKind::Cuda));
            gpus.splice(0..0, listed);
        }
        tools.push(output.tool);
    }
    Hardware { os, arch: String::new(), cpu, memory: memory::detect(roots), gpus, tools }
}

/// Runs `nvidia-smi` if it is installed. `None` if there is no sign of a card either.
fn run_nvidia_smi(roots: &Roots, cards: &[Gpu], run_tool: RunTool) -> Option<ToolOutput> {
    let program = format!("nvidia-smi{}", std::env::consts::EXE_SUFFIX);
    let found = roots.tools.iter().map(|folder| folder.join(&program)).find(|path| path.is_file());
    if let Some(path) = found.as_ref().and_then(|path| path.to_str()) {
        return Some(run_tool(path, NVIDIA_SMI_QUERY, NVIDIA_SMI_LIMIT));
    }
    let signs = [roots.proc.join("driver/nvidia"), roots.dev.join("nvidiactl"), roots.dev.join("dxg")];
    let is_there =
        cards.iter().any(|gpu| gpu.kind == Some(DeviceKind::Cuda)) || signs.iter().any(|p| p.exists());
    is_there.then(|| ToolOutput::not_installed(&program))
}

/// Graphics cards on the PCI bus, with or without a driver, in address order.
fn cards(roots: &Roots) -> Vec<Gpu> {
    let Ok(entries) = fs::read_dir(roots.sys.join("bus/pci/devices")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let nvidia_driver = parse_nvidia_version(&read(&roots.proc.join("driver/nvidia/version")));
    let mut gpus: Vec<Gpu> = Vec::new();
    for folder in folders {
        let [vendor, class, device] =
            ["vendor", "class", "device"].map(|file| hex(&read(&folder.join(file))));
        let Some((maker, kind)) =
            class.and_then(|class| (class >> 16 == 0x03).then_some(vendor)?).and_then(vendor_name)
        else {
            continue;
        };
        let name =
            format!("{maker} GPU {:04x}:{:04x}", vendor.unwrap_or_default(), device.unwrap_or_default());
        let index = gpus.iter().filter(|gpu| gpu.kind == kind).count() as u32;
        let driver = if kind == Some(DeviceKind::Cuda) { nvidia_driver.clone() } else { None };
        gpus.push(Gpu { kind, index, name, memory: None, driver, seen_by: "/sys/bus/pci".into() });
    }
    gpus
}

/// Vendors of compute cards, which excludes the display controllers of servers.
fn vendor_name(vendor: u32) -> Option<(&'static str, Option<DeviceKind>)> {
    match vendor {
        0x10de => Some(("NVIDIA", Some(DeviceKind::Cuda))),
        0x1002 => Some(("AMD", None)),
        0x8086 => Some(("Intel", None)),
        _ => None,
    }
}

/// The driver version in `/proc/driver/nvidia/version`.
fn parse_nvidia_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_ascii_whitespace()
        .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
        .map(str::to_owned)
}

/// Parses the lines of `nvidia-smi`: index, name, memory in MB, driver. A name may contain commas, and `[N/A]` means
/// unknown. Other lines are ignored.
fn parse_nvidia_smi(text: &str) -> Vec<Gpu> {
    text.lines().filter_map(parse_nvidia_smi_line).collect()
}

fn parse_nvidia_smi_line(line: &str) -> Option<Gpu> {
    let (index, rest) = line.split_once(',')?;
    let (rest, driver) = rest.rsplit_once(',')?;
    let (name, memory) = rest.rsplit_once(',')?;
    let memory = memory.trim().parse::<u64>().ok().and_then(|megabytes| megabytes.checked_mul(1 << 20));
    let driver = driver.trim();
    let is_version = driver.starts_with(|c: char| c.is_ascii_digit());
    Some(Gpu {
        kind: Some(DeviceKind::Cuda),
        index: index.trim().parse().ok()?,
        name: name.trim().to_owned(),
        memory,
        driver: is_version.then(|| driver.to_owned()),
        seen_by: "nvidia-smi".into(),
    })
}

/// The first two numbers of a release, so that evidence survives kernel patches.
fn major_minor(release: &str) -> String {
    let numbers: Vec<&str> = release.trim().split(|c: char| !c.is_ascii_digit()).take(2).collect();
    numbers.join(".")
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
