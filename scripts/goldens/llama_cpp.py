"""What llama.cpp predicts after every token of 20 texts: crates/testkit/goldens/llama-cpp/NAME.json.

    pip install numpy==2.4.6
    python scripts/goldens/llama_cpp.py NAME MODEL.gguf

Takes the prebuilt library of an npm package and the header of a crate, and compiles llama_cpp.c with gcc. Each text is a
prompt and 32 greedy tokens of the first CPU variant. All variants compute the logits of these tokens; they differ, since
each rounds in its own way. The golden has, for each token, the two most likely next tokens by the first variant, the gap
between their logits, and the largest difference of a logit between variants.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from llama_library import PACKAGE, compile_tool, fetch, run, variant_folder

HERE = Path(__file__).resolve().parent
TO = HERE.parent.parent / "crates" / "testkit" / "goldens" / "llama-cpp"
VARIANTS = ["sapphirerapids", "icelake", "haswell"]
GENERATED = 32
PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time",
    "The history of the city begins",
    "def fibonacci(n):\n",
    "fn main() {\n    let numbers = vec![1, 2, 3];\n",
    "Water boils at",
    "In 1969, the first",
    "The quick brown fox",
    "Les élèves ont",
    "Der schnelle braune Fuchs",
    "SELECT name, age FROM",
    "Dear Sir or Madam,\n\n",
    "# Introduction\n\nThis document",
    "1, 2, 3, 4,",
    "The opposite of hot is",
    "🙂 is an emoji that",
    "Question: Why is the sky blue?\nAnswer:",
]


def main() -> None:
    name, model = sys.argv[1], Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        libraries, headers = fetch(scratch)
        tool = compile_tool(HERE / "llama_cpp.c", scratch, libraries, headers)

        def llama(variant: str, *arguments: str | Path, given: bytes) -> bytes:
            only = variant_folder(scratch, libraries, variant)
            return run(tool, model, *arguments, input=given, env={"GGML_DIR": str(only), "PATH": "/usr/bin"})

        prompts = llama(VARIANTS[0], "tokenize", given="\0".join(PROMPTS).encode() + b"\0")
        lengths = [len(line.split()) for line in prompts.splitlines()]
        texts = llama(VARIANTS[0], "generate", str(GENERATED), given=prompts)
        ids = [[int(token) for token in line.split()] for line in texts.splitlines()]
        count = sum(len(tokens) for tokens in ids)
        logits = []
        for variant in VARIANTS:
            llama(variant, "logits", scratch / "logits", given=texts)
            logits.append(np.fromfile(scratch / "logits", dtype=np.float32).reshape(count, -1))
    first = logits[0]
    top = np.argsort(-first, axis=1)[:, :2]
    best = np.take_along_axis(first, top, axis=1)
    apart = np.max([np.abs(other - first).max(axis=1) for other in logits[1:]], axis=0)
    texts, start = [], 0
    for tokens, length in zip(ids, lengths):
        part = slice(start, start + len(tokens))
        texts.append({
            "prompt": length, "ids": tokens, "top": top[part].tolist(),
            "gap": [round(float(gap), 4) for gap in (best[part, 0] - best[part, 1])],
            "apart": [round(float(most), 4) for most in apart[part]],
        })
        start += len(tokens)
    TO.mkdir(exist_ok=True)
    golden = {"package": PACKAGE, "variants": VARIANTS, "prompts": PROMPTS, "texts": texts}
    (TO / f"{name}.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{count} tokens; variants differ by {apart.max():.3f} at most, {np.median(apart):.3f} in the median")


if __name__ == "__main__":
    main()
