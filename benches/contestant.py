"""Processes of several runtimes that take turns in one run."""

import json
import os
import subprocess
import sys


class Contestant:
    """The process of one runtime, and the measurements of its rounds."""

    def __init__(self, name, command, environment, scratch):
        self.name, self.figures, self.complaints = name, {}, scratch / f"{name}.log"
        with open(self.complaints, "w") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True,
            )

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} gave up: {self.complaints.read_text()[-600:].strip()}")
        return json.loads(line)

    def take(self, turn):
        self.process.stdin.write(turn + "\n")
        self.process.stdin.flush()
        return self.answer()

    def resident(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def say(words):
    print(words, file=sys.stderr, flush=True)


def machine():
    """The processor and its instruction sets."""
    lines = open("/proc/cpuinfo").read().splitlines()
    fact = lambda key: next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")
    kinds = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8") if flag in fact("flags").split()]
    return f"{fact('model name')}, {', '.join(kinds)}"
