#!/usr/bin/env python3
"""A bulk client of 10,000 texts in parallel with an interactive client: latency and throughput of both.

    benches/load/bulk.py [--texts 10000] [--target target/release]
"""

import argparse
import http.client
import json
import multiprocessing
import queue
import threading
import time

from worker import Worker, finish, percentile, post, table, texts

SHORT = "how do I place a model on the right device?"
LIST = 256
PAUSE = 0.05
# Maximum duration of a bulk batch during interactive traffic, in ms.
BATCH = 20.0


class Side:
    """A client in a process of its own, so that the clients do not share a GIL."""

    def __init__(self, worker, work, *arguments):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=work, args=(worker.address, theirs, *arguments))
        self.process.start()

    def result(self):
        result = self.pipe.recv()
        self.process.join()
        return result


def typing(address, pipe):
    """Sends short texts one by one until stopped. Returns the latencies in ms."""
    connection, body, times = http.client.HTTPConnection(*address), json.dumps({"inputs": SHORT}), []
    while not pipe.poll():
        began = time.perf_counter()
        assert post(connection, "/embed", body)[0] == 200
        times.append((time.perf_counter() - began) * 1e3)
        time.sleep(PAUSE)
    pipe.send(times)


def bulk(address, pipe, count):
    """Sends all texts in lists, two requests in flight. Returns texts per second."""
    source = texts()
    many = [source[n % len(source)] for n in range(count)]
    lists = queue.SimpleQueue()
    for start in range(0, count, LIST):
        lists.put(json.dumps({"input": many[start : start + LIST], "encoding_format": "base64", "truncate": True}))

    def send():
        connection = http.client.HTTPConnection(*address)
        while True:
            try:
                body = lists.get_nowait()
            except queue.Empty:
                return
            while True:
                status, headers, _ = post(connection, "/v1/embeddings", body, {"x-sconce-priority": "bulk"})
                if status == 200:
                    break
                assert status == 429, status
                time.sleep(float(headers["retry-after"]))

    began = time.perf_counter()
    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(count / (time.perf_counter() - began))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--alone", type=float, default=20, help="seconds of the interactive client alone")
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    with Worker(options.target) as worker:
        Side(worker, bulk, 1000).result()

        def typed(until):
            side = Side(worker, typing)
            until()
            side.pipe.send("stop")
            return side.result()

        unloaded = typed(lambda: time.sleep(options.alone))
        alone = Side(worker, bulk, options.texts).result()
        rates = []
        beside = typed(lambda: rates.append(Side(worker, bulk, options.texts).result()))
        figures = lambda times: [len(times), percentile(times, 0.5), percentile(times, 0.99), max(times)]
        table(
            ["", "requests", "p50, ms", "p99, ms", "slowest, ms", "bulk, texts/s"],
            [("interactive alone", *figures(unloaded), ""), ("bulk alone", "", "", "", "", alone), ("both", *figures(beside), rates[0])],
        )
        bar = percentile(unloaded, 0.99) + BATCH
        worst, kept = percentile(beside, 0.99), rates[0] / alone
        finish(
            [
                ("interactive p99 beside bulk, ms", worst, f"<= {bar:.1f}, alone + a bulk batch of {BATCH:.0f} ms", worst <= bar),
                ("bulk keeps of its rate", kept, ">= 0.8", kept >= 0.8),
            ]
        )


if __name__ == "__main__":
    main()
