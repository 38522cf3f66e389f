# SPDX-License-Identifier: Apache-2.0
"""GGUF files of Gemma 4 through the tool: against the same weights in a folder, and against transformers.

    gguf_gemma_test.py VITRINE ORACLES [unittest arguments]

VITRINE is the command line tool, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz). The
files are written here with PyPI's `gguf`, and by llama.cpp's own converter where bench/peers has
unpacked its source. Ends with 77 (skipped) where the oracle packages are not installed.
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
    import numpy as np
    import torch
    import transformers
    from gguf import GGMLQuantizationType as Type
    from gguf_gemma_files import (kind_for, load_config, write_gemma, write_meant, write_packed,
                                  write_vocabulary)
    from model_zoo import MODELS, write_model
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

VITRINE = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
FOLDERS = [ORACLES / "gemma4_text", ORACLES / "gemma4_text_e"]
PATHS = ("fused", "reference")
TOKENS = [(37 * i * i + 11 * i + 5) % 250 for i in range(40)]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

PROPORTIONAL = {"full_attention": {"rope_type": "proportional", "rope_theta": 3e5, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}
# Rows of 256: every type fits.
WIDE = dict(config="Gemma4TextConfig", dtype=torch.float32, vocab_size=250, hidden_size=256, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, global_head_dim=128, intermediate_size=256, sliding_window=12,
            num_hidden_layers=3, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            final_logit_softcapping=9.0, tie_word_embeddings=True, rope=PROPORTIONAL)
WIDE_MODELS = {
    "experts": dict(**WIDE, attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True,
                    num_experts=4, top_k_experts=2, moe_intermediate_size=256, hidden_size_per_layer_input=0),
    "e": dict(**{**WIDE, "num_hidden_layers": 4, "layer_types": WIDE["layer_types"] + ["full_attention"]},
              hidden_size_per_layer_input=64, vocab_size_per_layer_input=250, num_kv_shared_layers=1,
              use_double_wide_mlp=True),
}
# What the metadata has to tell apart from what is usual.
OWN_MODELS = {
    "rotary": dict(**{**WIDE, "hidden_size": 64, "intermediate_size": 72}, hidden_size_per_layer_input=0),
    "shared": dict(**{**WIDE, "hidden_size": 64, "intermediate_size": 72, "num_hidden_layers": 5,
                      "layer_types": ["full_attention", "sliding_attention", "full_attention",
                                      "sliding_attention", "full_attention"]},
                   hidden_size_per_layer_input=12, vocab_size_per_layer_input=270, num_kv_shared_layers=2,
                   use_double_wide_mlp=False),
}


def score(model, kernels, tokens=TOKENS, *options):
    with tempfile.TemporaryDirectory() as scratch:
        ids, out = pathlib.Path(scratch, "ids.json"), pathlib.Path(scratch, "out.json")
        ids.write_text(json.dumps(tokens))
        result = subprocess.run(
            [VITRINE, "score", str(model), "--tokens", str(ids), "--out", str(out), "--kernels", kernels,
             "--threads", "1", *options], capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            raise AssertionError(f"{model}, {kernels}: {result.stderr.strip()}")
        return json.loads(out.read_text())


def transformers_logits(folder, tokens=TOKENS):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1].double().tolist()


def worst_difference(expected, found):
    assert len(expected) == len(found), (len(expected), len(found))
    return max(abs(a - b) for a, b in zip(expected, found))


class GgufGemmaTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.path = pathlib.Path(self.scratch.name)
        self.answers = {}  # of folders that several files are compared with

    def same_bits(self, folder, file):
        for kernels in PATHS:
            with self.subTest(file=file.name, kernels=kernels):
                if (folder, kernels) not in self.answers:
                    self.answers[folder, kernels] = score(folder, kernels)
                self.assertEqual(self.answers[folder, kernels], score(file, kernels))

    def near_the_oracle(self, folder, file):
        oracle = json.loads((folder / "oracle.json").read_text())
        for kernels in PATHS:
            found = score(file, kernels, oracle["tokens"])
            worst = max(worst_difference(oracle[key], found[key]) for key in ("logits_last", "token_logprobs"))
            print(f"{file.name}, {kernels}: {worst:.2g} from transformers, limit {oracle['atol']:.2g}")
            self.assertLessEqual(worst, oracle["atol"], (file.name, kernels))

    def test_oracles(self):
        for folder in FOLDERS:
            for kind in (Type.F32, Type.BF16):  # the folders are bfloat16: both hold them exactly
                file = self.path / f"{folder.name}-{kind.name}.gguf"
                write_gemma(folder, file, kind_for(kind))
                self.same_bits(folder, file)
            self.near_the_oracle(folder, file)
            for option in (("--mmap",), ("--expert-cache", "1MiB")):
                if option == ("--mmap",) or load_config(folder)["enable_moe_block"]:
                    self.assertEqual(score(file, "fused"), score(file, "fused", TOKENS, *option))
            file, plain = self.path / f"{folder.name}-F16.gguf", self.path / f"{folder.name}-F16"
            write_meant(folder, write_gemma(folder, file, kind_for(Type.F16)), plain)
            self.same_bits(plain, file)

    def test_gate_and_up_apart(self):
        for kind in (Type.BF16, Type.Q8_0):
            for fuses in (True, False):
                write_gemma(FOLDERS[0], self.path / f"{kind.name}-{fuses}.gguf", kind_for(kind), fuses)
            self.same_bits(self.path / f"{kind.name}-True.gguf", self.path / f"{kind.name}-False.gguf")

    def test_what_the_metadata_tells(self):
        """Shapes and constants that no published model has: the folder's bits, and transformers' answers."""
        zoo = {name: MODELS[name] for name in ("gemma4_experts", "gemma4_layer_inputs")}
        for seed, (name, shape) in enumerate({**OWN_MODELS, **zoo}.items()):
            folder, file = self.path / name, self.path / f"{name}.gguf"
            write_model(folder, seed=seed + 40, **shape)
            write_gemma(folder, file, kind_for(Type.BF16 if shape.get("dtype") is None else Type.F32))
            self.same_bits(folder, file)
            expected = transformers_logits(folder)
            worst = worst_difference(expected, score(file, "fused")["logits_last"])
            print(f"{name}: {worst:.2g} from transformers")
            self.assertLessEqual(worst, 1e-4 * max(1.0, *map(abs, expected)), name)

    def test_heads_of_layers_that_do_not_slide(self):
        """As many as a list says, where values have a matrix of their own, too."""
        folder, file = self.path / "heads", self.path / "heads.gguf"
        shape = dict(WIDE, hidden_size=64, intermediate_size=72, hidden_size_per_layer_input=0,
                     per_layer_config={"2": {"head_dim": 96, "num_key_value_heads": 4}})
        del shape["global_head_dim"]
        write_model(folder, seed=51, **shape)
        self.assertEqual(load_config(folder)["per_layer_config"]["2"]["num_key_value_heads"], 4)
        write_gemma(folder, file, kind_for(Type.F32))
        self.same_bits(folder, file)
        expected = transformers_logits(folder)
        self.assertLessEqual(worst_difference(expected, score(file, "fused")["logits_last"]), 1e-4)

    def test_each_key_counts(self):
        """A file with one key or list changed has other logits: none is passed over."""
        folder = self.path / "model"
        write_model(folder, seed=52, **{**OWN_MODELS["rotary"], "head_dim": 64, "global_head_dim": 64})
        config_path = folder / "config.json"
        config = json.loads(config_path.read_text())
        write_gemma(folder, self.path / "own.gguf", kind_for(Type.F32))
        own = score(self.path / "own.gguf", "fused")["logits_last"]
        rope = config["rope_parameters"]
        changes = {
            "window": {"sliding_window": 5}, "cap": {"final_logit_softcapping": 2.0},
            "no cap": {"final_logit_softcapping": None},
            "pattern": {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
            "epsilon": {"rms_norm_eps": 0.1},
            "full theta": {"rope_parameters": {**rope, "full_attention": {
                **rope["full_attention"], "rope_theta": 1e2}}},
            "share": {"rope_parameters": {**rope, "full_attention": {
                **rope["full_attention"], "partial_rotary_factor": 1.0}}},
            "sliding theta": {"rope_parameters": {**rope, "sliding_attention": {
                **rope["sliding_attention"], "rope_theta": 1e2}}},
        }
        for name, change in changes.items():
            config_path.write_text(json.dumps({**config, **change}))
            file = self.path / f"{name}.gguf"
            write_gemma(folder, file, kind_for(Type.F32))
            found = score(file, "fused")["logits_last"]
            self.assertGreater(worst_difference(own, found), 1e-3, name)
            self.assertLessEqual(worst_difference(transformers_logits(folder), found), 1e-4, name)

    def test_types_of_blocks(self):
        for seed, (name, shape) in enumerate(WIDE_MODELS.items()):
            folder = self.path / name
            write_model(folder, seed=seed + 60, **shape)
            for kind in (Type.Q8_0, Type.Q4_0):
                file, packed = self.path / f"{name}-{kind.name}.gguf", self.path / f"{name}-{kind.name}"
                write_gemma(folder, file, kind_for(kind))
                write_packed(folder, kind, kind_for(kind), packed)
                self.same_bits(packed, file)
            for kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
                file, plain = self.path / f"{name}-{kind.name}.gguf", self.path / f"{name}-{kind.name}"
                write_meant(folder, write_gemma(folder, file, kind_for(kind)), plain)
                expected = transformers_logits(plain)
                largest = max(map(abs, expected))
                fused, reference = (score(file, kernels, TOKENS, "--strict", "--kv-type", "f32")["logits_last"]
                                    for kernels in PATHS)
                # Activations are int8 in both, and one that is rounded to the other side is seen in every
                # logit; transformers' are not.
                self.assertLessEqual(worst_difference(expected, fused), 0.1 * largest, (name, kind.name))
                self.assertLessEqual(worst_difference(reference, fused), 0.03 * largest, (name, kind.name))

    def test_quantize_from_gguf(self):
        for folder in FOLDERS:
            file = self.path / f"{folder.name}.gguf"
            write_gemma(folder, file, kind_for(Type.BF16))
            outs = [self.path / f"{folder.name}-{source}" for source in ("folder", "gguf")]
            for source, out in zip((folder, file), outs):
                result = subprocess.run([VITRINE, "quantize", str(source), str(out), "--scheme", "int8"],
                                        capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)
            self.same_bits(*outs)

    def test_files_that_lie_are_one_line(self):
        def replace(name, array):
            return lambda arrays: arrays.update({name: array})

        def drop(part):
            return lambda arrays: [arrays.pop(name) for name in list(arrays) if part in name]
        for folder, change, part in [
                (0, replace("blk.1.ffn_down_exps.scale", np.ones(7, np.float32)), "blk.1.ffn_down_exps.scale"),
                (0, replace("blk.1.ffn_gate_inp.scale", np.ones(63, np.float32)), "blk.1.ffn_gate_inp.scale"),
                (0, replace("blk.1.layer_output_scale.weight", np.ones(2, np.float32)),
                 "blk.1.layer_output_scale.weight"),
                (0, replace("blk.1.ffn_gate_up_exps.weight", np.ones((8, 64, 64), np.float32)),
                 "blk.1.ffn_gate_up_exps.weight"),
                (0, drop("blk.2.ffn_gate_up_exps"), "blk.2.ffn_gate_up_exps.weight"),
                (0, drop("blk.2.ffn_gate_inp.scale"), "blk.2.ffn_gate_inp.scale"),
                (0, drop("blk.2.attn_v"), "blk.2.attn_v.weight"),
                (1, drop("blk.4.inp_gate"), "blk.4.inp_gate.weight"),
                (1, drop("per_layer_proj_norm"), "per_layer_proj_norm.weight"),
                (1, replace("per_layer_token_embd.weight", np.ones((256, 95), np.float32)),
                 "per_layer_token_embd.weight"),
                (1, drop("blk.0.attn_k_norm"), "blk.0.attn_k_norm.weight")]:
            file = self.path / "lies.gguf"
            write_gemma(FOLDERS[folder], file, kind_for(Type.F32), change=change)
            for kernels in PATHS:
                with self.assertRaises(AssertionError) as raised:
                    score(file, kernels)
                message = str(raised.exception)
                self.assertIn(part, message)
                self.assertIn("expected", message)
                self.assertNotIn("\n", message)

    def test_llama_cpp_s_converter(self):
        """Its files of the oracles, with a made-up vocabulary, have the folders' bits and the vocabulary's ids."""
        sources = sorted(CACHE.glob("peers/llama_cpp_python-*/vendor/llama.cpp/convert_hf_to_gguf.py"))
        if not sources:
            self.skipTest("no converter at hand (bench/peers unpacks it)")
        for source in FOLDERS:
            folder = self.path / source.name
            shutil.copytree(source, folder)
            write_vocabulary(folder, 256)
            for kind in ("f32", "bf16"):
                file = self.path / f"{source.name}-converted-{kind}.gguf"
                result = subprocess.run(
                    [sys.executable, sources[-1], folder, "--outfile", file, "--outtype", kind],
                    capture_output=True, text=True, timeout=300, check=False)
                self.assertEqual(result.returncode, 0, result.stderr[-2000:])
                self.same_bits(source, file)
            self.near_the_oracle(source, file)
            theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
            for text in ("the cat", " on a mat  in rain", "eat\tit\n\n", "<eos>one<bos> two", "na\x07n", ""):
                result = subprocess.run([VITRINE, "tokenize", str(file), "-p", text, "--json"],
                                        capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(json.loads(result.stdout)["ids"],
                                 [theirs.token_to_id("<bos>"), *theirs.encode(text).ids], text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
