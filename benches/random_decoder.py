"""Writes a language model with random weights and the shape of a real one as a GGUF file in bf16.

    pip install gguf==0.19.0 numpy==2.4.6
    python benches/random_decoder.py SHAPE OUT.gguf

Speed depends on shapes alone, not on what a model has learnt. The vocabulary is that of bytes, filled up with names.
"""

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType

SHAPES = {
    "qwen3-0.6b": {
        "architecture": "qwen3", "hidden": 1024, "intermediate": 3072, "layers": 28, "heads": 16, "kv_heads": 8,
        "head_dim": 128, "vocabulary": 151936, "context": 40960, "theta": 1e6, "epsilon": 1e-6,
    },
    "qwen3-tiny": {
        "architecture": "qwen3", "hidden": 256, "intermediate": 512, "layers": 2, "heads": 4, "kv_heads": 2,
        "head_dim": 128, "vocabulary": 2048, "context": 4096, "theta": 1e6, "epsilon": 1e-6,
    },
}


def byte_tokens() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    codes = {byte: byte for byte in shown} | {byte: 256 + at for at, byte in enumerate(hidden)}
    return [chr(codes[byte]) for byte in range(256)]


def write_vocabulary(writer: gguf.GGUFWriter, count: int) -> None:
    letters = byte_tokens()
    merges = [(first, second) for first in "abcdefgh" for second in "abcdefgh"]
    tokens = letters + [first + second for first, second in merges]
    types = [TokenType.NORMAL] * len(tokens)
    unused = count - len(tokens) - 1
    tokens += [f"<unused{number}>" for number in range(unused)] + ["<end>"]
    types += [TokenType.UNUSED] * unused + [TokenType.CONTROL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{first} {second}" for first, second in merges])
    writer.add_eos_token_id(count - 1)
    writer.add_add_bos_token(False)


def tensors(shape: dict):
    """Names and shapes of all weights. Matrices are random, norms are one."""
    hidden, inner = shape["hidden"], shape["intermediate"]
    queries, keys = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    yield "token_embd.weight", (shape["vocabulary"], hidden)
    for layer in range(shape["layers"]):
        of_layer = {
            "attn_norm": (hidden,), "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
            "attn_q_norm": (shape["head_dim"],), "attn_k_norm": (shape["head_dim"],), "attn_output": (hidden, queries),
            "ffn_norm": (hidden,), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
        }
        for name, size in of_layer.items():
            yield f"blk.{layer}.{name}.weight", size
    yield "output_norm.weight", (hidden,)


def main() -> None:
    shape, random = SHAPES[sys.argv[1]], np.random.default_rng(0)
    writer = gguf.GGUFWriter(sys.argv[2], shape["architecture"])
    writer.add_name(sys.argv[1])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(shape["layers"])
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["intermediate"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_layer_norm_rms_eps(shape["epsilon"])
    writer.add_rope_freq_base(shape["theta"])
    writer.add_vocab_size(shape["vocabulary"])
    write_vocabulary(writer, shape["vocabulary"])
    for name, size in tensors(shape):
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
            continue
        values = random.standard_normal(size, dtype=np.float32) * np.float32(0.02)
        kind = GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
