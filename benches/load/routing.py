#!/usr/bin/env python3
"""How a pool of real processes spreads chats and tenants: nats-server, two gateways and workers.

    benches/load/routing.py [--only affinity,tenants] [--target target/release]

`affinity`: conversations with SmolLM2, first at one worker, then over a pool of two. The pool must find most of the prompt
tokens in a prefix cache that one worker finds, and both workers must get their share. `tenants`: a key floods one gateway
while another key sends a little to the other. Needs `scripts/parts minilm smollm2 nats`.
"""

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from chat import MODEL
from pool import TEXTS, Pool
from worker import finish, post, table

CONVERSATIONS, TURNS, USERS, TOKENS = 32, 5, 8, 16
FLOOD, SECONDS, PACE = 32, 20, 5


class Chats:
    """Conversations of several users through gateways or workers; each has a system prompt of its own."""

    def __init__(self, addresses):
        self.addresses, self.numbers, self.lock = addresses, iter(range(CONVERSATIONS)), threading.Lock()
        self.prompt, self.cached, self.by_worker = 0, 0, Counter()
        users = [threading.Thread(target=self.user, args=[index]) for index in range(USERS)]
        for user in users:
            user.start()
        for user in users:
            user.join()

    def user(self, index):
        connection = http.client.HTTPConnection(*self.addresses[index % len(self.addresses)], timeout=120)
        while True:
            with self.lock:
                number = next(self.numbers, None)
            if number is None:
                return
            draw = random.Random(number)
            messages = [{"role": "system", "content": " ".join(draw.sample(TEXTS, 8))}]
            for _ in range(TURNS):
                messages.append({"role": "user", "content": draw.choice(TEXTS)})
                body = {"model": "smollm2", "messages": messages, "max_tokens": TOKENS, "temperature": 0}
                status, headers, content = post(connection, "/v1/chat/completions", body)
                assert status == 200, content[:300]
                answer = json.loads(content)
                messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
                usage = answer["usage"]
                with self.lock:
                    self.prompt += usage["prompt_tokens"]
                    self.cached += usage["prompt_tokens_details"]["cached_tokens"]
                    self.by_worker[headers.get("x-sconce-worker")] += 1


def affinity(target, scratch):
    """Conversations stay with their worker."""
    found = []
    for workers in (1, 2):
        pool = Pool(target, scratch / f"affinity-{workers}", workers, MODEL, options=["--name", "smollm2"])
        try:
            found.append(Chats(pool.addresses))
        finally:
            pool.end()
    alone, spread = found
    rows = [(len(chats.by_worker), chats.prompt, chats.cached, dict(chats.by_worker)) for chats in found]
    table(["workers", "prompt tokens", "cached", "requests by worker"], rows)
    share = (spread.cached / spread.prompt) / (alone.cached / alone.prompt)
    mean = sum(spread.by_worker.values()) / 2
    off = max(abs(count - mean) / mean for count in spread.by_worker.values())
    return [
        ("prefix hits of two workers, as a share of those of one", share, ">= 0.8", share >= 0.8),
        ("largest difference of a worker's requests from the mean", off, "<= 0.25", len(spread.by_worker) == 2 and off <= 0.25),
    ]


class Tenant:
    """Requests of a key for a while, at most `pace` per second of each client."""

    def __init__(self, address, key, clients, pace=None):
        self.address, self.key, self.pace, self.counts = address, key, pace, Counter()
        self.threads = [threading.Thread(target=self.client, args=[index]) for index in range(clients)]
        self.end = time.monotonic() + SECONDS
        for thread in self.threads:
            thread.start()

    def client(self, index):
        draw, connection = random.Random(index), http.client.HTTPConnection(*self.address, timeout=60)
        while (start := time.monotonic()) < self.end:
            body = {"model": "minilm", "input": draw.sample(TEXTS, 4)}
            status, *_ = post(connection, "/v1/embeddings", body, {"authorization": f"Bearer {self.key}"})
            self.counts[status] += 1
            if self.pace:
                time.sleep(max(0.0, start + 1 / self.pace - time.monotonic()))
            elif status != 200:
                time.sleep(0.01)

    def wait(self):
        for thread in self.threads:
            thread.join()
        return self.counts


def tenants(target, scratch):
    """A key floods the pool beside another."""
    pool = Pool(target, scratch / "tenants", keys=["watch operator", "loud", "quiet"])
    try:
        alone = Tenant(pool.addresses[1], "quiet", 2, PACE).wait()
        loud = Tenant(pool.addresses[0], "loud", FLOOD)
        beside = Tenant(pool.addresses[1], "quiet", 2, PACE).wait()
        flood = loud.wait()
    finally:
        pool.end()
    table(["tenant", "answers by status"], [("alone", dict(alone)), ("beside the flood", dict(beside)), ("the flood", dict(flood))])
    share = beside[200] / alone[200]
    others = set(flood) | set(beside)
    return [
        ("goodput beside a flood, as a share of that alone", share, ">= 0.8", share >= 0.8),
        ("statuses", " ".join(map(str, sorted(others))), "200 429 503", others <= {200, 429, 503}),
    ]


SCENARIOS = {"affinity": affinity, "tenants": tenants}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCENARIOS))
    parser.add_argument("--target", type=Path, default=Path("target/release"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        checks = [check for name in options.only.split(",") for check in SCENARIOS[name](options.target, Path(scratch))]
    finish(checks)


if __name__ == "__main__":
    main()
