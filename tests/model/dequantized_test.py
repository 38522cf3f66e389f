# SPDX-License-Identifier: Apache-2.0
"""dequantized.py and bench/peers/compare_kl.py: a file of F32 is the model that it was written from.

    dequantized_test.py VITRINE ROW_LOGITS ORACLES

Ends with 77 (skipped) where the oracle packages are not installed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import torch
    import transformers
    from dequantized import dequantized_model
    from gguf import GGMLQuantizationType as Type
    from gguf_files import write_gguf
    from model_zoo import write_model
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

VITRINE, ROW_LOGITS, ORACLES = map(os.path.abspath, sys.argv[1:4])
COMPARE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers" / "compare_kl.py"
SIZES = dict(vocab_size=250, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=96)
MODELS = {"llama": dict(config="LlamaConfig", tie_word_embeddings=True),
          "qwen2": dict(config="Qwen2Config", tie_word_embeddings=False),
          "qwen2-tied": dict(config="Qwen2Config", tie_word_embeddings=True)}
TOKENS = [(37 * i * i + 11 * i + 5) % 250 for i in range(40)]

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


class DequantizedTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = pathlib.Path(scratch.name)

    def write(self, name, kind=Type.F32):
        """The folder of a model and the file of it."""
        folder, file = self.path / name, self.path / f"{name}.gguf"
        write_model(folder, seed=3, **SIZES, **MODELS[name])
        write_gguf(folder, file, lambda _, array: kind if array.ndim == 2 else Type.F32)
        return folder, file

    def test_a_float_file_is_its_folder(self):
        for name in MODELS:
            folder, file = self.write(name)
            expected = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager").eval()
            with torch.inference_mode():
                ids = torch.tensor([TOKENS])
                self.assertEqual((expected(ids).logits - dequantized_model(file)(ids).logits).abs().max(), 0,
                                 name)

    def test_other_architectures_are_refused(self):
        file = self.path / "qwen3.gguf"
        write_gguf(pathlib.Path(ORACLES, "qwen3"), file, lambda *_: Type.F32)
        with self.assertRaisesRegex(ValueError, "qwen3; expected llama or qwen2"):
            dequantized_model(file)

    def test_divergences(self):
        """Says how far a program is from itself, and eight bits from the same weights in float32."""
        _, file = self.write("qwen2", Type.Q8_0)
        ids = self.path / "ids.json"
        ids.write_text(json.dumps(TOKENS))
        out = self.path / "out.json"
        result = subprocess.run(
            [sys.executable, COMPARE, file, ids, "-p", "40", "--chunk", "16", "--vitrine", VITRINE,
             "--row-logits", ROW_LOGITS, "--llama-logits", ROW_LOGITS, "--json", out],
            capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(out.read_text())
        self.assertEqual((found["positions"], found["peers"]),
                         (40, {"llama.cpp": {"ratio": 1, "low": 1, "high": 1}}))
        self.assertEqual(found["vitrine"], found["llama.cpp"])
        # Inputs have eight bits too: more than float32's rounding, less than what a word would cost.
        self.assertGreater(found["vitrine"], 1e-9)
        self.assertLess(found["vitrine"], 1e-3)
        self.assertEqual(len(found["by_position"]), 3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
