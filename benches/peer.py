"""Runs another runtime on command, with the protocol of crates/runtime/examples/turns.rs.

    peer.py ort-f32|openvino-f32|openvino-bf16 MODEL_FOLDER MODEL.onnx THREADS TEXTS.jsonl

Commands: `sorted N`, `arrival N`, `short N`, `save FILE`. The runtime gets its preferred setup: padded batches, its own
threads, and mean pooling by one product in numpy.
"""

import json
import sys
import time
from pathlib import Path

import numpy
from tokenizers import Tokenizer

SHORT = "how do I place a model on the right device?"


def session(name, onnx, threads):
    """A function from inputs to hidden states, and the version of the runtime."""
    runtime, precision = name.split("-")
    if runtime == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        opened = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        return lambda inputs: opened.run(None, inputs)[0], onnxruntime.__version__
    import openvino

    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(onnx, "CPU", properties).create_infer_request()
    infer = lambda inputs: numpy.asarray(request.infer(inputs)[0], numpy.float32)
    return infer, openvino.__version__.split("-")[0]


class Peer:
    def __init__(self, name, folder, onnx, threads, texts):
        self.infer, self.version = session(name, onnx, threads)
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)
        self.texts = [json.loads(line)["text"] for line in open(texts, encoding="utf-8")]
        self.vectors = None
        self.all(self.texts[:64], 32, sort=True)

    def vectors_of(self, rows):
        width = max(len(row) for row in rows)
        ids = numpy.zeros((len(rows), width), numpy.int64)
        mask = numpy.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
            mask[place, : len(row)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
        hidden = self.infer(inputs)
        weights = mask.astype(numpy.float32)
        means = numpy.matmul(weights[:, None, :], hidden)[:, 0] / weights.sum(1, keepdims=True)
        return means / numpy.linalg.norm(means, axis=1, keepdims=True)

    def all(self, texts, many, sort):
        """Tokenizes and embeds every text once, in batches of `many`."""
        rows = [encoded.ids for encoded in self.tokenizer.encode_batch(texts)]
        order = list(range(len(rows)))
        if sort:
            order.sort(key=lambda at: len(rows[at]))
        chunks = [order[start : start + many] for start in range(0, len(order), many)]
        vectors = numpy.concatenate([self.vectors_of([rows[at] for at in chunk]) for chunk in chunks])
        in_place = numpy.empty_like(vectors)
        in_place[order] = vectors
        return in_place, sum(map(len, rows))

    def take(self, what, argument):
        if what in ("sorted", "arrival"):
            started = time.perf_counter()
            self.vectors, tokens = self.all(self.texts, int(argument), what == "sorted")
            return {"seconds": time.perf_counter() - started, "tokens": tokens}
        if what == "short":
            times = []
            for _ in range(int(argument)):
                started = time.perf_counter()
                self.vectors_of([self.tokenizer.encode(SHORT).ids])
                times.append(time.perf_counter() - started)
            return {"seconds": float(numpy.median(times))}
        if what == "save":
            self.vectors.astype("<f4").tofile(argument)
            return {"texts": len(self.vectors)}
        raise SystemExit(f"no turn is called `{what}`")


def main():
    name, folder, onnx, threads, texts = sys.argv[1:]
    peer = Peer(name, folder, onnx, int(threads), texts)
    print(json.dumps({"version": peer.version}), flush=True)
    for line in sys.stdin:
        what, _, argument = line.strip().partition(" ")
        print(json.dumps(peer.take(what, argument)), flush=True)


if __name__ == "__main__":
    main()
