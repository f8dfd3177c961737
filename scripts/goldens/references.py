"""Computes the reference outputs of the tiny models, for token ids and for texts."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from corpus import TEXTS
from families import HIDDEN, Family

LENGTHS = [1, 2, 3, 7, 31, 32, 33, 64, 127, 128, 129, 300, 512]
PADDED_LENGTH, PADDED_PLACES = 48, [10, 20]
TYPED_LENGTH = 64


def token_references(family: Family, folder: Path) -> dict[str, Tensor]:
    """Hidden states in double precision, rounded to single, with their ids."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load_encoder(folder, torch.float64)
    ids = random_ids(family, tokenizer)
    hidden = [hidden_states(model, ids[:length]) for length in range(1, len(ids) + 1)]
    tensors = {"ids": ids, "mean": torch.stack([states.mean(0) for states in hidden])}
    tensors |= {f"hidden.{length}": hidden[length - 1] for length in LENGTHS}
    if family.token_types:
        types = torch.randint(2, (TYPED_LENGTH,), generator=generator(family))
        typed = hidden_states(model, ids[:TYPED_LENGTH], token_type_ids=types[None])
        tensors |= {"types": types, "hidden.types": typed}
    if family.positions_skip_padding:
        padded = ids[:PADDED_LENGTH].clone()
        padded[PADDED_PLACES] = tokenizer.pad_token_id
        tensors |= {"ids.pad": padded, "hidden.pad": hidden_states(model, padded)}
    report_rounding(folder, ids, hidden)
    return tensors


def text_references(family: Family, folder: Path) -> dict[str, Tensor]:
    """Embeddings of the texts, and how many tokens of each were used."""
    model = SentenceTransformer(str(folder), device="cpu")
    tensors = {
        "embed": encode(model),
        "counts": model.preprocess(TEXTS)["attention_mask"].sum(1),
    }
    if family.prompts:
        tensors["embed.query"] = encode(model, prompt_name="query")
        # Unless it is named so, `encode_document` takes no prompt.
        model.prompts["document"] = family.prompts["passage"]
        tensors["embed.document"] = model.encode_document(TEXTS, convert_to_tensor=True)
        assert torch.equal(tensors["embed.query"], model.encode_query(TEXTS, convert_to_tensor=True))
    if family.every_pooling:
        tensors |= pooling_references(model)
    return tensors


def pooling_references(model: SentenceTransformer) -> dict[str, Tensor]:
    """The same token embeddings through every pooling, not normalized."""
    def pooled(pooling: Pooling, **options) -> Tensor:
        return encode(SentenceTransformer(modules=[model[0], pooling], device="cpu"), **options)

    tensors = {f"pool.{mode}": pooled(Pooling(HIDDEN, mode)) for mode in Pooling.POOLING_MODES}
    without_prompt = Pooling(HIDDEN, "mean", include_prompt=False)
    return tensors | {"pool.noprompt": pooled(without_prompt, prompt="query: ")}


def encode(model: SentenceTransformer, **options) -> Tensor:
    return model.encode(TEXTS, convert_to_tensor=True, **options)


def load_encoder(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def hidden_states(model: PreTrainedModel, ids: Tensor, **inputs) -> Tensor:
    """The last hidden state of one sequence in which every token is attended to."""
    mask = torch.ones_like(ids)[None]
    return model(input_ids=ids[None], attention_mask=mask, **inputs).last_hidden_state[0]


def random_ids(family: Family, tokenizer) -> Tensor:
    ordinary = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    drawn = torch.randint(len(ordinary), (max(LENGTHS),), generator=generator(family))
    return ordinary[drawn]


def generator(family: Family) -> torch.Generator:
    return torch.Generator().manual_seed(family.seed)


def report_rounding(folder: Path, ids: Tensor, hidden: list[Tensor]) -> None:
    """Prints how far single precision is from double: the tolerance of an implementation."""
    single = load_encoder(folder, torch.float32)
    furthest = max(
        (hidden_states(single, ids[:length]) - hidden[length - 1]).abs().max() for length in LENGTHS
    )
    print(f"{folder.name}: single and double precision differ by at most {furthest:.1e}")
