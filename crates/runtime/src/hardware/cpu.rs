//! CPU model and instruction sets, from `/proc/cpuinfo`.

use sconce_core::hardware::Cpu;

/// Flags of Linux and our names, in output order.
const FLAGS: &[(&str, &str)] = &[
    ("avx2", "avx2"),
    ("fma", "fma"),
    ("f16c", "f16c"),
    ("avx512f", "avx512f"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_vnni", "avx512_vnni"),
    ("amx_tile", "amx_tile"),
    ("amx_bf16", "amx_bf16"),
    ("amx_int8", "amx_int8"),
];
const ARM_FEATURES: &[(&str, &str)] =
    &[("asimd", "neon"), ("bf16", "bf16"), ("i8mm", "i8mm"), ("sve", "sve")];

/// Arm cores report numbers: implementer and part.
const ARM_PARTS: &[(&str, &str, &str)] = &[
    ("0x41", "0xd08", "Arm Cortex-A72"),
    ("0x41", "0xd0b", "Arm Cortex-A76"),
    ("0x41", "0xd0c", "Arm Neoverse-N1"),
    ("0x41", "0xd40", "Arm Neoverse-V1"),
    ("0x41", "0xd49", "Arm Neoverse-N2"),
    ("0x41", "0xd4f", "Arm Neoverse-V2"),
    ("0xc0", "0xac3", "Ampere-1"),
];

/// Parses `/proc/cpuinfo`. Cores are not counted: the file does not reflect the CPU affinity of this process.
pub(super) fn parse_cpuinfo(text: &str) -> Cpu {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(k, _)| k.trim() == key)
            .map(|(_, v)| v.trim())
    };
    let (words, table) = match (value("flags"), value("Features")) {
        (Some(words), _) => (words, FLAGS),
        (None, Some(words)) => (words, ARM_FEATURES),
        (None, None) => ("", FLAGS),
    };
    let has = |wanted: &str| words.split_ascii_whitespace().any(|word| word == wanted);
    let flags = table.iter().filter(|(theirs, _)| has(theirs)).map(|&(_, ours)| ours.to_owned()).collect();
    let model = match (value("model name"), value("CPU implementer"), value("CPU part")) {
        (Some(model), _, _) if !model.is_empty() => {
            model.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
        }
        (_, Some(implementer), Some(part)) => arm_name(implementer, part),
        _ => String::new(),
    };
    Cpu { model, cores: 0, flags }
}

fn arm_name(implementer: &str, part: &str) -> String {
    ARM_PARTS
        .iter()
        .find(|&&(i, p, _)| i == implementer && p == part)
        .map_or_else(|| format!("Arm implementer {implementer} part {part}"), |&(_, _, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const XEON: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
        model name\t: Intel(R) Xeon(R)   Platinum 8488C\nstepping\t: 8\ncpu MHz\t\t: 2400.000\n\
        flags\t\t: fpu vme sse2 ssse3 fma sse4_1 f16c avx2 avx512f avx512dq avx512_bf16 avx512_vnni \
        amx_bf16 avx512_fp16 amx_tile amx_int8 arch_capabilities\nbugs\t\t: spectre_v1\n\n\
        processor\t: 1\nmodel name\t: Intel(R) Xeon(R)   Platinum 8488C\nflags\t\t: fpu\n";

    const GRAVITON: &str = "processor\t: 0\nBogoMIPS\t: 2100.00\n\
        Features\t: fp asimd evtstrm aes sha1 atomics fphp asimdhp cpuid asimddp sve i8mm bf16 dgh rng\n\
        CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n";

    fn check(text: &str, model: &str, flags: &str) {
        let cpu = parse_cpuinfo(text);
        assert_eq!((cpu.model.as_str(), cpu.flags.join(" ").as_str()), (model, flags));
    }

    #[test]
    fn an_intel_processor_is_named_with_its_vector_and_matrix_instructions() {
        let flags = "avx2 fma f16c avx512f avx512_bf16 avx512_vnni amx_tile amx_bf16 amx_int8";
        check(XEON, "Intel(R) Xeon(R) Platinum 8488C", flags);
    }

    #[test]
    fn an_arm_processor_is_named_by_its_part_and_asimd_is_called_neon() {
        check(GRAVITON, "Arm Neoverse-V1", "neon bf16 i8mm sve");
        check(&GRAVITON.replace("0xd40", "0xfff"), "Arm implementer 0x41 part 0xfff", "neon bf16 i8mm sve");
    }

    #[test]
    fn a_longer_word_is_not_taken_for_a_flag() {
        check("flags : avx2x xavx2 avx512f_\n", "", "");
    }

    #[test]
    fn broken_text_gives_an_unnamed_processor() {
        for text in
            ["", ":", "flags", "flags:", "model name :\n", "\0\u{fffd}:\u{7}\n::::\n", "CPU part : 0xd40"]
        {
            check(text, "", "");
        }
    }
}
