# SPDX-License-Identifier: Apache-2.0
"""bench/make_moe_gguf.py and fill_gguf.py: their files load, mean what PyPI's `gguf` says, and behave like a model.

    make_moe_gguf_test.py VITRINE DEQUANTIZE_BYTES [unittest arguments]

Ends with 77 (skipped) where `gguf` or numpy is not installed.
"""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

VITRINE, DEQUANTIZE_BYTES = map(os.path.abspath, sys.argv[1:3])
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "make_moe_gguf.py"
TYPES = ("q4_0", "q4_1", "q8_0", "q4_k_m", "mxfp4")
ALL_TYPES = (*TYPES, "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_s", "iq1_m",
             "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0",
             "nvfp4")  # Q1_0 and Q2_0 are none that gguf reads
SIZES = {"layers": 2, "hidden": 256, "experts": 8, "top-k": 2, "expert-width": 256, "heads": 4,
         "kv-heads": 2, "head-dim": 64, "vocabulary": 1200, "context": 128}


def make(path, *options, check=True, **run_options):
    sizes = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    return subprocess.run([sys.executable, str(SCRIPT), str(path), *sizes, *options],
                          capture_output=True, text=True, timeout=300, check=check, **run_options)


def vitrine(*arguments):
    result = subprocess.run([VITRINE, *map(str, arguments)], capture_output=True, text=True,
                            timeout=300, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: {result.stderr}")
    return result.stdout


def dequantize(data, kind):
    result = subprocess.run([DEQUANTIZE_BYTES, str(int(kind))], input=data.tobytes(),
                            capture_output=True, timeout=300, check=True)
    return np.frombuffer(result.stdout, np.float32)


class Generator(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "model.gguf"

    def check_tensors(self, name):
        """The same bits as gguf's, a mean of 0 and a deviation of 1 / sqrt(columns)."""
        kinds = set()
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(self.path).tensors}
        for tensor in tensors.values():
            if tensor.name.endswith(".scale"):
                continue
            with self.subTest(type=name, tensor=tensor.name):
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                self.assertTrue(np.isfinite(values).all())
                if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
                    mean, deviation = ((1, 0.1) if values.ndim == 1
                                       else (0, 2 / values.shape[-1]**0.5))
                    self.assertLess(abs(values.mean() - mean), 5 * deviation / values.size**0.5)
                    self.assertAlmostEqual(values.std() / deviation, 1, delta=0.35)
                    continue
                kinds.add(tensor.tensor_type.name)
                ours = dequantize(tensor.data, tensor.tensor_type)
                self.assertEqual(ours.tobytes(), values.astype(np.float32).tobytes())
                scale = tensors.get(tensor.name.removesuffix("weight") + "scale")
                self.assertEqual(scale is not None, name == "nvfp4" and tensor.name != "token_embd.weight")
                if scale is not None:
                    values = values * scale.data.reshape(-1, *(1,) * (values.ndim - 1))
                unit = 1.0 if tensor.name.startswith("token_embd") else (
                    2 / values.shape[-1]**0.5 if tensor.name.startswith("output.")
                    else 1 / values.shape[-1]**0.5)
                self.assertAlmostEqual(values.std() / unit, 1, delta=0.1)
                # The scale is shared by a block: as many independent signs as there are blocks.
                blocks = values.size / gguf.GGML_QUANT_SIZES[tensor.tensor_type][0]
                self.assertLess(abs(values.mean() / unit), 4 / blocks**0.5)
        expected = {"q4_k_m": {"Q4_K", "Q6_K"}, "mxfp4": {"MXFP4", "Q8_0"}}
        self.assertEqual(kinds, expected.get(name, {name.upper()}))

    def test_weights(self):
        for name in ALL_TYPES:
            make(self.path, "--type", name)
            self.check_tensors(name)

    def test_holes(self):
        """What `inspect` says of a file whose matrices are holes is what it says of the whole one."""
        found = []
        for options in ([], ["--holes"]):
            make(self.path, "--shape", "gpt-oss", "--context", "4096", *options)
            found.append(json.loads(vitrine("inspect", self.path, "--json")))
            del found[-1]["memory"]["machine"]["free_bytes"]  # as others leave it
            self.assertEqual(self.path.stat().st_size, sum(
                int(tensor.n_bytes + 31) // 32 * 32 for tensor in gguf.GGUFReader(self.path).tensors)
                + int(gguf.GGUFReader(self.path).data_offset))
        self.assertEqual(*found)
        self.assertLess(self.path.stat().st_blocks * 512, self.path.stat().st_size)

    def test_memory_of_published_shapes(self):
        """Keys and values as i16: two bytes an element and a scale of four for each head, position
        and one of both; states as float32, two for a sequence and two more."""
        def head(width):
            return 2 * (2 * width + 4)

        state = 32 * 128 * 128 + 3 * 8192  # 32 heads, and three inputs of the convolution

        def enough(window, block=64):
            """What a window and a token behind it need, a block below it, and one more to begin; a
            step of 512; and three earlier windows."""
            most = -(-(block - 1 + block + window) // block)
            return block * (most + 1 + 512 // block + 2 + 3 * most)

        for shape, expected in {
                "gpt-oss": [(12, 0, 32768, head(64) * 8), (12, 128, enough(128), head(64) * 8)],
                "glm-flash": [(47, 0, 32768, 576 * 2 + 4)],
                "gemma4": [(5, 0, 32768, head(512) * 2), (25, 1024, enough(1024), head(256) * 8)],
                "qwen3.5": [(10, 0, 32768, head(256) * 2), (30, 0, 0, 4 * state * 4)]}.items():
            subprocess.run([sys.executable, str(SCRIPT), str(self.path), "--shape", shape, "--holes"],
                           capture_output=True, timeout=300, check=True)
            memory = json.loads(vitrine("inspect", self.path, "--json"))["memory"]
            found = [(kind["layers"], kind["window"], kind["positions"], kind["bytes"])
                     for kind in memory["kv"]]
            self.assertEqual(found, [(layers, window, positions, layers * max(positions, 1) * each)
                                     for layers, window, positions, each in expected])
            self.assertEqual(sum(kind[-1] for kind in found), memory["kv_bytes"])

    def test_filled_elsewhere(self):
        header = self.folder / "header"
        fill = [sys.executable, str(SCRIPT.with_name("fill_gguf.py"))]
        for name in ("q4_0", "q8_0"):
            make(header, "--type", name, "--header")
            self.assertLess(header.stat().st_size, 100_000)
            subprocess.run([*fill, header, self.path, "--seed", "3"], check=True,
                           capture_output=True, timeout=300)
            self.check_tensors(name)
            text = vitrine("generate", self.path, "-p", "the thing", "-n", "8",
                           "--ignore-end-of-text")
            self.assertGreater(len(text.strip()), 8)
            make(self.folder / "whole.gguf", "--type", name)
            self.assertEqual(self.path.stat().st_size,
                             (self.folder / "whole.gguf").stat().st_size)
        whole = self.path.read_bytes()
        subprocess.run([*fill, header, self.path, "--zero-experts"], check=True, capture_output=True,
                       timeout=300)
        for tensor in gguf.GGUFReader(self.path).tensors:
            self.assertEqual(tensor.data.any(), "_exps" not in tensor.name, tensor.name)
        vitrine("generate", self.path, "-p", "the thing", "-n", "4", "--ignore-end-of-text")
        self.path.write_bytes(whole)
        data = header.read_bytes()
        make(header, "--type", "mxfp4", "--header")
        first_name = data.index(b"general.architecture") - 8  # its length
        endless = data[:first_name] + b"\xff" * 8 + data[first_name + 8:]
        # The tokens: an array of strings, whose number stands behind their type.
        count = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
        many = data[:count] + b"\xff" * 8 + data[count + 8:]
        # The first tensor's columns: more bytes than any disk has.
        columns = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4
        large = data[:columns] + struct.pack("<Q", 1 << 50) + data[columns + 8:]
        for bad in (data[:2000], b"GGML" + data[4:], header.read_bytes(), endless, many, large,
                    None):
            if bad is None:
                header.unlink()
            else:
                header.write_bytes(bad)
            result = subprocess.run([*fill, header, self.path], capture_output=True, text=True,
                                    timeout=300, check=False)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
            self.assertIn("fill_gguf: ", result.stderr)
        self.assertEqual(self.path.read_bytes(), whole, "a failure leaves the old file whole")

    def test_runs(self):
        """Finite logits that tell tokens apart; several experts; the reference path agrees."""
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps([(1 + 7919 * i) % SIZES["vocabulary"] for i in range(32)]))
        out = self.folder / "out.json"
        for shape in ("qwen3moe", "olmoe", "glm-flash"):
            more = {"olmoe": ("--kv-heads", "4"), "glm-flash": ("--head-dim", "128")}.get(shape, ())
            for name in TYPES if shape == "qwen3moe" else ("q4_0",):
                with self.subTest(shape=shape, type=name):
                    make(self.path, "--shape", shape, "--type", name, *more)
                    facts = json.loads(vitrine("inspect", self.path, "--json"))
                    self.assertEqual((facts["num_experts"], facts["num_layers"],
                                      facts["vocab_size"]), (8, 2, SIZES["vocabulary"]))
                    logits = {}
                    for kernels in ("fused", "reference"):
                        vitrine("score", self.path, "--tokens", ids, "--out", out, "--kernels",
                                kernels)
                        scored = json.loads(out.read_text())
                        logits[kernels] = np.array(scored["logits_last"])
                        self.assertTrue(np.isfinite(logits[kernels]).all())
                        self.assertTrue(0.5 < logits[kernels].std() < 5)
                        self.assertGreater(len(set(scored["greedy"])), 4)
                    self.assertGreater(np.corrcoef(logits["fused"], logits["reference"])[0, 1], 0.95)
                    vitrine("generate", self.path, "-p", "the thing", "-n", "8", "--audit",
                            self.folder / "run.json", "--overwrite")
                    records = json.loads((self.folder / "run.json").read_text())["records"]
                    experts = {expert for record in records
                               for expert in record["layers"][-1]["experts"]}
                    self.assertGreater(len(experts), 4)

    def test_newer_shapes(self):
        """Values that are neither matrices nor norms, and the patterns of layers."""
        for shape, more in (("glm-flash", ()), ("qwen3.5", ()), ("gemma4", ("--kv-heads", "4"))):
            with self.subTest(shape=shape):
                make(self.path, "--shape", shape, "--layers", "8", "--head-dim", "128", *more)
                reader = gguf.GGUFReader(self.path)
                tensors = {tensor.name: tensor.data for tensor in reader.tensors}
                name = reader.fields["general.architecture"].contents()
                names = gguf.get_tensor_name_map(next(
                    key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name), 8)
                for tensor in reader.tensors:
                    base = tensor.name.removesuffix(".weight").removesuffix(".bias")
                    self.assertIn(base.removesuffix(".scale"), names, tensor.name)
                    if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
                        self.assertTrue(np.isfinite(tensor.data).all(), tensor.name)

                def facts(key, name=name, reader=reader):
                    return reader.fields[f"{name}.{key}"].contents()

                if shape == "glm-flash":
                    dense = [f"blk.{layer}.ffn_up.weight" in tensors for layer in range(8)]
                    self.assertEqual(dense, [True] + [False] * 7)
                    self.assertEqual((facts("attention.key_length"), facts("rope.dimension_count")),
                                     (288, 32))
                elif shape == "qwen3.5":
                    full = [f"blk.{layer}.attn_k.weight" in tensors for layer in range(8)]
                    self.assertEqual(full, ([False] * 3 + [True]) * 2)
                    self.assertEqual(sum(facts("rope.dimension_sections")), 16)
                    self.assertTrue((-16 <= tensors["blk.0.ssm_a"]).all())
                    self.assertTrue((tensors["blk.0.ssm_a"] <= -1).all())
                    self.assertTrue((tensors["blk.0.ssm_dt.bias"] < -2).all())
                else:
                    slides = [True] * 5 + [False, True, False]
                    self.assertEqual(facts("attention.sliding_window_pattern"), slides)
                    self.assertEqual(facts("attention.head_count_kv"),
                                     [4 if layer else 1 for layer in slides])
                    values = [f"blk.{layer}.attn_v.weight" in tensors for layer in range(8)]
                    self.assertEqual(values, slides)
                    self.assertEqual((tensors["rope_freqs.weight"] == 1).sum(), 32)
                    self.assertEqual((tensors["rope_freqs.weight"] > 1e29).sum(), 96)
                    self.assertEqual(tensors["blk.0.layer_output_scale.weight"].tolist(), [1])
                    self.assertNotIn("output.weight", tensors)
        header = self.folder / "header"
        make(header, "--shape", "qwen3.5", "--head-dim", "128", "--header")
        subprocess.run([sys.executable, str(SCRIPT.with_name("fill_gguf.py")), header, self.path],
                       check=True, capture_output=True, timeout=300)
        decay = next(tensor.data for tensor in gguf.GGUFReader(self.path).tensors
                     if tensor.name == "blk.0.ssm_a")
        self.assertTrue((decay < 0).all())

    def test_tokenizer(self):
        make(self.path)
        text = "In the other inn, naïve ünders 12 times: 你好 🙂\n\tend"
        tokens = json.loads(vitrine("tokenize", self.path, "-p", text, "--json"))
        self.assertLess(len(tokens["ids"]), len(text.encode()))  # letters are merged
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps(tokens["ids"]))
        self.assertEqual(json.loads(vitrine("tokenize", self.path, "--ids", ids, "--json")),
                         {"text": text})
        special = json.loads(vitrine("tokenize", self.path, "-p", "a<|im_end|>", "--json"))["ids"]
        self.assertEqual(special[-1], SIZES["vocabulary"] - 1)

    def test_head_and_seed(self):
        make(self.path, "--head", "f16", "--seed", "3")
        head = next(tensor for tensor in gguf.GGUFReader(self.path).tensors
                    if tensor.name == "output.weight")
        self.assertEqual(head.tensor_type, gguf.GGMLQuantizationType.F16)
        first = self.path.read_bytes()
        make(self.path, "--head", "f16", "--seed", "3")
        self.assertEqual(self.path.read_bytes(), first)
        make(self.path, "--head", "f16", "--seed", "4")
        self.assertNotEqual(self.path.read_bytes(), first)

    def test_mistakes(self):
        for options, word in ((("--hidden", "200"), "multiple of 32"),
                              (("--hidden", "128", "--type", "q4_k_m"), "multiple of 256"),
                              (("--vocabulary", "200"), "--vocabulary"), (("--top-k", "9"), "--top-k"),
                              (("--kv-heads", "3"), "--kv-heads"), (("--layers", "0"), "from 1"),
                              (("--shape", "olmoe", "--hidden", "512"), "--hidden"),
                              (("--shape", "glm-flash", "--layers", "27"), "--layers"),
                              (("--shape", "gemma4", "--layers", "1"), "--layers from 2"),
                              (("--shape", "qwen3.5", "--head-dim", "68"), "multiple of 8"),
                              (("--expert-width", "25600000000"), "GB free"),
                              (("--vocabulary", "1000000000"), "--vocabulary"), (("--type", "q9"), "q9")):
            with self.subTest(options=options):
                result = make(self.path, *options, check=False)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(word, result.stderr)
                self.assertNotIn("Traceback", result.stderr)
                self.assertEqual(os.listdir(self.folder), [])

    def test_a_failed_write_leaves_the_old_file(self):
        self.path.write_text("old")

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        result = make(self.path, check=False, preexec_fn=limit)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual((os.listdir(self.folder), self.path.read_text()), (["model.gguf"], "old"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
