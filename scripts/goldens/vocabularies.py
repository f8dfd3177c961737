"""The tiny tokenizers: pieces counted in the corpus, in the tokenizer class of the real family.

Only byte pairs are learned by a trainer of `tokenizers`: its WordPiece and Unigram trainers give
another vocabulary in every run, so those pieces are simply the substrings that save most tokens.
"""

import json
import math
import string
from collections import Counter

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertTokenizer,
    CamembertTokenizer,
    DistilBertTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    Qwen2Tokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from corpus import SENTENCES

MAX_LENGTH = 512  # a folder may set a shorter one for itself
LONGEST_PIECE = 6


def bert(tokenizer_class=BertTokenizer) -> PreTrainedTokenizerBase:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *wordpieces(251)]
    return tokenizer_class(vocab=numbered(tokens), model_max_length=MAX_LENGTH)


def distilbert() -> PreTrainedTokenizerBase:
    return bert(DistilBertTokenizer)


def mpnet() -> PreTrainedTokenizerBase:
    tokens = ["<s>", "<pad>", "</s>", "[UNK]", *wordpieces(251), "<mask>"]
    tokenizer = MPNetTokenizer(vocab=numbered(tokens), model_max_length=MAX_LENGTH)
    # Many published checkpoints leave this in tokenizer.json; loaders override it.
    tokenizer.backend_tokenizer.enable_truncation(128)
    tokenizer.backend_tokenizer.enable_padding(length=128, pad_id=1, pad_token="<pad>")
    return tokenizer


def roberta() -> PreTrainedTokenizerBase:
    pieces, merges = byte_pairs(315)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
    return RobertaTokenizer(vocab=numbered(tokens), merges=merges, model_max_length=MAX_LENGTH)


def qwen() -> PreTrainedTokenizerBase:
    """With the answer tokens of a reranker, each as one token."""
    pieces, merges = byte_pairs(340, ["yes", "no"] * 200)
    tokenizer = Qwen2Tokenizer(vocab=numbered(pieces), merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def xlm_roberta() -> PreTrainedTokenizerBase:
    vocabulary = [*unscored("<s>", "<pad>", "</s>", "<unk>"), *unigrams(251), *unscored("<mask>")]
    return XLMRobertaTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH)


def camembert() -> PreTrainedTokenizerBase:
    """As in the real one, `<s>` and `</s>` are 5 and 6, while padding stays 1."""
    unused = unscored("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
    vocabulary = [*unused, *unscored("<s>", "</s>"), *unigrams(248), *unscored("<mask>")]
    return CamembertTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH)


def wordpieces(size: int) -> list[str]:
    """Pieces that begin a word, and pieces with `##` that continue one."""
    letters = string.ascii_lowercase + string.digits
    alphabet = [*letters, *string.punctuation, *(f"##{letter}" for letter in letters)]
    split, normalizer = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()
    counts = substrings(words(split, map(normalizer.normalize_str, SENTENCES)), inside="##")
    return [*alphabet, *most_useful(counts, size - len(alphabet))]


def unigrams(size: int) -> list[tuple[str, float]]:
    """Pieces with their log probabilities; `▁` is the space before a word."""
    alphabet = ["▁", *string.ascii_letters, *string.digits, *string.punctuation]
    counts = substrings(words(pre_tokenizers.Metaspace(), SENTENCES), inside="")
    pieces = [*alphabet, *most_useful(counts, size - len(alphabet))]
    total = sum(counts[piece] + 1 for piece in pieces)
    return [(piece, round(math.log((counts[piece] + 1) / total), 4)) for piece in pieces]


def byte_pairs(size: int, more: list[str] = []) -> tuple[list[str], list[tuple[str, str]]]:
    """All 256 bytes and the pieces merged from them, and the merges in order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*SENTENCES, *more], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), list(map(tuple, model["merges"]))


def words(split: pre_tokenizers.PreTokenizer, sentences) -> Counter[str]:
    return Counter(word for text in sentences for word, _ in split.pre_tokenize_str(text))


def substrings(counted_words: Counter[str], inside: str) -> Counter[str]:
    """How often each piece occurs; `inside` marks the ones that do not begin a word."""
    counts = Counter()
    for word, times in counted_words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(start + LONGEST_PIECE, len(word)) + 1):
                counts[(inside if start else "") + word[start:end]] += times
    return counts


def most_useful(counts: Counter[str], number: int) -> list[str]:
    """The pieces of two characters or more that replace the most single characters."""
    saved = {piece: (len(piece.removeprefix("##")) - 1) * times for piece, times in counts.items()}
    longer = [piece for piece in saved if saved[piece] > 0]
    return sorted(longer, key=lambda piece: (-saved[piece], piece))[:number]


def numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def unscored(*tokens: str) -> list[tuple[str, float]]:
    return [(token, 0.0) for token in tokens]
