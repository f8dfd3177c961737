#!/usr/bin/env python3
"""Clients that disconnect at random: the queue empties, nothing leaks, and cancelled texts are not computed.

    benches/load/vanish.py [--clients 1000] [--texts 64] [--target target/release]
"""

import argparse
import json
import random
import socket
import threading
import time

from worker import Worker, finish, post, texts


def vanish(worker, request, begins, leaves):
    time.sleep(begins)
    with socket.create_connection(worker.address) as client:
        client.sendall(request)
        time.sleep(leaves)


def at_work(worker):
    """Tokens of all batches in flight, by the rate the server measured."""
    return worker.metric("sconce_concurrency") * json.loads(worker.get("/info")[1])["max_batch_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=64, help="texts of each request")
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    body = json.dumps({"inputs": texts()[: options.texts]}).encode()
    head = f"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    dice = random.Random(7)
    with Worker(options.target, "target/parts/minilm", "--queue-seconds", "30") as worker:
        _, headers, _ = post(worker.connect(), "/embed", body)
        each = int(headers["x-sconce-tokens"])
        span = max(2.0, options.clients / 100)
        # The first wave warms up allocations.
        for wave in range(2):
            before = {name: worker.metric(name) for name in ("sconce_tokens_computed_total", "sconce_cancelled_total")}
            memory, descriptors = worker.memory(), worker.descriptors()
            rates = [at_work(worker)]
            threads = [
                threading.Thread(
                    target=vanish, args=(worker, head.encode() + body, dice.uniform(0, span), dice.uniform(0, 0.3))
                )
                for _ in range(options.clients if wave else options.clients // 5)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            left = time.monotonic()
            while worker.metric("te_queue_size") > 0 and time.monotonic() - left < 30:
                time.sleep(0.005)
            emptied = time.monotonic() - left
            rates.append(at_work(worker))
            at_once = worker.metric("sconce_tokens_computed_total")
            time.sleep(2)
            after = worker.metric("sconce_tokens_computed_total")
        computed = after - before["sconce_tokens_computed_total"]
        cancelled = worker.metric("sconce_cancelled_total") - before["sconce_cancelled_total"]
        largest = max(each, *rates)
        grown, held = worker.memory() - memory, worker.descriptors() - descriptors
        status = post(worker.connect(), "/embed", {"inputs": "still here"})[0]
        asked = each * options.clients
        print(f"{options.clients} clients over {span:.0f} s, {each} tokens each, {cancelled:.0f} cancelled")
        finish(
            [
                ("tokens cancelled", asked, "", True),
                ("tokens computed", int(computed), "< 0.9 of them", computed < 0.9 * asked),
                ("seconds until the queue is empty", emptied, "< 1", emptied < 1),
                ("tokens computed after that", int(after - at_once), f"a batch: <= {largest:.0f}", after - at_once <= largest),
                ("memory, MB more", grown, "< 16", grown < 16),
                ("file descriptors more", held, "<= 2", held <= 2),
                ("the next request", status, "200", status == 200),
            ]
        )


if __name__ == "__main__":
    main()
