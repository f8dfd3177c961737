"""Writes a tiny model as a sentence-transformers folder."""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from common import VERSIONS
from families import HIDDEN, Family

DENSE_OUTPUT = 16
QUERIES_AND_KEYS = {"query", "key", "q", "k", "qlin", "klin"}
POOLING_KEYS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
# Files that the library rewrites in its current layout; weights do not change.
REWRITTEN = ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
             "1_Pooling/config.json", "tokenizer_config.json"]


def make_folder(family: Family, folder: Path) -> None:
    """Writes the whole folder: weights, tokenizer, and module files."""
    torch.manual_seed(family.seed)
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = family.tokenizer()
    model = family.model(len(tokenizer))
    randomize(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_vocabulary_files(family, tokenizer, folder)
    write_modules(family, folder)
    if family.current_layout:
        rewrite_in_current_layout(folder)


@torch.no_grad()
def randomize(module: torch.nn.Module) -> None:
    """Randomizes every parameter: zero biases and unit norms would hide a missing one."""
    for name, parameter in module.named_parameters():
        parameter.normal_(*distribution(*name.split(".")[-2:]))


def distribution(owner: str, kind: str) -> tuple[float, float]:
    """Mean and standard deviation of a parameter, say (`query`, `weight`).

    Chosen so that tokens stay distinct through the layers and attention is uneven, not one-hot.
    """
    owner = owner.lower().replace("_", "")
    if owner.endswith("layernorm") and kind == "weight":
        return 1.0, 0.3
    if owner == "relativeattentionbias":
        return 0.0, 1.0
    if owner.endswith("embeddings"):
        return 0.0, 0.5
    if owner in QUERIES_AND_KEYS:
        return 0.0, 0.5 if kind == "bias" else 0.3
    return 0.0, 0.3 if kind == "bias" else 0.2


def write_vocabulary_files(
    family: Family, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """The older vocabulary files of the two families whose tokenizers can be built from them."""
    vocabulary = tokenizer.get_vocab()
    if family.name == "tiny-bert":
        tokens = sorted(vocabulary, key=vocabulary.get)
        write_text(folder / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    if family.name == "tiny-roberta":
        model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
        write_text(folder / "vocab.json", json.dumps(model["vocab"], ensure_ascii=False))
        write_text(folder / "merges.txt", f"#version: 0.2\n{merges}")


def write_modules(family: Family, folder: Path) -> None:
    """Writes the older layout, which most published checkpoints have."""
    modules = ["Transformer", "Pooling"]
    if family.dense:
        modules.append("Dense")
        write_dense(folder / "2_Dense")
    if family.normalize:
        modules.append("Normalize")  # it has no settings, hence no folder
    write_json(folder / "modules.json", [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{module}" if index else "",
            "type": f"sentence_transformers.models.{module}",
        }
        for index, module in enumerate(modules)
    ])
    write_json(folder / "sentence_bert_config.json", {
        "max_seq_length": family.max_length,
        "do_lower_case": False,
    })
    write_json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": HIDDEN,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        POOLING_KEYS[family.pooling]: True,
    })
    write_json(folder / "config_sentence_transformers.json", {
        "__version__": {
            "sentence_transformers": VERSIONS["sentence-transformers"],
            "transformers": VERSIONS["transformers"],
            "pytorch": VERSIONS["torch"],
        },
        "prompts": family.prompts,
        "default_prompt_name": None,
    })


def write_dense(folder: Path) -> None:
    dense = Dense(HIDDEN, DENSE_OUTPUT, activation_function=torch.nn.Tanh())
    randomize(dense)
    folder.mkdir()
    dense.save(str(folder))


def rewrite_in_current_layout(folder: Path) -> None:
    """Writes the layout of the pinned library: the maximum length is in tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as saved:
        SentenceTransformer(str(folder), device="cpu").save(saved, create_model_card=False)
        for name in REWRITTEN:
            shutil.copy(Path(saved) / name, folder / name)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
