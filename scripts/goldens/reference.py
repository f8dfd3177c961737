"""Embeds texts with a real model, as a reference for `sconce verify`.

    python scripts/goldens/reference.py "$(scripts/parts mpnet)" benches/texts.jsonl \
        crates/testkit/goldens/mpnet/reference.npz --count 24

Writes `texts` and `embeddings`, the latter in single precision.
"""

import common  # before the libraries, whose versions it checks

import argparse
import json
from pathlib import Path

import numpy
from sentence_transformers import SentenceTransformer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL_DIR")
    parser.add_argument("texts", type=Path, metavar="TEXTS.jsonl")
    parser.add_argument("output", type=Path, metavar="OUT.npz")
    parser.add_argument("--count", type=int, help="how many of the texts, spread evenly [all]")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    texts = [json.loads(line)["text"] for line in given.texts.open(encoding="utf-8")]
    if given.count:
        texts = texts[:: len(texts) // given.count][: given.count]
    embeddings = SentenceTransformer(str(given.model), device="cpu").encode(texts)
    assert embeddings.dtype == numpy.float32 and numpy.isfinite(embeddings).all()
    given.output.parent.mkdir(exist_ok=True)
    numpy.savez(given.output, texts=numpy.array(texts), embeddings=embeddings)


if __name__ == "__main__":
    main()
