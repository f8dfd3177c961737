#!/usr/bin/env python3
"""Chat streams with random prompts, lengths and disconnects, and a KV cache that forces preemption.

    benches/load/chat.py [--minutes 10] [--streams 64] [--target target/release]

Every stream that is read to its end must have the text of the same request alone, and exactly one terminal event. After
the last client nothing may run or wait, and no block of the KV cache may be in use.
"""

import argparse
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

from worker import ROOT, Worker, finish, percentile, table, texts

MODEL = ROOT / "target" / "parts" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def body(prompt, tokens, **fields):
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields})


def stream(worker, request, leave_after=None, headers={}, on_event=lambda: None):
    """The text, the terminal events, and the times of the first event and of the gaps between events."""
    connection = worker.connect(300)
    began = last = time.monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", request, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            return answer.status, "", 0, None, []
        text, ends, first, gaps, events = "", 0, None, [], 0
        while True:
            line = answer.readline()
            if not line:
                return 200, text, ends, first, gaps
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                ends += 1
                continue
            event = json.loads(line[6:])
            if "error" in event:
                ends += 1
                text += f"<{event['error']['message']}>"
                continue
            delta = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if delta:
                on_event()
                now = time.monotonic()
                if first is None:
                    first = now - began
                else:
                    gaps.append(now - last)
                last, text, events = now, text + delta, events + 1
                if leave_after is not None and events >= leave_after:
                    return "left", text, 0, first, gaps
    finally:
        connection.close()


def slope(points):
    """Least squares in MB per minute."""
    if len(points) < 3:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=32, help="distinct requests")
    parser.add_argument("--kv-cache", type=int, default=40, help="size of the KV cache in MB")
    parser.add_argument("--target", default="target/release")
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    chance = random.Random(7)
    words = " ".join(texts()[:200]).split()
    requests = []
    for _ in range(options.prompts):
        start, length = chance.randrange(len(words) - 400), chance.choice([5, 20, 60, 200])
        requests.append((" ".join(words[start : start + length]), chance.choice([4, 16, 48, 96])))
    with Worker(options.target, options.model, "--kv-cache", str(options.kv_cache)) as worker:
        alone = [stream(worker, body(*request, stream=True))[1] for request in requests]
        until = time.monotonic() + 60 * options.minutes
        ends, wrong, terminal, firsts, gaps = Counter(), [], Counter(), [], []
        lock = threading.Lock()

        def client(seed):
            chance = random.Random(seed)
            while time.monotonic() < until:
                at = chance.randrange(len(requests))
                leave = chance.randrange(1, 20) if chance.random() < 0.3 else None
                status, text, events, first, between = stream(worker, body(*requests[at], stream=True), leave)
                with lock:
                    ends[status] += 1
                    if first is not None:
                        firsts.append(first)
                        gaps.extend(between)
                    if status == 200:
                        terminal[events] += 1
                        if text != alone[at]:
                            wrong.append((requests[at], alone[at], text))
                    elif status == "left" and not alone[at].startswith(text):
                        wrong.append((requests[at], alone[at], text))

        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(options.streams)]
        began, points = time.monotonic(), []
        for one in clients:
            one.start()
        while any(one.is_alive() for one in clients):
            time.sleep(1)
            minute = (time.monotonic() - began) / 60
            if minute > options.minutes / 4:
                points.append((minute, worker.memory()))
        time.sleep(1)
        left = worker.metric("vllm:num_requests_running") + worker.metric("vllm:num_requests_waiting")
        used = worker.metric("vllm:kv_cache_usage_perc")
        preemptions, tokens = worker.metric("vllm:num_preemptions_total"), worker.metric("vllm:generation_tokens_total")
        table(
            ["streams", "tokens/s", "first token p50, s", "p95, s", "between tokens p50, ms", "p95, ms", "preemptions"],
            [
                (
                    sum(ends.values()),
                    tokens / (time.monotonic() - began),
                    percentile(firsts, 0.5),
                    percentile(firsts, 0.95),
                    1e3 * percentile(gaps, 0.5),
                    1e3 * percentile(gaps, 0.95),
                    int(preemptions),
                )
            ],
        )
        print("\n" + ", ".join(f"{end}: {count}" for end, count in sorted(ends.items(), key=str)))
        for request, expected, text in wrong[:3]:
            print(f"{request}\n  alone:  {expected!r}\n  loaded: {text!r}")
        unexpected = sum(count for end, count in ends.items() if end not in (200, 429, "left"))
        rise = slope(points)
        # In short runs the allocator has not settled.
        memory = ("< 1", rise < 1) if options.minutes >= 10 else ("", True)
        finish(
            [
                ("streams with another text than alone", len(wrong), "0", not wrong),
                ("unexpected outcomes", unexpected, "0", unexpected == 0),
                ("streams without exactly one terminal event", sum(terminal.values()) - terminal[1], "0", set(terminal) <= {1}),
                ("preemptions", int(preemptions), "> 0", preemptions > 0),
                ("running or waiting after the last client", left, "0", left == 0),
                ("KV cache in use after the last client", used, "0", used == 0),
                ("memory, MB per minute", rise, *memory),
                ("exit code", worker.stop(), "0", worker.process.returncode == 0),
            ]
        )


if __name__ == "__main__":
    main()
