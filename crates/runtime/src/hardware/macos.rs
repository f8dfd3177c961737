//! Hardware of a Mac, from `sysctl`, `sw_vers` and `system_profiler`.

use std::time::Duration;

use sconce_core::device::DeviceKind;
use sconce_core::hardware::{Cpu, Gpu, Hardware};
use serde_json::Value;

use super::run::RunTool;

/// `system_profiler` starts a service, which can be slow.
const LIMIT: Duration = Duration::from_secs(5);

/// Branches instead of single keys: a key that a Mac lacks would make `sysctl` fail.
const SYSCTL_BRANCHES: &[&str] = &["hw.memsize", "machdep.cpu", "hw.optional"];

/// Keys of `sysctl`, and our flags.
const FLAGS: &[(&str, &str)] = &[
    ("hw.optional.avx2_0", "avx2"),
    ("hw.optional.fma", "fma"),
    ("hw.optional.f16c", "f16c"),
    ("hw.optional.avx512f", "avx512f"),
    ("hw.optional.neon", "neon"),
    ("hw.optional.arm.FEAT_BF16", "bf16"),
    ("hw.optional.arm.FEAT_I8MM", "i8mm"),
];

/// Keys of Metal support in `system_profiler`, by version.
const METAL_KEYS: &[&str] = &["spdisplays_mtlgpufamilysupport", "spdisplays_metalfamily", "spdisplays_metal"];

/// Detects the hardware of this Mac.
pub(super) fn detect(run_tool: RunTool) -> Hardware {
    let sysctl = run_tool("sysctl", SYSCTL_BRANCHES, LIMIT);
    let version = run_tool("sw_vers", &["-productVersion"], LIMIT);
    let displays = run_tool("system_profiler", &["SPDisplaysDataType", "-json"], LIMIT);
    let (cpu, memory) = parse_sysctl(&sysctl.text);
    let mut gpus = parse_displays(&displays.text);
    // Apple chips have a GPU, even if `system_profiler` fails.
    if is_apple(&cpu.model) && !gpus.iter().any(|gpu| gpu.kind == Some(DeviceKind::Metal)) {
        let (kind, name) = (Some(DeviceKind::Metal), cpu.model.clone());
        gpus.insert(0, Gpu { kind, index: 0, name, memory: None, driver: None, seen_by: "sysctl".into() });
    }
    let os =
        format!("macos {}", version.text.lines().next().unwrap_or_default().trim()).trim_end().to_owned();
    let tools = vec![sysctl.tool, version.tool, displays.tool];
    Hardware { os, arch: String::new(), cpu, memory, gpus, tools }
}

/// Parses `name: value` lines of `sysctl`: CPU without cores, and main memory in bytes.
fn parse_sysctl(text: &str) -> (Cpu, u64) {
    let value = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(n, _)| n.trim() == name)
            .map(|(_, v)| v.trim())
    };
    let model = value("machdep.cpu.brand_string").unwrap_or_default().to_owned();
    let flags =
        FLAGS.iter().filter(|(name, _)| value(name) == Some("1")).map(|&(_, ours)| ours.to_owned()).collect();
    let memory = value("hw.memsize").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    (Cpu { model, cores: 0, flags }, memory)
}

/// Parses the JSON of `system_profiler SPDisplaysDataType`. Invalid text gives no GPUs.
fn parse_displays(text: &str) -> Vec<Gpu> {
    let json: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let Some(cards) = json["SPDisplaysDataType"].as_array() else { return Vec::new() };
    let mut gpus: Vec<Gpu> = Vec::new();
    for card in cards {
        let Some(name) = ["sppci_model", "_name"].iter().find_map(|key| card[*key].as_str()) else {
            continue;
        };
        let metal = METAL_KEYS.iter().find_map(|key| card[*key].as_str()).filter(|value| says_metal(value));
        let kind = (metal.is_some() || is_apple(name)).then_some(DeviceKind::Metal);
        gpus.push(Gpu {
            kind,
            index: gpus.iter().filter(|gpu| gpu.kind == kind).count() as u32,
            name: name.to_owned(),
            memory: card["spdisplays_vram"].as_str().and_then(parse_size),
            driver: metal.map(|value| value.trim_start_matches("spdisplays_").to_owned()),
            seen_by: "system_profiler".into(),
        });
    }
    gpus
}

/// `spdisplays_metal3`, `spdisplays_metalfeaturesetfamily11` or `spdisplays_supported`; not
/// `spdisplays_notsupported`.
fn says_metal(value: &str) -> bool {
    value.contains("metal") || value == "spdisplays_supported"
}

fn is_apple(name: &str) -> bool {
    name.starts_with("Apple ")
}

/// `4 GB` or `1536 MB` in bytes.
fn parse_size(text: &str) -> Option<u64> {
    let (count, unit) = text.trim().split_once(' ')?;
    let unit = match unit {
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use sconce_core::hardware::Tool;

    use super::super::run::ToolOutput;
    use super::*;

    const M2_SYSCTL: &str = "hw.memsize: 34359738368\nmachdep.cpu.cores_per_package: 12\n\
        machdep.cpu.brand_string: Apple M2 Pro\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_I8MM: 1\n\
        hw.optional.arm.FEAT_SME: 0\nhw.optional.arm64: 1\nhw.optional.neon: 1\nhw.optional.floatingpoint: 1\n";
    const M2_DISPLAYS: &str = r#"{ "SPDisplaysDataType" : [ {
        "_name" : "Apple M2 Pro", "spdisplays_mtlgpufamilysupport" : "spdisplays_metal3",
        "spdisplays_ndrvs" : [ { "_name" : "Color LCD", "_spdisplays_pixels" : "3024 x 1964" } ],
        "spdisplays_vendor" : "sppci_vendor_Apple", "sppci_bus" : "spdisplays_builtin", "sppci_cores" : "19",
        "sppci_device_type" : "spdisplays_gpu", "sppci_model" : "Apple M2 Pro" } ] }"#;
    const INTEL_SYSCTL: &str = "hw.memsize: 17179869184\nmachdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz\n\
        hw.optional.avx1_0: 1\nhw.optional.avx2_0: 1\nhw.optional.f16c: 1\nhw.optional.fma: 1\nhw.optional.avx512f: 0\n";
    const INTEL_DISPLAYS: &str = r#"{ "SPDisplaysDataType" : [
        { "_name" : "kHW_IntelUHDGraphics630Item", "spdisplays_metal" : "spdisplays_supported",
          "spdisplays_vram" : "1536 MB", "sppci_model" : "Intel UHD Graphics 630" },
        { "_name" : "kHW_AMDRadeonPro5300MItem", "spdisplays_mtlgpufamilysupport" : "spdisplays_metal3",
          "spdisplays_vram" : "4 GB", "sppci_model" : "AMD Radeon Pro 5300M" },
        { "_name" : "NVIDIA GeForce GT 120", "spdisplays_metal" : "spdisplays_notsupported" } ] }"#;

    /// A Mac whose tools say this.
    fn mac(sysctl: &'static str, displays: &'static str) -> Hardware {
        detect(&|program, _, _| {
            let text = match program {
                "sysctl" => sysctl,
                "sw_vers" => "15.5\n",
                _ => displays,
            };
            let tool = Tool { name: program.into(), seconds: 0.0, outcome: "answered".into() };
            ToolOutput { tool, text: text.into() }
        })
    }

    fn gpus(hardware: &Hardware) -> Vec<String> {
        let words = |gpu: &Gpu| {
            format!("{:?} {} {} {:?} {:?}", gpu.kind, gpu.index, gpu.name, gpu.memory, gpu.driver)
        };
        hardware.gpus.iter().map(words).collect()
    }

    #[test]
    fn an_apple_chip_has_metal_and_its_flags() {
        let hardware = mac(M2_SYSCTL, M2_DISPLAYS);
        assert_eq!((hardware.os.as_str(), hardware.memory), ("macos 15.5", 32 << 30));
        assert_eq!(
            (hardware.cpu.model.as_str(), hardware.cpu.flags.join(" ").as_str()),
            ("Apple M2 Pro", "neon bf16 i8mm")
        );
        assert_eq!(gpus(&hardware), [r#"Some(Metal) 0 Apple M2 Pro None Some("metal3")"#]);
        assert_eq!(hardware.tools.len(), 3);
    }

    #[test]
    fn an_intel_mac_has_the_gpus_that_metal_supports() {
        let hardware = mac(INTEL_SYSCTL, INTEL_DISPLAYS);
        assert_eq!(hardware.cpu.flags.join(" "), "avx2 fma f16c");
        let expected = [
            r#"Some(Metal) 0 Intel UHD Graphics 630 Some(1610612736) Some("supported")"#,
            r#"Some(Metal) 1 AMD Radeon Pro 5300M Some(4294967296) Some("metal3")"#,
            "None 0 NVIDIA GeForce GT 120 None None",
        ];
        assert_eq!(gpus(&hardware), expected);
    }

    #[test]
    fn an_apple_chip_has_metal_even_if_the_profiler_gives_no_answer() {
        let hardware = mac(M2_SYSCTL, "");
        assert_eq!(gpus(&hardware), ["Some(Metal) 0 Apple M2 Pro None None"]);
        assert_eq!(hardware.gpus[0].seen_by, "sysctl");
    }

    #[test]
    fn hostile_output_gives_no_gpus_and_no_panic() {
        let deep: &'static str = Box::leak("[".repeat(100_000).into_boxed_str());
        let texts = [
            "",
            "null",
            "[]",
            "{}",
            r#"{"SPDisplaysDataType": 3}"#,
            r#"{"SPDisplaysDataType": [1, [], {}]}"#,
            deep,
        ];
        for text in texts {
            assert_eq!(parse_displays(text), []);
        }
        for size in ["", "4", "GB", "4 TB", "-1 GB", "99999999999999999999 GB", "18446744073709551615 GB"] {
            assert_eq!(parse_size(size), None, "{size}");
        }
        for text in ["", ":", "hw.memsize: -1", "hw.memsize", "\0:\0\n"] {
            assert_eq!(parse_sysctl(text), (Cpu::default(), 0), "{text}");
        }
    }

    #[test]
    fn a_mac_whose_tools_are_silent_is_still_a_mac() {
        let hardware = detect(&|program, _, _| ToolOutput::not_installed(program));
        assert_eq!((hardware.os.as_str(), hardware.gpus.len(), hardware.tools.len()), ("macos", 0, 3));
    }
}
