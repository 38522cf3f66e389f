# SPDX-License-Identifier: Apache-2.0
"""The terms of a logit against transformers: what each block adds to the residual stream, by hooks, and what becomes
of the logit without an expert of the last layer.

    attribution_test.py ATTRIBUTE_IDS ORACLES [unittest arguments]

ATTRIBUTE_IDS is the program of that name, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz). Ends with 77
(skipped) where the oracle packages are not installed.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import torch
    import transformers
    from model_zoo import MODELS, write_model
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
FOLDERS = sorted(path.parent for path in ORACLES.glob("*/oracle.json"))
EMBEDDING, ATTENTION, DENSE, EXPERT, SHARED, LAYER_INPUT, SOFT_CAP = range(7)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def vitrine_terms(folder, tokens, kernels):
    result = subprocess.run([PROGRAM, str(folder), kernels], input=" ".join(map(str, tokens)),
                            capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}, {kernels}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def inverse_rms(x, eps):
    return (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()


def norm_eps(norm):
    return getattr(norm, "variance_epsilon", None) or norm.eps


def last_norm(model):
    return getattr(model.model, "norm", None) or model.model.embedding_norm


class Streams:
    """What transformers adds to the residual stream, block by block, in float64."""

    def __init__(self, folder, tokens):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.model, self.tokens = model, tokens
        self.blocks, self.final = {}, None

        def keep(name):
            def hook(_module, _inputs, output):
                value = output[0] if isinstance(output, tuple) else output
                self.blocks[name] = value.detach().reshape(len(tokens), -1).double()
            return hook

        # Norms stand behind the blocks: what they give is added. The dense block and the experts of gemma4 are normed
        # each, then their sum.
        self.is_normed = hasattr(model.model.layers[0], "post_feedforward_layernorm")
        self.is_split = hasattr(model.model.layers[0], "post_feedforward_layernorm_2")
        for index, layer in enumerate(model.model.layers):
            if self.is_normed:
                layer.post_attention_layernorm.register_forward_hook(keep(("attention", index)))
                layer.post_feedforward_layernorm.register_forward_hook(keep(("block", index)))
                if hasattr(layer, "post_per_layer_input_norm"):
                    layer.post_per_layer_input_norm.register_forward_hook(keep(("layer_input", index)))
                if self.is_split:
                    layer.post_feedforward_layernorm_1.register_forward_hook(keep(("dense", index)))
                    layer.post_feedforward_layernorm_2.register_forward_hook(keep(("experts", index)))
                continue
            part = lambda names: next(getattr(layer, name) for name in names
                                      if hasattr(layer, name))
            part(("self_attn", "linear_attn", "conv")).register_forward_hook(
                keep(("attention", index)))
            block = part(("mlp", "block_sparse_moe", "feed_forward"))
            block.register_forward_hook(keep(("block", index)))

        def before_norm(_module, inputs):
            self.final = inputs[0].detach()[0].double()

        norm = last_norm(model)
        norm.register_forward_pre_hook(before_norm)
        with torch.no_grad():
            self.logits = model(torch.tensor([tokens])).logits[0].double()
            embedded = model.model.embed_tokens(torch.tensor(tokens)).double()
        config = model.config
        if self.is_split:
            for index, layer in enumerate(model.model.layers):
                del self.blocks[("block", index)]
                parts = [("dense", index), ("experts", index)]
                outer = layer.post_feedforward_layernorm
                scale = inverse_rms(sum(self.blocks[part] for part in parts), outer.eps)
                factor = outer.weight.detach().double() * scale
                for part in parts:
                    self.blocks[part] = self.blocks[part] * factor
        # Each layer's scalar multiplies what came before it, too.
        self.later, later = {}, 1.0
        for index in reversed(range(len(model.model.layers))):
            later *= float(getattr(model.model.layers[index], "layer_scalar", 1.0))
            self.later[index] = later
        self.soft_cap = getattr(config, "final_logit_softcapping", None)
        self.embedding = embedded * getattr(config, "embedding_multiplier", 1.0)
        self.residual_multiplier = getattr(config, "residual_multiplier", 1.0)
        scale = inverse_rms(self.final, norm_eps(norm))
        # Some norms multiply with 1 + their weight.
        factor = norm.weight.double() + (1.0 if hasattr(model.model.layers[0], "linear_attn") else 0)
        weights = (model.lm_head.weight.double() * factor).detach()
        self.direction = lambda position, token: (
            weights[token] * scale[position] / getattr(config, "logits_scaling", 1.0))

    def expected(self, position, token):
        direction = self.direction(position, token)
        terms = {("embedding", -1): float(self.embedding[position] @ direction) * self.later[0]}
        for (name, layer), value in self.blocks.items():
            terms[(name, layer)] = (float(value[position] @ direction) * self.residual_multiplier
                                    * self.later[layer])
        if self.soft_cap:
            logit = sum(terms.values())
            terms[("soft_cap", -1)] = self.soft_cap * math.tanh(logit / self.soft_cap) - logit
        return terms

    def without_expert(self, expert):
        """Logits before their cap, [position, token], without an expert of the last layer, where every norm behind it
        keeps the scale that it had; and with it."""
        layer = self.model.model.layers[-1]
        norms = [getattr(layer, name) for name in ("post_feedforward_layernorm_2", "post_feedforward_layernorm")
                 if hasattr(layer, name)]
        norms.append(last_norm(self.model))
        scales, found = {}, []

        def keep_scale(module, inputs):
            scales[module] = inverse_rms(inputs[0].detach().double(), norm_eps(module))

        def freeze(module, inputs, _output):
            return (inputs[0].double() * module.weight.double() * scales[module]).float()

        def logits():
            with torch.no_grad():
                hidden = self.model.model(torch.tensor([self.tokens]), use_cache=False).last_hidden_state[0]
                return hidden.double() @ self.model.lm_head.weight.double().T

        hooks = [norm.register_forward_pre_hook(keep_scale) for norm in norms]
        found.append(logits())
        for hook in hooks:
            hook.remove()
        down = (layer.experts if hasattr(layer, "experts") else layer.mlp.experts).down_proj
        before = down[expert].detach().clone()
        hooks = [norm.register_forward_hook(freeze) for norm in norms]
        with torch.no_grad():
            down[expert] = 0.0
            found.append(logits())
            down[expert] = before
        for hook in hooks:
            hook.remove()
        return found[1], found[0]


def by_block(terms, column, is_split):
    """Vitrine's terms, the experts of a layer added up: transformers' blocks are whole."""
    names = {EMBEDDING: "embedding", ATTENTION: "attention", LAYER_INPUT: "layer_input", SOFT_CAP: "soft_cap"}
    blocks = {DENSE: "dense", EXPERT: "experts"} if is_split else {}
    sums = {}
    for term in terms:
        key = (names.get(term[0]) or blocks.get(term[0], "block"), term[1])
        sums[key] = sums.get(key, 0.0) + term[column]
    return sums


class AttributionTest(unittest.TestCase):
    def check(self, folder, tokens):
        streams = Streams(folder, tokens)
        for kernels in ("fused", "reference"):
            with self.subTest(model=folder.name, kernels=kernels):
                rows = vitrine_terms(folder, tokens, kernels)
                self.assertEqual(len(rows), len(tokens))
                for position, row in enumerate(rows):
                    self.assertEqual(row["token"], int(streams.logits[position].argmax()))
                    largest = max(abs(term[3]) for term in row["terms"])
                    self.assertLessEqual(abs(row["rounding"]), 1e-4 * largest)
                    for token, column in ((row["token"], 3), (row["runner_up"], 4)):
                        expected = streams.expected(position, token)
                        found = by_block(row["terms"], column, streams.is_split)
                        self.assertEqual(found.keys(), expected.keys())
                        largest = max(map(abs, expected.values()))
                        for key, value in expected.items():
                            self.assertAlmostEqual(found[key], value, delta=1e-4 * largest, msg=key)

    def test_oracles(self):
        self.assertEqual(len(FOLDERS), 23)
        for folder in FOLDERS:
            self.check(folder, json.loads((folder / "oracle.json").read_text())["tokens"][:20])

    def test_an_expert_that_is_taken_out(self):
        """Behind norms, an expert's term is what the logit loses with it while their scales stand."""
        for name in ("gemma4_text", "flex_olmo"):
            folder = ORACLES / name
            tokens = json.loads((folder / "oracle.json").read_text())["tokens"][:20]
            streams = Streams(folder, tokens)
            last = len(streams.model.model.layers) - 1
            for kernels in ("fused", "reference"):
                with self.subTest(model=name, kernels=kernels):
                    rows, checked = vitrine_terms(folder, tokens, kernels), 0
                    terms_of = [{term[2]: term for term in row["terms"] if term[:2] == [EXPERT, last]} for row in rows]
                    for expert in sorted({expert for terms in terms_of for expert in terms}):
                        without, whole = streams.without_expert(expert)
                        for position, (row, terms) in enumerate(zip(rows, terms_of)):
                            if expert not in terms:
                                continue
                            largest = max(abs(term[3]) for term in row["terms"])
                            for token, column in ((row["token"], 3), (row["runner_up"], 4)):
                                change = float(whole[position][token] - without[position][token])
                                self.assertAlmostEqual(terms[expert][column], change, delta=1e-4 * largest)
                                checked += abs(change) > 1e-3 * largest
                    self.assertGreater(checked, len(tokens))

    def test_other_shapes(self):
        with tempfile.TemporaryDirectory() as scratch:
            for seed, name in enumerate(("qwen2_moe_sharded", "granitemoe_tied", "olmoe_clipped",
                                         "qwen3_moe_tied_dense_layer", "mixtral_wide_heads",
                                         "qwen2_dense", "gemma4_experts", "gemma4_dense_wide_heads",
                                         "gemma4_layer_inputs", "flex_olmo_odd", "flex_olmo_biased_f32")):
                folder = pathlib.Path(scratch, name)
                write_model(folder, seed=seed, **MODELS[name])
                vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
                random = torch.Generator().manual_seed(seed)
                self.check(folder, torch.randint(vocab_size, (11,), generator=random).tolist())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
