"""Makes a tiny Qwen3-Reranker with a tokenizer: pairs in its chat template, and the logits of `yes` and `no`.

    python scripts/goldens/instruct.py

Scores are computed as in the model card of Qwen3-Reranker. Running it again writes the same bytes.
"""

import common  # before the libraries, whose versions it checks

import shutil

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import vocabularies
from corpus import SENTENCES
from families import SIZES, VISIBLE_EPSILON
from layout import randomize, write_json
from tasks import save

NAME, SEED, MAX_LENGTH = "tiny-qwen3-instruct", 420, 288
USUAL = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
# The last exceeds the maximum length.
PAIRS = [
    (None, "lamp", SENTENCES[0]),
    (None, "Where is the boat?", SENTENCES[1]),
    ("Find the sentence about the time.", "clock", SENTENCES[19]),
    (None, "a short question", " ".join(SENTENCES)),
]


@torch.no_grad()
def main() -> None:
    torch.manual_seed(SEED)
    folder = common.GOLDENS / NAME
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = vocabularies.qwen()
    tokenizer.model_max_length = MAX_LENGTH
    config = Qwen3Config(vocab_size=len(tokenizer), **SIZES, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
                         max_position_embeddings=512, rms_norm_eps=VISIBLE_EPSILON)
    model = Qwen3ForCausalLM(config)
    randomize(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (PREFIX, SUFFIX))
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    assert None not in words and all(len(tokenizer.encode(word)) == 1 for word in ("no", "yes"))

    def ids_of(instruction: str | None, query: str, document: str) -> list[int]:
        text = f"<Instruct>: {instruction or USUAL}\n<Query>: {query}\n<Document>: {document}"
        budget = MAX_LENGTH - len(before) - len(after)
        return before + tokenizer(text, truncation="longest_first", max_length=budget)["input_ids"] + after

    ids = [ids_of(*pair) for pair in PAIRS]
    logits = [model(input_ids=torch.tensor([one]), attention_mask=torch.ones(1, len(one))).logits[0, -1] for one in ids]
    scores = torch.stack([one[words] for one in logits])
    counts = [len(one) for one in ids]
    assert max(counts) == MAX_LENGTH and min(counts) < MAX_LENGTH, counts
    save(folder, {
        "logits.pairs": scores,
        "given": scores.softmax(-1)[:, 1],
        "counts": torch.tensor(counts),
        "pair.ids": torch.tensor(ids[2]),
    })
    write_json(folder / "pairs.json", PAIRS)
    print(f"{NAME}: {counts} tokens, {len(tokenizer)} in the vocabulary, scores {scores.softmax(-1)[:, 1].tolist()}")


if __name__ == "__main__":
    main()
