#!/usr/bin/env python3
"""Compares sconce with other runtimes on the same texts, alternating in one run.

    benches/compare.py [--quick] [--rounds 3] [--threads 2] [--out FOLDER] [--turns PROGRAM] [--python PYTHON]

Every runtime is a process of its own on the same CPUs, loaded and warm before the first round. A round is all texts,
from text to vectors, tokenization included. Runtimes alternate A B C A B C, and the fastest round of each counts.
Other runtimes get batches of 32 sorted by length; sconce gets the texts in arrival order. Prints Markdown and writes
`compare.json`, and a plot of each model. Needs cargo, and Python with pip for the other runtimes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from array import array
from operator import mul
from pathlib import Path

from contestant import Contestant, machine, say

ROOT = Path(__file__).resolve().parent.parent
BENCHES = ROOT / "benches"
WHEELS = ["numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.31.1", "openvino==2026.4.1", "safetensors==0.8.0", "tokenizers==0.23.3"]
MODULES = "import numpy, onnx, onnxruntime, openvino, safetensors, tokenizers"
SHORTS = 60
BF16, F32, AVX2, CANDLE = "sconce native bf16", "sconce native f32", "sconce native f32, AVX2", "sconce candle f32"
ORT, OV32, OV16 = "ONNX Runtime f32", "OpenVINO f32", "OpenVINO bf16"
OURS = {
    BF16: ("native", "bf16", {}),
    F32: ("native", "f32", {}),
    AVX2: ("native", "f32", {"SCONCE_ISA": "avx2"}),
    CANDLE: ("candle", "f32", {}),
}
PEERS = {ORT: "ort-f32", OV32: "openvino-f32", OV16: "openvino-bf16"}


class Runner(Contestant):
    """A runtime that measures rounds."""

    def measure(self, turn):
        answer = self.take(turn)
        self.figures.setdefault(turn.split()[0], []).append(answer["seconds"])
        return answer

    def best(self, turn):
        return min(self.figures[turn])


def compete(label, folder, onnx, texts, options, scratch):
    """Runs all runtimes on one model. Returns texts per second and milliseconds by name."""
    environment = {"SCONCE_HOME": str(scratch / "home"), "RAYON_NUM_THREADS": str(options.threads)}
    tail = [str(options.threads), str(texts)]
    contestants = {}
    for name, (engine, dtype, more) in OURS.items():
        say(f"{label}: {name} is proved, loaded and warmed")
        command = [str(options.turns), str(folder), engine, dtype, *tail]
        contestants[name] = Runner(name, command, environment | more, scratch)
        try:
            contestants[name].placement = contestants[name].answer()["placement"]
            contestants[name].memory = contestants[name].resident()
        except RuntimeError as error:
            say(f"left out: {error}")
            del contestants[name]
    for name, engine in PEERS.items():
        say(f"{label}: {name} is loaded and warmed")
        command = [str(options.python), str(BENCHES / "peer.py"), engine, str(folder), str(onnx), *tail]
        contestants[name] = Runner(name, command, environment, scratch)
        contestants[name].version = contestants[name].answer()["version"]
    count = sum(1 for _ in open(texts))
    for number in range(options.rounds):
        for contestant in contestants.values():
            turns = ["bulk"] if contestant.name in OURS else ["sorted 32"]
            # The other sconce configurations need one measurement only.
            turns += ["arrival 32", "sorted 32"] if contestant.name == BF16 else []
            for turn in turns:
                tokens = contestant.measure(turn)["tokens"]
                seconds = contestant.figures[turn.split()[0]][-1]
                say(f"{label}, round {number + 1}: {contestant.name}, {turn}: {count / seconds:.1f} texts/s")
        for contestant in contestants.values():
            contestant.measure(f"short {SHORTS}")
    vectors = {}
    for contestant in contestants.values():
        path = scratch / f"{contestant.name}.f32"
        contestant.take(f"save {path}")
        vectors[contestant.name] = rows(path, count)
    reference = vectors.get(CANDLE) or vectors[ORT]
    results = {}
    for name, contestant in contestants.items():
        results[name] = {
            turn: {"texts_per_s": round(count / contestant.best(turn), 1), "rounds_s": contestant.figures[turn]}
            for turn in contestant.figures
            if turn != "short"
        }
        results[name]["short_p50_ms"] = round(contestant.best("short") * 1e3, 3)
        results[name]["short_p50_ms_rounds"] = [round(seconds * 1e3, 3) for seconds in contestant.figures["short"]]
        results[name]["least_cosine"] = least_cosine(vectors[name], reference)
        for key in ("memory", "version", "placement"):
            if hasattr(contestant, key):
                results[name]["resident_mb_after_load" if key == "memory" else key] = getattr(contestant, key)
        contestant.end()
    return {"texts": count, "tokens": tokens, "contestants": results}


def rows(path, count):
    values = array("f")
    values.frombytes(path.read_bytes())
    path.unlink()
    width = len(values) // count
    return [values[at * width : (at + 1) * width] for at in range(count)]


def least_cosine(ours, reference):
    def cosine(a, b):
        return sum(map(mul, a, b)) / (sum(map(mul, a, a)) * sum(map(mul, b, b))) ** 0.5

    return min(map(cosine, ours, reference))


def rate(result, name):
    turns = result["contestants"][name]
    return turns["bulk" if "bulk" in turns else "sorted"]["texts_per_s"]


def ratios(result, with_memory):
    """The required ratios: label, value, threshold, and whether it is met."""
    there = result["contestants"]
    found = []

    def ask(label, needs, figure, bar, reached, form="{:.2f}x"):
        if all(name in there for name in needs):
            value = figure()
            found.append({"what": label, "figure": form.format(value), "value": value, "bar": bar, "reached": reached(value)})

    def speed(a, b, least=None):
        bar = "" if least is None else f">= {least}x"
        ask(f"{a} / {b} sorted", [a, b], lambda: rate(result, a) / rate(result, b), bar, lambda x: least is None or x >= least)

    def cost(of):
        ours = there[BF16]
        return (ours[of]["texts_per_s"] / ours["arrival"]["texts_per_s"] - 1) * 100

    speed(BF16, OV16, 1.8)
    speed(BF16, ORT, 5)
    speed(F32, ORT, 1.2)
    speed(F32, OV32)
    speed(AVX2, ORT)
    speed(CANDLE, ORT)
    for of, words, most in (("sorted", "32 sorted texts per call", 5), ("bulk", "one call with all", None)):
        bar = "" if most is None else f"< {most} %"
        ask(f"{BF16}: 32 texts per call in arrival order, slower than {words}", [BF16], lambda: cost(of), bar, lambda x: most is None or x < most, "{:.1f} %")
    for peer, most in ((ORT, 0.5), (OV16, None)):
        bar = "" if most is None else f"<= {most}x"
        short = lambda: there[BF16]["short_p50_ms"] / there[peer]["short_p50_ms"]
        ask(f"one text of 12 tokens, p50: {BF16} / {peer}", [BF16, peer], short, bar, lambda x: most is None or x <= most)
    ask(f"{BF16}: least cosine to f32", [BF16], lambda: there[BF16]["least_cosine"], ">= 0.9999", lambda x: x >= 0.9999, "{:.6f}")
    if with_memory:
        memory = lambda: there[BF16]["resident_mb_after_load"]
        ask(f"{BF16}: resident after load", [BF16], memory, "< 150 MB", lambda x: x < 150, "{:.0f} MB")
    return found


def markdown(label, result):
    lines = [f"## {label}: {result['texts']} texts, {result['tokens']} tokens", ""]
    lines += ["| runtime | texts/s | 32 in arrival order | 32 sorted | one text, p50 | least cosine | resident |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, figures in result["contestants"].items():
        cell = lambda turn: str(figures[turn]["texts_per_s"]) if turn in figures else ""
        memory = f"{figures['resident_mb_after_load']:.0f} MB" if "resident_mb_after_load" in figures else ""
        named = f"{name} {figures['version']}" if "version" in figures else name
        cells = [named, str(rate(result, name)), cell("arrival"), cell("sorted"), f"{figures['short_p50_ms']} ms"]
        lines.append("| " + " | ".join([*cells, f"{figures['least_cosine']:.6f}", memory]) + " |")
    lines += ["", "| ratio | value | threshold | |", "|---|---|---|---|"]
    for ratio in result["ratios"]:
        verdict = "" if not ratio["bar"] else "reached" if ratio["reached"] else "**missed**"
        lines.append(f"| {ratio['what']} | {ratio['figure']} | {ratio['bar']} | {verdict} |")
    return "\n".join(lines) + "\n"


def plot(label, result, threads):
    """Texts per second as bars."""
    left, height, room = 205, 30, 365
    names = sorted(result["contestants"], key=lambda name: -rate(result, name))
    scale = room / rate(result, names[0])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {72 + len(names) * height}" role="img" aria-labelledby="t">',
        f'<title id="t">Texts per second of {len(names)} runtimes with {label}</title>',
        '<style>text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1c2430}.h{font-weight:600}'
        ".s{font-size:12px;fill:#55606e}.own{fill:#4a6fa5}.other{fill:#c3cbd6}</style>",
        f'<rect width="640" height="{72 + len(names) * height}" rx="8" fill="#fff"/>',
        f'<text class="h" x="20" y="28">{label}: texts per second on {threads} cores</text>',
    ]
    for number, name in enumerate(names):
        y, value = 44 + number * height, rate(result, name)
        kind = "own" if name in OURS else "other"
        parts.append(
            f'<text x="20" y="{y + 16}">{name}</text><rect class="{kind}" x="{left}" y="{y + 3}" width="{value * scale:.1f}" '
            f'height="18"/><text x="{left + value * scale + 6:.1f}" y="{y + 17}">{value:.0f}</text>')
    texts = f"{result['texts']} texts of {result['tokens'] / result['texts']:.0f} tokens on average, tokenization included, in turns"
    parts.append(f'<text class="s" x="20" y="{58 + len(names) * height}">{texts}</text></svg>')
    return "\n".join(parts) + "\n"


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def python_with_peers(scratch):
    """A Python with the other runtimes: this one, or a new virtual environment."""
    if subprocess.run([sys.executable, "-c", MODULES], capture_output=True).returncode == 0:
        return sys.executable
    python = scratch / "venv" / "bin" / "python"
    if not python.exists():
        say("other runtimes are installed in target/compare/venv")
        run(sys.executable, "-m", "venv", scratch / "venv")
        run(python, "-m", "pip", "install", "--quiet", *WHEELS)
    return python


def some_of(every, scratch):
    path = scratch / f"every-{every}.jsonl"
    path.write_text("".join(open(BENCHES / "texts.jsonl").readlines()[::every]))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few texts, for a look")
    parser.add_argument("--rounds", type=int, help="turns of each; the best counts [3, quick 2]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "compare")
    parser.add_argument("--turns", type=Path, help="the built example `turns` [built now, in release]")
    parser.add_argument("--python", help="a Python that has the other runtimes")
    parser.add_argument("--only", choices=["minilm", "base"], help="one of the two models")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 3)
    scratch = ROOT / "target" / "compare"
    scratch.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    options.python = options.python or python_with_peers(scratch)
    minilm = Path(run("scripts/parts", "minilm"))
    if options.turns is None:
        say("`turns` is built")
        run("cargo", "build", "--quiet", "--release", "--workspace", "--examples")
        options.turns = ROOT / "target" / "release" / "examples" / "turns"
    base = scratch / "bert-base"
    if not (base / "model.safetensors").exists():
        run(options.python, BENCHES / "shapes.py", "base", minilm, base)
    processors = sorted(os.sched_getaffinity(0))[: options.threads]
    os.sched_setaffinity(0, processors)
    settings = {
        "minilm": ("all-MiniLM-L6-v2", minilm, 10 if options.quick else 1),
        "base": ("BERT-base shape, random weights", base, 100 if options.quick else 10),
    }
    commit = run("git", "rev-parse", "--short=12", "HEAD")
    answer = {"machine": machine(), "threads": len(processors), "rounds": options.rounds, "commit": commit, "models": {}}
    answer["load_before"] = os.getloadavg()[0]
    if answer["load_before"] > 0.3:
        say(f"note: this machine is busy (load {answer['load_before']:.1f}): ratios favour whoever waits least for another thread")
    head = f"{answer['machine']}; {answer['threads']} threads, best of {options.rounds} rounds, alternating, tokenization included, commit {commit}, load {answer['load_before']:.1f} before"
    print(f"{head}\n")
    for key, (label, folder, every) in settings.items():
        if options.only not in (None, key):
            continue
        onnx = scratch / f"{key}.onnx"
        if not onnx.exists():
            run(options.python, BENCHES / "shapes.py", "onnx", folder, onnx)
        result = compete(label, folder, onnx, some_of(every, scratch), options, scratch)
        result["ratios"] = ratios(result, with_memory=key == "minilm")
        answer["models"][key] = result
        print(markdown(label, result), flush=True)
        (options.out / "compare.json").write_text(json.dumps(answer, indent=1) + "\n")
        (options.out / f"{key}.svg").write_text(plot(label, result, len(processors)))
    say(f"figures of every round: {options.out / 'compare.json'}")


if __name__ == "__main__":
    started = time.monotonic()
    main()
    say(f"{time.monotonic() - started:.0f} s in all")
