# SPDX-License-Identifier: Apache-2.0
"""GGUF files with Gated DeltaNet (qwen3next, qwen35, qwen35moe) through the tool.

    gguf_delta_test.py VITRINE ORACLES [unittest arguments]

Arguments as of gguf_oracle_test.py. The answers are those of transformers on the folder that a file
was made from. Files are written by gguf_delta.py, and by llama.cpp's own converter where bench/peers
has unpacked its source package; both must write the same. Ends with 77 (skipped) where the oracle
packages are not installed.
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
    import gguf
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType as Type
    from gguf_delta import write_delta_gguf, write_meant
    from gguf_oracle_test import (ORACLES, PATHS, VITRINE, kind_for, score, transformers_logits,
                                  worst_difference)
    from model_zoo import write_model
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"
CONVERTERS = sorted(CACHE.glob("peers/*/vendor/llama.cpp/convert_hf_to_gguf.py"))
# The converter without a vocabulary, which it has no option for.
WITHOUT_VOCABULARY = """
import pathlib, runpy, sys
script = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(script.parent), str(script.parent / "gguf-py")]
from conversion import base, qwen
for part in vars(qwen).values():
    if isinstance(part, type) and issubclass(part, base.TextModel):
        part.set_vocab = base.TextModel._set_vocab_none
sys.argv = sys.argv[1:]
runpy.run_path(str(script), run_name="__main__")
"""
TOKENS = [(37 * i * i + 11 * i + 5) % 250 for i in range(80)]
LINEAR = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
SHAPE = dict(vocab_size=250, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
             num_hidden_layers=4, layer_types=LINEAR, linear_num_key_heads=2,
             linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=24,
             linear_conv_kernel_dim=4, rms_norm_eps=1e-3,
             rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
               shared_expert_intermediate_size=48)
MODELS = {
    "qwen3_next": dict(config="Qwen3NextConfig", **SHAPE, **EXPERTS, intermediate_size=96,
                       norm_topk_prob=True, mlp_only_layers=[]),
    "qwen3_5": dict(config="Qwen3_5TextConfig", **SHAPE, intermediate_size=96),
    "qwen3_5_moe": dict(config="Qwen3_5MoeTextConfig", **SHAPE, **EXPERTS),
}
# Sizes with which every type of block fits: rows of 256, in the output projection too.
WIDE = dict(hidden_size=256, linear_num_value_heads=8, linear_value_head_dim=32,
            intermediate_size=256, moe_intermediate_size=256, shared_expert_intermediate_size=256)
LIMIT = 2e-4


class GgufDeltaTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.path = pathlib.Path(self.scratch.name)

    def random_model(self, name, **changes):
        folder = self.path / name
        write_model(folder, seed=7, **{**MODELS[name], **changes})
        return folder

    def fits_transformers(self, expected, model, what, limit=LIMIT):
        for kernels in PATHS:
            with self.subTest(what=what, kernels=kernels):
                found = score(model, kernels, TOKENS)[0]["logits_last"]
                self.assertLessEqual(worst_difference(expected, found), limit)

    def convert(self, folder, kind, *options):
        if not CONVERTERS:
            self.skipTest("llama.cpp's source package is not there; bench/peers unpacks it")
        file = self.path / f"{folder.name}-{kind}-converted.gguf"
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT_VOCABULARY, str(CONVERTERS[-1]), str(folder), "--outfile",
             str(file), "--outtype", kind, *options],
            capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return file

    def test_llama_cpps_converter(self):
        folders = [self.random_model(name) for name in MODELS]
        folders.append(self.path / "qwen3_5_moe_text")
        shutil.copytree(ORACLES / folders[-1].name, folders[-1])
        for folder in folders:
            expected = transformers_logits(folder, TOKENS)
            file = self.convert(folder, "f32", "--no-mtp")
            self.fits_transformers(expected, file, folder.name)
            self.same_files(file, folder)

    def same_files(self, converted, folder):
        """What is written here is what the converter writes."""
        own = self.path / "own.gguf"
        write_delta_gguf(folder, own, kind_for(Type.F32))
        one, other = gguf.GGUFReader(converted), gguf.GGUFReader(own)
        tensors = [{tensor.name: tensor.data for tensor in file.tensors} for file in (one, other)]
        self.assertEqual(tensors[0].keys(), tensors[1].keys())
        for name, data in tensors[0].items():
            # Its -exp is that of float32.
            limit = 1e-6 if name.endswith("ssm_a") else 0.0
            np.testing.assert_allclose(tensors[1][name], data, rtol=limit, atol=0, err_msg=name)
        keys = [{key: field.contents() for key, field in file.fields.items()
                 if key.startswith(("qwen3", "general.architecture"))} for file in (one, other)]
        self.assertEqual(*keys)

    def test_the_converters_draft_layers(self):
        """It puts layers that only draft behind the others."""
        folder = self.random_model("qwen3_5_moe")
        config = json.loads((folder / "config.json").read_text())
        expected = transformers_logits(folder, TOKENS)
        (folder / "config.json").write_text(json.dumps({**config, "mtp_num_hidden_layers": 1}))
        tensors = load_file(folder / "model.safetensors")
        for name in list(tensors):
            if ".layers.1." in name:
                tensors["mtp.layers.0." + name.split(".layers.1.")[1]] = tensors[name].clone()
        hidden = config["hidden_size"]
        tensors["mtp.fc.weight"] = torch.ones(hidden, 2 * hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors[f"mtp.{name}.weight"] = torch.zeros(hidden)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        file = self.convert(folder, "f32")
        self.assertTrue(any(".nextn." in tensor.name for tensor in gguf.GGUFReader(file).tensors))
        self.fits_transformers(expected, file, "draft layers")

    def test_files_of_floats(self):
        folders = [self.random_model(name) for name in MODELS]
        folders += [ORACLES / name for name in ("qwen3_next", "qwen3_5_moe_text")]
        for folder in folders:
            expected = transformers_logits(folder, TOKENS)
            # The folders are bfloat16: both hold them exactly.
            for kind in (Type.BF16,) if folder.parent == ORACLES else (Type.F32, Type.BF16):
                file = self.path / f"{folder.name}-{kind.name}.gguf"
                write_delta_gguf(folder, file, kind_for(kind))
                self.fits_transformers(expected, file, (folder.name, kind.name))
                # Where heads stand as they do in the folder, no sum has its terms in another order.
                if folder.name == "qwen3_next":
                    for kernels in PATHS:
                        self.assertEqual(score(folder, kernels, TOKENS)[0],
                                         score(file, kernels, TOKENS)[0], (folder, kernels))

    def test_value_heads_are_tiled(self):
        """The order of heads in the file is seen: in the folder's order they make another model."""
        folder = self.random_model("qwen3_5")
        expected = transformers_logits(folder, TOKENS)
        file = self.path / "grouped.gguf"
        write_delta_gguf(folder, file, kind_for(Type.F32), tiles=False)
        for kernels in PATHS:
            found = score(file, kernels, TOKENS)[0]["logits_last"]
            self.assertGreater(worst_difference(expected, found), 10 * LIMIT)

    def test_older_files(self):
        """Queries, keys, values and gates in one matrix, and a layer of a number that keeps keys."""
        kinds = ["linear_attention", "full_attention"] * 2
        folder = self.random_model("qwen3_next", layer_types=kinds)
        expected = transformers_logits(folder, TOKENS)
        file = self.path / "older.gguf"
        write_delta_gguf(folder, file, kind_for(Type.F32), whole=True, interval=2)
        self.fits_transformers(expected, file, "older")
        for kernels in PATHS:
            self.assertEqual(score(folder, kernels, TOKENS)[0], score(file, kernels, TOKENS)[0])

    def test_draft_layers_are_passed_over(self):
        folder = self.random_model("qwen3_5")
        for draft_layers in (0, 2):
            write_delta_gguf(folder, self.path / f"{draft_layers}.gguf", kind_for(Type.F32),
                             draft_layers=draft_layers)
        self.assertEqual(*(score(self.path / f"{count}.gguf", "fused", TOKENS)[0]
                           for count in (0, 2)))

    def test_blocks(self):
        for name in ("qwen3_next", "qwen3_5"):
            wide = {key: value for key, value in WIDE.items() if key in MODELS[name]}
            folder = self.random_model(name, **wide)
            for kind in (Type.Q8_0, Type.Q4_K):
                file, plain = (self.path / f"{name}-{kind.name}{end}" for end in (".gguf", "-meant"))
                write_meant(folder, write_delta_gguf(folder, file, kind_for(kind)), plain)
                with self.subTest(model=name, kind=kind.name):
                    expected = transformers_logits(plain, TOKENS)
                    largest = max(map(abs, expected))
                    options = (TOKENS, "--strict", "--kv-type", "f32")
                    (fused, notes), (reference, _) = (score(file, kernels, *options) for kernels in PATHS)
                    self.assertEqual(notes, "")
                    # Activations are int8 on both.
                    self.assertLessEqual(worst_difference(expected, fused["logits_last"]), 0.1 * largest)
                    self.assertLessEqual(
                        worst_difference(reference["logits_last"], fused["logits_last"]), 0.05 * largest)
                    self.assertEqual(fused, score(file, "fused", *options, "--mmap")[0])

    def test_a_quantized_folder_of_a_file(self):
        """It keeps the file's layout, which its config says."""
        # Tiled heads give the sums of a projection another order, which int8 inputs would make large.
        for name, scheme in (("qwen3_next", "int8"), ("qwen3_5", "fp8")):
            folder = self.random_model(name)
            write_delta_gguf(folder, self.path / "model.gguf", kind_for(Type.BF16))
            answers = []
            for source, out in ((folder, "one"), (self.path / "model.gguf", "other")):
                result = subprocess.run(
                    [VITRINE, "quantize", str(source), str(self.path / name / out), "--scheme", scheme,
                     "--group-size", "32"],
                    capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)
                answers.append(score(self.path / name / out, "fused", TOKENS)[0]["logits_last"])
            self.assertLessEqual(worst_difference(*answers), LIMIT, name)
            if name == "qwen3_next":
                self.assertEqual(*answers)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
