"""JinaBERT v2, which transformers does not include: a reference implementation from its paper (arXiv 2310.19923), the
ALiBi paper (arXiv 2108.12409) and the published config. Unoptimized: every score is computed by definition.
"""

import math
from types import SimpleNamespace

import torch
from torch import Tensor

HIDDEN, HEADS, INNER, LAYERS, VOCABULARY, TYPES, EPSILON = 36, 6, 48, 2, 120, 2, 1e-3


def slopes(heads: int) -> list[float]:
    """ALiBi slopes: a geometric sequence that ends at 2^-8 for a power of two, interpolated for other head counts."""
    whole = 2 ** math.floor(math.log2(heads))
    row = [2 ** (-8 * (place + 1) / whole) for place in range(whole)]
    finer = [2 ** (-8 * (place + 1) / (2 * whole)) for place in range(0, 2 * whole, 2)]
    return row + finer[: heads - whole]


class Jina(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(to_json_string=lambda use_diff: "{}")
        shapes = {
            "embeddings.word_embeddings.weight": (VOCABULARY, HIDDEN),
            "embeddings.token_type_embeddings.weight": (TYPES, HIDDEN),
            "embeddings.LayerNorm.weight": (HIDDEN,),
            "embeddings.LayerNorm.bias": (HIDDEN,),
        }
        for layer in range(LAYERS):
            start = f"encoder.layer.{layer}."
            for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
                shapes |= {f"{start}{part}.weight": (HIDDEN, HIDDEN), f"{start}{part}.bias": (HIDDEN,)}
            for part in ("attention.output.LayerNorm", "mlp.layernorm"):
                shapes |= {f"{start}{part}.weight": (HIDDEN,), f"{start}{part}.bias": (HIDDEN,)}
            shapes |= {
                f"{start}mlp.gated_layers.weight": (2 * INNER, HIDDEN),
                f"{start}mlp.wo.weight": (HIDDEN, INNER),
                f"{start}mlp.wo.bias": (HIDDEN,),
            }
        self.weights = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}

    def named_parameters(self):
        return self.weights.items()

    def state_dict(self):
        return self.weights

    def double(self):
        self.weights = {name: tensor.detach().double() for name, tensor in self.weights.items()}
        return self

    def float(self):
        self.weights = {name: tensor.float() for name, tensor in self.weights.items()}
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None):
        w = self.weights

        def linear(x: Tensor, name: str) -> Tensor:
            return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

        def norm(x: Tensor, name: str) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
            return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

        ids = input_ids[0]
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids[0]
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
        x = norm(x, "embeddings.LayerNorm")
        place = torch.arange(len(ids), dtype=x.dtype)
        away = (place[:, None] - place[None, :]).abs()
        width = HIDDEN // HEADS
        for layer in range(LAYERS):
            start = f"encoder.layer.{layer}."
            q, k, v = (linear(x, f"{start}attention.self.{part}") for part in ("query", "key", "value"))
            mixed = []
            for head, slope in enumerate(slopes(HEADS)):
                part = slice(head * width, (head + 1) * width)
                scores = q[:, part] @ k[:, part].T / math.sqrt(width) - slope * away
                mixed.append(scores.softmax(-1) @ v[:, part])
            attended = linear(torch.cat(mixed, -1), f"{start}attention.output.dense")
            x = norm(x + attended, f"{start}attention.output.LayerNorm")
            gate, up = linear(x, f"{start}mlp.gated_layers").chunk(2, -1)
            gelu = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
            x = norm(x + linear(gelu * up, f"{start}mlp.wo"), f"{start}mlp.layernorm")
        return SimpleNamespace(last_hidden_state=x[None])


def model() -> Jina:
    return Jina()


def published(_: dict, weights: dict) -> tuple[dict, dict]:
    config = {
        "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "position_embedding_type": "alibi",
        "feed_forward_type": "geglu", "emb_pooler": "mean", "hidden_act": "gelu", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER,
        "vocab_size": VOCABULARY, "type_vocab_size": TYPES, "max_position_embeddings": 4096,
        "layer_norm_eps": EPSILON, "attn_implementation": "torch",
    }
    return config, {f"bert.{name}": tensor for name, tensor in weights.items()}
