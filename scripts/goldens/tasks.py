"""Makes one tiny model folder per family and task, with golden.safetensors and pairs.json in it.

    python scripts/goldens/tasks.py

Everything is random from fixed seeds; running it again writes the same bytes.
"""

import common  # before the libraries, whose versions it checks

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    CamembertConfig,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    MPNetConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    RobertaConfig,
    XLMRobertaConfig,
)

import vocabularies
from corpus import SENTENCES, TEXTS
from families import HIDDEN, ROBERTA_LIKE, SIZES, VISIBLE_EPSILON
from layout import randomize, write_json

MAX_LENGTH = 128
VOCABULARY = 120  # of models that have no tokenizer
LENGTHS = [1, 2, 7, 33, 128]
# The last two exceed the maximum length: by the document, and by both texts.
PAIRS = [
    ("lamp", SENTENCES[0]),
    ("Where is the boat?", SENTENCES[1]),
    ("The clock in the tower struck nine.", "Bread, salt and apples."),
    ("bees", TEXTS[3]),
    ("the road on the map", " ".join(SENTENCES[20:24])),
    ("a short question", " ".join(SENTENCES)),
    (" ".join(SENTENCES[:12]), " ".join(SENTENCES[12:30])),
]
QUERIES = ["lamp", "Where is the boat?", "The clock in the tower struck nine while the rain was falling."]
IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
NLI = ["contradiction", "entailment", "neutral"]


@dataclass(frozen=True)
class Kind:
    """A family: its config with sizes, and its tokenizer."""

    config: Callable[..., PreTrainedConfig]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    sizes: dict[str, object] = field(default_factory=dict)


ROBERTA = ROBERTA_LIKE | dict(max_position_embeddings=MAX_LENGTH + 2)
KINDS = {
    "bert": Kind(BertConfig, vocabularies.bert, SIZES | dict(
        max_position_embeddings=MAX_LENGTH, layer_norm_eps=VISIBLE_EPSILON)),
    "roberta": Kind(RobertaConfig, vocabularies.roberta, ROBERTA | dict(layer_norm_eps=VISIBLE_EPSILON)),
    "xlm-roberta": Kind(XLMRobertaConfig, vocabularies.xlm_roberta, ROBERTA),
    "camembert": Kind(CamembertConfig, vocabularies.camembert, ROBERTA | dict(bos_token_id=5, eos_token_id=6)),
    "distilbert": Kind(DistilBertConfig, vocabularies.distilbert, dict(
        dim=HIDDEN, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=MAX_LENGTH)),
    "mpnet": Kind(MPNetConfig, vocabularies.mpnet, SIZES | dict(
        max_position_embeddings=MAX_LENGTH + 2, layer_norm_eps=VISIBLE_EPSILON)),
}
# Differences between the folders of one task: scores and labels in their configs.
SCORES = {
    "tiny-bert-rerank": dict(num_labels=1, sbert_ce_default_activation_function=IDENTITY),
    "tiny-roberta-rerank": dict(num_labels=1),
    "tiny-xlm-roberta-rerank": dict(
        num_labels=1, sentence_transformers=dict(activation_fn=SIGMOID, version="4.1.0")),
    "tiny-camembert-rerank": dict(num_labels=1),
    "tiny-distilbert-rerank": dict(
        num_labels=1, sentence_transformers=dict(activation_fn=IDENTITY, version="4.1.0")),
    "tiny-mpnet-rerank": dict(num_labels=1),
    "tiny-bert-classify": dict(id2label=dict(enumerate(NLI))),
    "tiny-roberta-classify": dict(id2label=dict(enumerate(NLI)), problem_type="multi_label_classification"),
    "tiny-xlm-roberta-classify": dict(num_labels=5),
    "tiny-camembert-classify": {},
    "tiny-distilbert-classify": dict(
        id2label={0: "NEGATIVE", 1: "POSITIVE"}, problem_type="single_label_classification"),
    "tiny-mpnet-classify": dict(id2label=dict(enumerate(NLI))),
}
# Saved by the library itself, in its current layout.
CURRENT = {"tiny-roberta-rerank"}


def make(name: str, seed: int, automatic, extra: dict) -> tuple[Path, PreTrainedTokenizerBase]:
    """The folder as transformers writes it."""
    kind = KINDS[name.removeprefix("tiny-").rpartition("-")[0]]
    torch.manual_seed(seed)
    folder = common.GOLDENS / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = kind.tokenizer()
    tokenizer.model_max_length = MAX_LENGTH
    model = automatic.from_config(kind.config(vocab_size=len(tokenizer), **kind.sizes, **extra))
    randomize(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, tokenizer


def double(automatic, folder: Path):
    return automatic.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def ids_of(tokenizer, seed: int) -> Tensor:
    ordinary = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    generator = torch.Generator().manual_seed(seed)
    return ordinary[torch.randint(len(ordinary), (max(LENGTHS),), generator=generator)]


@torch.no_grad()
def scores(name: str, seed: int) -> None:
    folder, tokenizer = make(name, seed, AutoModelForSequenceClassification, SCORES[name])
    model, ids = double(AutoModelForSequenceClassification, folder), ids_of(tokenizer, seed)
    logits = [model(input_ids=ids[None, :n], attention_mask=torch.ones(1, n)).logits[0] for n in LENGTHS]
    encoded = [
        tokenizer(*pair, truncation="longest_first", max_length=MAX_LENGTH, return_tensors="pt") for pair in PAIRS
    ]
    second = tokenizer(*PAIRS[5], truncation="only_second", max_length=MAX_LENGTH, return_tensors="pt")
    alone = tokenizer(SENTENCES[4], return_tensors="pt")
    ranker = CrossEncoder(str(folder), device="cpu")
    if name in CURRENT:
        with tempfile.TemporaryDirectory() as saved:
            ranker.save_pretrained(saved)
            for file in Path(saved).rglob("*.json"):
                shutil.copy(file, folder / file.relative_to(saved))
    tensors = {
        "ids": ids,
        "logits.ids": torch.stack(logits),
        "logits.pairs": torch.cat([model(**pair).logits for pair in encoded]),
        "logits.second": model(**second).logits,
        "logits.alone": model(**alone).logits,
        "pair.ids": encoded[2]["input_ids"][0],
        "counts": torch.tensor([pair["input_ids"].shape[1] for pair in encoded]),
        "given": torch.tensor(ranker.predict(PAIRS)),
    }
    save(folder, tensors)
    write_json(folder / "pairs.json", PAIRS)


@torch.no_grad()
def sparse(name: str, seed: int) -> None:
    folder, tokenizer = make(name, seed, AutoModelForMaskedLM, {})
    model, ids = double(AutoModelForMaskedLM, folder), ids_of(tokenizer, seed)

    def weights(n: int) -> Tensor:
        logits = model(input_ids=ids[None, :n], attention_mask=torch.ones(1, n)).logits[0]
        return logits.relu().log1p().amax(0)

    rows = torch.stack([weights(n) for n in LENGTHS])
    encoder = SparseEncoder(str(folder), device="cpu")
    with tempfile.TemporaryDirectory() as saved:
        encoder.save_pretrained(saved)
        for file in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
                     "1_SpladePooling/config.json"]:
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copy(Path(saved) / file, folder / file)
    given = encoder.encode(TEXTS, convert_to_tensor=True).to_dense()
    save(folder, {"ids": ids, "sparse.ids": rows, "given": given})
    write_json(folder / "texts.json", TEXTS)


@torch.no_grad()
def tokens(name: str, seed: int, configure: Callable[[MultiVectorEncoder], None]) -> None:
    """A BERT whose tokens are projected, in the layout of the pinned library."""
    kind = KINDS["bert"]
    torch.manual_seed(seed)
    folder = common.GOLDENS / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = kind.tokenizer()
    tokenizer.model_max_length = MAX_LENGTH
    model = BertModel(kind.config(vocab_size=len(tokenizer), **kind.sizes))
    randomize(model)
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        encoder = MultiVectorEncoder(plain, device="cpu")
    randomize(encoder[1])
    configure(encoder)
    encoder.save_pretrained(str(folder), create_model_card=False)
    encoder = MultiVectorEncoder(str(folder), device="cpu")
    documents = [*TEXTS[:3], *TEXTS[4:]]
    embedded = encoder.encode_document(documents)
    asked = encoder.encode_query(QUERIES)
    tensors = {f"document.{n}": rows for n, rows in enumerate(embedded)}
    tensors |= {f"query.{n}": rows for n, rows in enumerate(asked)}
    tensors["scores"] = encoder.similarity(asked, embedded)
    save(folder, tensors)
    write_json(folder / "texts.json", documents)
    write_json(folder / "queries.json", QUERIES)


def plain(encoder: MultiVectorEncoder) -> None:
    """Markers as text, no mask tokens."""
    encoder.prompts = {"query": "query: ", "document": "passage: "}


def filled(encoder: MultiVectorEncoder) -> None:
    """Queries padded with attended mask tokens, documents without punctuation."""
    encoder[0].query_expansion = {"strategy": "fixed", "attend": True, "length": 24}
    encoder[0].document_length = 100
    encoder[2].skiplist_words = [".", ",", ";", ":"]


def unseen(encoder: MultiVectorEncoder) -> None:
    """Queries padded with unattended mask tokens, as in the first ColBERT models."""
    encoder[0].query_expansion = {"strategy": "fixed", "attend": False, "length": 24}


@torch.no_grad()
def wider(name: str, seed: int, make: Callable[[], torch.nn.Module], answer: Callable[[object], Tensor]) -> Path:
    """The head of a family whose goldens have no tokenizer: outputs for token ids only."""
    torch.manual_seed(seed)
    folder = common.GOLDENS / name
    shutil.rmtree(folder, ignore_errors=True)
    model = make()
    randomize(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = type(model).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    drawn = torch.randint(3, model.config.vocab_size, (max(LENGTHS),), generator=torch.Generator().manual_seed(seed))
    rows = [answer(model(input_ids=drawn[None, :n], attention_mask=torch.ones(1, n)).logits[0]) for n in LENGTHS]
    save(folder, {"ids": drawn, "answers.ids": torch.stack(rows)})
    return folder


def sparse_of(logits: Tensor) -> Tensor:
    return logits.relu().log1p().amax(0)


def write_modules(folder: Path, kind: str, config: dict) -> None:
    types = "sentence_transformers.base.modules.transformer.Transformer", f"sentence_transformers.modules.{kind}"
    write_json(folder / "modules.json", [
        {"idx": index, "name": str(index), "path": f"1_{kind}" if index else "", "type": type_}
        for index, type_ in enumerate(types)
    ])
    write_json(folder / f"1_{kind}" / "config.json", config)


def make_wider() -> None:
    settings = dict(attention_probs_dropout_prob=0.0, relative_attention=True, max_relative_positions=40,
                    pos_att_type=["p2c", "c2p"], max_position_embeddings=MAX_LENGTH, type_vocab_size=2)
    deberta = SIZES | settings | dict(vocab_size=VOCABULARY, layer_norm_eps=VISIBLE_EPSILON, num_labels=1)
    modern = SIZES | dict(vocab_size=VOCABULARY, norm_eps=VISIBLE_EPSILON, local_attention=16, pad_token_id=0,
                          bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
                          max_position_embeddings=MAX_LENGTH)
    qwen = SIZES | dict(vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1,
                        eos_token_id=2, max_position_embeddings=MAX_LENGTH, rms_norm_eps=VISIBLE_EPSILON)
    whole = lambda logits: logits  # noqa: E731
    wider("tiny-deberta-v2-rerank", 400, lambda: DebertaV2ForSequenceClassification(DebertaV2Config(**deberta)), whole)
    wider("tiny-modernbert-rerank", 401, lambda: ModernBertForSequenceClassification(
        ModernBertConfig(**modern, num_labels=1)), whole)
    wider("tiny-modernbert-classify", 402, lambda: ModernBertForSequenceClassification(
        ModernBertConfig(**modern, num_labels=3, classifier_pooling="mean", classifier_bias=True)), whole)
    folder = wider("tiny-modernbert-sparse", 403, lambda: ModernBertForMaskedLM(ModernBertConfig(**modern)), sparse_of)
    write_modules(folder, "SpladePooling", {"pooling_strategy": "max", "activation_function": "relu"})
    wider("tiny-qwen3-rerank", 404, lambda: Qwen3ForSequenceClassification(
        Qwen3Config(**qwen, num_labels=1)), whole)
    no_and_yes = [9, 7]
    folder = wider("tiny-qwen3-words", 405, lambda: Qwen3ForCausalLM(Qwen3Config(**qwen, tie_word_embeddings=True)),
                   lambda logits: logits[-1, no_and_yes])
    write_modules(folder, "LogitScore", {"true_token_id": no_and_yes[1], "false_token_id": no_and_yes[0]})


def save(folder: Path, tensors: dict[str, Tensor]) -> None:
    single = {
        name: (tensor.float() if tensor.is_floating_point() else tensor.to(torch.int64)).contiguous().clone()
        for name, tensor in tensors.items()
    }
    assert all(tensor.isfinite().all() for tensor in single.values()), f"{folder.name} is not finite"
    save_file(single, folder / "golden.safetensors", metadata=common.provenance())
    for leftover in ["README.md", ".gitattributes"]:
        (folder / leftover).unlink(missing_ok=True)
    if (folder / "model.safetensors").exists():
        assert load_file(folder / "model.safetensors")


if __name__ == "__main__":
    for seed, name in enumerate(SCORES, start=100):
        scores(name, seed)
    for seed, name in enumerate(KINDS, start=200):
        sparse(f"tiny-{name}-sparse", seed)
    for seed, (name, configure) in enumerate(
        {"plain": plain, "filled": filled, "unseen": unseen}.items(), start=300
    ):
        tokens(f"tiny-bert-tokens-{name}", seed, configure)
    make_wider()
