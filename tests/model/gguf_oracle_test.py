# SPDX-License-Identifier: Apache-2.0
"""GGUF files through the tool: against the same weights in a folder, and against transformers.

    gguf_oracle_test.py VITRINE ORACLES [unittest arguments]

VITRINE is the command line tool, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz). The files are written here
with PyPI's `gguf`. Weights that a GGUF holds without loss for our kernels must give the same bits as
a folder that holds them in safetensors, on both kernel paths; what runs as float32 must agree with
transformers on the dequantized weights. Ends with 77 (skipped) where the oracle packages are
not installed.
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
    import transformers
    from gguf import GGMLQuantizationType as Type
    from gguf_files import OwnType, fits, write_gguf, write_meant, write_packed
    from model_zoo import write_model
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

VITRINE = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
FOLDERS = sorted(path.parent for path in ORACLES.glob("*/oracle.json")
                 if path.parent.name not in ("gpt_oss", "dots1", "gemma4_text", "gemma4_text_e",
                                             "flex_olmo", "lfm2_moe",
                                             "qwen3_next", "qwen3_5_moe_text",  # gguf_delta_test.py
                                             *LATENT))
PATHS = ("fused", "reference")
TOKENS = [(37 * i * i + 11 * i + 5) % 250 for i in range(24)]

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

# Shapes with which every type fits: rows of 256.
WIDE = {
    "llama": dict(config="LlamaConfig", vocab_size=256, hidden_size=256, num_attention_heads=4,
                  num_key_value_heads=2, intermediate_size=256, tie_word_embeddings=True),
    "qwen3_moe": dict(config="Qwen3MoeConfig", vocab_size=256, hidden_size=256,
                      num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                      intermediate_size=256, moe_intermediate_size=256, num_experts=4,
                      num_experts_per_tok=2, norm_topk_prob=True),
}
QWEN2 = dict(config="Qwen2Config", vocab_size=250, hidden_size=64, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=96)
GROUP_TYPES = [Type.Q4_0, Type.Q8_0, Type.Q5_0, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4]
BLOCK_TYPES = [Type.Q4_1, Type.Q5_1, Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
# From two and a half bits down, and NVFP4, whose matrices have scales of their own.
SMALL_TYPES = [Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS,
               Type.IQ3_S, Type.TQ1_0, Type.TQ2_0, Type.NVFP4, Type.Q1_0, OwnType.Q2_0]


def kind_for(kind):
    """Matrices in this type where their rows fit, routers and vectors in F32, as published files."""
    return lambda name, array: kind if fits(array, kind) and "_inp" not in name else Type.F32


def score(model, kernels, tokens=TOKENS, *options):
    with tempfile.TemporaryDirectory() as scratch:
        ids, out = pathlib.Path(scratch, "ids.json"), pathlib.Path(scratch, "out.json")
        ids.write_text(json.dumps(tokens))
        result = subprocess.run(
            [VITRINE, "score", str(model), "--tokens", str(ids), "--out", str(out), "--kernels",
             kernels, "--threads", "1", *options],
            capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            raise AssertionError(f"{model}, {kernels}: {result.stderr.strip()}")
        return json.loads(out.read_text()), result.stderr


def transformers_logits(folder, tokens=TOKENS):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1].double().tolist()


def worst_difference(expected, found):
    assert len(expected) == len(found), (len(expected), len(found))
    return max(abs(a - b) for a, b in zip(expected, found))


class GgufOracleTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.path = pathlib.Path(self.scratch.name)
        self.answers = {}  # of folders that several files are compared with

    def same_bits(self, folder, file, what, paths=PATHS):
        for kernels in paths:
            with self.subTest(what=what, kernels=kernels):
                key = (folder, kernels)
                if key not in self.answers:
                    self.answers[key] = score(folder, kernels)[0]
                self.assertEqual(self.answers[key], score(file, kernels)[0])

    def test_float_types_of_all_architectures(self):
        qwen2 = self.path / "qwen2"
        write_model(qwen2, seed=3, **QWEN2)
        # What files have no key for, as the families have it.
        constants = []
        for name, fields in (("gpt_oss", {"swiglu_limit": 7.0, "layer_types": [
                "sliding_attention", "full_attention", "sliding_attention"]}),
                             ("dots1", {"layer_types": ["full_attention"] * 3})):
            constants.append(self.path / name)
            shutil.copytree(ORACLES / name, constants[-1])
            config = json.loads((constants[-1] / "config.json").read_text())
            (constants[-1] / "config.json").write_text(json.dumps({**config, **fields}))
        for name in LATENT:
            constants.append(self.latent_folder(name))
        constants.append(self.convolution_folder())
        for folder in [*FOLDERS, qwen2, *constants]:
            for kind in (Type.F32, Type.BF16):  # the folders are bfloat16: both hold them exactly
                file = self.path / f"{folder.name}-{kind.name}.gguf"
                write_gguf(folder, file, kind_for(kind))
                self.same_bits(folder, file, (folder.name, kind.name))
            file = self.path / f"{folder.name}-F16.gguf"
            meant = write_gguf(folder, file, kind_for(Type.F16))
            write_meant(folder, meant, self.path / f"{folder.name}-meant")
            self.same_bits(self.path / f"{folder.name}-meant", file, (folder.name, "F16"))

    def latent_folder(self, name):
        """Files have one number for both fields of yarn; the other constants are V3's of both."""
        folder = self.path / name
        shutil.copytree(ORACLES / name, folder)
        config = json.loads((folder / "config.json").read_text())
        rope = config["rope_parameters"]
        if "mscale" in rope:
            rope["mscale"] = rope["mscale_all_dim"]
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def convolution_folder(self):
        """Files of lfm2moe have no biases."""
        folder = self.path / "lfm2_moe"
        shutil.copytree(ORACLES / "lfm2_moe", folder)
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "conv_bias": False}))
        tensors = load_file(folder / "model.safetensors")
        save_file({name: tensor for name, tensor in tensors.items() if not name.endswith(".bias")},
                  folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def test_latent_attention_in_halves(self):
        """As converters write it since 2025: what makes keys transposed, apart from what makes values."""
        for name in LATENT:
            folder = self.latent_folder(name)
            for kind in (Type.F32, Type.BF16):
                file = self.path / f"{name}-{kind.name}-halves.gguf"
                write_gguf(folder, file, kind_for(kind), splits_kv_b=True)
                self.same_bits(folder, file, (name, kind.name))

    def test_blocks_of_a_gpt_oss_folder(self):
        """Experts in MXFP4 as the publisher's folders have them, and as GGUF files do."""
        source, folder = ORACLES / "gpt_oss", self.path / "mxfp4"
        config, tensors = json.loads((source / "config.json").read_text()), {}
        config.update(swiglu_limit=7.0, quantization_config={"quant_method": "mxfp4"}, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention"])
        random = np.random.default_rng(5)
        numbers = {}  # by GGUF name: nibbles in the order of columns, and scales
        for name, tensor in load_file(source / "model.safetensors").items():
            if not name.endswith((".gate_up_proj", ".down_proj")):
                tensors[name] = tensor
                continue
            experts, columns, rows = tensor.shape
            nibbles = random.integers(0, 16, (experts, rows, columns), np.uint8)
            scales = random.integers(119, 124, (experts, rows, columns // 32), np.uint8)
            packed = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
            tensors[name + "_blocks"] = torch.from_numpy(
                packed.reshape(experts, rows, columns // 32, 16))
            tensors[name + "_scales"] = torch.from_numpy(scales)
            layer = name.split(".")[2]
            if name.endswith(".down_proj"):
                numbers[f"blk.{layer}.ffn_down_exps.weight"] = (nibbles, scales)
            else:
                for turn, projection in enumerate(("gate", "up")):
                    numbers[f"blk.{layer}.ffn_{projection}_exps.weight"] = (
                        nibbles[:, turn::2], scales[:, turn::2])
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
                  folder / "model.safetensors", metadata={"format": "pt"})

        def blocks_of(name):
            nibbles, scales = numbers[name]
            halves = nibbles.reshape(*nibbles.shape[:-1], -1, 2, 16)
            data = np.concatenate([scales[..., None], halves[..., 0, :] | halves[..., 1, :] << 4], -1)
            return data.reshape(*nibbles.shape[:-1], -1)
        file = self.path / "mxfp4.gguf"
        plain = self.path / "plain"
        shutil.copytree(source, plain)
        (plain / "config.json").write_text(json.dumps(
            {key: value for key, value in config.items() if key != "quantization_config"}))
        write_gguf(plain, file, kind_for(Type.BF16),
                   raw=lambda name: (blocks_of(name), Type.MXFP4) if name in numbers else None)
        self.same_bits(folder, file, "gpt_oss in MXFP4")

    def test_a_dense_model_against_transformers(self):
        folder = self.path / "qwen2"
        write_model(folder, seed=4, **QWEN2)
        write_gguf(folder, self.path / "qwen2.gguf", kind_for(Type.F32))
        expected = transformers_logits(folder)
        for kernels in PATHS:
            found = score(self.path / "qwen2.gguf", kernels)[0]["logits_last"]
            self.assertLessEqual(worst_difference(expected, found), 1e-4)

    def test_types_that_are_groups(self):
        for seed, (name, shape) in enumerate(WIDE.items()):
            folder = self.path / name
            write_model(folder, seed=seed + 7, **shape)
            for kind in GROUP_TYPES:
                file, packed = self.path / f"{name}-{kind.name}.gguf", self.path / f"{name}-{kind.name}"
                meant = write_gguf(folder, file, kind_for(kind))
                write_packed(folder, kind, kind_for(kind), packed)
                self.same_bits(packed, file, (name, kind.name), PATHS[:1 if seed else 2])
                write_meant(folder, meant, self.path / f"{name}-{kind.name}-meant")
                # Activations are int8 in both; transformers' are not.
                expected = transformers_logits(self.path / f"{name}-{kind.name}-meant")
                found, notes = score(file, "fused", TOKENS, "--strict")
                self.assertLessEqual(worst_difference(expected, found["logits_last"]),
                                     0.05 * max(map(abs, expected)), (name, kind.name))
                self.assertEqual(notes, "")

    def test_types_with_minimums_or_scales_of_scales(self):
        for seed, (name, shape) in enumerate(WIDE.items()):
            folder = self.path / name
            write_model(folder, seed=seed + 8, **shape)
            for kind in BLOCK_TYPES:
                file, plain = self.path / f"{name}-{kind.name}.gguf", self.path / f"{name}-{kind.name}"
                write_meant(folder, write_gguf(folder, file, kind_for(kind)), plain)
                expected = transformers_logits(plain)
                largest = max(map(abs, expected))
                (fused, notes), (reference, _) = (score(file, kernels, TOKENS, "--strict",
                                                        "--kv-type", "f32")
                                                  for kernels in PATHS)
                # A minimum meets the sum of the int8 inputs, and random ones are all positive.
                self.assertLessEqual(worst_difference(expected, fused["logits_last"]),
                                     0.1 * largest, (name, kind.name))
                self.assertLessEqual(
                    worst_difference(reference["logits_last"], fused["logits_last"]),
                    0.02 * largest, (name, kind.name))
                self.assertEqual(notes, "")

    def test_small_types(self):
        folder = self.path / "folder"
        write_model(folder, seed=8, **WIDE["qwen3_moe"])
        for kind in SMALL_TYPES:
            with self.subTest(type=kind.name):
                file, plain = self.path / f"{kind.name}.gguf", self.path / kind.name
                write_meant(folder, write_gguf(folder, file, kind_for(kind)), plain)
                expected = transformers_logits(plain)
                largest = max(map(abs, expected))
                (fused, notes), (reference, _) = (score(file, kernels, TOKENS, "--strict",
                                                        "--kv-type", "f32")
                                                  for kernels in PATHS)
                # Activations are int8 in both; transformers' are not.
                self.assertLessEqual(worst_difference(expected, fused["logits_last"]), 0.1 * largest)
                self.assertLessEqual(
                    worst_difference(reference["logits_last"], fused["logits_last"]),
                    0.02 * largest)
                self.assertEqual(notes, "")

    def test_a_gate_beside_floats_runs_as_float32(self):
        for seed, (name, shape) in enumerate(WIDE.items()):
            folder = self.path / name
            write_model(folder, seed=seed + 9, **shape)
            file, plain = self.path / f"{name}.gguf", self.path / f"{name}-plain"
            kind = lambda tensor, array: kind_for(
                Type.Q2_K if "ffn_gate" in tensor else Type.F32)(tensor, array)
            meant = write_gguf(folder, file, kind)
            write_meant(folder, meant, plain)
            self.same_bits(plain, file, name, PATHS[:1 if seed else 2])
            expected = transformers_logits(plain)
            found, notes = score(file, "fused")
            limit = 1e-4 * max(1.0, max(map(abs, expected)))
            self.assertLessEqual(worst_difference(expected, found["logits_last"]), limit, name)
            self.assertEqual(notes.count("\n"), 1, notes)
            self.assertIn("Q2_K", notes)
            with self.assertRaisesRegex(AssertionError, "no fused kernels"):
                score(file, "fused", TOKENS, "--strict")

    def test_types_that_are_mixed(self):
        """As quantizers mix them; a gate of groups beside an up projection of floats, too."""
        for seed, (name, shape) in enumerate(WIDE.items()):
            folder = self.path / name
            write_model(folder, seed=seed + 31, **shape)
            for gate, up in ((Type.Q4_0, Type.Q8_0), (Type.Q8_0, Type.Q4_1), (Type.Q6_K, Type.Q2_K)):
                kinds = {"ffn_gate": gate, "ffn_up": up, "ffn_down": Type.Q6_K, "attn_v": Type.Q5_1,
                         "attn_q": Type.BF16, "token_embd": Type.Q8_0}
                kind = lambda tensor, array: kind_for(next(
                    (kinds[part] for part in kinds if part in tensor), Type.Q4_0))(tensor, array)
                file, plain = (self.path / f"{name}-{gate.name}-{up.name}{end}"
                               for end in (".gguf", ""))
                write_meant(folder, write_gguf(folder, file, kind), plain)
                expected = transformers_logits(plain)
                answers = [score(file, kernels, TOKENS, "--kv-type", "f32")[0]["logits_last"]
                           for kernels in PATHS]
                # A value that is rounded to the other int8 on one path is seen in every logit.
                largest = max(map(abs, expected))
                self.assertLessEqual(worst_difference(*answers), 0.02 * largest, (name, gate.name))
                self.assertLessEqual(worst_difference(expected, answers[0]), 0.1 * largest,
                                     (name, gate.name))

    def test_splits(self):
        folder = ORACLES / "mixtral"
        write_gguf(folder, self.path / "model.gguf", kind_for(Type.Q8_0))
        write_gguf(folder, self.path / "parts.gguf", kind_for(Type.Q8_0), splits=7)
        parts = sorted(self.path.glob("parts-*.gguf"))
        self.assertGreater(len(parts), 3)
        self.same_bits(self.path / "model.gguf", parts[0], "split")
        for message, action in [
                ("expected the first", lambda: score(parts[1], "fused")),
                ("is not there", lambda: (parts[2].rename(self.path / "aside"),
                                          score(parts[0], "fused"))),
                ("split.no", lambda: (parts[2].write_bytes(parts[3].read_bytes()),
                                      score(parts[0], "fused")))]:
            with self.assertRaisesRegex(AssertionError, message):
                action()

    def test_experts_one_by_one(self):
        folder = ORACLES / "mixtral"
        write_gguf(folder, self.path / "stacked.gguf", kind_for(Type.Q4_0))
        write_gguf(folder, self.path / "single.gguf", kind_for(Type.Q4_0), single_experts=True)
        self.same_bits(self.path / "stacked.gguf", self.path / "single.gguf", "single experts")

    def test_rope_scaling(self):
        base = dict(config="LlamaConfig", vocab_size=250, hidden_size=64, num_attention_heads=2,
                    num_key_value_heads=1, intermediate_size=96, dtype=torch.float32)
        folder = self.path / "llama"
        write_model(folder, seed=21, **base)
        config = json.loads((folder / "config.json").read_text())
        plain = transformers_logits(folder)
        head_dim = 32
        cases = {
            "linear": ({"rope_type": "linear", "factor": 4.0}, lambda writer: (
                writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
                writer.add_rope_scaling_factor(4.0))),
            "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                     lambda writer: (
                         writer.add_rope_scaling_type(gguf.RopeScalingType.YARN),
                         writer.add_rope_scaling_factor(4.0),
                         writer.add_rope_scaling_orig_ctx_len(32))),
            "llama3": ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
                       lambda writer: writer.add_tensor(
                           "rope_freqs.weight", llama3_divisors(10000.0, head_dim, 8.0, 1.0, 4.0, 64))),
        }
        for name, (scaling, add_more) in cases.items():
            with self.subTest(scaling=name):
                file = self.path / f"{name}.gguf"
                write_gguf(folder, file, kind_for(Type.F32), add_more=add_more)
                scaled = {**config, "rope_parameters": {**scaling, "rope_theta": 10000.0}}
                (folder / "config.json").write_text(json.dumps(scaled))
                expected = transformers_logits(folder)
                self.assertGreater(worst_difference(expected, plain), 1e-2)
                for kernels in PATHS:
                    for model in (folder, file):
                        found = score(model, kernels)[0]["logits_last"]
                        self.assertLessEqual(worst_difference(expected, found), 1e-4,
                                             (name, kernels, model.name))

    def test_quantize_from_gguf(self):
        folder = ORACLES / "qwen3_moe"
        write_gguf(folder, self.path / "model.gguf", kind_for(Type.BF16))
        for source, out in ((folder, "from_folder"), (self.path / "model.gguf", "from_gguf")):
            result = subprocess.run([VITRINE, "quantize", str(source), str(self.path / out), "--scheme",
                                     "int8"], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.same_bits(self.path / "from_folder", self.path / "from_gguf", "quantize")
        manifest = json.loads((self.path / "from_gguf" / "vitrine_manifest.json").read_text())
        self.assertEqual([file["name"] for file in manifest["source"]["files"]], ["model.gguf"])

    def test_the_comparison_sees_a_difference(self):
        folder = ORACLES / "llama"
        write_gguf(folder, self.path / "model.gguf", kind_for(Type.F16))
        found = score(self.path / "model.gguf", "fused")[0]
        self.assertNotEqual(found, score(folder, "fused")[0])


def llama3_divisors(theta, head_dim, factor, low, high, positions):
    """What published converters write for Llama 3.1's scaling."""
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    divisors = []
    for wave in 2 * np.pi / frequencies:
        if wave < positions / high:
            divisors.append(1.0)
        elif wave > positions / low:
            divisors.append(factor)
        else:
            smooth = (positions / wave - low) / (high - low)
            divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
