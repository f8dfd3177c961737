#!/usr/bin/env python3
"""A pool of real processes under load while its parts die: nats-server, two gateways, three workers with MiniLM.

    benches/load/pool.py [--only kill,stop,gateway,nats,partition,overhead] [--minutes 10] [--target target/release]

`kill` ends a random worker by SIGKILL every 10 s and starts it again, with at least one alive; `stop` stops one by SIGSTOP
for 4 s, and requests have a deadline; `gateway` kills one of two gateways, whose clients go on with the other; `nats` has
no nats-server for the whole time; `partition` cuts a worker in a network namespace of its own off for 10 s, in which another
process takes its id (root only); `overhead` asks the workers and a gateway in turns for answers of 16 kB. Each scenario
takes the time of `--minutes`; `gateway` takes a tenth, `partition` one minute and `overhead` two. A client counts every request:
sent = answered + refused + failed. Needs `scripts/parts minilm nats`.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from worker import MINILM, ROOT, Clients, finish, percentile, program, table, texts

TEXTS = [text for text in texts() if len(text) < 200]
CLIENTS, WORKERS, PERIOD = 4, 3, 10
DEADLINE = 2.0
LATE = 0.2
PAIRS = 9


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A process that says on standard error where it listens."""

    def __init__(self, command, log, environment={}):
        self.log = log
        command, environment = [str(part) for part in command], os.environ | environment
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=environment)

    def address(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(r"listening on http://([\d.]+):(\d+)", self.log.read_text())
            if found:
                return found[1], int(found[2])
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"it did not start: {self.log.read_text()[-600:]}")

    def signal(self, which):
        self.process.send_signal(which)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Pool:
    """nats-server, two gateways and workers. With `keys`, lines of a key file, both ask for keys."""

    def __init__(self, target, scratch, workers=WORKERS, model=MINILM, keys=(), host="127.0.0.1", options=()):
        scratch.mkdir(exist_ok=True)
        self.target, self.scratch, self.model, self.host, self.nats_port = target, scratch, model, host, free_port()
        self.nats, self.number = self.start_nats(), 0
        self.registry, self.key, self.options = ["--registry", f"nats://{host}:{self.nats_port}"], None, list(options)
        more = []
        if keys:
            self.key = keys[0].split()[0]
            more = ["--api-key-file", self.file("gateway-keys", keys)]
            self.options += ["--api-key-file", self.file("worker-keys", ["between pool"])]
        self.workers = [self.start_worker(name) for name in range(workers)]
        command = [program(target), "pool", "gateway", "--port", "0", *self.registry, *more]
        environment = {"SCONCE_POOL_KEY": "between"} if keys else {}
        self.start_gateway = lambda: Process(command, self.new_log(), environment)
        self.gateways = [self.start_gateway(), self.start_gateway()]
        self.addresses = [gateway.address() for gateway in self.gateways]
        self.await_ready(workers)

    def file(self, name, lines):
        path = self.scratch / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def new_log(self):
        self.number += 1
        return self.scratch / f"{self.number}.log"

    def start_nats(self):
        server = ROOT / "target" / "parts" / "nats" / "nats-server"
        command = [server, "--addr", self.host, "--port", self.nats_port, "--jetstream", "--store_dir", self.scratch / "nats"]
        process = Process(command, self.scratch / "nats.log")
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex((self.host, self.nats_port)) == 0:
                    return process
            time.sleep(0.05)
        sys.exit("nats-server did not start")

    def start_worker(self, name, *more, through=()):
        flags = ["--offline", "--port", "0", "--worker-id", f"w{name}", "--threads", "1", *self.registry, *self.options, *more]
        return Process([*through, program(self.target), "serve", self.model, *flags], self.new_log())

    def report(self, index=0):
        connection = http.client.HTTPConnection(*self.addresses[index], timeout=10)
        connection.request("GET", "/v1/report", headers={"authorization": f"Bearer {self.key}"} if self.key else {})
        return json.loads(connection.getresponse().read())

    def members(self, index=0):
        return self.report(index)["members"]

    def is_whole(self):
        """Whether both gateways are connected and hear of every worker."""
        reports = [self.report(index) for index in (0, 1)]
        young = [sum(member["heartbeat_age_ms"] < 2000 for member in report["members"]) for report in reports]
        return all(report["registry"]["connected"] for report in reports) and min(young) >= len(self.workers)

    def await_ready(self, count, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready = [sum(member["state"] == "ready" for member in self.members(index)) for index in (0, 1)]
            if min(ready) >= count:
                return
            time.sleep(0.1)
        sys.exit(f"not ready: {[(member['worker'], member['state']) for member in self.members()]}; logs: {self.scratch}")

    def end(self):
        for process in [*self.workers, *self.gateways, self.nats]:
            if process.process.poll() is None:
                process.signal(signal.SIGCONT)
                process.kill()


class Load(Clients):
    """Clients that embed in turn until the end of a `with` block, and count what they get."""

    def __init__(self, pool, deadline=None, both=False, addresses=None, clients=CLIENTS):
        super().__init__(clients, self.embed)
        # Addresses of workers are asked in turn, as a gateway does.
        self.rotates = addresses is not None
        self.addresses, self.deadline, self.both = addresses or pool.addresses, deadline, both
        self.counts, self.times, self.by_worker, self.own = Counter(), [], [], threading.local()
        self.refusals, self.start = Counter(), time.monotonic()
        self.numbers = iter(range(clients))

    def embed(self):
        own = self.own
        if not hasattr(own, "number"):
            own.number, own.connections = next(self.numbers), {}
            own.draw = random.Random(own.number)
        body = json.dumps({"model": "minilm", "input": own.draw.sample(TEXTS, 4)})
        headers = {"content-type": "application/json"}
        if self.deadline:
            headers["x-sconce-deadline-ms"] = str(int(1000 * self.deadline))
        # A client with two addresses asks the other one if the connection fails.
        own.number += self.rotates
        first = own.number % len(self.addresses)
        self.counts["sent"] += 1
        start = time.monotonic()
        outcome = self.ask(own.connections, [first, 1 - first] if self.both else [first], body, headers)
        took = time.monotonic() - start
        self.counts[outcome] += 1
        self.times.append(took)
        if self.deadline and took > self.deadline + LATE:
            print(f"{took:.2f} s after {start - self.start:.1f} s: {outcome}", file=sys.stderr)

    def ask(self, connections, order, body, headers):
        for index in order:
            for _ in range(2):
                is_new = index not in connections
                connection = connections.setdefault(index, http.client.HTTPConnection(*self.addresses[index], timeout=60))
                try:
                    connection.request("POST", "/v1/embeddings", body, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                except (OSError, http.client.HTTPException):
                    connections.pop(index).close()
                    if is_new:
                        break
                    continue
                if answer.status == 200:
                    self.by_worker.append((time.monotonic(), answer.headers.get("x-sconce-worker")))
                    return "ok" if len(json.loads(content)["data"]) == 4 else "failed"
                if answer.status in (429, 503):
                    self.refusals[answer.headers.get("x-sconce-code")] += 1
                    return "refused"
                return f"failed {answer.status} {content[:200]!r}"
        return "failed connection"

    def failures(self):
        return self.counts["sent"] - self.counts["ok"] - self.counts["refused"]


def kill(pool, minutes):
    """A random worker dies every 10 s."""
    draw, kills, late = random.Random(1), [], []
    with Load(pool) as load:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            victim = draw.randrange(WORKERS)
            pool.workers[victim].kill()
            kills.append((time.monotonic(), f"w{victim}"))
            time.sleep(3)
            listed = [member["worker"] for member in pool.members() if member["state"] == "ready" and member["circuit"] == "closed"]
            late.append(f"w{victim}" in listed)
            pool.workers[victim] = pool.start_worker(victim)
            time.sleep(PERIOD - 3)
    answered_by_dead = [
        worker for moment, dead in kills for at, worker in load.by_worker if worker == dead and moment + 0.5 < at < moment + 2.9]
    return load, [
        ("kill -9 of a worker: number", len(kills), ">= 1", bool(kills)),
        ("failures that a client sees", load.failures(), "0", load.failures() == 0),
        ("refused", load.counts["refused"], "0", load.counts["refused"] == 0),
        ("dead workers still in rotation after 3 s", sum(late), "0", not any(late)),
        ("answers of dead workers", len(answered_by_dead), "0", not answered_by_dead),
    ]


def stop(pool, minutes):
    """A worker hangs for 4 s."""
    draw = random.Random(2)
    with Load(pool, DEADLINE) as load:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            victim = pool.workers[draw.randrange(WORKERS)]
            victim.signal(signal.SIGSTOP)
            time.sleep(4)
            victim.signal(signal.SIGCONT)
            time.sleep(PERIOD - 4)
    most = max(load.times)
    return load, [
        ("SIGSTOP of a worker: failures that a client sees", load.failures(), "0", load.failures() == 0),
        ("the slowest request with a deadline of 2 s", most, "<= 2.2 s", most <= DEADLINE + LATE),
    ]


def gateway(pool, minutes):
    """One of two gateways dies; its clients have both addresses."""
    with Load(pool, both=True) as load:
        time.sleep(3 * minutes)
        pool.gateways[1].kill()
        time.sleep(3 * minutes)
    pool.gateways[1] = pool.start_gateway()
    pool.addresses[1] = pool.gateways[1].address()
    pool.await_ready(WORKERS)
    return load, [("kill -9 of a gateway: failures that a client sees", load.failures(), "0", load.failures() == 0)]


def nats(pool, minutes):
    """nats-server is away."""
    boots = {worker.process.pid for worker in pool.workers}
    with Load(pool) as load:
        time.sleep(2)
        pool.nats.kill()
        time.sleep(60 * minutes)
        pool.nats = pool.start_nats()
        start = time.monotonic()
        while not pool.is_whole() and time.monotonic() < start + 60:
            time.sleep(0.1)
        whole = time.monotonic() - start
    alive = {worker.process.pid for worker in pool.workers if worker.process.poll() is None}
    return load, [
        ("nats-server away: failures that a client sees", load.failures(), "0", load.failures() == 0),
        ("workers that were restarted", len(boots - alive), "0", boots == alive),
        ("whole after its return", whole, "<= 5 s", whole <= 5),
    ]


class Namespace:
    """A network namespace that one link connects to this one."""

    HERE, THERE = "10.93.0.1", "10.93.0.2"

    def __init__(self):
        self.name, self.link = f"sconce-{os.getpid()}", f"sc{os.getpid()}"
        self.ip("netns", "add", self.name)
        self.ip("link", "add", self.link, "type", "veth", "peer", "name", "there", "netns", self.name)
        self.ip("addr", "add", f"{self.HERE}/24", "dev", self.link)
        self.ip("-netns", self.name, "addr", "add", f"{self.THERE}/24", "dev", "there")
        self.ip("-netns", self.name, "link", "set", "there", "up")
        self.connect(True)
        self.exec = ["ip", "netns", "exec", self.name]

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True)

    def connect(self, up):
        self.ip("link", "set", self.link, "up" if up else "down")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ip("netns", "del", self.name)


def partition(pool, _minutes):
    """A worker is cut off for 10 s, while another process takes its id."""
    with Namespace() as namespace:
        inner = Pool(pool.target, pool.scratch / "partition", workers=2, host=namespace.HERE)
        try:
            # Only this machine reaches the namespace.
            where = ["--insecure-no-key", "--host", namespace.THERE, "--advertise-url", f"http://{namespace.THERE}:0"]
            stale = inner.start_worker("x", *where, through=namespace.exec)
            inner.await_ready(3)
            with Load(inner) as load:
                time.sleep(5)
                cut = time.monotonic()
                namespace.connect(False)
                newer = inner.start_worker("x")
                # Until the heartbeat of the first has expired, the id is taken.
                newer.address()
                time.sleep(max(0.0, cut + 10 - time.monotonic()))
                namespace.connect(True)
                seen, doubled, end = Counter(), 0, time.monotonic() + 30
                while time.monotonic() < end:
                    for index in (0, 1):
                        urls = [member["url"] for member in inner.members(index) if member["worker"] == "wx"]
                        doubled += len(urls) > 1
                        seen[tuple(urls)] += 1
                    time.sleep(0.05)
            print(f"wx was seen at {dict(seen)}; the first process said: {stale.log.read_text()[-400:]}", file=sys.stderr)
            host, port = newer.address()
            others = sum(count for urls, count in seen.items() if urls != (f"http://{host}:{port}",))
            inner.workers += [stale, newer]
        finally:
            inner.end()
    return load, [
        ("partition: failures that a client sees", load.failures(), "0", load.failures() == 0),
        ("an id that is registered twice", doubled, "0", doubled == 0),
        ("the id is not that of the newer process", others, "0", others == 0),
    ]


def overhead(pool, _minutes):
    """Workers are asked directly and through a gateway, in turns."""
    ways, total = [[worker.address() for worker in pool.workers], pool.addresses[:1]], Load(pool)
    added, shares = [], []
    for _ in range(PAIRS):
        medians, rates = [], []
        for clients, seconds, found in [(1, 2, medians), (2 * WORKERS, 4, rates)]:
            for addresses in ways:
                with Load(pool, addresses=addresses, clients=clients) as load:
                    time.sleep(seconds)
                found.append(1e3 * percentile(load.times, 0.5) if clients == 1 else load.counts["ok"] / (time.monotonic() - load.start))
                total.counts.update(load.counts)
                total.times += load.times
        added.append(medians[1] - medians[0])
        shares.append(rates[1] / rates[0])
    spread = lambda values: f"{percentile(values, 0.5):.2f} ({min(values):.2f} to {max(values):.2f})"
    return total, [
        ("added p50 of an answer of 16 kB, ms", spread(added), "< 0.5", percentile(added, 0.5) < 0.5),
        ("share of the direct throughput", spread(shares), ">= 0.9", percentile(shares, 0.5) >= 0.9),
    ]


SCENARIOS = {"kill": kill, "stop": stop, "gateway": gateway, "nats": nats, "partition": partition, "overhead": overhead}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCENARIOS))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--target", type=Path, default=Path("target/release"))
    options = parser.parse_args()
    rows, checks = [], []
    with tempfile.TemporaryDirectory() as scratch:
        pool = Pool(options.target, Path(scratch))
        try:
            for name in options.only.split(","):
                load, found = SCENARIOS[name](pool, options.minutes)
                counts = load.counts
                rows.append((name, counts["sent"], counts["ok"], counts["refused"], load.failures(), 1e3 * percentile(load.times, 0.5),
                             1e3 * percentile(load.times, 0.99)))
                others = {what: count for what, count in counts.items() if what.startswith("failed")}
                if others or load.refusals:
                    print(name, others, dict(load.refusals), file=sys.stderr)
                checks += found
                pool.await_ready(WORKERS)
        finally:
            pool.end()
    table(["scenario", "sent", "ok", "refused", "failed", "p50, ms", "p99, ms"], rows)
    finish(checks)


if __name__ == "__main__":
    main()
