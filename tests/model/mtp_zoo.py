# SPDX-License-Identifier: Apache-2.0
"""Random models that bring a layer for drafts (MTP), under the published names, and what it computes
in plain torch: transformers has no such forward, but has the decoder layer inside."""

import copy
import pathlib

import torch
import transformers
from model_zoo import write_model
from safetensors.torch import load_file, save_file

SHAPE = dict(dtype=torch.float32, vocab_size=151, hidden_size=60, intermediate_size=44,
             num_attention_heads=6, num_key_value_heads=2, head_dim=20)
EXPERTS = dict(moe_intermediate_size=28, n_routed_experts=7, num_experts_per_tok=3,
               n_shared_experts=1, n_group=1, topk_group=1, num_nextn_predict_layers=1)
LATENT = dict(num_key_value_heads=6, q_lora_rank=36, kv_lora_rank=18, qk_nope_head_dim=10,
              qk_rope_head_dim=14, v_head_dim=22, head_dim=14)
LINEAR = dict(linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=12,
              linear_value_head_dim=20, linear_conv_kernel_dim=3, num_hidden_layers=3,
              layer_types=["linear_attention", "full_attention", "linear_attention"],
              rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})
SHARED = dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
              shared_expert_intermediate_size=36)
MODELS = {
    "deepseek_v3": dict(config="DeepseekV3Config", **{**SHAPE, **LATENT}, **EXPERTS,
                        first_k_dense_replace=1, num_hidden_layers=3),
    "glm4_moe": dict(config="Glm4MoeConfig", **SHAPE, **EXPERTS, first_k_dense_replace=1,
                     num_hidden_layers=2, use_qk_norm=True,
                     rope={"rope_type": "default", "rope_theta": 10000.0,
                           "partial_rotary_factor": 0.5}),
    "glm4_moe_lite": dict(config="Glm4MoeLiteConfig", **{**SHAPE, **LATENT}, **EXPERTS,
                          num_hidden_layers=2, mlp_layer_types=["dense", "sparse"]),
    "qwen3_next": dict(config="Qwen3NextConfig", **SHAPE, **SHARED, **LINEAR, mlp_only_layers=[0]),
    "qwen3_5_moe": dict(config="Qwen3_5MoeTextConfig", **{k: v for k, v in SHAPE.items()
                                                          if k != "intermediate_size"},
                        **SHARED, **LINEAR),
    "qwen3_5": dict(config="Qwen3_5TextConfig", **SHAPE, **LINEAR),
}


def is_qwen(name):
    return name.startswith("qwen")


def layer_config(config):
    """The config of a model that is one layer, as the one for drafts."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = 1
    if is_qwen(config.model_type):
        config.layer_types = ["full_attention"]
    if hasattr(config, "mlp_only_layers"):
        config.mlp_only_layers = []
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    if hasattr(config, "mlp_layer_types"):
        config.mlp_layer_types = ["sparse"]
    return config


def names_of(name, config, index):
    """Before the names of the layer's own parts, and what these are called."""
    if is_qwen(name):
        return "mtp.", ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return (f"model.layers.{config.num_hidden_layers + index}.",
            ("eh_proj", "enorm", "hnorm", "shared_head.norm"))


def write_mtp_model(folder, name, seed=3, own_head=False, layers=1, **other):
    """Writes the model and its layers for drafts; returns what these are made of. `other`: what is
    otherwise than in MODELS."""
    folder = pathlib.Path(folder)
    model = {**MODELS[name], **other}
    if layers > 1:
        model["num_nextn_predict_layers"] = layers
    write_model(folder, seed=seed, **model)
    config = transformers.AutoConfig.from_pretrained(folder)
    options = {key: value for key, value in model.items()
               if key not in ("first_k_dense_replace", "mlp_layer_types", "layer_types",
                              "mlp_only_layers", "num_hidden_layers")}
    changes = {key: getattr(layer_config(config), key) for key in
               ("first_k_dense_replace", "mlp_layer_types", "layer_types", "mlp_only_layers")
               if key in model}
    hidden = config.hidden_size
    tensors = load_file(folder / "model.safetensors")
    center = 0.0 if is_qwen(name) else 1.0
    for index in range(layers):
        layer = folder / f"layer{index}"
        write_model(layer, seed=seed + 1 + 10 * index, **options, **changes, num_hidden_layers=1)
        parts = load_file(layer / "model.safetensors")
        torch.manual_seed(seed + 2 + 10 * index)
        joined = torch.randn(hidden, 2 * hidden) / hidden ** 0.5
        norms = [torch.empty(hidden).normal_(center, 0.2) for _ in range(2)]
        prefix, names = names_of(name, config, index)
        block = prefix + "layers.0." if is_qwen(name) else prefix
        for key, value in parts.items():
            if key.startswith("model.layers.0."):
                tensors[block + key.removeprefix("model.layers.0.")] = value
        for part, value in zip(names, (joined, *norms, parts["model.norm.weight"])):
            tensors[f"{prefix}{part}.weight"] = value
        if own_head:
            tensors[f"{prefix}shared_head.head.weight"] = parts["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return MtpForm(folder, name, own_head, layers)


class MtpLayer:
    """One of the layers in plain torch."""

    def __init__(self, folder, name, target, own_head, index):
        self.target, self.streams = target, []
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.layer = load(folder / f"layer{index}", dtype=torch.float32).eval()
        if not own_head:
            self.layer.lm_head.weight = target.lm_head.weight
        tensors = load_file(folder / "model.safetensors")
        self.eps, self.plus = target.config.rms_norm_eps, 1.0 if is_qwen(name) else 0.0
        prefix, names = names_of(name, target.config, index)
        self.joined, self.token_norm, self.state_norm = (
            tensors[f"{prefix}{part}.weight"] for part in names[:3])
        self.layer.model.layers[0].register_forward_hook(
            lambda module, inputs, output: self.streams.append(
                output[0] if isinstance(output, tuple) else output))

    def norm(self, rows, weight):
        return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.eps) * (weight + self.plus)

    @torch.no_grad()
    def run(self, tokens, states):
        """Logits of each pair, what left the layer, and what its head read."""
        embedded = self.target.model.embed_tokens(torch.tensor(tokens))
        rows = torch.cat([self.norm(embedded, self.token_norm), self.norm(states, self.state_norm)], -1)
        self.streams.clear()
        normed = self.layer.model(inputs_embeds=(rows @ self.joined.T)[None]).last_hidden_state
        return self.layer.lm_head(normed)[0], self.streams[-1].reshape(len(tokens), -1), normed[0]


class MtpForm:
    """The model and its layers."""

    def __init__(self, folder, name, own_head=False, layers=1):
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.target = load(folder, dtype=torch.float32).eval()
        self.feeds_normed = is_qwen(name)
        self.layers = [MtpLayer(folder, name, self.target, own_head, i) for i in range(layers)]

    @torch.no_grad()
    def states(self, tokens):
        """[tokens, hidden] behind the model's last norm."""
        return self.target.model(torch.tensor([tokens])).last_hidden_state[0]

    def run(self, tokens, states, layer=0):
        return self.layers[layer].run(tokens, states)

    def guesses(self, tokens, count):
        """Greedy guesses behind the tokens: layer k reads what layer k - 1 gave at each token, and
        the token that stands k + 1 further; the last one goes on behind its own output."""
        states, made, pairs = self.states(tokens[:-1]), [], len(tokens) - 1
        for depth in range(count):
            if depth < len(self.layers):
                layer, behind = self.layers[depth], (tokens + made)[depth + 1:depth + 1 + pairs]
            else:
                behind = behind + [made[-1]]
                states = torch.cat([read, fed[-1:]])
            read = states
            logits, streams, normed = layer.run(behind, states)
            made.append(int(logits[-1].argmax()))
            fed = states = normed if self.feeds_normed else streams
        return made
