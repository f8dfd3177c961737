"""A `sconce serve` process for load tests, and a minimal HTTP client."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT / "benches" / "texts.jsonl"
MINILM = ROOT / "target" / "parts" / "minilm"


def texts():
    return [json.loads(line)["text"] for line in open(TEXTS, encoding="utf-8")]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def table(head, rows):
    """Prints a Markdown table."""
    cell = lambda value: f"{value:.2f}" if isinstance(value, float) else str(value)
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(cell(value) for value in row) + " |", flush=True)


def verdict(holds):
    return "pass" if holds else "**fail**"


def finish(checks):
    """Prints the checks and exits with 1 if one failed."""
    print()
    table(["check", "value", "threshold", ""], [(what, figure, bar, verdict(holds)) for what, figure, bar, holds in checks])
    sys.exit(0 if all(holds for *_, holds in checks) else 1)


def program(folder, name="sconce"):
    path = ROOT / folder / name
    if not path.exists():
        flag = " --release" if Path(folder).name == "release" else ""
        sys.exit(f"`{path}` is missing\nhint: cargo build{flag} --workspace --bins --examples")
    return path


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Worker:
    """A server process on a free port, ready on return."""

    def __init__(self, target, model=MINILM, *options, environment={}):
        command = [program(target), "serve", model, "--offline", "--port", "0", *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        self.pid = self.process.pid
        line = self.process.stderr.readline()
        found = re.match(r"listening on http://(.*):(\d+)", line)
        if not found:
            sys.exit(f"the server did not start: {line}{self.process.stderr.read()}")
        self.address = (found[1], int(found[2]))
        self.url = f"http://{found[1]}:{found[2]}"
        while self.get("/readyz")[0] != 200:
            if self.process.poll() is not None:
                sys.exit(f"the server ended: {self.process.stderr.read()}")
            time.sleep(0.02)

    def connect(self, seconds=60):
        return http.client.HTTPConnection(*self.address, timeout=seconds)

    def get(self, path, headers={}):
        connection = self.connect()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    def metric(self, name, headers={}):
        """The sum of a metric over its labels."""
        lines = self.get("/metrics", headers)[1].decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def memory(self):
        """Resident memory in MB."""
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1]) * 1024 / 1e6

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        self.terminate()
        code = self.process.wait(timeout=60)
        self.process.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


class Clients:
    """Clients that call `request` in turn until the end of a `with` block."""

    def __init__(self, count, request):
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(request,), daemon=True) for _ in range(count)]

    def run(self, request):
        while not self.done.is_set():
            request()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join()


def post(connection, path, body, headers={}):
    """Status, headers and body of one request on a keep-alive connection."""
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request("POST", path, data, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()
