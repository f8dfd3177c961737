#!/usr/bin/env python3
"""Compares the perplexity of sconce and llama.cpp on the same GGUF files.

    benches/perplexity.py [--model FILE.gguf] [--formats Q8_0,Q2_K] [--turns PROGRAM] [--tokens 4096]

The model, SmolLM2 by default, is quantized by llama.cpp to every format, or to those of `--formats`. The text is that of
texts.jsonl, in chunks of 512 tokens. sconce computes it twice: as a prompt, and as generated tokens, which have other
kernels. Prints Markdown; fails if a perplexity is more than 0.5 % off. Needs cargo, gcc, npm, and `scripts/parts smollm2`.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

from contestant import Contestant, say
from generate import BENCHES, ROOT, library, llama_library, run

# Format of a file: the number that llama.cpp has for it, and sconce's dtype.
FORMATS = {
    "F16": (1, "f32"), "BF16": (32, "bf16"), "Q8_0": (7, "int8"), "Q6_K": (18, "int4"), "Q5_K_M": (17, "int4"),
    "Q5_1": (9, "int4"), "Q5_0": (8, "int4"), "Q4_K_M": (15, "int4"), "Q4_1": (3, "int4"), "Q4_0": (2, "int4"),
    "IQ4_NL": (25, "int4"), "IQ4_XS": (30, "int4"), "Q3_K_M": (12, "int4"), "Q2_K": (10, "int4"),
}
CHUNK = 512
MOST = 0.5
VARIANTS = llama_library.runnable(["sapphirerapids", "cascadelake", "haswell"])


def perplexity(runner, chunks, turn="perplexity"):
    answers = [runner.take(f"{turn} {' '.join(map(str, chunk))}") for chunk in chunks]
    return math.exp(sum(answer["nll"] for answer in answers) / sum(answer["tokens"] for answer in answers))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file [SmolLM2]")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--turns", type=Path, default=ROOT / "target" / "debug" / "examples" / "generate_turns")
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    model = options.model or next((ROOT / "target" / "parts" / "smollm2").glob("*.gguf"))
    scratch = ROOT / "target" / "generate"
    scratch.mkdir(parents=True, exist_ok=True)
    tool, libraries, folder = library(scratch)

    def llama(path, variant):
        environment = {"GGML_DIR": str(llama_library.variant_folder(folder, libraries, variant))}
        runner = Contestant(f"llama-{variant}", [tool, path, 2], environment, scratch)
        runner.answer()
        return runner

    def ours(path, dtype, *more):
        runner = Contestant("sconce", [options.turns, path, "native", dtype, 2, *more], {}, scratch)
        runner.answer()
        return runner

    texts = " ".join(json.loads(line)["text"] for line in (BENCHES / "texts.jsonl").open())
    first = llama(model, VARIANTS[0])
    ids = first.take("tokenize " + " ".join(texts.split())[: options.tokens * 8])[: options.tokens]
    first.end()
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    quantizer = os.environ | {"GGML_DIR": str(llama_library.variant_folder(folder, libraries, "haswell"))}
    base, failed = scratch / "perplexity-base.gguf", False
    run(tool, "quantize", model, base, FORMATS["F16"][0], env=quantizer)
    print(f"{model.name}, {len(ids)} tokens in chunks of {CHUNK}\n")
    print("| format | llama.cpp, " + " | llama.cpp, ".join(VARIANTS) + " | prompt | off | generated | off | generated, cache in q8_0 | off |")
    print("|---|" + "---|" * (len(VARIANTS) + 6))
    for form in options.formats.split(","):
        number, dtype = FORMATS[form]
        path = scratch / "perplexity.gguf"
        run(tool, "quantize", base, path, number, env=quantizer)
        wanted = []
        for variant in VARIANTS:
            runner = llama(path, variant)
            wanted.append(perplexity(runner, chunks))
            runner.end()
        runner = ours(path, dtype)
        found = [perplexity(runner, chunks), perplexity(runner, chunks, "generated_perplexity")]
        runner.end()
        runner = ours(path, dtype, "--kv-cache-dtype", "q8_0")
        found.append(perplexity(runner, chunks, "generated_perplexity"))
        runner.end()
        off = [100 * (value / wanted[0] - 1) for value in found]
        failed |= any(abs(percent) > MOST for percent in off)
        cells = [f"{value:.4f}" for value in wanted]
        cells += [cell for value, percent in zip(found, off) for cell in (f"{value:.4f}", f"{percent:+.2f} %")]
        print(f"| {form} | " + " | ".join(cells) + " |", flush=True)
    path.unlink()
    base.unlink()
    if failed:
        say(f"some are more than {MOST} % off")
        sys.exit(1)


if __name__ == "__main__":
    main()
