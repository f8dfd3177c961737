//! A Linux machine laid out in a folder, and what is seen of it.

use std::cell::RefCell;

use sconce_core::hardware::Tool;

use super::*;

/// A folder that looks like the roots of a machine.
pub(in super::super) struct Machine(tempfile::TempDir);

impl Machine {
    /// A machine with these files and nothing else.
    pub(in super::super) fn with(files: &[(&str, &str)]) -> Machine {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        Machine(folder)
    }

    pub(in super::super) fn roots(&self) -> Roots {
        let at = |name: &str| self.0.path().join(name);
        Roots { proc: at("proc"), sys: at("sys"), dev: at("dev"), tools: vec![at("bin")] }
    }

    /// What is seen, when every tool says this; and whether one was asked.
    fn seen(&self, says: &str) -> (Hardware, bool) {
        let asked = RefCell::new(false);
        let hardware = detect(&self.roots(), &|program, _, _| {
            *asked.borrow_mut() = true;
            assert!(program.ends_with("nvidia-smi"), "{program}");
            let tool = Tool { name: "nvidia-smi".into(), seconds: 0.1, outcome: "answered".into() };
            ToolOutput { tool, text: says.into() }
        });
        (hardware, asked.into_inner())
    }
}

const NVIDIA_CARD: [(&str, &str); 3] = [
    ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
    ("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n"),
    ("sys/bus/pci/devices/0000:01:00.0/device", "0x2684\n"),
];
const NVIDIA_SOUND: [(&str, &str); 2] = [
    ("sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n"),
    ("sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n"),
];
const INTEL_CARD: [(&str, &str); 3] = [
    ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
    ("sys/bus/pci/devices/0000:00:02.0/class", "0x038000\n"),
    ("sys/bus/pci/devices/0000:00:02.0/device", "0x56a0\n"),
];
const TOOL: (&str, &str) = ("bin/nvidia-smi", "");
const TWO_CARDS: &str =
    "0, NVIDIA GeForce RTX 4090, 24564, 550.54.14\n1, NVIDIA A100-SXM4-80GB, 81920, 550.54.14\n";

#[test]
fn an_nvidia_card_on_pci_without_a_driver_is_listed_with_no_driver() {
    let (hardware, asked) = Machine::with(&[&NVIDIA_CARD[..], &NVIDIA_SOUND].concat()).seen("");
    let expected = Gpu {
        kind: Some(DeviceKind::Cuda),
        index: 0,
        name: "NVIDIA GPU 10de:2684".into(),
        memory: None,
        driver: None,
        seen_by: "/sys/bus/pci".into(),
    };
    assert_eq!(hardware.gpus, [expected]);
    assert!(!asked);
    assert_eq!(
        (hardware.tools[0].name.as_str(), hardware.tools[0].outcome.as_str()),
        ("nvidia-smi", "not installed")
    );
}

#[test]
fn a_loaded_driver_says_its_version_without_the_tool() {
    let version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n\
                   GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
    let files = [&NVIDIA_CARD[..], &[("proc/driver/nvidia/version", version)]].concat();
    let (hardware, _) = Machine::with(&files).seen("");
    assert_eq!(hardware.gpus[0].driver.as_deref(), Some("535.129.03"));
}

#[test]
fn what_the_tool_lists_takes_the_place_of_what_the_bus_shows() {
    let files = [&NVIDIA_CARD[..], &INTEL_CARD, &[TOOL]].concat();
    let (hardware, asked) = Machine::with(&files).seen(TWO_CARDS);
    assert!(asked);
    let names: Vec<_> = hardware.gpus.iter().map(|gpu| (gpu.kind, gpu.index, gpu.name.as_str())).collect();
    let cuda = Some(DeviceKind::Cuda);
    let expected = [
        (cuda, 0, "NVIDIA GeForce RTX 4090"),
        (cuda, 1, "NVIDIA A100-SXM4-80GB"),
        (None, 0, "Intel GPU 8086:56a0"),
    ];
    assert_eq!(names, expected);
    assert_eq!(hardware.gpus[0].memory, Some(24564 << 20));
    assert_eq!(hardware.gpus[0].driver.as_deref(), Some("550.54.14"));
    assert_eq!(hardware.tools.len(), 1);
}

#[test]
fn a_tool_that_says_nothing_leaves_what_the_bus_shows() {
    let (hardware, _) = Machine::with(&[&NVIDIA_CARD[..], &[TOOL]].concat()).seen("No devices were found\n");
    assert_eq!(hardware.gpus[0].seen_by, "/sys/bus/pci");
}

#[test]
fn a_machine_with_no_sign_of_nvidia_asks_no_tool() {
    let (hardware, asked) = Machine::with(&INTEL_CARD).seen(TWO_CARDS);
    assert!(!asked);
    assert_eq!((hardware.gpus.len(), hardware.gpus[0].kind, hardware.tools.len()), (1, None, 0));
}

#[test]
fn each_sign_of_nvidia_is_enough_to_look_for_the_tool() {
    for sign in ["proc/driver/nvidia/params", "dev/nvidiactl", "dev/dxg"] {
        let (hardware, _) = Machine::with(&[(sign, "")]).seen("");
        assert_eq!(hardware.tools.len(), 1, "{sign}");
    }
}

#[test]
fn cards_are_numbered_within_their_kind_and_strange_ones_are_passed_over() {
    let amd = [
        ("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002"),
        ("sys/bus/pci/devices/0000:03:00.0/class", "0x030200"),
    ];
    let screen = [
        ("sys/bus/pci/devices/0000:04:00.0/vendor", "0x1a03"),
        ("sys/bus/pci/devices/0000:04:00.0/class", "0x030000"),
    ];
    let broken =
        [("sys/bus/pci/devices/0000:05:00.0/vendor", "\u{7}"), ("sys/bus/pci/devices/x/class", "0x03zzzz")];
    let files = [&INTEL_CARD[..], &NVIDIA_CARD, &amd, &screen, &broken].concat();
    let (hardware, _) = Machine::with(&files).seen("");
    let seen: Vec<_> = hardware.gpus.iter().map(|gpu| format!("{} {}", gpu.index, gpu.name)).collect();
    assert_eq!(seen, ["0 Intel GPU 8086:56a0", "0 NVIDIA GPU 10de:2684", "1 AMD GPU 1002:0000"]);
}

#[test]
fn the_system_is_named_by_the_first_two_numbers_of_its_release() {
    for (release, os) in
        [("6.1.0-18-amd64\n", "linux 6.1"), ("5.15.153.1-microsoft-standard-WSL2", "linux 5.15"), ("", "")]
    {
        let (hardware, _) = Machine::with(&[("proc/sys/kernel/osrelease", release)]).seen("");
        assert_eq!(hardware.os, os);
    }
}

#[test]
fn the_tool_is_understood_where_it_does_not_know_and_where_names_hold_commas() {
    let gpus = parse_nvidia_smi("0, NVIDIA GB10, [N/A], 580.95.05\n3, Card, with commas, 100, [N/A]\r\n");
    let seen: Vec<_> =
        gpus.iter().map(|gpu| (gpu.index, gpu.name.as_str(), gpu.memory, gpu.driver.as_deref())).collect();
    assert_eq!(
        seen,
        [(0, "NVIDIA GB10", None, Some("580.95.05")), (3, "Card, with commas", Some(100 << 20), None)]
    );
}

#[test]
fn hostile_output_of_the_tool_gives_no_cards_and_no_panic() {
    let lines = [
        "",
        ",",
        ",,,",
        "x, y, 1, 2",
        "-1, a, 1, 2",
        "99999999999, a, 1, 2",
        "NVIDIA-SMI has failed",
        "\0,\0,\0,\0",
    ];
    for line in lines {
        assert_eq!(parse_nvidia_smi(line), [], "{line}");
    }
    let huge = parse_nvidia_smi("0, a, 18446744073709551615, 2");
    assert_eq!(huge[0].memory, None);
}
