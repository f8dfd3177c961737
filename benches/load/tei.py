#!/usr/bin/env python3
"""The server in f32, compared with TEI's CPU method: padded batches of 8 in arrival order on ONNX Runtime, alternating.

    benches/load/tei.py [--rounds 5] [--python PYTHON] [--target target/release]

The other side has no HTTP overhead: it embeds in one process with the same number of threads.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from worker import MINILM, ROOT, TEXTS, Worker, finish, percentile, program, table

sys.path.insert(0, str(ROOT / "benches"))
from compare import python_with_peers, run

SCRATCH = ROOT / "target" / "compare"
CLIENTS = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", help="a Python that has the other runtime")
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    python = options.python or python_with_peers(SCRATCH)
    onnx = SCRATCH / "minilm.onnx"
    if not onnx.exists():
        run(python, ROOT / "benches" / "shapes.py", "onnx", MINILM, onnx)
    threads = len(os.sched_getaffinity(0))
    command = [python, ROOT / "benches" / "peer.py", "ort-f32", MINILM, onnx, str(threads), TEXTS]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    version = json.loads(peer.stdout.readline())["version"]
    count = sum(1 for _ in open(TEXTS, encoding="utf-8"))
    generator = program(Path(options.target) / "examples", "against_library")
    rows = []
    with Worker(options.target, MINILM, "--dtype", "f32", "--queue-seconds", "60") as worker:
        address = "{}:{}".format(*worker.address)
        for turn in range(options.rounds + 1):
            peer.stdin.write("arrival 8\n")
            peer.stdin.flush()
            theirs = count / json.loads(peer.stdout.readline())["seconds"]
            said = subprocess.run([generator, "generate", address, TEXTS, str(CLIENTS)], check=True, stdout=subprocess.PIPE, text=True)
            ours, p50, p99, share = map(float, said.stdout.split())
            if turn > 0:
                rows.append((turn, theirs, ours, ours / theirs, p50, p99, share))
    peer.stdin.close()
    peer.wait()
    print(f"{count} texts, {threads} threads; ONNX Runtime {version} padded by 8 in arrival order, sconce serve in f32 with {CLIENTS} clients\n")
    table(["round", "ONNX Runtime, texts/s", "sconce serve, texts/s", "ratio", "p50, ms", "p99, ms", "clients, % of one core"], rows)
    ratio = percentile([row[3] for row in rows], 0.5)
    finish([("median ratio", ratio, "", True)])


if __name__ == "__main__":
    main()
