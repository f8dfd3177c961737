#!/usr/bin/env python3
"""Repeated SIGTERM under load: every request sent before the signal gets a complete response.

    benches/load/sigterm.py [--cycles 100] [--clients 16] [--target target/release]
"""

import argparse
import json
import random
import socket
import threading
import time

from worker import MINILM, Worker, finish, texts


class Client(threading.Thread):
    """Sends requests on one connection until it is closed. Every request has one outcome."""

    def __init__(self, worker, bodies, seed):
        super().__init__()
        self.worker, self.bodies, self.dice = worker, bodies, random.Random(seed)
        self.ends = []

    def run(self):
        while True:
            try:
                client = socket.create_connection(self.worker.address)
            except OSError:
                return
            client.settimeout(30)
            reader = client.makefile("rb")
            while True:
                sent = None
                try:
                    client.sendall(self.dice.choice(self.bodies))
                    sent = time.monotonic()
                    status, close = answer(reader)
                except OSError as error:
                    self.ends.append((sent, str(error)))
                    return
                self.ends.append((sent, status))
                if close:
                    break
            reader.close()
            client.close()


def answer(reader):
    """The status of a complete response, and whether the connection closes."""
    status = reader.readline().split(b" ")
    if len(status) < 2:
        raise OSError("closed without an answer")
    length, close = 0, False
    while (line := reader.readline().strip().lower()) != b"":
        name, _, value = line.partition(b":")
        length = int(value) if name == b"content-length" else length
        close = close or (name == b"connection" and value.strip() == b"close")
    if len(reader.read(length)) != length:
        raise OSError("cut in its middle")
    return int(status[1]), close


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--target", default="target/release")
    options = parser.parse_args()
    dice = random.Random(11)

    def request(some):
        body = json.dumps({"inputs": some}).encode()
        return f"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    all_texts = texts()
    bodies = [request(dice.sample(all_texts, dice.choice([1, 1, 1, 8, 32]))) for _ in range(200)]
    before = answered = after = 0
    lost, codes, slowest = [], set(), 0.0
    for cycle in range(options.cycles):
        # None is refused for its time in the queue, however slow the processor is.
        worker = Worker(options.target, MINILM, "--queue-seconds", "30")
        clients = [Client(worker, bodies, 100 * cycle + n) for n in range(options.clients)]
        for client in clients:
            client.start()
        time.sleep(dice.uniform(0.2, 0.7))
        signalled = time.monotonic()
        codes.add(worker.stop())
        slowest = max(slowest, time.monotonic() - signalled)
        for client in clients:
            client.join()
            for sent, end in client.ends:
                if sent is not None and sent < signalled:
                    before += 1
                    answered += end == 200
                    if end != 200:
                        lost.append(end)
                else:
                    after += 1
    print(f"{options.cycles} cycles, {options.clients} clients, {after} requests sent after the signal")
    finish(
        [
            ("requests fully sent before the signal", before, "", before > options.cycles),
            ("of them answered", answered, "all", answered == before),
            ("the others", ", ".join(sorted({str(end) for end in lost})) or "none", "none", not lost),
            ("exit codes", ", ".join(map(str, sorted(codes))), "0", codes == {0}),
            ("slowest end, s", slowest, "< 30", slowest < 30),
        ]
    )


if __name__ == "__main__":
    main()
