# SPDX-License-Identifier: Apache-2.0
"""The recorded hidden states against transformers' output_hidden_states, float32.

    hidden_states_test.py HIDDEN_IDS ORACLES [unittest arguments]

HIDDEN_IDS is the program of that name, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz). Ends with 77
(skipped) where the oracle packages are not installed.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
# gemma4 is not compared here yet.
FOLDERS = sorted(path.parent for path in ORACLES.glob("*/oracle.json")
                 if not path.parent.name.startswith("gemma4"))

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def vitrine_states(folder, tokens, kernels):
    """[position, layer, hidden]"""
    result = subprocess.run([PROGRAM, str(folder), kernels], input=" ".join(map(str, tokens)),
                            capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}, {kernels}: {result.stderr.strip()}")
    return torch.tensor(json.loads(result.stdout), dtype=torch.float64)


class HiddenStatesTest(unittest.TestCase):
    def close(self, found, expected):
        error = (found - expected).abs().amax(-1)
        largest = expected.abs().amax(-1)
        self.assertGreater(float(largest.min()), 0)
        self.assertLessEqual(float((error / largest).max()), 1e-4)

    def test_oracles(self):
        self.assertEqual(len(FOLDERS), 21)
        for folder in FOLDERS:
            tokens = json.loads((folder / "oracle.json").read_text())["tokens"][:20]
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager").eval()
            leaving = []
            last = getattr(model.model, "norm", None) or model.model.embedding_norm
            last.register_forward_pre_hook(
                lambda _module, inputs, leaving=leaving: leaving.append(inputs[0][0].double()))
            with torch.no_grad():
                states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
            # One entering each layer; transformers' last is behind the final norm, ours before it.
            expected = [state[0].double() for state in states[:-1]] + leaving
            for kernels in ("fused", "reference"):
                with self.subTest(model=folder.name, kernels=kernels):
                    found = vitrine_states(folder, tokens, kernels)
                    self.assertEqual(found.shape[:2], (len(tokens), len(expected)))
                    for layer, state in enumerate(expected):
                        self.close(found[:, layer], state)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
