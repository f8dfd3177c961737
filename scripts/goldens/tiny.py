"""Makes one tiny model folder per encoder family, with golden.safetensors and texts.json in it.

    python scripts/goldens/tiny.py

Everything is random from fixed seeds; running it again writes the same bytes.
"""

import common  # before the libraries, whose versions it checks

from pathlib import Path

import torch
from safetensors.torch import save_file

import corpus
from families import FAMILIES, Family
from layout import make_folder, write_json
from references import text_references, token_references


def write_goldens(family: Family, folder: Path) -> None:
    tensors = token_references(family, folder) | text_references(family, folder)
    single = {
        name: tensor.float() if tensor.is_floating_point() else tensor.to(torch.int64)
        for name, tensor in tensors.items()
    }
    save_file(single, folder / "golden.safetensors", metadata=common.provenance())
    write_json(folder / "texts.json", corpus.TEXTS)


if __name__ == "__main__":
    for family in FAMILIES:
        folder = common.GOLDENS / family.name
        make_folder(family, folder)
        write_goldens(family, folder)
