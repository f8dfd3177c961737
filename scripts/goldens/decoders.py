"""Makes the tiny decoders that generate, with golden.safetensors in each folder.

    python scripts/goldens/decoders.py [NAME...]

They have no tokenizer: outputs are for token ids. Everything is random from fixed seeds; running it again writes the
same bytes. Of several seeds the first is taken whose greedy tokens are far enough from the second best to be unambiguous.
"""

import common  # before the libraries, whose versions it checks

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import transformers as tf
from safetensors.torch import save_file
from torch import Tensor

from layout import write_json
from wider import DULL, fuse

VOCABULARY = 128
EPSILON = 1e-3  # larger than any real one, so that one left out is seen
POSITIONS = 512
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=VOCABULARY,
             max_position_embeddings=POSITIONS, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GROUPED = SIZES | dict(num_key_value_heads=2, rms_norm_eps=EPSILON)
LENGTHS = [1, 2, 7, 31, 32, 33, 64, 129, 300]
HIDDEN = [33, 130]
PROMPTS = [1, 33, 129, 300]
GREEDY = 64
GAP = 2e-3
DISTINCT = 6


@dataclass(frozen=True)
class Decoder:
    """One folder; `published` turns config and weights into what published checkpoints of the family have."""

    name: str
    make: Callable[[], torch.nn.Module]
    published: Callable[[dict, dict], tuple[dict, dict]] = lambda config, weights: (config, weights)
    gains: dict[str, float] = field(default_factory=dict)


def older(config: dict, **more) -> dict:
    """A config with the keys from before `rope_parameters`."""
    return {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types")} | more


def llama(rope: dict, **more) -> torch.nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED | more, rope_parameters=rope))


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "factor": 2.0}


def mistral() -> torch.nn.Module:
    return tf.MistralForCausalLM(tf.MistralConfig(**GROUPED, head_dim=12, sliding_window=20))


def qwen2() -> torch.nn.Module:
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(**GROUPED, tie_word_embeddings=True,
                                              rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}))


def qwen3() -> torch.nn.Module:
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(**GROUPED, head_dim=16, tie_word_embeddings=False,
                                              rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}))


def smollm3() -> torch.nn.Module:
    return tf.SmolLM3ForCausalLM(tf.SmolLM3Config(
        **GROUPED | dict(num_hidden_layers=4), no_rope_layers=[1, 1, 1, 0], tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}))


def gemma() -> torch.nn.Module:
    return tf.GemmaForCausalLM(tf.GemmaConfig(**GROUPED | dict(num_key_value_heads=1), head_dim=16))


def gemma2() -> torch.nn.Module:
    return tf.Gemma2ForCausalLM(tf.Gemma2Config(
        **GROUPED | dict(num_hidden_layers=4), head_dim=16, query_pre_attn_scalar=24, sliding_window=20,
        attn_logit_softcapping=3.0, final_logit_softcapping=12.0))


def gemma3() -> torch.nn.Module:
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(
        **GROUPED | dict(num_hidden_layers=3), head_dim=16, query_pre_attn_scalar=24, sliding_window=24,
        sliding_window_pattern=3, rope_parameters=rope))


def published_gemma3(config: dict, weights: dict) -> tuple[dict, dict]:
    return older(config, rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window_pattern=3,
                 rope_scaling={"rope_type": "linear", "factor": 8.0}), weights


LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.25, 1.4, 1.6, 2.0],
            "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0]}


def phi3() -> torch.nn.Module:
    """As Phi-4-mini: three quarters of a head are rotated, by factors that depend on the length."""
    rope = LONGROPE | {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                       "original_max_position_embeddings": 128}
    return tf.Phi3ForCausalLM(tf.Phi3Config(
        **GROUPED | dict(num_attention_heads=2, num_key_value_heads=1), original_max_position_embeddings=128,
        rope_parameters=rope, partial_rotary_factor=0.75, tie_word_embeddings=True, sliding_window=400))


def published_phi3(config: dict, weights: dict) -> tuple[dict, dict]:
    return older(config, rope_theta=10000.0, rope_scaling=LONGROPE, partial_rotary_factor=0.75,
                 original_max_position_embeddings=128), weights


def phi3_window() -> torch.nn.Module:
    """As Phi-3-mini-4k."""
    return tf.Phi3ForCausalLM(tf.Phi3Config(**GROUPED, sliding_window=25, tie_word_embeddings=False))


def phi() -> torch.nn.Module:
    """As Phi-2."""
    return tf.PhiForCausalLM(tf.PhiConfig(**SIZES, layer_norm_eps=EPSILON, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}))


def stablelm(**more) -> torch.nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    return tf.StableLmForCausalLM(tf.StableLmConfig(
        **SIZES | dict(num_attention_heads=2, num_key_value_heads=1) | more, layer_norm_eps=EPSILON,
        rope_parameters=rope))


def published_partial(factor: float) -> Callable[[dict, dict], tuple[dict, dict]]:
    return lambda config, weights: (older(config, rope_theta=10000.0, partial_rotary_factor=factor), weights)


def falcon(**more) -> torch.nn.Module:
    sizes = {key: SIZES[key] for key in SIZES if key not in ("intermediate_size", "max_position_embeddings")}
    return tf.FalconForCausalLM(tf.FalconConfig(**sizes, ffn_hidden_size=48, max_position_embeddings=POSITIONS, alibi=False,
                                                bias=False, layer_norm_epsilon=EPSILON, **more))


def gpt_neox(**more) -> torch.nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(
        **SIZES, layer_norm_eps=EPSILON, rope_parameters=rope, tie_word_embeddings=False, **more))


def published_neox(config: dict, weights: dict) -> tuple[dict, dict]:
    return older(config, rotary_emb_base=10000, rotary_pct=0.5), weights


def mixtral() -> torch.nn.Module:
    return tf.MixtralForCausalLM(tf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2))


def split_experts(weights: dict, names: tuple[str, str, str], old: str, new: str) -> dict:
    """The experts of each layer as matrices of their own: gate, up and down."""
    gate, up, down = names
    split = {}
    for name, tensor in weights.items():
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj").replace(old, new)
            for expert, both in enumerate(tensor):
                first, second = both.chunk(2)
                split[f"{stem}{expert}.{gate}.weight"] = first.contiguous()
                split[f"{stem}{expert}.{up}.weight"] = second.contiguous()
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj").replace(old, new)
            for expert, matrix in enumerate(tensor):
                split[f"{stem}{expert}.{down}.weight"] = matrix.contiguous()
        else:
            split[name.replace(old, new)] = tensor
    return split


def published_mixtral(config: dict, weights: dict) -> tuple[dict, dict]:
    config = older(config, rope_theta=config["rope_parameters"]["rope_theta"])
    return config, split_experts(weights, ("w1", "w3", "w2"), ".mlp.", ".block_sparse_moe.")


def qwen3_moe() -> torch.nn.Module:
    return tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(
        **GROUPED | dict(num_hidden_layers=3), head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        norm_topk_prob=True, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}))


def published_qwen3_moe(config: dict, weights: dict) -> tuple[dict, dict]:
    config = older(config, rope_theta=config["rope_parameters"]["rope_theta"])
    config["num_experts"] = config.pop("num_local_experts")
    return config, split_experts(weights, ("gate_proj", "up_proj", "down_proj"), "", "")


def multimodal(model_type: str, published: Callable[[dict, dict], tuple[dict, dict]]):
    """The same text model within a checkpoint that also has a vision model."""
    def change(config: dict, weights: dict) -> tuple[dict, dict]:
        text, weights = published(config, weights)
        weights = {f"language_model.{name}": tensor for name, tensor in weights.items()}
        vision = ["vision_tower.vision_model.embeddings.position_embedding.weight",
                  "multi_modal_projector.mm_input_projection_weight"]
        architecture = f"{model_type.capitalize()}ForConditionalGeneration"
        config = {"architectures": [architecture], "model_type": model_type, "text_config": text, "vision_config": {}}
        return config, weights | {name: torch.ones(2, 2) for name in vision}
    return change


def published_mistral(config: dict, weights: dict) -> tuple[dict, dict]:
    return older(config, rope_theta=config["rope_parameters"]["rope_theta"]), weights


DECODERS = [
    Decoder("tiny-llama-generate", lambda: llama(LLAMA3 | {"rope_theta": 500000.0}, head_dim=16),
            lambda config, weights: (older(config, rope_theta=500000.0, rope_scaling=LLAMA3), weights)),
    Decoder("tiny-llama-linear-generate", lambda: llama(LINEAR | {"rope_theta": 10000.0}, tie_word_embeddings=True)),
    Decoder("tiny-llama-yarn-generate", lambda: llama(YARN | {"rope_theta": 10000.0}, head_dim=16),
            lambda config, weights: (older(config, rope_theta=10000.0, rope_scaling=YARN), weights)),
    Decoder("tiny-mistral-generate", mistral, published_mistral),
    Decoder("tiny-mistral3-generate", mistral, multimodal("mistral3", published_mistral)),
    Decoder("tiny-qwen2-generate", qwen2),
    Decoder("tiny-qwen3-generate", qwen3),
    Decoder("tiny-smollm3-generate", smollm3),
    Decoder("tiny-gemma-generate", gemma),
    Decoder("tiny-gemma2-generate", gemma2,
            lambda config, weights: (older(config, rope_theta=config["rope_parameters"]["rope_theta"]), weights)),
    Decoder("tiny-gemma3-generate", gemma3, published_gemma3),
    Decoder("tiny-gemma3-multimodal-generate", gemma3, multimodal("gemma3", published_gemma3)),
    Decoder("tiny-phi3-generate", phi3, published_phi3),
    Decoder("tiny-phi3-window-generate", phi3_window),
    Decoder("tiny-phi-generate", phi, published_partial(0.5)),
    Decoder("tiny-stablelm-generate", lambda: stablelm(use_qkv_bias=True), published_partial(0.25)),
    Decoder("tiny-stablelm-parallel-generate", lambda: stablelm(use_parallel_residual=True)),
    Decoder("tiny-falcon-generate", lambda: falcon(multi_query=True, parallel_attn=True, new_decoder_architecture=False)),
    Decoder("tiny-falcon-new-generate", lambda: falcon(num_kv_heads=2, new_decoder_architecture=True)),
    Decoder("tiny-gpt-neox-generate", gpt_neox, published_neox),
    Decoder("tiny-gpt-neox-serial-generate", lambda: gpt_neox(use_parallel_residual=False), published_neox),
    Decoder("tiny-mixtral-generate", mixtral, published_mixtral),
    Decoder("tiny-qwen3-moe-generate", qwen3_moe, published_qwen3_moe),
]


@torch.no_grad()
def randomize(decoder: Decoder, model: torch.nn.Module) -> None:
    """Randomizes every parameter: zero biases and unit norms would hide a missing one."""
    less_one = "gemma" in decoder.name
    for name, parameter in model.named_parameters():
        if less_one and name == "model.norm.weight" or name == "transformer.ln_f.weight":
            # Of either sign: tied embeddings would give every token itself as the next.
            parameter.normal_(-1.0 if less_one else 0.0, 2.0)
        elif parameter.dim() == 1:
            is_norm = name.endswith("weight")
            parameter.normal_(1.0 if is_norm and not less_one else 0.0, 0.3)
        elif "embed" in name:
            parameter.normal_(0.0, 0.5)
        else:
            parameter.normal_(0.0, 1.3 / math.sqrt(parameter.shape[-1]))
        for part, gain in decoder.gains.items():
            if part in name:
                parameter.mul_(gain)


@torch.no_grad()
def logits(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """The logits after the last of `ids`, without a cache."""
    return model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], use_cache=False).logits[0, -1]


@torch.no_grad()
def hidden_states(model: torch.nn.Module, ids: Tensor) -> Tensor:
    inputs = dict(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], use_cache=False)
    return model.base_model(**inputs).last_hidden_state[0]


def greedy(model: torch.nn.Module, prompt: Tensor) -> tuple[Tensor, float]:
    """The tokens of greedy decoding, and the smallest distance to the second best."""
    ids, gap = prompt, math.inf
    for _ in range(GREEDY):
        best = logits(model, ids).topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        if gap < GAP:
            break
        ids = torch.cat([ids, best.indices[:1]])
    return ids[len(prompt):], gap


def made(decoder: Decoder, seed: int) -> tuple[torch.nn.Module, Tensor]:
    torch.manual_seed(seed)
    model = decoder.make().eval()
    randomize(decoder, model)
    model.config._attn_implementation = "eager"
    model.config._experts_implementation = "eager"
    ids = torch.randint(3, VOCABULARY, (max(LENGTHS),), generator=torch.Generator().manual_seed(seed))
    return model, ids


def continuations(model: torch.nn.Module, ids: Tensor) -> dict[str, Tensor] | None:
    """Greedy tokens after every prompt; none if some are ambiguous or always the same."""
    tokens, gaps = {}, []
    for length in PROMPTS:
        tokens[f"greedy.{length}"], gap = greedy(model, ids[:length])
        gaps.append(gap)
        if gap < GAP or len(set(tokens[f"greedy.{length}"].tolist())) < DISTINCT:
            return None
    print(f"  smallest gap {min(gaps):.1e}")
    return tokens


def write_folder(decoder: Decoder) -> None:
    for seed in range(100):
        model, ids = made(decoder, 1000 + seed)
        weights = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            weights.pop("lm_head.weight")
        model.double()
        tokens = continuations(model, ids)
        if tokens is not None:
            break
    else:
        sys.exit(f"{decoder.name}: no seed has unambiguous greedy tokens")
    tensors = {"ids": ids} | tokens
    tensors["logits"] = torch.stack([logits(model, ids[:length]) for length in LENGTHS])
    tensors["lengths"] = torch.tensor(LENGTHS)
    tensors |= {f"hidden.{length}": hidden_states(model, ids[:length]) for length in HIDDEN}
    single, _ = made(decoder, 1000 + seed)
    apart = max((logits(single, ids[:length]) - row).abs().max().item()
                for length, row in zip(LENGTHS, tensors["logits"]))
    different = len(set(torch.cat(list(tokens.values())).tolist()))
    print(f"{decoder.name}: seed {1000 + seed}; single and double precision differ by {apart:.1e}; "
          f"spread {tensors['logits'].std().item():.2f}; {different} different tokens")
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if value is not None and key not in DULL}
    config["architectures"] = [type(model).__name__]
    config, weights = decoder.published(config, weights)
    folder = common.GOLDENS / decoder.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    single = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(single, folder / "golden.safetensors", metadata=common.provenance())
    write_json(folder / "config.json", config)


if __name__ == "__main__":
    asked = set(sys.argv[1:])
    for decoder in DECODERS:
        if not asked or decoder.name in asked:
            write_folder(decoder)
