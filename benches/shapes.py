"""Creates benchmark models: a BERT as an ONNX graph, and BERT-base with random weights.

    shapes.py onnx MODEL_FOLDER OUT.onnx
    shapes.py base TOKENIZER_FOLDER OUT_FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class Graph:
    """Collects the nodes and constants of a graph."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value, kind=numpy.float32):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.ascontiguousarray(value, kind), name))
        return name

    def __getattr__(self, operator):
        def node(*inputs, **attributes):
            name = f"n{len(self.nodes)}"
            self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
            return name

        return node


def bert(folder, out):
    """A BERT encoder in basic operators, which every runtime can fuse."""
    config = json.loads((folder / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    tensors = {name.removeprefix("bert."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    g = Graph()
    shape = lambda *sizes: g.constant(sizes, numpy.int64)
    one, half, root = g.constant(1.0), g.constant(0.5), g.constant(2.0**0.5)
    apart, joined = shape(0, 0, heads, hidden // heads), shape(0, 0, hidden)

    def dense(x, name):
        product = g.MatMul(x, g.constant(tensors[f"{name}.weight"].T))
        return g.Add(product, g.constant(tensors[f"{name}.bias"]))

    def norm(x, name):
        weight, bias = (g.constant(tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
        return g.LayerNormalization(x, weight, bias, axis=-1, epsilon=config["layer_norm_eps"])

    def rows(table, ids):
        return g.Gather(g.constant(tensors[f"embeddings.{table}_embeddings.weight"]), ids)

    length = g.Slice(g.Shape("input_ids"), shape(1), shape(2))
    places = g.Slice(g.constant(tensors["embeddings.position_embeddings.weight"]), shape(0), length)
    x = g.Add(g.Add(rows("word", "input_ids"), places), rows("token_type", "token_type_ids"))
    x = norm(x, "embeddings.LayerNorm")
    absent = g.Sub(one, g.Cast(g.Unsqueeze("attention_mask", shape(1, 2)), to=TensorProto.FLOAT))
    bias = g.Mul(absent, g.constant(-1e9))
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            g.Transpose(g.Reshape(dense(x, f"{layer}.attention.self.{part}"), apart), perm=order)
            for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = g.Mul(g.MatMul(query, key), g.constant((hidden // heads) ** -0.5))
        mixed = g.MatMul(g.Softmax(g.Add(scores, bias), axis=-1), value)
        mixed = g.Reshape(g.Transpose(mixed, perm=[0, 2, 1, 3]), joined)
        mixed = dense(mixed, f"{layer}.attention.output.dense")
        x = norm(g.Add(mixed, x), f"{layer}.attention.output.LayerNorm")
        wide = dense(x, f"{layer}.intermediate.dense")
        wide = g.Mul(g.Mul(wide, g.Add(g.Erf(g.Div(wide, root)), one)), half)
        x = norm(g.Add(dense(wide, f"{layer}.output.dense"), x), f"{layer}.output.LayerNorm")
    g.nodes.append(helper.make_node("Identity", [x], ["hidden"]))
    sizes = ["texts", "tokens"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name in INPUTS]
    outputs = [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*sizes, hidden])]
    graph = helper.make_graph(g.nodes, "bert", inputs, outputs, g.constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), out)


def base(like, out):
    """BERT-base with random weights, and the tokenizer of the model `like`."""
    config = json.loads((like / "config.json").read_text())
    config |= {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    shutil.copytree(like, out, ignore=shutil.ignore_patterns("*.safetensors", "config.json", "README.md"))
    (out / "config.json").write_text(json.dumps(config))
    pooling = json.loads((like / "1_Pooling" / "config.json").read_text())
    (out / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"word_embedding_dimension": 768}))

    random, tensors = numpy.random.default_rng(7), {}

    def dense(name, outputs, inputs):
        tensors[f"{name}.weight"] = random.standard_normal((outputs, inputs), numpy.float32) * numpy.float32(0.02)
        tensors[f"{name}.bias"] = random.standard_normal(outputs, numpy.float32) * numpy.float32(0.02)

    def norm(name):
        tensors[f"{name}.weight"] = numpy.ones(768, numpy.float32)
        tensors[f"{name}.bias"] = numpy.zeros(768, numpy.float32)

    tables = {
        "word": config["vocab_size"],
        "position": config["max_position_embeddings"],
        "token_type": config["type_vocab_size"],
    }
    for table, rows in tables.items():
        dense(f"embeddings.{table}_embeddings", rows, 768)
        del tensors[f"embeddings.{table}_embeddings.bias"]
    norm("embeddings.LayerNorm")
    for number in range(12):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", 768, 768)
        dense(f"{layer}.attention.output.dense", 768, 768)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", 3072, 768)
        dense(f"{layer}.output.dense", 768, 3072)
        norm(f"{layer}.output.LayerNorm")
    save_file(tensors, out / "model.safetensors")


if __name__ == "__main__":
    what, source, target = sys.argv[1:]
    {"onnx": bert, "base": base}[what](Path(source), Path(target))
