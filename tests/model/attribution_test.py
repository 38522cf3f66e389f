# SPDX-License-Identifier: Apache-2.0
"""The terms of a logit against transformers: what each block adds to the residual stream, by hooks.

    attribution_test.py ATTRIBUTE_IDS ORACLES [unittest arguments]

ATTRIBUTE_IDS is the program of that name, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz). Ends with 77
(skipped) where the oracle packages are not installed.
"""

import json
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
# What blocks of gemma4 and flex_olmo give is normed before it is added: refused.
FOLDERS = sorted(path.parent for path in ORACLES.glob("*/oracle.json")
                 if not path.parent.name.startswith(("gemma4", "flex_olmo")))
EMBEDDING, ATTENTION, DENSE, EXPERT, SHARED = range(5)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def vitrine_terms(folder, tokens, kernels):
    result = subprocess.run([PROGRAM, str(folder), kernels], input=" ".join(map(str, tokens)),
                            capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}, {kernels}: {result.stderr.strip()}")
    return json.loads(result.stdout)


class Streams:
    """What transformers adds to the residual stream, block by block, in float64."""

    def __init__(self, folder, tokens):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.blocks, self.final = {}, None

        def keep(name):
            def hook(_module, _inputs, output):
                value = output[0] if isinstance(output, tuple) else output
                self.blocks[name] = value.detach().reshape(len(tokens), -1).double()
            return hook

        for index, layer in enumerate(model.model.layers):
            part = lambda names: next(getattr(layer, name) for name in names
                                      if hasattr(layer, name))
            part(("self_attn", "linear_attn", "conv")).register_forward_hook(
                keep(("attention", index)))
            block = part(("mlp", "block_sparse_moe", "feed_forward"))
            block.register_forward_hook(keep(("block", index)))

        def before_norm(_module, inputs):
            self.final = inputs[0].detach()[0].double()

        norm = getattr(model.model, "norm", None) or model.model.embedding_norm
        norm.register_forward_pre_hook(before_norm)
        with torch.no_grad():
            self.logits = model(torch.tensor([tokens])).logits[0].double()
            embedded = model.model.embed_tokens(torch.tensor(tokens)).double()
        config = model.config
        self.embedding = embedded * getattr(config, "embedding_multiplier", 1.0)
        self.residual_multiplier = getattr(config, "residual_multiplier", 1.0)
        eps = getattr(norm, "variance_epsilon", config.rms_norm_eps)
        scale = (self.final.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        # Some norms multiply with 1 + their weight.
        factor = norm.weight.double() + (1.0 if hasattr(model.model.layers[0], "linear_attn") else 0)
        weights = (model.lm_head.weight.double() * factor).detach()
        self.direction = lambda position, token: (
            weights[token] * scale[position] / getattr(config, "logits_scaling", 1.0))

    def expected(self, position, token):
        direction = self.direction(position, token)
        terms = {("embedding", -1): float(self.embedding[position] @ direction)}
        for (name, layer), value in self.blocks.items():
            terms[(name, layer)] = float(value[position] @ direction) * self.residual_multiplier
        return terms


def by_block(terms, column):
    """Vitrine's terms, the experts of a layer added up: transformers' blocks are whole."""
    sums = {}
    for term in terms:
        name = {EMBEDDING: "embedding", ATTENTION: "attention"}.get(term[0], "block")
        key = (name, term[1])
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
                    for token, column in ((row["token"], 3), (row["runner_up"], 4)):
                        expected = streams.expected(position, token)
                        found = by_block(row["terms"], column)
                        self.assertEqual(found.keys(), expected.keys())
                        largest = max(map(abs, expected.values()))
                        for key, value in expected.items():
                            self.assertAlmostEqual(found[key], value, delta=1e-4 * largest, msg=key)

    def test_oracles(self):
        self.assertEqual(len(FOLDERS), 20)
        for folder in FOLDERS:
            self.check(folder, json.loads((folder / "oracle.json").read_text())["tokens"][:20])

    def test_other_shapes(self):
        with tempfile.TemporaryDirectory() as scratch:
            for seed, name in enumerate(("qwen2_moe_sharded", "granitemoe_tied", "olmoe_clipped",
                                         "qwen3_moe_tied_dense_layer", "mixtral_wide_heads",
                                         "qwen2_dense")):
                folder = pathlib.Path(scratch, name)
                write_model(folder, seed=seed, **MODELS[name])
                vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
                random = torch.Generator().manual_seed(seed)
                self.check(folder, torch.randint(vocab_size, (11,), generator=random).tolist())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
