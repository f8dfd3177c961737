"""Small SentencePiece vocabularies with the ids that `sentencepiece` gives, in crates/testkit/goldens/sentencepiece.

    pip install -r scripts/goldens/sentencepiece_requirements.txt
    python scripts/goldens/sentencepiece_ids.py

`llama` is BPE with byte fallback and a space before the text, as Llama 2 has it. `gemma` is BPE without that space, with
runs of spaces and line breaks as user-defined symbols. `unigram` normalizes by NFKC, as XLM-RoBERTa and T5 do. Token types
are those of GGUF. User-defined symbols are written with plain spaces, as converters to GGUF write them.
"""

import base64
import importlib.metadata
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from corpus import SENTENCES, TEXTS

HERE = Path(__file__).resolve().parent
TO = HERE.parent.parent / "crates" / "testkit" / "goldens" / "sentencepiece"

BPE = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity",
       "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
MODELS = {
    "llama": {**BPE, "vocab_size": 700},
    "unigram": {"model_type": "unigram", "vocab_size": 400, "normalization_rule_name": "nmt_nfkc"},
    "gemma": {**BPE, "vocab_size": 700, "add_dummy_prefix": False,
              "user_defined_symbols": ["\u2581" * n for n in range(2, 9)] + ["\n" * n for n in range(1, 5)] + ["<b>"]},
}

AWKWARD = [
    "", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n\n\n\n\n", " \n ", " a", "a ", "  a  ", "Hello  world",
    "The capital of France is", "cafe\u0301 naïve", "ﬁ ½ Ⅳ ﬀ", "中文 日本語 한국어", "العربية", "🙂", "a🙂b", "👩‍👩‍👧‍👦", "🇫🇷",
    "\u200b\u200d\ufeff", "\u00a0\u2003\u3000x", "\u2581literal\u2581", "a\u2581b", "\u2581\u2581", "\u0001\u007f", "\ufffd",
    "\U0010ffff", "1234567890", "3.14, 1,000", "fn main() {\n    let x = 1;\n}", "!!!???...", "a" * 50, "the" * 20,
    " " * 20, "\n" * 9, "x" + " " * 17 + "y", "ananana" * 6, "ererere" * 6, "lll" * 9, "<b>bold</b>", "<0x0A>",
    "tab\there", "E=mc²", "Straße", "\u0301", "the\u0000end",
]


def random_texts(count: int) -> list[str]:
    draw = random.Random(1)
    letters = ["a", "e", "n", "r", "t", "h", "l", "s", "the", "er", "an", "in", " ", " ", "  ", "\n", ".", ",", "é", "中", "1"]
    return ["".join(draw.choice(letters) for _ in range(draw.randint(1, 40))) for _ in range(count)]


def train(settings: dict) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 2), model_writer=model, hard_vocab_limit=False, minloglevel=2, **settings)
    return model.getvalue()


def golden(settings: dict) -> dict:
    data = train(settings)
    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    texts = AWKWARD + TEXTS + random_texts(120)
    is_user = lambda piece: piece.type == sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
    return {
        "tokens": [p.piece.replace("\u2581", " ") if is_user(p) else p.piece for p in model.pieces],
        "scores": [p.score for p in model.pieces],
        "types": [p.type for p in model.pieces],
        "space_prefix": model.normalizer_spec.add_dummy_prefix,
        **({"map": base64.b64encode(charsmap).decode()} if (charsmap := model.normalizer_spec.precompiled_charsmap) else {}),
        "texts": [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))}
                  for text in texts],
    }


def main() -> None:
    if importlib.metadata.version("sentencepiece") != "0.2.2":
        sys.exit("needs sentencepiece 0.2.2")
    TO.mkdir(exist_ok=True)
    for name, settings in MODELS.items():
        text = json.dumps(golden(settings), ensure_ascii=False, separators=(",", ":"))
        (TO / f"{name}.json").write_text(text.replace('},{"text"', '},\n{"text"') + "\n")


if __name__ == "__main__":
    main()
