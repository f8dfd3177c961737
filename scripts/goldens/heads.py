"""Makes tiny models with heads for families whose published layout transformers does not save: GTE,
Nomic-BERT and JinaBERT v2.

    python scripts/goldens/heads.py

As the folders of tasks.py they have no tokenizer: outputs are for token ids. Running it again writes the same bytes.
"""

import common  # before the libraries, whose versions it checks

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    GteConfig,
    GteForMaskedLM,
    GteForSequenceClassification,
    NomicBertConfig,
    NomicBertForSequenceClassification,
)

import jina
import wider
from layout import write_json
from tasks import LENGTHS, MAX_LENGTH, save, sparse_of, write_modules

HEADS = ("classifier.", "lm_head.")
KEPT = [key for key in wider.DULL if key not in ("id2label", "label2id")]


def behind(prefix: str, weights: dict) -> dict:
    """Prefixes the encoder's tensor names. Head names stay."""
    return {name if name.startswith(HEADS) else prefix + name: tensor for name, tensor in weights.items()}


def without(prefix: str, weights: dict) -> dict:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def write(name: str, seed: int, config: dict, weights: dict, answer: Callable[[Tensor], Tensor]) -> Path:
    """Writes the folder, with outputs for ids of several lengths."""
    folder = common.GOLDENS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    weights = {name: tensor.detach().clone().contiguous().float() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    ids = torch.randint(3, wider.VOCABULARY, (max(LENGTHS),), generator=torch.Generator().manual_seed(seed))
    save(folder, {"ids": ids, "answers.ids": torch.stack([answer(ids[:length]) for length in LENGTHS])})
    return folder


@torch.no_grad()
def of_transformers(name: str, seed: int, model: torch.nn.Module, published, read=lambda logits: logits) -> Path:
    torch.manual_seed(seed)
    shape = wider.Wider(name, seed, lambda: model)
    wider.randomize(shape, model)
    weights = dict(model.state_dict())
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if value is not None and key not in KEPT}
    config, weights = published(config, weights)
    model.config._attn_implementation = "eager"
    model.eval().double()
    if hasattr(model, "gte"):
        wider.ntk(model.gte)

    def answer(ids: Tensor) -> Tensor:
        return read(model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).logits[0])

    return write(name, seed, config, weights, answer)


def gte_config(labels: int) -> GteConfig:
    return GteConfig(**wider.SIZES, layer_norm_eps=wider.EPSILON, max_position_embeddings=MAX_LENGTH, type_vocab_size=1,
                     pad_token_id=0, num_labels=labels, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def published_gte(architecture: str):
    def published(config: dict, weights: dict) -> tuple[dict, dict]:
        labels = {"id2label": config["id2label"]}
        weights.pop("lm_head.decoder.weight", None)  # shared with the token table
        config, weights = wider.published_gte(config, without("gte.", weights))
        head = lambda name: name.startswith(tuple(f"new.{part}" for part in HEADS))  # noqa: E731
        weights = {name.removeprefix("new.") if head(name) else name: tensor for name, tensor in weights.items()}
        weights = wider.rename(weights, ("lm_head.layer_norm", "lm_head.norm"))
        return config | labels | {"architectures": [architecture]}, weights
    return published


def published_nomic(config: dict, weights: dict) -> tuple[dict, dict]:
    labels = {"id2label": config["id2label"], "n_positions": MAX_LENGTH}
    config, weights = wider.published_nomic(config, without("nomic_bert.", weights))
    architecture = {"architectures": ["NomicBertForSequenceClassification"]}
    return config | labels | architecture, behind("bert.", weights)


@torch.no_grad()
def of_jina(name: str, seed: int) -> None:
    """BERT's classifier: CLS pooling, a tanh layer, and a score."""
    torch.manual_seed(seed)
    model = jina.model()
    for part, shape in [("pooler.dense", (jina.HIDDEN, jina.HIDDEN)), ("classifier", (1, jina.HIDDEN))]:
        model.weights |= {f"{part}.weight": torch.nn.Parameter(torch.zeros(shape)),
                          f"{part}.bias": torch.nn.Parameter(torch.zeros(shape[:1]))}
    wider.randomize(wider.Wider(name, seed, lambda: model), model)
    config, _ = jina.published({}, {})
    config |= {"architectures": ["JinaBertForSequenceClassification"], "max_position_embeddings": MAX_LENGTH,
               "id2label": {"0": "LABEL_0"}}
    weights = behind("bert.", model.state_dict())
    model.double()

    def answer(ids: Tensor) -> Tensor:
        w = model.weights
        first = model.forward(ids[None], torch.ones_like(ids)[None]).last_hidden_state[0, 0]
        pooled = torch.tanh(w["pooler.dense.weight"] @ first + w["pooler.dense.bias"])
        return w["classifier.weight"] @ pooled + w["classifier.bias"]

    write(name, seed, config, weights, answer)


if __name__ == "__main__":
    of_transformers("tiny-gte-rerank", 410, GteForSequenceClassification(gte_config(1)),
                    published_gte("NewForSequenceClassification"))
    folder = of_transformers("tiny-gte-sparse", 411, GteForMaskedLM(gte_config(2)), published_gte("NewForMaskedLM"),
                             sparse_of)
    write_modules(folder, "SpladePooling", {"pooling_strategy": "max", "activation_function": "relu"})
    nomic = NomicBertConfig(**wider.SIZES, layer_norm_eps=wider.EPSILON, max_position_embeddings=MAX_LENGTH,
                            num_labels=3, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
    of_transformers("tiny-nomic-classify", 412, NomicBertForSequenceClassification(nomic), published_nomic)
    of_jina("tiny-jina-rerank", 413)
