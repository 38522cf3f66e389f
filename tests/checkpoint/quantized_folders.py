# SPDX-License-Identifier: Apache-2.0
"""Tiny models for the scripts that make tests/data/quantized: float weights, and folders of what
others' packages made of them.

A folder's expected.json has the SHA-256 of each module's float32 weights as the writer's own
dequantization gives them, and the logits that transformers computes with these weights in float32.
"""

import base64
import hashlib
import json
import pathlib
import tempfile

import torch
from safetensors.torch import save_file

VOCAB, TOKENS = 32, [3, 17, 8, 30, 1, 22, 9, 12, 27, 5]
BASE = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "torch_dtype": "float16", "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 1,
}
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                  "moe_intermediate_size": 32, "num_experts": 2, "num_experts_per_tok": 2,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
                "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 2},
}


class TinyModel:
    """`linear`: the matrices that may be quantized, by module; `others`: all other tensors."""

    def __init__(self, family, seed, **changes):
        self.config = BASE | FAMILIES[family] | changes
        self.generator = torch.Generator().manual_seed(seed)
        c = self.config
        hidden, heads = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
        kv_heads = c["num_key_value_heads"] * c["head_dim"]
        self.linear, self.others = {}, {}
        self.others["model.embed_tokens.weight"] = self.matrix(c["vocab_size"], hidden)
        self.others["model.norm.weight"] = self.norm(hidden)
        if not c["tie_word_embeddings"]:
            self.linear["lm_head"] = self.matrix(c["vocab_size"], hidden)
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            for name in ("input_layernorm", "post_attention_layernorm"):
                self.others[f"{at}{name}.weight"] = self.norm(hidden)
            for name, rows, cols in (("q", heads, hidden), ("k", kv_heads, hidden),
                                     ("v", kv_heads, hidden), ("o", hidden, heads)):
                self.linear[f"{at}self_attn.{name}_proj"] = self.matrix(rows, cols)
                if family == "qwen2" and name != "o":
                    self.others[f"{at}self_attn.{name}_proj.bias"] = self.matrix(1, rows)[0]
            if family in ("qwen3", "qwen3_moe"):
                for name in ("q_norm", "k_norm"):
                    self.others[f"{at}self_attn.{name}.weight"] = self.norm(c["head_dim"])
            if family == "qwen3_moe":
                self.others[f"{at}mlp.gate.weight"] = self.matrix(c["num_experts"], hidden)
                for expert in range(c["num_experts"]):
                    self.feed_forward(f"{at}mlp.experts.{expert}.", c["moe_intermediate_size"])
            elif family == "mixtral":
                self.others[f"{at}block_sparse_moe.gate.weight"] = self.matrix(
                    c["num_local_experts"], hidden)
                for expert in range(c["num_local_experts"]):
                    self.feed_forward(f"{at}block_sparse_moe.experts.{expert}.",
                                      c["intermediate_size"], ("w1", "w3", "w2"))
            else:
                self.feed_forward(f"{at}mlp.", c["intermediate_size"])

    def matrix(self, rows, cols):
        return (torch.randn(rows, cols, generator=self.generator) / cols**0.5).half()

    def norm(self, width):
        return (1 + 0.1 * torch.randn(width, generator=self.generator)).half()

    def feed_forward(self, at, width, names=("gate_proj", "up_proj", "down_proj")):
        hidden = self.config["hidden_size"]
        for name in names[:2]:
            self.linear[at + name] = self.matrix(width, hidden)
        self.linear[at + names[2]] = self.matrix(hidden, width)


def float_logits(config, tensors):
    """What transformers computes in float32."""
    from transformers import AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()},
                  folder / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            return model(torch.tensor([TOKENS])).logits[0]


def write_folder(folder, model, stored, meant, quantization, fused=None):
    """`stored`: the tensors that stand for `meant`, float32 by module. What is neither stays as it
    is. `fused`: experts as transformers has them, in place of those of `meant`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plain = {f"{name}.weight": weight for name, weight in model.linear.items()
             if name not in meant}
    tensors = stored | plain | model.others
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    config = dict(model.config)
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    weights = {f"{name}.weight": weight for name, weight in meant.items()}
    if fused is not None:
        weights = {name: weight for name, weight in weights.items() if ".experts." not in name}
        weights |= fused
    logits = float_logits(model.config, weights | plain | model.others)
    expected = {
        "modules": {name: hashlib.sha256((weight.float() + 0.0).numpy().tobytes()).hexdigest()
                    for name, weight in meant.items()},
        "tokens": TOKENS,
        "logits": base64.b64encode(logits.numpy().tobytes()).decode(),
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: {len(meant)} modules, {size} bytes")
