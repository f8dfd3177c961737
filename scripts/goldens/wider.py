"""Makes the tiny models of the families beyond BERT's, with golden.safetensors in each folder.

    python scripts/goldens/wider.py [NAME...]

They have no tokenizer: outputs are for token ids. Everything is random from fixed seeds; running it
again writes the same bytes.
"""

import common  # before the libraries, whose versions it checks

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    DebertaConfig,
    DebertaModel,
    DebertaV2Config,
    DebertaV2Model,
    Gemma3TextConfig,
    Gemma3TextModel,
    GteConfig,
    GteModel,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)

import jina
from layout import write_json

VOCABULARY = 120
EPSILON = 1e-3  # larger than any real one, so that one left out is seen
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=VOCABULARY)
DECODER = SIZES | dict(num_key_value_heads=2, rms_norm_eps=EPSILON, max_position_embeddings=4096,
                       pad_token_id=0, bos_token_id=1, eos_token_id=2)
WHOLE = [1, 2, 3, 7, 33, 64, 130]
MEANS = 160
LONG = [300, 2100]
TAIL = 4


@dataclass(frozen=True)
class Wider:
    """One folder; `published` turns config and weights into what published checkpoints of the family have."""

    name: str
    seed: int
    make: Callable[[], torch.nn.Module]
    published: Callable[[dict, dict], tuple[dict, dict]] = lambda config, weights: (config, weights)
    longest: int = 4096
    pooling: str = "mean"
    types: int = 0
    tweak: Callable[[torch.nn.Module], None] = lambda model: None
    gains: dict[str, float] = field(default_factory=dict)


def rename(weights: dict, *pairs: tuple[str, str]) -> dict:
    def new(name: str) -> str:
        for old, to in pairs:
            name = name.replace(old, to)
        return name
    return {new(name): tensor for name, tensor in weights.items()}


def fuse(weights: dict, parts: list[str], whole: str) -> dict:
    """Stacks the tensors whose names end in `parts` into `whole`."""
    fused = {}
    for name, tensor in weights.items():
        if parts[0] in name:
            stacked = [weights[name.replace(parts[0], part)] for part in parts]
            fused[name.replace(parts[0], whole)] = torch.cat(stacked)
        elif not any(part in name for part in parts):
            fused[name] = tensor
    return fused


def only(config: dict, *keys: str) -> dict:
    return {key: config[key] for key in keys if key in config}


def nomic() -> torch.nn.Module:
    return NomicBertModel(NomicBertConfig(**SIZES, layer_norm_eps=EPSILON, max_position_embeddings=4096,
                                          rope_parameters={"rope_type": "default", "rope_theta": 1000.0}))


def published_nomic(config: dict, weights: dict) -> tuple[dict, dict]:
    published = {
        "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "causal": False,
        "layer_norm_epsilon": EPSILON, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
        "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2, "n_positions": 4096, "parallel_block": False,
        "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
        "type_vocab_size": 2, "use_rms_norm": False, "use_flash_attn": True, "vocab_size": VOCABULARY,
    }
    weights = fuse(weights, [f"self_attn.{part}_proj" for part in "qkv"], "attn.Wqkv")
    return published, rename(weights, ("layers.", "encoder.layers."), ("self_attn.o_proj", "attn.out_proj"),
                             ("mlp.up_proj", "mlp.fc11"), ("mlp.gate_proj", "mlp.fc12"), ("mlp.down_proj", "mlp.fc2"),
                             ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2"),
                             ("embeddings.LayerNorm", "emb_ln"))


def modern() -> torch.nn.Module:
    return ModernBertModel(ModernBertConfig(**SIZES | dict(num_hidden_layers=4), norm_eps=EPSILON,
                                            local_attention=16, max_position_embeddings=4096, pad_token_id=0,
                                            bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2))


def published_modern(config: dict, weights: dict) -> tuple[dict, dict]:
    del config["layer_types"], config["rope_parameters"]
    more = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    return config | more, {f"model.{name}": tensor for name, tensor in weights.items()}


def gte() -> torch.nn.Module:
    return GteModel(GteConfig(**SIZES, layer_norm_eps=EPSILON, max_position_embeddings=4096, type_vocab_size=1,
                              pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))


NTK = 2.0


def ntk(model: torch.nn.Module) -> None:
    """The fixed NTK scaling of the published code: the base times the factor, and the speeds divided once more."""
    width = 8
    pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
    speeds = (10000.0 * NTK) ** -pairs / NTK ** (2 / width)
    model.rotary_emb.inv_freq = torch.nn.Buffer(speeds.float(), persistent=False)


def published_gte(config: dict, weights: dict) -> tuple[dict, dict]:
    config = only(config, "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
                  "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_act", "pad_token_id")
    config |= {"model_type": "new", "position_embedding_type": "rope", "rope_theta": 10000.0, "pack_qkv": True,
               "rope_scaling": {"type": "ntk", "factor": NTK}, "layer_norm_type": "layer_norm",
               "logn_attention_scale": False, "unpad_inputs": False, "use_memory_efficient_attention": False}
    weights = fuse(weights, [f"self_attn.{part}_proj" for part in "qkv"], "attention.qkv_proj")
    weights = fuse(weights, ["mlp.up_proj", "mlp.gate_proj"], "mlp.up_gate_proj")
    return config, rename({f"new.{name}": tensor for name, tensor in weights.items()},
                          ("new.layers.", "new.encoder.layer."), ("self_attn.o_proj", "attention.o_proj"),
                          ("post_attention_layernorm", "attn_ln"), ("post_mlp_layernorm", "mlp_ln"))


def llama() -> torch.nn.Module:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    return LlamaModel(LlamaConfig(**DECODER, rope_parameters=rope, attention_bias=True, mlp_bias=True))


def mistral() -> torch.nn.Module:
    return MistralModel(MistralConfig(**DECODER, head_dim=12, sliding_window=20))


def published_mistral(config: dict, weights: dict) -> tuple[dict, dict]:
    del config["rope_parameters"]
    weights = fuse(weights, [f"self_attn.{part}_proj" for part in "qkv"], "self_attn.qkv_proj")
    weights = fuse(weights, ["mlp.gate_proj", "mlp.up_proj"], "mlp.gate_up_proj")
    return config | {"rope_theta": 10000.0}, weights


def qwen2() -> torch.nn.Module:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
    return Qwen2Model(Qwen2Config(**DECODER, rope_parameters=rope, use_sliding_window=True, sliding_window=24,
                                  max_window_layers=1))


def published_qwen2(config: dict, weights: dict) -> tuple[dict, dict]:
    del config["rope_parameters"], config["layer_types"]
    more = {"rope_theta": 10000.0, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}
    return config | more, {f"model.{name}": tensor for name, tensor in weights.items()}


def qwen3() -> torch.nn.Module:
    return Qwen3Model(Qwen3Config(**DECODER, head_dim=16,
                                  rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}))


def gemma3(bidirectional: bool) -> torch.nn.Module:
    config = Gemma3TextConfig(**DECODER | dict(num_hidden_layers=3), head_dim=16, query_pre_attn_scalar=24,
                              sliding_window=24, sliding_window_pattern=3,
                              use_bidirectional_attention=bidirectional)
    return Gemma3TextModel(config)


def published_gemma(config: dict, weights: dict) -> tuple[dict, dict]:
    del config["layer_types"], config["rope_parameters"]
    more = {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "_sliding_window_pattern": 3}
    return config | more, weights


def t5(projection: str) -> torch.nn.Module:
    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=12, d_ff=48, num_layers=2, num_heads=4,
                      relative_attention_num_buckets=16, relative_attention_max_distance=40,
                      layer_norm_epsilon=EPSILON, feed_forward_proj=projection)
    return T5EncoderModel(config)


def published_t5(config: dict, weights: dict) -> tuple[dict, dict]:
    return config | {"n_positions": 2200}, weights


def deberta() -> torch.nn.Module:
    return DebertaModel(DebertaConfig(**SIZES, layer_norm_eps=EPSILON, max_position_embeddings=320,
                                      relative_attention=True, max_relative_positions=40, pos_att_type=["c2p", "p2c"],
                                      position_biased_input=False))


def deberta_v2() -> torch.nn.Module:
    return DebertaV2Model(DebertaV2Config(**SIZES, layer_norm_eps=EPSILON, max_position_embeddings=320,
                                          relative_attention=True, max_relative_positions=40, pos_att_type=["p2c", "c2p"],
                                          position_biased_input=True, type_vocab_size=2))


def deberta_v3() -> torch.nn.Module:
    return DebertaV2Model(DebertaV2Config(**SIZES, layer_norm_eps=EPSILON, max_position_embeddings=320,
                                          relative_attention=True, max_relative_positions=-1, position_buckets=16,
                                          norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
                                          position_biased_input=False))


def published_deberta(config: dict, weights: dict) -> tuple[dict, dict]:
    return config | {"pos_att_type": "|".join(config["pos_att_type"])}, {
        f"deberta.{name}": tensor for name, tensor in weights.items()}


def clip() -> torch.nn.Module:
    return CLIPTextModel(CLIPTextConfig(**SIZES, layer_norm_eps=EPSILON, max_position_embeddings=320, pad_token_id=0,
                                        bos_token_id=1, eos_token_id=2))


def published_clip(config: dict, weights: dict) -> tuple[dict, dict]:
    """The text encoder of a full CLIP checkpoint: nested config, prefixed weights."""
    tower = {f"text_model.{name.removeprefix('text_model.')}": tensor for name, tensor in weights.items()}
    return {"model_type": "clip", "text_config": config, "projection_dim": 32}, tower


FAMILIES = [
    Wider("tiny-nomic", 11, nomic, published_nomic, types=2),
    Wider("tiny-modernbert", 12, modern, published_modern, gains={"mlp.Wi": 0.6, "mlp.Wo": 0.6, "attn.Wqkv": 0.8}),
    Wider("tiny-jina", 13, jina.model, jina.published, types=2),
    Wider("tiny-gte", 14, gte, published_gte, tweak=ntk),
    Wider("tiny-qwen2", 15, qwen2, published_qwen2, pooling="lasttoken"),
    Wider("tiny-qwen3", 16, qwen3, pooling="lasttoken"),
    Wider("tiny-llama", 17, llama, pooling="lasttoken"),
    Wider("tiny-mistral", 18, mistral, published_mistral, pooling="lasttoken"),
    Wider("tiny-gemma3", 19, lambda: gemma3(True), published_gemma),
    Wider("tiny-gemma3-causal", 20, lambda: gemma3(False), pooling="lasttoken"),
    Wider("tiny-t5", 21, lambda: t5("relu"), published_t5, longest=2200, gains={"SelfAttention.q": 0.35}),
    Wider("tiny-t5-gated", 22, lambda: t5("gated-gelu"), published_t5, longest=2200, gains={"SelfAttention.q": 0.35}),
    Wider("tiny-deberta", 23, deberta, published_deberta, longest=320),
    Wider("tiny-deberta-v2", 24, deberta_v2, longest=320, types=2),
    Wider("tiny-deberta-v3", 25, deberta_v3, published_deberta, longest=320),
    Wider("tiny-clip", 26, clip, published_clip, longest=320, pooling="lasttoken"),
]


@torch.no_grad()
def randomize(wider: Wider, model: torch.nn.Module) -> None:
    """Randomizes every parameter: zero biases and unit norms would hide a missing one."""
    less_one = "gemma3" in wider.name
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            is_norm = name.endswith("weight")
            parameter.normal_(1.0 if is_norm and not less_one else 0.0, 0.3)
        elif "embed" in name or "shared" in name:
            parameter.normal_(0.0, 0.5)
        elif "relative_attention_bias" in name:
            parameter.normal_(0.0, 1.0)
        else:
            parameter.normal_(0.0, 1.3 / math.sqrt(parameter.shape[-1]))
        for part, gain in wider.gains.items():
            if part in name:
                parameter.mul_(gain)


@torch.no_grad()
def hidden_states(model: torch.nn.Module, ids: Tensor, **inputs) -> Tensor:
    return model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], **inputs).last_hidden_state[0]


def references(wider: Wider, model: torch.nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(wider.seed)
    longest = min(wider.longest, max(LONG))
    ids = torch.randint(3, VOCABULARY, (longest,), generator=generator)
    tensors = {"ids": ids}
    tensors |= {f"hidden.{length}": hidden_states(model, ids[:length]) for length in WHOLE}
    tensors["mean"] = torch.stack([hidden_states(model, ids[:length]).mean(0) for length in range(1, MEANS + 1)])
    for length in LONG:
        if length <= longest:
            tensors[f"tail.{length}"] = hidden_states(model, ids[:length])[-TAIL:]
    if wider.types:
        types = torch.randint(wider.types, (64,), generator=generator)
        typed = hidden_states(model, ids[:64], token_type_ids=types[None])
        tensors |= {"types": types, "hidden.types": typed}
    return tensors


def report(name: str, model: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    model.float()
    apart = max((hidden_states(model, tensors["ids"][:length]) - tensors[f"hidden.{length}"]).abs().max().item()
                for length in WHOLE)
    spread = tensors["hidden.64"].std().item()
    tokens = tensors["hidden.64"]
    neighbours = torch.nn.functional.cosine_similarity(tokens[:-1], tokens[1:]).mean().item()
    print(f"{name}: single and double precision differ by {apart:.1e}; spread {spread:.2f}, "
          f"cosine of neighbours {neighbours:.2f}")


def write_folder(wider: Wider) -> None:
    torch.manual_seed(wider.seed)
    folder = common.GOLDENS / wider.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model = wider.make().eval()
    randomize(wider, model)
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    if isinstance(model, T5EncoderModel):
        weights.pop("encoder.embed_tokens.weight", None)
    config = json.loads(model.config.to_json_string(use_diff=False))
    kept = {key: value for key, value in config.items() if value is not None and key not in DULL}
    config, weights = wider.published(kept, weights)
    model.config._attn_implementation = "eager"
    wider.tweak(model)
    model.double()
    wider.tweak(model)
    tensors = references(wider, model)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    single = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(single, folder / "golden.safetensors", metadata=common.provenance())
    write_json(folder / "config.json", config)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    write_json(folder / "modules.json", modules)
    pooling = {"mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}[wider.pooling]
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, pooling: True})
    report(wider.name, model, tensors)


# Long keys without effect on hidden states.
DULL = {"id2label", "label2id", "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict",
        "problem_type", "is_encoder_decoder", "transformers_version", "_name_or_path", "task_specific_params"}


if __name__ == "__main__":
    asked = set(sys.argv[1:])
    for wider in FAMILIES:
        if not asked or wider.name in asked:
            write_folder(wider)
