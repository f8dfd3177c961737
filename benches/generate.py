#!/usr/bin/env python3
"""Compares text generation of sconce and llama.cpp on the same GGUF files, alternating in one run.

    benches/generate.py [--rounds 9] [--threads 2] [--formats Q4_K_M,Q8_0,BF16] [--instructions best|avx512|avxvnni|avx2]
                        [--model FILE.gguf DTYPE] [--out FOLDER] [--turns PROGRAM] [--native] [--quick]

Both are run bare, without a server: a prompt of 512 tokens, and decode steps of 1, 8 and 32 sequences after 0 and 512
tokens. llama.cpp is its prebuilt library, with `--native` also one that is built for this machine; of its CPU variants, the
one that is best for a cell counts. A ratio is that of two turns of the same round; its median and range over all rounds are
printed. At the end, one sequence is also generated while another process keeps a core busy. Without `--model`, the model
has random weights and the shape of Qwen3-0.6B. Prints Markdown and writes `generate.md`, `generate.json` and
`generate.svg`. Needs cargo, gcc, npm, and Python with pip.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from contestant import Contestant, machine, say

ROOT = Path(__file__).resolve().parent.parent
BENCHES = ROOT / "benches"
sys.path.append(str(ROOT / "scripts" / "goldens"))
import llama_library  # noqa: E402

WHEELS = ["gguf==0.19.0", "numpy==2.4.6"]
SHAPE = "qwen3-0.6b"
# Format of a file: the number that llama.cpp has for it, and sconce's dtype.
FORMATS = {"Q4_K_M": (15, "int4"), "Q8_0": (7, "int8"), "BF16": (None, "bf16")}
# Instruction sets: the value of `SCONCE_ISA`, and the CPU variants of llama.cpp.
INSTRUCTIONS = {
    "best": (None, ["sapphirerapids", "icelake", "cascadelake"]),
    "avx512": ("avx512", ["icelake", "cascadelake"]),
    "avxvnni": ("avxvnni", ["alderlake"]),
    "avx2": ("avx2", ["haswell"]),
}
STEPS = {1: 16, 8: 12, 32: 8}
CELLS = {"prompt 512": "prompt 512"} | {
    f"decode {count} after {cached}": f"decode {count} {cached} {STEPS[count]}" for cached in (0, 512) for count in STEPS
}
# The least share of its rate that a sequence keeps beside a busy process.
BUSY_BAR = 0.4
# The least ratio for a prompt, and for 1, 8 and 32 sequences, with AMX. With other instructions, it is 1.
BARS = {"Q4_K_M": (3.5, 1.4, 2.2, 2.0), "Q8_0": (3.5, 1.05, 1.5, 1.6), "BF16": (7, 1.15, 1.7, 3.5)}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def python(scratch):
    """A virtual environment with the wheels."""
    found = scratch / "venv" / "bin" / "python"
    if not found.exists():
        run(sys.executable, "-m", "venv", scratch / "venv")
        run(found, "-m", "pip", "install", "--quiet", *WHEELS)
    return found


def library(scratch):
    """llama.cpp's tool, and the folder of its libraries."""
    folder = scratch / "llama"
    if not (folder / "package").exists():
        say("llama.cpp is fetched")
        folder.mkdir(exist_ok=True)
        llama_library.fetch(folder)
    libraries = folder / "package" / "bins" / "linux-x64"
    return compile_turns(folder, folder, libraries), libraries, folder


def native_tool(folder):
    """The same tool, with the library built for this machine."""
    say("llama.cpp is built, if it is not yet")
    libraries = llama_library.build(folder, source(folder))
    return compile_turns(folder, libraries, libraries)


def source(folder):
    return folder / "crate" / "vendor" / llama_library.CRATE[0] / "llama.cpp"


def compile_turns(folder, to, libraries):
    headers = source(folder)
    return llama_library.compile_tool(
        BENCHES / "llama_turns.c", to, libraries, [headers / "include", headers / "ggml" / "include"])


def random_model(scratch, tool, environment, form):
    """A model with random weights in this format."""
    base = scratch / f"{SHAPE}-BF16.gguf"
    if not base.exists():
        say("a model with random weights is written")
        run(python(scratch), BENCHES / "random_decoder.py", SHAPE, base)
    path = scratch / f"{SHAPE}-{form}.gguf"
    if not path.exists():
        say(f"it is quantized: {form}")
        draft = path.with_suffix(".draft")
        run(tool, "quantize", base, draft, FORMATS[form][0], env=environment)
        draft.rename(path)
    return path


def sizes(scratch, model):
    """Numbers of a model that bounds follow from: weights in products, and bytes of a cached token."""
    script = """
import json, sys, gguf
reader = gguf.GGUFReader(sys.argv[1])
fact = lambda key: int(reader.fields[reader.fields["general.architecture"].contents() + key].contents())
head = fact(".attention.key_length") if any(k.endswith("key_length") for k in reader.fields) else fact(".embedding_length") // fact(".attention.head_count")
matrices = [t for t in reader.tensors if len(t.shape) > 1]
layers = [t for t in matrices if t.name.startswith("blk.")]
print(json.dumps({
    "layer_weights": sum(int(t.n_elements) for t in layers),
    "read_bytes": sum(int(t.n_bytes) for t in matrices if t.name != "token_embd.weight" or len(matrices) == len(layers) + 1),
    "token_bytes": 2 * 2 * fact(".block_count") * fact(".attention.head_count_kv") * head,
}))"""
    return json.loads(run(python(scratch), "-c", script, model))


def compete(label, model, dtype, options, scratch, tool, libraries):
    """Runs sconce and the variants of llama.cpp on one file, in turns."""
    isa, variants = INSTRUCTIONS[options.instructions]
    runners, facts = {}, {}

    def start(name, command, environment):
        # One loads after the other: it measures the memory bandwidth as well.
        runners[name] = Contestant(name, command, environment, scratch)
        facts[name] = runners[name].answer()

    start("sconce", [options.turns, model, "native", dtype, options.threads], {"SCONCE_ISA": isa} if isa else {})
    for variant in llama_library.runnable(variants)[:2]:
        environment = {"GGML_DIR": str(llama_library.variant_folder(tool.parent, libraries, variant))}
        start(variant, [tool, model, options.threads], environment)
    if options.native:
        # No variants are loaded from an empty folder: the library has its own.
        empty = scratch / "no-variants"
        empty.mkdir(exist_ok=True)
        start("native", [options.native, model, options.threads], {"GGML_DIR": str(empty)})
    with_amx = options.instructions == "best" and llama_library.has("amx_int8")
    bars = BARS.get(label) and (BARS[label] if with_amx else (1, 1, 1, 1))
    rates = {name: {cell: [] for cell in CELLS} for name in runners}
    for number in range(options.rounds + 1):
        for cell, turn in CELLS.items():
            for name, runner in runners.items():
                answer = runner.take(turn)
                # The first round warms up.
                if number:
                    rates[name][cell].append(answer["tokens"] / answer["seconds"])
        say(f"{label}: round {number} of {options.rounds}" if number else f"{label}: warm")
    busy = [beside_busy_process(runners["sconce"], options.threads) for _ in range(options.rounds)]
    for name, runner in runners.items():
        facts[name]["resident_mb_at_end"] = round(runner.resident())
        runner.end()
    return {
        "file_bytes": model.stat().st_size, "sizes": sizes(scratch, model), "facts": facts, "beside_busy_process": busy,
        "cells": {cell: judge(bars, cell, {name: rates[name][cell] for name in rates}) for cell in CELLS},
    }


def beside_busy_process(runner, threads):
    """The share of its rate that one sequence keeps while another process keeps one of the cores busy."""
    seconds = []
    for is_busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if is_busy else None
        try:
            if other:
                os.sched_setaffinity(other.pid, sorted(os.sched_getaffinity(0))[threads - 1 : threads])
            seconds.append(runner.take(CELLS["decode 1 after 0"])["seconds"])
        finally:
            if other:
                other.kill()
                other.wait()
    return seconds[0] / seconds[1]


def judge(bars, cell, rates):
    """The ratio of a cell over the best variant of llama.cpp."""
    peer = max((name for name in rates if name != "sconce"), key=lambda name: statistics.median(rates[name]))
    ratios = [ours / theirs for ours, theirs in zip(rates["sconce"], rates[peer])]
    bar = bars and bars[0 if cell.startswith("prompt") else 1 + list(STEPS).index(int(cell.split()[1]))]
    verdict = ""
    if bar:
        verdict = "reached" if min(ratios) >= bar else "missed" if max(ratios) < bar else "the range includes the bar"
    return {
        "rates": rates, "peer": peer, "ratio": statistics.median(ratios), "range": (min(ratios), max(ratios)), "bar": bar,
        "verdict": verdict,
    }


def shares(result, cell, rate):
    """Share of the measured memory bandwidth for decoding, of the product peak for prompts."""
    ours, size = result["facts"]["sconce"], result["sizes"]
    words = cell.split()
    if words[0] == "prompt":
        return f"{2 * size['layer_weights'] * rate / ours['gflops'] / 1e9:.0%} of product peak"
    count, cached = int(words[1]), int(words[3])
    step = size["read_bytes"] + count * (cached + STEPS[count] / 2) * size["token_bytes"]
    return f"{step * rate / count / ours['bandwidth_gb_s'] / 1e9:.0%} of bandwidth"


def markdown(label, result):
    ours = result["facts"]["sconce"]
    lines = [f"## {label}: {result['file_bytes'] / 1e6:.0f} MB", ""]
    lines += ["| | sconce | | llama.cpp | variant | ratio | range | bar | |", "|---|---|---|---|---|---|---|---|---|"]
    for cell, found in result["cells"].items():
        rate = statistics.median(found["rates"]["sconce"])
        theirs = statistics.median(found["rates"][found["peer"]])
        low, high = found["range"]
        bar = f"{found['bar']}x" if found["bar"] else ""
        lines.append(
            f"| {cell} | {rate:.1f} | {shares(result, cell, rate)} | {theirs:.1f} | {found['peer']} | {found['ratio']:.2f}x "
            f"| {low:.2f}–{high:.2f} | {bar} | {found['verdict']} |")
    lines += ["", "Tokens per second, median. ", "", "| | load | resident after load | first token of 512 |", "|---|---|---|---|"]
    for name, facts in result["facts"].items():
        first = 512 / statistics.median(result["cells"]["prompt 512"]["rates"][name])
        lines.append(
            f"| {name} | {facts['load_seconds']:.2f} s | {facts['resident_bytes'] / 1e6:.0f} MB | {first:.2f} s |")
    busy = result["beside_busy_process"]
    lines += ["", f"While another process keeps one core busy, one sequence has {statistics.median(busy):.2f} of its rate "
                  f"({min(busy):.2f}–{max(busy):.2f}, bar {BUSY_BAR})."]
    lines += ["", f"Memory bandwidth {ours['bandwidth_gb_s']:.1f} GB/s, product peak {ours['gflops']:.0f} GFLOP/s.", ""]
    return "\n".join(lines)


def plot(results):
    """Ratios as bars."""
    height, left, scale = 22, 190, 60
    rows = [(f"{label}, {cell}", found) for label, result in results.items() for cell, found in result["cells"].items()]
    widest = max(found["range"][1] for _, found in rows)
    width = left + int(widest * scale) + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(rows) * height + 50}" font-family="sans-serif" '
        f'font-size="12"><text x="8" y="18">tokens/s of sconce, in multiples of llama.cpp</text>']
    for number, (name, found) in enumerate(rows):
        y, (low, high) = 30 + number * height, found["range"]
        parts.append(
            f'<text x="8" y="{y + 14}">{name}</text><rect x="{left}" y="{y + 3}" width="{found["ratio"] * scale:.1f}" height="14" '
            f'fill="#3b7dd8"/><line x1="{left + low * scale:.1f}" x2="{left + high * scale:.1f}" y1="{y + 10}" y2="{y + 10}" '
            f'stroke="#222"/><text x="{left + high * scale + 6:.1f}" y="{y + 14}">{found["ratio"]:.2f}</text>')
    parts.append(
        f'<line x1="{left + scale}" x2="{left + scale}" y1="26" y2="{30 + len(rows) * height}" stroke="#c33" stroke-dasharray="3"/></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of each [9, quick 2]")
    parser.add_argument("--quick", action="store_true", help="two rounds, for a look")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--native", action="store_true", help="also a llama.cpp that is built for this machine")
    parser.add_argument("--formats", default=",".join(FORMATS), help="formats of the model with random weights")
    parser.add_argument("--instructions", choices=list(INSTRUCTIONS), default="best")
    parser.add_argument("--model", nargs=2, metavar=("FILE", "DTYPE"), help="another GGUF file, and sconce's dtype for it")
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "generate")
    parser.add_argument("--turns", type=Path, help="the built example `generate_turns` [built now, in release]")
    options = parser.parse_args()
    if options.native and options.instructions != "best":
        parser.error("a build for this machine has its best instructions")
    if not llama_library.runnable(INSTRUCTIONS[options.instructions][1]):
        parser.error(f"this processor has no variant of llama.cpp for `--instructions {options.instructions}`")
    options.rounds = options.rounds or (2 if options.quick else 9)
    scratch = ROOT / "target" / "generate"
    scratch.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    tool, libraries, folder = library(scratch)
    options.native = native_tool(folder) if options.native else None
    if options.turns is None:
        say("`generate_turns` is built")
        run("cargo", "build", "--quiet", "--release", "--workspace", "--examples", cwd=ROOT)
        options.turns = ROOT / "target" / "release" / "examples" / "generate_turns"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    if options.model:
        path = Path(options.model[0]).resolve()
        models = {path.stem: (path, options.model[1])}
    else:
        chosen = options.formats.split(",")
        quantizer = os.environ | {"GGML_DIR": str(llama_library.variant_folder(folder, libraries, "haswell"))}
        models = {form: (random_model(scratch, tool, quantizer, form), FORMATS[form][1]) for form in chosen}
    load, started, results = os.getloadavg()[0], time.time(), {}
    text = f"# Generation: {machine()}, {options.threads} threads, {options.instructions} instructions, {options.rounds} rounds\n"
    for label, (model, dtype) in models.items():
        results[label] = compete(label, model, dtype, options, scratch, tool, libraries)
        text += "\n" + markdown(label, results[label])
        (options.out / "generate.md").write_text(text)
    answer = {"load_before": load, "seconds": time.time() - started, "package": llama_library.PACKAGE, "results": results}
    (options.out / "generate.json").write_text(json.dumps(answer, indent=1) + "\n")
    (options.out / "generate.svg").write_text(plot(results))
    print(text)


if __name__ == "__main__":
    main()
