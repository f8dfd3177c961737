"""Random blocks of every GGUF format with the values that `gguf` reads in them, in crates/testkit/goldens/gguf-blocks.

    pip install -r scripts/goldens/gguf_requirements.txt
    python scripts/goldens/gguf_blocks.py
"""

import importlib.metadata
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
TO = HERE.parent.parent / "crates" / "testkit" / "goldens" / "gguf-blocks"

# Offsets of the half-precision scales in a block.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}

# The largest, the smallest subnormal, the largest subnormal, zeros, an infinity: each as a scale of its own block.
EXTREMES = np.array([65504.0, 2.0**-24, -1023 * 2.0**-24, 0.0, -0.0, np.inf, -65504.0], dtype=np.float16)
ORDINARY = 5


def blocks(random: np.random.Generator, name: str) -> np.ndarray:
    """Blocks of random bytes, with extreme scales first and ordinary ones last."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    rows = random.integers(0, 256, (len(EXTREMES) + ORDINARY, size), dtype=np.uint8)
    for shift, offset in enumerate(SCALES[name]):
        scales = np.concatenate([np.roll(EXTREMES, shift), random.normal(0, 1, ORDINARY).astype(np.float16)])
        rows[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return rows


def floats(random: np.random.Generator, name: str) -> np.ndarray:
    """Random bit patterns without NaN."""
    bits = {"F32": (np.uint32, 0x7F80_0000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}
    kind, exponent = bits[name]
    values = random.integers(0, np.iinfo(kind).max, 64, dtype=kind, endpoint=True)
    values = values[values & exponent != exponent]
    return np.append(values, np.array([exponent, 0, 1], dtype=kind)).view(np.uint8)


def main() -> None:
    pins = dict(line.split("==") for line in (HERE / "gguf_requirements.txt").read_text().split())
    versions = {name: importlib.metadata.version(name) for name in pins}
    if versions != pins:
        sys.exit(f"The goldens are made with {pins}, but {versions} is installed.")
    random = np.random.default_rng(20)
    tensors = {}
    for name in ["F32", "F16", "BF16", *SCALES]:
        data = blocks(random, name) if name in SCALES else floats(random, name)
        with np.errstate(invalid="ignore"):
            values = gguf.quants.dequantize(data, GGMLQuantizationType[name])
        tensors[f"{name}.bytes"] = np.ascontiguousarray(data).reshape(-1)
        tensors[f"{name}.values"] = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    TO.mkdir(parents=True, exist_ok=True)
    save_file(tensors, TO / "blocks.safetensors", {"provenance": json.dumps(versions)})


main()
