#!/usr/bin/env python3
"""Open-loop overload: rejected requests and goodput above the capacity.

    benches/load/overload.py [--seconds 60] [--factors 0.7,3,10] [--oha PATH] [--target target/release]

The model is BERT-base with random weights, large enough that the generator's own cost is small; create it with
`python benches/shapes.py base target/parts/minilm target/compare/bert-base`. The generator is oha
(`cargo install oha --locked`), at a fixed rate on many connections, one text per request.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time

from worker import ROOT, Worker, finish, percentile, post, table, texts

BASE = ROOT / "target" / "compare" / "bert-base"
BODIES = ROOT / "target" / "compare" / "bodies.jsonl"


class Watch(threading.Thread):
    """Polls `/livez` and checks rejections during the load."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        self.worker, self.done = worker, threading.Event()
        self.lives, self.memory, self.untold = [], [], 0

    def run(self):
        live, ask = self.worker.connect(), self.worker.connect()
        for turn in range(10**9):
            if self.done.wait(0.02):
                return
            began = time.perf_counter()
            live.request("GET", "/livez")
            answer = live.getresponse()
            answer.read()
            self.lives.append((time.perf_counter() - began) * 1e3)
            assert answer.status == 200
            if turn % 25 == 0:
                self.memory.append(self.worker.memory())
                status, headers, _ = post(ask, "/embed", {"inputs": "a"})
                self.untold += status != 200 and "retry-after" not in headers


def generate(options, worker, seconds, *arguments):
    """One run of the generator: its results and its CPU share."""
    command = [options.oha, "--no-tui", "--output-format", "json", "-z", f"{seconds}s", "-m", "POST"]
    command += ["-T", "application/json", "-Z", BODIES, "--stats-success-breakdown", *map(str, arguments)]
    spent, began = children(), time.monotonic()
    output = subprocess.run([*command, f"{worker.url}/embed"], check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(output)
    found["share"] = (children() - spent) / (time.monotonic() - began) / len(os.sched_getaffinity(0))
    # Requests in flight at the end do not count as errors.
    found["errorDistribution"].pop("aborted due to deadline", None)
    return found


def children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def answered(found, seconds):
    return found["statusCodeDistribution"].get("200", 0) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of each run")
    parser.add_argument("--factors", default="0.7,3,10", help="times the capacity")
    parser.add_argument("--connections", type=int, default=512)
    parser.add_argument("--oha", default="oha")
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    if not (BASE / "model.safetensors").exists():
        sys.exit(f"`{BASE}` is missing\nhint: python benches/shapes.py base target/parts/minilm target/compare/bert-base")
    BODIES.write_text("".join(json.dumps({"inputs": text}) + "\n" for text in texts()))
    rows, checks = [], []
    with Worker(options.target, BASE) as worker:
        generate(options, worker, max(5, options.seconds // 4), "-c", 64)
        alone = generate(options, worker, options.seconds, "-c", 1)
        unloaded = alone["latencyPercentilesSuccessful"]["p99"] * 1e3
        full = generate(options, worker, options.seconds, "-c", 64)
        capacity = answered(full, options.seconds)
        rows.append(("one client", answered(alone, options.seconds), "", statuses(alone), unloaded, "", "", alone["share"] * 100))
        rows.append(("64 clients", capacity, "", statuses(full), full["latencyPercentilesSuccessful"]["p99"] * 1e3, "", "", full["share"] * 100))
        for factor in map(float, options.factors.split(",")):
            before, watch = worker.memory(), Watch(worker)
            watch.start()
            rate = factor * capacity
            found = generate(options, worker, options.seconds, "-c", options.connections, "-q", f"{rate:.1f}", "--latency-correction")
            watch.done.set()
            watch.join()
            good, p99 = answered(found, options.seconds), found["latencyPercentilesSuccessful"]["p99"] * 1e3
            grown, live = max(watch.memory) / before - 1, percentile(watch.lives, 0.99)
            rows.append((f"{factor:g}x", good, rate, statuses(found), p99, grown * 100, live, found["share"] * 100))
            others = set(found["statusCodeDistribution"]) - {"200", "429", "503"} | set(found["errorDistribution"])
            name = f"{factor:g}x capacity"
            if factor < 1:
                refused = sum(found["statusCodeDistribution"].values()) - found["statusCodeDistribution"].get("200", 0)
                checks.append((f"{name}: refused or failed", refused + len(others), "0", refused == 0 and not others))
                checks.append((f"{name}: p99, ms", p99, f"<= {3 * unloaded:.1f}, 3x one client's", p99 <= 3 * unloaded))
            else:
                told = "each with Retry-After" if watch.untold == 0 else f"{watch.untold} without Retry-After"
                what = ", ".join(sorted(others)) or f"200, 429 or 503, {told}"
                checks.append((f"{name}: answers", what, "200, 429 or 503 with Retry-After", not others and watch.untold == 0))
                checks.append((f"{name}: goodput of the peak", good / capacity, ">= 0.9", good >= 0.9 * capacity))
                checks.append((f"{name}: memory growth, %", grown * 100, "< 5", grown < 0.05))
            checks.append((f"{name}: /livez p99, ms", live, "< 50", live < 50))
            checks.append((f"{name}: generator's share of the machine, %", found["share"] * 100, "< 5", found["share"] < 0.05))
        head = ["load", "answered/s", "sent/s", "statuses", "p99 of answers, ms", "memory, % more", "/livez p99, ms", "generator, % of the machine"]
        table(head, rows)
        finish(checks)


def statuses(found):
    all_of_them = {**found["statusCodeDistribution"], **found["errorDistribution"]}
    return ", ".join(f"{name}: {count}" for name, count in sorted(all_of_them.items()))


if __name__ == "__main__":
    main()
