#!/usr/bin/env python3
"""Models that a pool loads on workers with different memory limits, in random order.

    benches/load/placement.py [--sequences 200] [--target target/release]

Before each load, the worker is asked for a bid (`/v1/fit`). Its resident memory must never exceed its limit, a model whose
bid says that it fits must be loaded, and a model that has room must get such a bid. Room is judged by samples, which may miss
some of the peak that the worker knows. The median error of bids for models that were loaded five times must be at most 10 %.
"""

import argparse
import json
import random
import shutil
import statistics
import struct
import tempfile
import threading
import time
from pathlib import Path

from worker import ROOT, Worker, finish, table

PARTS = ROOT / "target" / "parts"
LIMITS = [300, 450, 700, 1200, 2400]
STEPS = 8
LOADS = 5


def with_weights(source, folder, weights):
    """A copy of a model with other weights."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "onnx"))
    shutil.copy(weights, folder / "model.safetensors")
    return folder


def in_bf16(source, folder):
    """A copy of a model with weights in bf16."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "onnx"))
    data = (source / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body, tensors, parts, end = json.loads(data[8 : 8 + length]), data[8 + length :], {}, [], 0
    for name, tensor in sorted(header.items()):
        if name == "__metadata__":
            tensors[name] = tensor
            continue
        values = body[slice(*tensor["data_offsets"])]
        if tensor["dtype"] == "F32":
            halves = bytearray(len(values) // 2)
            halves[0::2], halves[1::2] = values[2::4], values[3::4]
            values, tensor = bytes(halves), tensor | {"dtype": "BF16"}
        tensors[name] = tensor | {"data_offsets": [end, end + len(values)]}
        parts.append(values)
        end += len(values)
    text = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return folder


class Machine:
    """A worker with a memory limit, and what it uses at most."""

    def __init__(self, target, home, limit):
        self.home, self.limit, self.models, self.most, self.peak, self.running = home, limit, {}, 0.0, 0.0, True
        flags = ["--model-sources=*", "--memory-limit", str(limit)]
        library = next((PARTS / "onnxruntime").rglob("libonnxruntime.so*"))
        self.worker = Worker(target, *flags, environment={"SCONCE_HOME": str(home), "ORT_DYLIB_PATH": str(library)})
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while self.running:
            resident = self.worker.memory()
            self.most, self.peak = max(self.most, resident), max(self.peak, resident)
            time.sleep(0.005)

    def ask(self, method, path, body=None):
        connection = self.worker.connect(300)
        headers = {"content-type": "application/json", "prefer": "wait=120"}
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def settle(self):
        """Waits until an unloaded model has returned its memory."""
        last, end = None, time.monotonic() + 5
        while last != (last := self.worker.memory()) and time.monotonic() < end:
            time.sleep(0.1)

    def errors(self):
        """Errors of estimates of models that were loaded five times before, from the records of the worker."""
        seen, found = {}, {}
        for line in (self.home / "load-memory.jsonl").read_text().splitlines():
            record = json.loads(line)
            key = record["identity"], record["placement"]
            seen[key] = seen.get(key, 0) + 1
            measured, estimated = record["measured"]["resident"], record["estimated"]["resident"]
            if seen[key] > LOADS:
                found.setdefault(key, []).append(abs(estimated - measured) / max(measured, 1))
        return found

    def stop(self):
        self.running = False
        self.thread.join()
        self.worker.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--target", type=Path, default=Path("target/release"))
    options = parser.parse_args()
    draw = random.Random(5)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        models = {name: PARTS / name for name in ["minilm", "minilm-trio", "pairs", "mpnet"]}
        half = next((PARTS / "minilm-fp16").glob("*.safetensors"))
        models["minilm-f16"] = with_weights(PARTS / "minilm", scratch / "minilm-f16", half)
        for name in ["minilm", "mpnet"]:
            models[f"{name}-bf16"] = in_bf16(PARTS / name, scratch / f"{name}-bf16")
        models["smollm2"] = PARTS / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        prover = Machine(options.target, scratch / "home", 0)
        answers = [prover.ask("POST", "/v1/models", {"source": str(path)}) for path in models.values()]
        prover.stop()
        assert all(status == 200 for status, _ in answers), answers
        machines = []
        for limit in LIMITS:
            home = scratch / str(limit)
            shutil.copytree(scratch / "home", home, ignore=shutil.ignore_patterns("load-memory.jsonl"))
            machines.append(Machine(options.target, home, limit))
        loads, peaks = {}, {}
        counts = {"loads": 0, "unloads": 0, "misfits": 0, "broken bids": 0, "refusals with room": 0}
        for number in range(options.sequences):
            machine = machines[number % len(machines)]
            for _ in range(STEPS):
                name = draw.choice(list(models))
                if name in machine.models:
                    assert machine.ask("DELETE", f"/v1/models/{name}")[0] == 200
                    del machine.models[name]
                    machine.settle()
                    counts["unloads"] += 1
                    continue
                _, bid = machine.ask("POST", "/v1/fit", {"source": str(models[name])})
                # The bid has released what is free.
                before = machine.peak = machine.worker.memory()
                status, answer = machine.ask("POST", "/v1/models", {"source": str(models[name]), "name": name, "managed": True})
                grown = machine.worker.memory() - before
                seen, highest = loads.setdefault((machine.limit, name), []), peaks.setdefault((machine.limit, name), [])
                if status != 200:
                    counts["misfits"] += 1
                    counts["broken bids"] += bid["fits"]
                    # What requests in flight may take is not for models: an eighth.
                    room = 7 / 8 * machine.limit - before
                    has_room = bool(highest) and max(highest) < room
                    counts["refusals with room"] += has_room
                    if bid["fits"] or has_room:
                        print(f"{machine.limit} MB, {before:.0f} MB resident: {answer}; {bid['bytes']}; {highest}", flush=True)
                    continue
                machine.models[name] = True
                counts["loads"] += 1
                seen.append(grown)
                highest.append(machine.peak - before)
            if (number + 1) % 20 == 0:
                print(f"{number + 1} sequences: {counts}", flush=True)
        for machine in machines:
            machine.stop()
        errors = [error for machine in machines for found in machine.errors().values() for error in found]
    rows = []
    for name in models:
        grown = [bytes for (_, model), all in loads.items() if model == name for bytes in all]
        if grown:
            rows.append((name, len(grown), statistics.median(grown), min(grown), max(grown)))
    table(["model", "loads", "growth: median, MB", "least", "most"], rows)
    print()
    table(["limit, MB", "most resident, MB"], [(machine.limit, machine.most) for machine in machines])
    error = 100 * statistics.median(errors) if errors else float("nan")
    over = sum(machine.most > machine.limit for machine in machines)
    finish([
        ("workers over their limit", over, "0", over == 0),
        ("loads that fail although their bid fits", counts["broken bids"], "0", counts["broken bids"] == 0),
        ("refusals although there is room", counts["refusals with room"], "0", counts["refusals with room"] == 0),
        (f"median error of {len(errors)} bids after five loads, %", error, "<= 10", error <= 10),
    ])


if __name__ == "__main__":
    main()
