"""Embeds the shared texts with the real all-MiniLM-L6-v2, as the reference for whole-model tests.

    python scripts/goldens/minilm.py "$(scripts/parts minilm)" benches/texts.jsonl

Writes minilm/reference.safetensors: `embed`, one row per text, in half precision to stay small.
"""

import common  # before the libraries, whose versions it checks

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL_DIR")
    parser.add_argument("texts", type=Path, metavar="TEXTS.jsonl")
    return parser.parse_args()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    given = arguments()
    texts = [json.loads(line)["text"] for line in given.texts.open(encoding="utf-8")]
    model = SentenceTransformer(str(given.model), device="cpu")
    embedded = model.encode(texts, convert_to_tensor=True)
    assert embedded.dtype == torch.float32 and embedded.isfinite().all()
    provenance = common.provenance(
        weights_sha256=sha256(given.model / "model.safetensors"), texts_sha256=sha256(given.texts)
    )
    folder = common.GOLDENS / "minilm"
    folder.mkdir(exist_ok=True)
    save_file({"embed": embedded.half()}, folder / "reference.safetensors", metadata=provenance)


if __name__ == "__main__":
    main()
