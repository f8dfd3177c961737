#!/usr/bin/env python3
"""Compares embedding in Python with the Rust library, in alternating pairs.

    benches/python.py [--pairs 9] [--threads 2] [--engine native] [--dtype f32] [--target target/debug] [--python PYTHON]

Both are processes of their own on the same placement, loaded and warm before the first pair. A turn is all texts of
benches/texts.jsonl in one call, from text to vectors. Every other pair begins with Python. Prints the median and the
range of Python's throughput divided by Rust's, the same for single short texts, and fails below 0.97. Needs
`cargo build --workspace --all-targets` and `scripts/python`, in the same profile.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from contestant import Contestant, machine

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "benches/texts.jsonl"
# The short text of `turns`.
SHORT = "how do I place a model on the right device?"
BAR = 0.97


def turns(model, engine, dtype, threads):
    """Takes the turns `bulk` and `short N` in Python, as the example `turns` does in Rust."""
    import sconce

    texts = [json.loads(line)["text"] for line in TEXTS.read_text().splitlines()]
    model = sconce.Model(model, engine=engine, dtype=dtype, threads=int(threads), offline=True)
    model.embed(texts[:64])
    print(json.dumps({"placement": str(model.placement)}), flush=True)
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        calls, times = [texts] if what == "bulk" else [[SHORT]] * int(count), []
        for call in calls:
            started = time.perf_counter()
            vectors = model.embed(call)
            times.append(time.perf_counter() - started)
            assert vectors.shape == (len(call), model.dimensions)
        print(json.dumps({"seconds": statistics.median(times)}), flush=True)


def compare(rust, python, turn, pairs):
    """Python's throughput divided by Rust's, of each pair."""
    ratios = []
    for pair in range(pairs):
        order = [rust, python] if pair % 2 == 0 else [python, rust]
        seconds = {one.name: one.take(turn)["seconds"] for one in order}
        ratios.append(seconds["rust"] / seconds["python"])
        figures = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in sorted(seconds.items()))
        print(f"{turn}, pair {pair + 1}: {figures}, ratio {ratios[-1]:.3f}", flush=True)
    low, median, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"{turn}: median ratio {median:.3f}, from {low:.3f} to {high:.3f}, {pairs} pairs")
    return median


def main():
    if sys.argv[1:2] == ["--turns"]:
        return turns(*sys.argv[2:])
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pairs", type=int, default=9)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--engine", default="native")
    arguments.add_argument("--dtype", default="f32")
    arguments.add_argument("--model", default=ROOT / "target/parts/minilm-trio", type=Path)
    arguments.add_argument("--target", default=ROOT / "target/debug", type=Path)
    arguments.add_argument("--python", default=ROOT / "target/python/venv/bin/python", type=Path)
    options = arguments.parse_args()
    tail = [options.model, options.engine, options.dtype, options.threads]
    with tempfile.TemporaryDirectory() as scratch:
        environment = {"SCONCE_HOME": f"{scratch}/home"}
        rust = Contestant("rust", [options.target / "examples/turns", *tail, TEXTS], environment, Path(scratch))
        rust.answer()
        python = Contestant("python", [options.python, __file__, "--turns", *tail], environment, Path(scratch))
        print(f"{machine()}; {options.threads} threads; {python.answer()['placement']}")
        short = compare(rust, python, "short 200", options.pairs)
        bulk = compare(rust, python, "bulk", options.pairs)
        rust.end()
        python.end()
    sys.exit(min(bulk, short) < BAR if options.pairs > 1 else 0)


if __name__ == "__main__":
    main()
