"""The encoder families, each as one tiny model with its folder."""

from collections.abc import Callable
from dataclasses import dataclass, field

from transformers import (
    BertConfig,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DistilBertConfig,
    DistilBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaModel,
)

import vocabularies

HIDDEN = 32
SIZES = dict(
    hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
)
# Positions start at padding + 1 = 2, as in published checkpoints. The class defaults are those of BERT.
ROBERTA_LIKE = dict(SIZES, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
# Larger than any real epsilon, so that a missing epsilon shows in the hidden states.
VISIBLE_EPSILON = 1e-3


@dataclass(frozen=True)
class Family:
    """One folder of goldens; `model` takes the size of the vocabulary."""

    name: str
    seed: int
    model: Callable[[int], PreTrainedModel]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    pooling: str = "mean"
    dense: bool = False
    normalize: bool = True
    max_length: int = 512
    prompts: dict[str, str] = field(default_factory=dict)
    every_pooling: bool = False
    token_types: bool = False
    positions_skip_padding: bool = False
    current_layout: bool = False


def bert(vocab_size: int) -> PreTrainedModel:
    """Keeps its pooler, as published checkpoints do, although it is unused."""
    return BertModel(BertConfig(vocab_size=vocab_size, **SIZES, layer_norm_eps=VISIBLE_EPSILON))


def roberta(vocab_size: int) -> PreTrainedModel:
    """A masked-language checkpoint: a `roberta.` prefix, and an unused head."""
    settings = ROBERTA_LIKE | dict(layer_norm_eps=VISIBLE_EPSILON)
    return RobertaForMaskedLM(RobertaConfig(vocab_size=vocab_size, **settings))


def xlm_roberta(vocab_size: int) -> PreTrainedModel:
    config = XLMRobertaConfig(vocab_size=vocab_size, **ROBERTA_LIKE)
    return XLMRobertaModel(config, add_pooling_layer=False)


def camembert(vocab_size: int) -> PreTrainedModel:
    config = CamembertConfig(vocab_size=vocab_size, **ROBERTA_LIKE, bos_token_id=5, eos_token_id=6)
    return CamembertModel(config, add_pooling_layer=False)


def distilbert(vocab_size: int) -> PreTrainedModel:
    return DistilBertModel(
        DistilBertConfig(vocab_size=vocab_size, dim=HIDDEN, n_layers=2, n_heads=4, hidden_dim=64)
    )


def mpnet(vocab_size: int) -> PreTrainedModel:
    config = MPNetConfig(
        vocab_size=vocab_size, **SIZES, max_position_embeddings=514, layer_norm_eps=VISIBLE_EPSILON
    )
    return MPNetModel(config, add_pooling_layer=False)


FAMILIES = [
    Family(
        "tiny-bert", 1, bert, vocabularies.bert, max_length=128,
        prompts={"query": "query: ", "passage": "passage: "}, every_pooling=True, token_types=True,
    ),
    Family(
        "tiny-roberta", 2, roberta, vocabularies.roberta, pooling="cls", normalize=False,
        positions_skip_padding=True,
    ),
    Family(
        "tiny-xlm-roberta", 3, xlm_roberta, vocabularies.xlm_roberta, positions_skip_padding=True
    ),
    Family(
        "tiny-camembert", 4, camembert, vocabularies.camembert, normalize=False,
        positions_skip_padding=True, current_layout=True,
    ),
    Family("tiny-distilbert", 5, distilbert, vocabularies.distilbert, dense=True),
    Family("tiny-mpnet", 6, mpnet, vocabularies.mpnet, positions_skip_padding=True),
]
