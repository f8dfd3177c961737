#!/usr/bin/env python3
"""Compares text generation over HTTP of `sconce serve` and llama.cpp's server on the same GGUF file, alternating in one run.

    benches/serve.py [--rounds 9] [--users 1,8,32] [--requests 300] [--rate R] [--model FILE.gguf DTYPE] [--target target/release]

Closed loop: that many users send a prompt of 256 tokens each and wait for exactly 128 tokens. sconce's step loop without
HTTP takes turns too. Open loop: requests arrive at random times at 0.7 of the rate of the slower server, in two halves
each. Without `--model`, the model of generate.py with random weights in Q4_K_M. Prints Markdown and writes serve.json.
Needs what generate.py needs, and Python with pip for `xllamacpp`.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import generate
from contestant import Contestant, machine, say
from generate import ROOT, llama_library, run

sys.path.append(str(ROOT / "benches" / "load"))
from worker import Worker, percentile, program  # noqa: E402

WHEEL = "xllamacpp==2026.10.11549"
INPUT, OUTPUT, SHARE = 256, 128, 0.7
# MB of each KV cache: prefixes that are never used again would fill the memory of the machine.
CACHE = 2048
# Characters that are tokens of their own.
LETTERS = "ijklmnopqrstuvwxyz"
LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx = sys.argv[1], 32, 32 * 512
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
params.port, params.warmup = 0, True
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


class Llama:
    """llama.cpp's server in a process of its own."""

    def __init__(self, scratch, model, threads):
        python = scratch / "xllamacpp" / "bin" / "python"
        if not python.exists():
            run(sys.executable, "-m", "venv", scratch / "xllamacpp")
            run(python, "-m", "pip", "install", "--quiet", WHEEL)
        with open(scratch / "llama-server.log", "w") as log:
            self.process = subprocess.Popen(
                [python, "-c", LLAMA, str(model), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            if line.startswith("http://"):
                host, port = line.strip().removeprefix("http://").split(":")
                self.address = (host, int(port))
                return
        raise RuntimeError((scratch / "llama-server.log").read_text()[-600:])

    def stop(self):
        self.process.kill()
        self.process.wait()


def prompt(draw):
    return "".join(draw.choices(LETTERS, k=INPUT))


def ask(address, text):
    """Generates; returns the time to the first token, the times between events, and the number of tokens."""
    connection = http.client.HTTPConnection(*address, timeout=600)
    body = {"prompt": text, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    start = last = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read()[:300]}")
    first, gaps, tokens = None, [], 0
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        # A token of random weights may have no text: llama.cpp has none for unused tokens.
        if any(choice["finish_reason"] is None for choice in event["choices"]):
            now = time.monotonic()
            if first is None:
                first = now - start
            else:
                gaps.append(now - last)
            last = now
    connection.close()
    if first is None:
        raise RuntimeError("no token was streamed")
    return first, gaps, tokens


def at_once(address, prompts):
    """Tokens per second of users that ask at the same time."""
    answers = [None] * len(prompts)

    def user(index):
        answers[index] = ask(address, prompts[index])

    start = time.monotonic()
    users = [threading.Thread(target=user, args=[index]) for index in range(len(prompts))]
    for each in users:
        each.start()
    for each in users:
        each.join()
    seconds = time.monotonic() - start
    if any(answer is None or answer[2] != OUTPUT for answer in answers):
        raise RuntimeError(f"an answer is not of {OUTPUT} tokens: {[answer and answer[2] for answer in answers]}")
    return len(prompts) * OUTPUT / seconds


def open_loop(address, arrivals, prompts):
    """Answers to requests that arrive at these times, whatever the server does."""
    answers, threads, start = [], [], time.monotonic()
    for moment, text in zip(arrivals, prompts):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        threads.append(threading.Thread(target=lambda text=text: answers.append(ask(address, text))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(prompts), f"{len(prompts) - len(answers)} requests failed"
    return answers


def open_table(latencies, rate):
    """Times of the answers so far."""
    text = f"\nOpen loop, {min(map(len, latencies.values()))} requests, {rate:.2f} per second:\n\n"
    text += "| | TTFT p50 | TTFT p95 | between tokens p50 | p95 |\n|---|---|---|---|---|\n"
    for name, answers in latencies.items():
        firsts, gaps = [first for first, _, _ in answers], [gap for _, gaps, _ in answers for gap in gaps]
        cells = [f"{1e3 * percentile(values, share):.0f} ms" for values in (firsts, gaps) for share in (0.5, 0.95)]
        text += f"| {name} | {' | '.join(cells)} |\n"
    return text


def spread(ratios):
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--users", default="1,8,32")
    parser.add_argument("--requests", type=int, default=300, help="requests of the open loop; 0 leaves it out")
    parser.add_argument("--rate", type=float, help="requests per second of the open loop; leaves the closed loop out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", nargs=2, metavar=("FILE", "DTYPE"))
    parser.add_argument("--target", type=Path, default=Path("target/release"))
    options = parser.parse_args()
    scratch = ROOT / "target" / "generate"
    scratch.mkdir(parents=True, exist_ok=True)
    if options.model:
        model, dtype = Path(options.model[0]).resolve(), options.model[1]
    else:
        tool, libraries, folder = generate.library(scratch)
        quantizer = os.environ | {"GGML_DIR": str(llama_library.variant_folder(folder, libraries, "haswell"))}
        model, dtype = generate.random_model(scratch, tool, quantizer, "Q4_K_M"), "int4"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    users = [] if options.rate else [int(count) for count in options.users.split(",")]
    draw, threads = random.Random(7), str(options.threads)
    text = f"# Generation over HTTP: {machine()}, {options.threads} threads, {model.name}, {options.rounds} rounds\n\n"
    flags = ["--engine", "native", "--dtype", dtype, "--threads", threads, "--max-generations", "512",
             "--kv-cache", str(CACHE), "--time-limit", "600"]
    command = [program(options.target, "examples/loop_turns"), model, "native", dtype, threads, str(CACHE)]

    def step_loop(name):
        loop = Contestant(name, command, {}, scratch)
        loop.answer()
        return loop

    # Of equal processes, one that starts later may be faster by a tenth: the step loop starts before and after the server.
    loops = [step_loop("loop-before")] if users else []
    with Worker(options.target, model, *flags) as worker:
        say("sconce is ready")
        llama = Llama(scratch, model, options.threads)
        say("llama.cpp is ready")
        if users:
            loops.append(step_loop("loop-after"))
        rates = {count: {"sconce": [], "llama.cpp": [], "loop": []} for count in users}
        for number in range(options.rounds + 1) if users else ():
            ratios = []
            for count in users:
                prompts = [prompt(draw) for _ in range(count)]
                turns = [loop.take(json.dumps({"prompts": prompts, "tokens": OUTPUT})) for loop in loops]
                found = {"sconce": at_once(worker.address, prompts), "llama.cpp": at_once(llama.address, prompts),
                         "loop": statistics.mean(turn["tokens"] / turn["seconds"] for turn in turns)}
                ratios.append(f"{found['sconce'] / found['llama.cpp']:.2f}x with {count}")
                # The first round warms up.
                for name, rate in found.items() if number else ():
                    rates[count][name].append(rate)
            say(f"round {number} of {options.rounds}: {', '.join(ratios)}")
        for loop in loops:
            loop.end()
        text += "| users | sconce, tokens/s | llama.cpp, tokens/s | ratio | of the step loop |\n|---|---|---|---|---|\n"
        for count, found in rates.items():
            pairs = [ours / theirs for ours, theirs in zip(found["sconce"], found["llama.cpp"])]
            shares = [ours / loop for ours, loop in zip(found["sconce"], found["loop"])]
            cells = [f"{statistics.median(found[name]):.1f}" for name in ("sconce", "llama.cpp")]
            text += f"| {count} | {' | '.join(cells)} | {spread(pairs)} | {spread(shares)} |\n"
        print(text, flush=True)
        latencies = {}
        save = lambda: (scratch / "serve.json").write_text(json.dumps({"rates": rates, "latencies": latencies}) + "\n")
        save()
        if options.requests:
            rate, half = options.rate, options.requests // 2
            if not rate:
                capacity = min(statistics.median(rates[max(users)][name]) for name in ("sconce", "llama.cpp")) / OUTPUT
                rate = SHARE * capacity
            for _ in range(2):
                arrivals, now = [], 0.0
                for _ in range(half):
                    now += draw.expovariate(rate)
                    arrivals.append(now)
                prompts = [prompt(draw) for _ in arrivals]
                for name, server in (("sconce", worker), ("llama.cpp", llama)):
                    latencies.setdefault(name, []).extend(open_loop(server.address, arrivals, prompts))
                    say(f"{half} requests of {name}")
                save()
                print(open_table(latencies, rate), flush=True)
        llama.stop()


if __name__ == "__main__":
    main()
