# SPDX-License-Identifier: Apache-2.0
"""Draft heads in plain torch, in float32, and folders with random ones for tests."""

import json
import subprocess

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

TARGET = {"model_type": "llama", "vocab_size": 101, "hidden_size": 42, "intermediate_size": 52,
          "num_hidden_layers": 7, "num_attention_heads": 3, "num_key_value_heads": 3,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
          "hidden_act": "silu", "rope_theta": 10000.0, "torch_dtype": "float32"}


def random_tensor(generator, *shape, scale=1.0):
    return torch.randn(*shape, generator=generator) * scale


def random_norm(generator, width):
    return 1 + random_tensor(generator, width, scale=0.3)


def write_folder(folder, config, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors")
    return folder


def ask_guesses(program, scratch, kind, heads, texts, guesses, chunk=10**6, **fields):
    """What heads guess behind texts, by guess_lines: each a list of tokens, and features
    [tokens - 1, width] that are shown `chunk` rows at a time. The model is in scratch/"target"."""
    request = {"kind": kind, "heads": str(heads), "model": str(scratch / "target"),
               "guesses": guesses, "chunk": chunk, "texts": [], **fields}
    for index, (tokens, features) in enumerate(texts):
        path = scratch / f"features{index}.f32"
        path.write_bytes(features.numpy().astype("<f4").tobytes())
        request["texts"].append({"tokens": tokens, "features": str(path)})
    result = subprocess.run([program], input=json.dumps(request), capture_output=True, text=True,
                            timeout=60, check=True)
    found = json.loads(result.stdout)
    if "error" in found:
        raise AssertionError(found["error"])
    return found


def write_target(folder, seed=1, **changes):
    """What heads read of a model: its embedding, its last norm and its head."""
    config = {**TARGET, **changes}
    generator = torch.Generator().manual_seed(seed)
    shape = (config["vocab_size"], config["hidden_size"])
    tensors = {"model.embed_tokens.weight": random_tensor(generator, *shape),
               "model.norm.weight": random_norm(generator, shape[1]),
               "lm_head.weight": random_tensor(generator, *shape, scale=0.4)}
    write_folder(folder, config, tensors)
    return config, tensors


def eagle_tensors(generator, config, layers=3, target=42, draft=37, prefix="midlayer",
                  norms="", has_embedding=False, has_map=True):
    """Random tensors of EAGLE-3 heads; `norms`: "whole" or the name of a norm of each layer."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = {"fc.weight": random_tensor(generator, hidden, layers * target, scale=0.1),
               "norm.weight": random_norm(generator, hidden),
               "lm_head.weight": random_tensor(generator, draft, hidden, scale=0.4)}
    for index in range(config["num_hidden_layers"]):
        name = prefix if index == 0 else f"layers.{index}"
        width = hidden * (2 if index == 0 else 1)
        for part, rows, cols in (("q_proj", heads * dim, width), ("k_proj", kv * dim, width),
                                 ("v_proj", kv * dim, width), ("o_proj", hidden, heads * dim)):
            tensors[f"{name}.self_attn.{part}.weight"] = random_tensor(generator, rows, cols,
                                                                       scale=0.15)
            if config.get("attention_bias"):
                tensors[f"{name}.self_attn.{part}.bias"] = random_tensor(generator, rows, scale=0.3)
        if config["model_type"] == "qwen3":
            for part in ("q_norm", "k_norm"):
                tensors[f"{name}.self_attn.{part}.weight"] = random_norm(generator, dim)
        inner = config["intermediate_size"]
        for part, rows, cols in (("gate_proj", inner, hidden), ("up_proj", inner, hidden),
                                 ("down_proj", hidden, inner)):
            tensors[f"{name}.mlp.{part}.weight"] = random_tensor(generator, rows, cols, scale=0.15)
        for part in ["input_layernorm", "post_attention_layernorm"] + ["hidden_norm"] * (index == 0):
            tensors[f"{name}.{part}.weight"] = random_norm(generator, hidden)
    vocabulary = config["vocab_size"]
    if has_map:
        chosen = torch.randperm(vocabulary, generator=generator)[:draft].sort().values
        tensors["d2t"] = chosen - torch.arange(draft)
        tensors["t2d"] = torch.isin(torch.arange(vocabulary), chosen)
    if norms == "whole":
        tensors["input_norm.weight"] = random_norm(generator, layers * target)
    elif norms:
        for index in range(layers):
            tensors[f"{norms}.{index}.weight"] = random_norm(generator, target)
    if has_embedding:
        tensors["embed_tokens.weight"] = random_tensor(generator, vocabulary, hidden)
    return tensors


def rms_norm(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


class EagleForm:
    """EAGLE-3's layers over whole texts, without a cache."""

    def __init__(self, config, tensors, embedding, flags, order=None):
        """`order`: which of the ascending layers each part of fc reads."""
        self.config, self.flags, self.order = config, flags, order
        self.tensors = {name: tensor.float() for name, tensor in tensors.items()
                        if tensor.is_floating_point()}
        self.embedding = self.tensors.get("embed_tokens.weight", embedding)
        self.map = tensors.get("d2t")
        own = {key: value for key, value in config.items()
               if key not in ("torch_dtype", "architectures")}
        kind = Qwen3Config if config["model_type"] == "qwen3" else LlamaConfig
        self.rotary = LlamaRotaryEmbedding(kind(**own))

    def name(self, index):
        is_mid = index == 0 and "midlayer.hidden_norm.weight" in self.tensors
        return "midlayer" if is_mid else f"layers.{index}"

    def norm(self, x, name):
        return rms_norm(x, self.tensors[name + ".weight"], self.config["rms_norm_eps"])

    def linear(self, x, name):
        return torch.nn.functional.linear(x, self.tensors[name + ".weight"],
                                          self.tensors.get(name + ".bias"))

    def fuse(self, features):
        if self.order is not None:
            parts = features.chunk(len(self.order), -1)
            features = torch.cat([parts[place] for place in self.order], -1)
        if "input_norm.weight" in self.tensors:
            features = self.norm(features, "input_norm")
        for norms in ("fc_norm", "fcs"):
            if norms + ".0.weight" in self.tensors:
                count = sum(name.startswith(norms + ".") for name in self.tensors)
                features = torch.cat([self.norm(part, f"{norms}.{i}") for i, part in
                                      enumerate(features.chunk(count, -1))], -1)
        return self.linear(features, "fc")

    def attention(self, x, name, visible):
        heads, dim = self.config["num_attention_heads"], self.config["head_dim"]
        kv = self.config["num_key_value_heads"]

        def split(part, count):
            return self.linear(x, f"{name}.self_attn.{part}").unflatten(-1, (count, dim))
        query, key, value = split("q_proj", heads), split("k_proj", kv), split("v_proj", kv)
        if f"{name}.self_attn.q_norm.weight" in self.tensors:
            query = self.norm(query, f"{name}.self_attn.q_norm")
            key = self.norm(key, f"{name}.self_attn.k_norm")
        cos, sin = self.rotary(x, torch.arange(len(x))[None])

        def rotate(part):
            first, second = part.chunk(2, -1)
            turned = torch.cat([-second, first], -1)
            return part * cos[0][:, None] + turned * sin[0][:, None]
        query, key = rotate(query).transpose(0, 1), rotate(key).transpose(0, 1)
        key = key.repeat_interleave(heads // kv, 0)
        value = value.transpose(0, 1).repeat_interleave(heads // kv, 0)
        scores = query @ key.transpose(1, 2) / dim ** 0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        attended = (weights @ value).transpose(0, 1).flatten(1)
        return self.linear(attended, f"{name}.self_attn.o_proj")

    def layers(self, tokens, states, window=None):
        """[rows, hidden] of rows that each see those before."""
        rows = torch.arange(len(tokens))
        visible = rows[:, None] >= rows
        stream = states
        for index in range(self.config["num_hidden_layers"]):
            name = self.name(index)
            if index == 0:
                hidden = self.norm(stream, name + ".hidden_norm")
                embedded = self.norm(self.embedding[tokens], name + ".input_layernorm")
                x = torch.cat([embedded, hidden], -1)
                if self.flags.get("norm_before_residual"):
                    stream = hidden
            else:
                x = self.norm(stream, name + ".input_layernorm")
            own = visible
            if self.config.get("layer_types", ["full"] * 99)[index] == "sliding_attention":
                own = visible & (rows > rows[:, None] - self.config["sliding_window"])
            stream = stream + self.attention(x, name, own)
            x = self.norm(stream, name + ".post_attention_layernorm")
            inner = torch.nn.functional.silu(self.linear(x, name + ".mlp.gate_proj"))
            stream = stream + self.linear(inner * self.linear(x, name + ".mlp.up_proj"),
                                          name + ".mlp.down_proj")
        return stream

    def token(self, logits):
        best = int(logits.argmax())
        return best if self.map is None else best + int(self.map[best])

    def chain(self, tokens, features, guesses):
        """What follows a text, one by one: [(token, logits)]."""
        tokens, states, found = list(tokens[1:]), self.fuse(features), []
        for _ in range(guesses):
            out = self.layers(torch.tensor(tokens), states)[-1:]
            normed = self.norm(out, "norm")
            logits = self.linear(normed, "lm_head")[0]
            found.append((self.token(logits), logits))
            tokens.append(found[-1][0])
            fed = normed if self.flags.get("norm_output") else out
            states = torch.cat([states, fed])
        return found

    def follow(self, tokens, features, path):
        """The logits behind a text and a path of guesses."""
        tokens, states = list(tokens[1:]), self.fuse(features)
        for token in path:
            out = self.layers(torch.tensor(tokens), states)[-1:]
            fed = self.norm(out, "norm") if self.flags.get("norm_output") else out
            tokens, states = tokens + [token], torch.cat([states, fed])
        out = self.layers(torch.tensor(tokens), states)[-1:]
        return self.linear(self.norm(out, "norm"), "lm_head")[0]

    def parallel(self, tokens, features, guesses, mask_token):
        """Guesses in one pass, with masks in the place of what is not known."""
        tokens = list(tokens[1:]) + [mask_token] * (guesses - 1)
        masks = self.fuse(self.tensors["mask_hidden"][0]).expand(guesses - 1, -1)
        states = torch.cat([self.fuse(features), masks])
        out = self.layers(torch.tensor(tokens), states)[-guesses:]
        logits = self.linear(self.norm(out, "norm"), "lm_head")
        return [(self.token(row), row) for row in logits]


def dynamic_tree(logits_behind, token_map, guesses, depth, width=8):
    """[(token, parent)] by EAGLE-2's rule; `logits_behind(path)`: of a path of tokens."""
    nodes = []  # (score, token, parent, path)

    def ranked():
        return sorted(range(len(nodes)), key=lambda i: (-nodes[i][0], i))

    def grow(parent):
        score, path = (0.0, ()) if parent < 0 else (nodes[parent][0], nodes[parent][3])
        scores = logits_behind(path).double().log_softmax(-1)
        for best in scores.argsort(descending=True)[:min(width, guesses)].tolist():
            token = best if token_map is None else best + int(token_map[best])
            nodes.append((score + float(scores[best]), token, parent, path + (token,)))
    grow(-1)
    level = 0
    for _ in range(depth - 1):
        frontier = [i for i in ranked()[:guesses] if i >= level][:width]
        level = len(nodes)
        for parent in frontier:
            grow(parent)
    kept = sorted(ranked()[:guesses])
    return [(nodes[i][1], -1 if nodes[i][2] < 0 else kept.index(nodes[i][2])) for i in kept]


def medusa_tensors(generator, heads=4, layers=2, hidden=42, rows=101, has_bias=False):
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            name = f"blocks.{head}.layers.{layer}"
            tensors[name + ".weight"] = random_tensor(generator, hidden, hidden, scale=0.2)
            if has_bias:
                tensors[name + ".bias"] = random_tensor(generator, hidden, scale=0.3)
        tensors[f"lm_heads.{head}.weight"] = random_tensor(generator, rows, hidden, scale=0.4)
    return tensors


def medusa_guesses(tensors, target, state, heads, token_map=None, lm_head=None, epsilon=1e-5):
    """[(token, logits)] of each head, from what left the last layer."""
    found = []
    normed = rms_norm(state, target["model.norm.weight"], epsilon)
    for head in range(heads):
        x, layer = normed, 0
        while f"blocks.{head}.layers.{layer}.weight" in tensors:
            name = f"blocks.{head}.layers.{layer}"
            x = x + torch.nn.functional.silu(torch.nn.functional.linear(
                x, tensors[name + ".weight"], tensors.get(name + ".bias")))
            layer += 1
        rows = lm_head if lm_head is not None else tensors[f"lm_heads.{head}.weight"]
        logits = rows @ x
        best = int(logits.argmax())
        found.append((best if token_map is None else int(token_map[best]), logits))
    return found
