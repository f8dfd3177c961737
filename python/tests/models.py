"""Models of the tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINILM = ROOT / "target/parts/minilm-trio"
SMOLLM2 = ROOT / "target/parts/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GOLDENS = ROOT / "crates/testkit/goldens"
TEXTS = ROOT / "benches/texts.jsonl"

for path in (MINILM, SMOLLM2, GOLDENS, TEXTS):
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: scripts/parts minilm-trio smollm2")
