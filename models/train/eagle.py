# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 (Li et al., arXiv 2503.01840) and P-EAGLE (arXiv 2602.01469): one decoder layer behind the
model's features, trained on what it makes itself of its own outputs, or of masks."""

import torch
from torch import nn
from torch.nn.functional import linear, silu


def rms_norm(x, weight, epsilon):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


class Eagle(nn.Module):
    """The layer's sizes are `sizes`, by the names of a config; its embedding is the model's."""

    def __init__(self, target, sizes, layers, vocabulary, mask_token=None):
        super().__init__()
        self.sizes, self.layers, self.mask_token = sizes, layers, mask_token
        self.embedding, self.vocabulary = target.embedding, vocabulary
        self.epsilon = sizes["rms_norm_eps"]
        hidden, dim = sizes["hidden_size"], sizes["head_dim"]
        heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        inner = sizes["intermediate_size"]
        shapes = {"q_proj": (heads * dim, 2 * hidden), "k_proj": (kv_heads * dim, 2 * hidden),
                  "v_proj": (kv_heads * dim, 2 * hidden), "o_proj": (hidden, heads * dim),
                  "gate_proj": (inner, hidden), "up_proj": (inner, hidden),
                  "down_proj": (hidden, inner)}
        self.matrices = nn.ParameterDict({name: nn.Parameter(torch.randn(shape) * shape[1] ** -0.5)
                                          for name, shape in shapes.items()})
        with torch.no_grad():
            for name in ("o_proj", "down_proj"):  # what is added to the stream begins small
                self.matrices[name].mul_(0.1)
        # It begins as what the last of the layers read, and as the model's own head.
        first = torch.randn(hidden, len(layers) * hidden) * 0.1 * hidden ** -0.5
        first[:, -hidden:] += torch.eye(hidden)
        self.fc = nn.Parameter(first)
        self.head = nn.Parameter(target.head[vocabulary].clone())
        self.norms = nn.ParameterDict({name: nn.Parameter(torch.ones(hidden)) for name in (
            "input_layernorm", "hidden_norm", "post_attention_layernorm")})
        self.norm = nn.Parameter(target.norm.weight.detach().clone())
        if mask_token is not None:
            self.mask = nn.Parameter(torch.randn(len(layers) * hidden))

    def rotate(self, x, first):
        """[texts, heads, tokens, dim], of positions from `first` on."""
        half = x.shape[-1] // 2
        frequencies = self.sizes["rope_theta"] ** (-torch.arange(half) / half)
        angles = torch.arange(first, first + x.shape[2])[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        low, high = x.float().split(half, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)

    def attend(self, x, step, cache):
        """Each row sees the first step's rows up to its own, and its own of the steps since."""
        dim = self.sizes["head_dim"]
        query, key, value = (linear(x, self.matrices[name]).unflatten(-1, (-1, dim)).transpose(1, 2)
                             for name in ("q_proj", "k_proj", "v_proj"))
        repeats = query.shape[1] // key.shape[1]
        query, key = self.rotate(query, step), self.rotate(key, step)
        key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
        cache.append((key, value))
        keys, values = cache[0]
        rows = torch.arange(x.shape[1])
        scores = (query @ keys.transpose(2, 3)).masked_fill(rows > rows[:, None], float("-inf"))
        own = [(query * keys_then).sum(-1, keepdim=True) for keys_then, _ in cache[1:]]
        weights = (torch.cat([scores, *own], -1).float() * dim ** -0.5).softmax(-1)
        first, later = weights.split([x.shape[1], len(cache) - 1], -1)
        attended = first.to(values.dtype) @ values
        for place, (_, values_then) in enumerate(cache[1:]):
            attended = attended + later[..., place:place + 1] * values_then
        return linear(attended.transpose(1, 2).flatten(2), self.matrices["o_proj"])

    def layer(self, tokens, states, step, cache):
        def norm(part, name):
            return rms_norm(part, self.norms[name], self.epsilon)
        x = torch.cat([norm(self.embedding[tokens], "input_layernorm"),
                       norm(states, "hidden_norm")], -1)
        stream = states + self.attend(x, step, cache)
        x = norm(stream, "post_attention_layernorm")
        inner = silu(linear(x, self.matrices["gate_proj"])) * linear(x, self.matrices["up_proj"])
        return stream + linear(inner, self.matrices["down_proj"])

    def forward(self, batch, steps):
        """For each step [texts, tokens - 1 - steps, draft vocabulary] of logits: row p of step s
        is of the token at p + 2 + s, from the tokens up to p + 1 and the features up to p."""
        rows = batch["ids"].shape[1] - 1 - steps
        states = linear(batch["features"][:, :rows].float(), self.fc)
        cache = []
        for step in range(steps):
            tokens = batch["ids"][:, 1 + step:1 + step + rows]
            if step > 0 and self.mask_token is not None:
                tokens = torch.full_like(tokens, self.mask_token)
                states = linear(self.mask, self.fc).expand(states.shape)
            states = self.layer(tokens, states, step, cache)
            yield linear(rms_norm(states, self.norm, self.epsilon), self.head)

    def parameters_by_name(self):
        """By the names that `speculators` gives them."""
        named = {"fc.weight": self.fc, "lm_head.weight": self.head, "norm.weight": self.norm}
        for name, matrix in self.matrices.items():
            part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            named[f"layers.0.{part}.{name}.weight"] = matrix
        for name, weight in self.norms.items():
            named[f"layers.0.{name}.weight"] = weight
        if self.mask_token is not None:
            named["mask_hidden"] = self.mask
        return named

    @torch.no_grad()
    def begin_as(self, tensors):
        """Takes the weights of heads of the same sizes, as tensors() gives them."""
        for name, parameter in self.parameters_by_name().items():
            parameter.copy_(tensors[name].reshape(parameter.shape))

    def tensors(self):
        stored = {name: tensor.detach().bfloat16().contiguous()
                  for name, tensor in self.parameters_by_name().items()}
        if self.mask_token is not None:
            stored["mask_hidden"] = stored["mask_hidden"][None, None]
        stored["d2t"] = self.vocabulary - torch.arange(len(self.vocabulary))
        stored["t2d"] = torch.isin(torch.arange(len(self.embedding)), self.vocabulary)
        return stored

    def config(self, steps):
        kind = "eagle3" if self.mask_token is None else "peagle"
        fields = {"speculators_model_type": kind, "architectures": [
                      "Eagle3DraftModel" if self.mask_token is None else "PEagleDraftModel"],
                  "draft_vocab_size": len(self.vocabulary), "dtype": "bfloat16",
                  "eagle_aux_hidden_state_layer_ids": self.layers,
                  "norm_before_residual": False,
                  "speculators_config": {
                      "algorithm": kind, "default_proposal_method": "greedy",
                      "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": steps,
                                            "accept_tolerance": 0.0, "verifier_accept_k": 1}],
                      "verifier": {"name_or_path": None, "architectures": []}},
                  "transformer_layer_config": self.sizes}
        return fields if self.mask_token is None else {**fields, "mask_token_id": self.mask_token}
