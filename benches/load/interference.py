#!/usr/bin/env python3
"""Interference with chat streams: long prompts, embeddings, overload, another tenant, clients that stop reading.

    benches/load/interference.py [--only long,embed,overload,tenants,stopped] [--seconds 20] [--pairs 3] [--target target/release]

Each scenario compares runs that alternate, and prints the median of their ratios. Runs of `long` and `embed` take a quarter
of the time.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

from chat import MODEL, body, stream
from worker import MINILM, Clients, Worker, finish, percentile, post, table, texts

WORDS = " ".join(texts()).split()
SEEDS = iter(range(10**9))


def words(count):
    """Words that no other prompt begins with, so that the prefix cache has none of them."""
    chance = random.Random(next(SEEDS))
    start = chance.randrange(len(WORDS) - count)
    return f"{chance.random()} " + " ".join(WORDS[start : start + count])


class Gaps:
    """Times between the tokens of streams."""

    def __init__(self, worker, tokens=64, prompt=20):
        self.worker, self.tokens, self.prompt = worker, tokens, prompt
        self.gaps, self.lock = [], threading.Lock()

    def request(self):
        *_, gaps = stream(self.worker, body(words(self.prompt), self.tokens, stream=True))
        with self.lock:
            self.gaps += gaps

    def take(self):
        with self.lock:
            gaps, self.gaps = self.gaps, []
        return gaps


def long_prompt(options):
    """Times between tokens of four streams, alone and while a prompt of about 8,000 tokens is computed."""
    rows = []
    with Worker(options.target, MODEL, "--time-limit", "300") as worker:
        gaps = Gaps(worker, tokens=128)
        tokens = json.loads(post(worker.connect(), "/tokenize", {"content": words(2000)})[2])["tokens"]
        length = int(2000 * 7800 / len(tokens))
        with Clients(4, gaps.request):
            time.sleep(2)
            for _ in range(options.pairs):
                gaps.take()
                time.sleep(options.seconds / 4)
                alone = gaps.take()
                began = time.monotonic()
                status, *_ = stream(worker, body(words(length), 1, stream=True))
                assert status == 200, status
                beside = gaps.take()
                p99 = [1e3 * percentile(one, 0.99) for one in (alone, beside)]
                rows.append((*p99, p99[1] / p99[0], time.monotonic() - began))
    table(["p99 between tokens alone, ms", "beside the prompt, ms", "ratio", "prompt took, s"], rows)
    ratio = statistics.median(row[2] for row in rows)
    return [("long prompt: p99 between tokens, ratio", ratio, "<= 2", ratio <= 2)]


def embeddings(options):
    """p99 of embeddings alone and beside 16 streams."""
    rows = []
    with Worker(options.target, MODEL, "--model", MINILM) as worker:
        name = json.loads(worker.get("/v1/models")[1])["data"][1]["id"]
        connection = worker.connect()

        def embed(seconds):
            times, until = [], time.monotonic() + seconds
            while time.monotonic() < until:
                began = time.perf_counter()
                status, *_ = post(connection, "/v1/embeddings", {"model": name, "input": "a short text"})
                assert status == 200, status
                times.append(1e3 * (time.perf_counter() - began))
                time.sleep(0.01)
            return percentile(times, 0.99)

        embed(1)
        for _ in range(options.pairs):
            alone = embed(options.seconds / 4)
            gaps = Gaps(worker)
            with Clients(16, gaps.request):
                time.sleep(1)
                beside = embed(options.seconds / 4)
            step = 1e3 * statistics.median(gaps.take())
            rows.append((alone, beside, step, (beside - alone) / step))
    table(["p99 alone, ms", "beside 16 streams, ms", "a decode step, ms", "more, in steps"], rows)
    more = statistics.median(row[3] for row in rows)
    return [("embeddings beside 16 streams: p99 above alone, in decode steps", more, "<= 2", more <= 2)]


def overload(options):
    """Answered requests per second with as many clients as generations, and with 3 and 10 times as many."""
    rows, checks, ratios, lives, other = [], [], {3: [], 10: []}, [], Counter()
    with Worker(options.target, MODEL, "--max-generations", "16") as worker:

        def run(clients):
            statuses, lock = Counter(), threading.Lock()

            def request():
                connection = worker.connect()
                status, headers, _ = post(connection, "/v1/chat/completions", body(words(20), 32))
                connection.close()
                with lock:
                    statuses[status] += 1
                    other[status] += status not in (200, 429, 503)
                    other["without retry-after"] += status == 429 and "retry-after" not in headers
                if status != 200:
                    time.sleep(0.2)

            began = time.monotonic()
            with Clients(clients, request):
                while time.monotonic() - began < options.seconds:
                    start = time.perf_counter()
                    assert worker.get("/livez")[0] == 200
                    lives.append(1e3 * (time.perf_counter() - start))
                    time.sleep(0.02)
            return statuses[200] / (time.monotonic() - began), statuses[429] + statuses[503]

        run(16)
        for _ in range(options.pairs):
            peak, _ = run(16)
            for factor in ratios:
                good, refused = run(16 * factor)
                ratios[factor].append(good / peak)
                rows.append((f"{factor}x", peak, good, good / peak, refused))
        code = worker.stop()
    table(["clients", "peak, answered/s", "answered/s", "ratio", "refused"], rows)
    for factor, found in ratios.items():
        ratio = statistics.median(found)
        checks.append((f"{factor}x: goodput of the peak", ratio, ">= 0.9", ratio >= 0.9))
    live, wrong = percentile(lives, 0.99), sum(other.values())
    checks.append(("answers other than 200, 429, 503, or without Retry-After", wrong, "0", wrong == 0))
    checks.append(("/livez p99, ms", live, "< 50", live < 50))
    return [*checks, ("exit code after overload", code, "0", code == 0)]


def tenants(options):
    """Streamed events of a tenant with two streams beside one with 64, where the KV cache holds about 16 streams."""
    rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("many\nfew\n")
        keys.flush()
        os.chmod(keys.name, 0o600)
        # 16 streams of 128 tokens, 30 layers of 3 KV heads of 64 values in two bytes, for keys and values.
        cache = 16 * 128 * 30 * 3 * 64 * 2 * 2 / 1e6
        with Worker(options.target, MODEL, "--api-key-file", keys.name, "--kv-cache", f"{cache:.0f}") as worker:
            tokens, running, lock = Counter(), [], threading.Lock()
            bearer = lambda key: {"authorization": f"Bearer {key}"}

            def request(key):
                def count():
                    with lock:
                        tokens[key] += 1

                status, *_ = stream(worker, body(words(10), 64, stream=True), headers=bearer(key), on_event=count)
                assert status == 200, status

            with Clients(64, lambda: request("many")), Clients(2, lambda: request("few")):
                time.sleep(5)
                for _ in range(options.pairs):
                    with lock:
                        tokens.clear()
                    running.clear()
                    until = time.monotonic() + options.seconds
                    while time.monotonic() < until:
                        running.append(worker.metric("vllm:num_requests_running", bearer("few")))
                        time.sleep(0.2)
                    with lock:
                        many, few = tokens["many"], tokens["few"]
                    # Two of the streams that run at once are the fair share of a tenant that wants no more.
                    fair = (many + few) * 2 / statistics.mean(running)
                    rows.append((many, few, statistics.mean(running), few / fair))
    table(["events of 64 streams", "events of 2 streams", "running at once", "of the fair share"], rows)
    share = statistics.median(row[3] for row in rows)
    return [("tenant with 2 streams beside 64: tokens, of its fair share", share, ">= 0.8", share >= 0.8)]


CLIENT = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
connection.request("POST", "/v1/chat/completions", sys.argv[3], {"content-type": "application/json"})
answer = connection.getresponse()
answer.readline()
print("began", flush=True)
answer.read()
"""


def stopped(options):
    """Memory and generations of a server whose clients are stopped in the middle of a stream."""
    with Worker(options.target, MODEL) as worker:
        request = body("Tell me a long story.", 2000, stream=True)
        stream(worker, body("warm up", 64, stream=True))
        clients = []
        for _ in range(8):
            command = [sys.executable, "-c", CLIENT, worker.address[0], str(worker.address[1]), request]
            clients.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for client in clients:
            client.stdout.readline()
            client.send_signal(signal.SIGSTOP)
        before, most, until = worker.memory(), 0, time.monotonic() + 240
        while worker.metric("vllm:num_requests_running") + worker.metric("vllm:num_requests_waiting") > 0:
            most = max(most, worker.memory() - before)
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        left = worker.metric("vllm:num_requests_running")
        for client in clients:
            client.kill()
            client.wait()
            client.stdout.close()
        status, *_ = stream(worker, body("Another one.", 8, stream=True))
        code = worker.stop()
    # 8 sequences of 2,000 tokens in the KV cache.
    cache = 8 * 2000 * 30 * 3 * 64 * 2 * 2 / 1e6
    return [
        ("stopped clients: memory, MB more", most, f"< {cache + 8:.0f}, their KV cache and 8", most < cache + 8),
        ("stopped clients: generations that never end", left, "0", left == 0),
        ("stopped clients: the next stream", status, "200", status == 200),
        ("exit code after stopped clients", code, "0", code == 0),
    ]


SCENARIOS = {"long": long_prompt, "embed": embeddings, "overload": overload, "tenants": tenants, "stopped": stopped}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, separated by commas")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    checks = []
    for name in options.only.split(","):
        print(f"\n{SCENARIOS[name].__doc__}\n", flush=True)
        checks += SCENARIOS[name](options)
    finish(checks)


if __name__ == "__main__":
    main()
