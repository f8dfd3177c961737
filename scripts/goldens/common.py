"""Imported first by every script: pinned versions, determinism, and paths.

Importing it fails unless the libraries have the pinned versions.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # every model comes from a folder; nothing may be downloaded
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sentence_transformers
import torch
import transformers

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
GOLDENS = REPOSITORY / "crates" / "testkit" / "goldens"

VERSIONS = {
    "torch": torch.__version__.partition("+")[0],  # without the build tag, such as +cu130
    "transformers": transformers.__version__,
    "sentence-transformers": sentence_transformers.__version__,
}


def provenance(**facts: str) -> dict[str, str]:
    """Metadata for a safetensors file, in one entry: the format keeps several in no order."""
    return {"provenance": json.dumps(VERSIONS | facts)}


def prepare() -> None:
    """Stops unless the imported versions are the pinned ones, then makes runs repeatable."""
    pins = dict(line.split("==") for line in (HERE / "requirements.txt").read_text().split())
    for name, found in VERSIONS.items():
        if found != pins[name]:
            sys.exit(f"The goldens are made with {name} {pins[name]}, but {found} is imported: "
                     f"install {HERE.name}/requirements.txt.")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


prepare()
