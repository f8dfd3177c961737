"""Checks the tiny goldens: they load, are consistent, and every parameter affects the output.

    python scripts/goldens/check.py
"""

import common  # before the libraries, whose versions it checks

from pathlib import Path

import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import BertTokenizer, PreTrainedModel, RobertaTokenizer

from corpus import TEXTS
from families import FAMILIES, VISIBLE_EPSILON, Family
from references import encode, hidden_states, load_encoder

PROBE = 32
NOT_READ = ("pooler.",)
# It adds the same score to every key of a query, which softmax cancels.
WITHOUT_EFFECT = ("key.bias", "k.bias", "k_lin.bias")


def check(family: Family, folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    for name, tensor in golden.items():
        assert tensor.isfinite().all(), f"{name} is not finite"
        assert not name.startswith("hidden") or tensor.std() > 0.5, f"{name} hardly varies"
    check_texts(family, folder, golden)
    check_tokenizers(folder)
    model, ids = load_encoder(folder, torch.float64), golden["ids"][:PROBE]
    likeliest = check_attention(model, ids)
    least, parameter = check_parameters(model, ids)
    epsilon = check_epsilon(family, model, ids)
    print(f"{family.name}: the likeliest key of a query has {likeliest:.2f} on average; "
          f"leaving out {parameter} moves a value by {least:.2f}, the least of all; "
          f"leaving out epsilon moves one by {epsilon:.1e}")


def check_texts(family: Family, folder: Path, golden: dict[str, Tensor]) -> None:
    model = SentenceTransformer(str(folder), device="cpu")
    embedded = encode(model)
    assert (embedded - golden["embed"]).abs().max() < 1e-5, "the embeddings are not repeatable"
    assert family.normalize == torch.allclose(embedded.norm(dim=1), torch.ones(len(TEXTS)))
    assert golden["counts"].max() == family.max_length, "no text is truncated"
    for text, count in zip(TEXTS, golden["counts"]):
        alone = model.encode([text], convert_to_tensor=True)[0]
        assert (alone - embedded[TEXTS.index(text)]).abs().max() < 1e-5, "padding matters"
        assert len(model.preprocess([text])["input_ids"][0]) == count


def check_tokenizers(folder: Path) -> None:
    """tokenizer.json alone, the library, and the older vocabulary files give the same ids."""
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.no_truncation()
    plain.no_padding()
    others = [SentenceTransformer(str(folder), device="cpu").tokenizer]
    if (folder / "vocab.txt").exists():
        others.append(BertTokenizer(models.WordPiece.read_file(str(folder / "vocab.txt"))))
    if (folder / "merges.txt").exists():
        files = str(folder / "vocab.json"), str(folder / "merges.txt")
        others.append(RobertaTokenizer(*models.BPE.read_file(*files)))
    for text in TEXTS:
        for other in others:
            assert other(text)["input_ids"] == plain.encode(text).ids, f"{other} differs"


def check_attention(model: PreTrainedModel, ids: Tensor) -> float:
    with torch.no_grad():
        attentions = model(input_ids=ids[None], output_attentions=True).attentions
    likeliest = torch.stack(attentions).amax(-1)
    assert (likeliest > 0.99).double().mean() < 0.05, "attention is saturated"
    return likeliest.mean().item()


def check_parameters(model: PreTrainedModel, ids: Tensor) -> tuple[float, str]:
    """Neutralizes each parameter. Returns the smallest change of the output, and its parameter."""
    right = hidden_states(model, ids)
    effects = {}
    for name, parameter in model.named_parameters():
        if name.startswith(NOT_READ):
            continue
        kept = parameter.detach().clone()
        is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.constant_(parameter, 1.0 if is_norm_weight else 0.0)
        effects[name] = (hidden_states(model, ids) - right).abs().max().item()
        parameter.data.copy_(kept)
    felt = {name: effect for name, effect in effects.items() if not name.endswith(WITHOUT_EFFECT)}
    least = min(felt, key=felt.get)
    assert felt[least] > 0.05, f"{least} could be left out unseen"
    return felt[least], least


def check_epsilon(family: Family, model: PreTrainedModel, ids: Tensor) -> float:
    right = hidden_states(model, ids)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-12
    effect = (hidden_states(model, ids) - right).abs().max().item()
    if getattr(model.config, "layer_norm_eps", None) == VISIBLE_EPSILON:
        assert effect > 1e-3, f"the epsilon of {family.name} could be left out unseen"
    return effect


if __name__ == "__main__":
    for family in FAMILIES:
        check(family, common.GOLDENS / family.name)
