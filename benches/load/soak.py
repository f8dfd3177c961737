#!/usr/bin/env python3
"""Soak test: under mixed load, memory and file descriptors stay flat and no request fails.

    benches/load/soak.py [--minutes 30] [--target target/release]

The clients send single texts, lists, base64, tokens, truncated texts and invalid requests; some disconnect early.
"""

import argparse
import collections
import random
import threading
import time

from worker import Worker, finish, post, table, texts


class Habit(threading.Thread):
    def __init__(self, worker, seed, ends, until):
        super().__init__(daemon=True)
        self.worker, self.dice, self.ends, self.until = worker, random.Random(seed), ends, until
        self.texts = texts()

    def some(self, most):
        return self.dice.sample(self.texts, self.dice.randint(1, most))

    def question(self):
        """A path, a body and the expected statuses."""
        kind = self.dice.choices(range(8), [30, 10, 10, 10, 5, 5, 5, 5])[0]
        if kind == 0:
            return "/embed", {"inputs": self.dice.choice(self.texts)}, [200]
        if kind == 1:
            return "/embed", {"inputs": self.some(32)}, [200]
        if kind == 2:
            return "/v1/embeddings", {"input": self.some(8), "encoding_format": "base64", "truncate": True}, [200]
        if kind == 3:
            return "/similarity", {"inputs": {"source_sentence": self.texts[0], "sentences": self.some(4)}}, [200]
        if kind == 4:
            return "/embed", {"inputs": "word " * self.dice.randint(500, 20000)}, [200]
        if kind == 5:
            return "/tokenize", {"inputs": self.some(4)}, [200]
        if kind == 6:
            return "/embed", '{"inputs": [' + "[" * self.dice.randint(1, 20000), [400, 422]
        return "/embed", {"inputs": "a", "dimensions": self.dice.randint(1, 300)}, [422]

    def run(self):
        connection = self.worker.connect()
        while time.monotonic() < self.until:
            path, body, right = self.question()
            if self.dice.random() < 0.03:
                connection.close()
                connection = self.worker.connect()
            if self.dice.random() < 0.02:
                connection.request("POST", path, body if isinstance(body, str) else "{}")
                connection.close()
                connection = self.worker.connect()
                self.ends["left"] += 1
                continue
            try:
                status, headers, _ = post(connection, path, body)
            except OSError as error:
                self.ends[f"{type(error).__name__}"] += 1
                connection = self.worker.connect()
                continue
            overloaded = status == 429 and "retry-after" in headers
            self.ends[status if status in right or overloaded else f"{path}: {status}"] += 1
            time.sleep(self.dice.expovariate(50))


def slope(points):
    """MB per minute, by least squares."""
    middle = [sum(values) / len(points) for values in zip(*points)]
    above = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return above / max(1e-9, sum((x - middle[0]) ** 2 for x, _ in points))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    ends, points, held = collections.Counter(), [], []
    # With an arena per thread, the allocator's memory takes minutes to reach its plateau.
    arenas = {} if options.minutes >= 10 else {"MALLOC_ARENA_MAX": "2"}
    with Worker(options.target, environment=arenas) as worker:
        began = time.monotonic()
        until = began + 60 * options.minutes
        # Two thirds of the time, at most ten minutes, are warm-up: every thread fills its allocator arena.
        warm = began + min(40 * options.minutes, 600)
        clients = [Habit(worker, seed, ends, until) for seed in range(options.clients)]
        for client in clients:
            client.start()
        rows, told = [], 0
        while time.monotonic() < until:
            time.sleep(1)
            now = time.monotonic()
            if now >= warm:
                points.append(((now - began) / 60, worker.memory()))
                held.append(worker.descriptors())
            if now - began >= told * 60 * options.minutes / 10:
                told += 1
                rows.append((f"{(now - began) / 60:.1f}", worker.memory(), worker.descriptors(), sum(ends.values())))
        for client in clients:
            client.join()
        table(["minute", "memory, MB", "descriptors", "requests"], rows)
        print("\n" + ", ".join(f"{end}: {count}" for end, count in sorted(ends.items(), key=str)))
        wrong = sum(count for end, count in ends.items() if end not in (200, 400, 422, 429, "left"))
        rise = slope(points)
        memory = ("memory after warm-up, MB per minute", rise, "< 1", rise < 1)
        if options.minutes < 10:
            # The allocator still grows by a few MB: over some 400 requests, this only finds a leak of 60 kB per request.
            more = rise * (points[-1][0] - points[0][0])
            memory = ("memory after warm-up, MB more", more, "< 24", more < 24)
        finish(
            [
                ("requests", sum(ends.values()), "", True),
                ("unexpected outcomes", wrong, "0", wrong == 0),
                memory,
                ("file descriptors, most - least", max(held) - min(held), f"<= {2 * options.clients}", max(held) - min(held) <= 2 * options.clients),
                ("exit code", worker.stop(), "0", worker.process.returncode == 0),
            ]
        )


if __name__ == "__main__":
    main()
