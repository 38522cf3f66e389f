# SPDX-License-Identifier: Apache-2.0
"""The recorded scores and selection keys of routers against transformers' inputs of these and the folder's tensors.

    selection_test.py ROUTE_IDS ORACLES [unittest arguments]

ROUTE_IDS is the program of that name, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz). Ends with 77
(skipped) where the oracle packages are not installed.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
SIGMOID = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2", "dots1", "lfm2_moe")
SOFTMAX = ("deepseek_v2", "ernie4_5_moe", "gemma4_text")
CORRECTED = (*SIGMOID, "ernie4_5_moe")
GROUPED = ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "dots1")
PLAIN = ("mixtral", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "qwen2_moe", "flex_olmo", "llama")

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def vitrine_routes(folder, tokens, kernels):
    """[position][layer]"""
    result = subprocess.run([PROGRAM, str(folder), kernels], input=" ".join(map(str, tokens)),
                            capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}, {kernels}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def expected_scores(folder, tokens, is_sigmoid):
    """By layer: scores and keys, [position, expert] in float64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    inputs, gates = {}, {}
    for index, layer in enumerate(model.model.layers):
        if hasattr(layer, "router"):
            gate = layer.router.proj
        else:
            block = next(getattr(layer, name) for name in ("mlp", "feed_forward", "block_sparse_moe")
                         if hasattr(layer, name))
            gate = getattr(block, "gate", None)
        if gate is None:
            continue

        def keep(_module, args, index=index):
            inputs[index] = args[0].detach().reshape(len(tokens), -1).double()

        gate.register_forward_pre_hook(keep)
        gates[index] = gate.weight.detach().double()
    with torch.no_grad():
        model(torch.tensor([tokens]))
    corrections = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            found = re.search(r"layers\.(\d+)\..*(e_score_correction_bias|expert_bias)$", name)
            if found:
                corrections[int(found[1])] = tensor.double().flatten()
    expected = {}
    for index, x in inputs.items():
        logits = x @ gates[index].T
        scores = torch.sigmoid(logits) if is_sigmoid else torch.softmax(logits, -1)
        expected[index] = scores, scores + corrections.get(index, torch.zeros(scores.shape[1]).double())
    return expected


class SelectionTest(unittest.TestCase):
    def check(self, name, kernels):
        folder = ORACLES / name
        tokens = json.loads((folder / "oracle.json").read_text())["tokens"][:20]
        expected = expected_scores(folder, tokens, name in SIGMOID)
        corrected = 0
        for position, layers in enumerate(vitrine_routes(folder, tokens, kernels)):
            self.assertEqual([index for index, layer in enumerate(layers) if layer["experts"]], sorted(expected))
            for index, (scores, keys) in expected.items():
                layer, chosen = layers[index], layers[index]["experts"]
                self.assertEqual(layer["router"], "sigmoid" if name in SIGMOID else "softmax")
                self.assertEqual(len(layer["scores"]), len(chosen))
                self.assertEqual(len(layer["keys"]), len(chosen))
                for slot, expert in enumerate(chosen):
                    self.assertAlmostEqual(layer["scores"][slot], float(scores[position][expert]), delta=2e-5)
                    self.assertAlmostEqual(layer["keys"][slot], float(keys[position][expert]), delta=2e-5)
                    corrected += abs(layer["keys"][slot] - layer["scores"][slot]) > 1e-3
                self.assertEqual(layer["keys"], sorted(layer["keys"], reverse=True))
                if name not in GROUPED:
                    best = set(torch.topk(keys[position], len(chosen)).indices.tolist())
                    self.assertEqual(set(chosen), best)
        self.assertEqual(corrected > 0, name in CORRECTED)

    def test_scores_and_keys(self):
        for name in (*SIGMOID, *SOFTMAX):
            for kernels in ("fused", "reference"):
                with self.subTest(model=name, kernels=kernels):
                    self.check(name, kernels)

    def test_plain_routers_have_none(self):
        for name in PLAIN:
            for kernels in ("fused", "reference"):
                with self.subTest(model=name, kernels=kernels):
                    for layers in vitrine_routes(ORACLES / name, [1, 2, 3], kernels):
                        for layer in layers:
                            self.assertEqual((layer["router"], layer["scores"], layer["keys"]), ("plain", [], []))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
