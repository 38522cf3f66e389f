# SPDX-License-Identifier: Apache-2.0
"""Heads that convert_heads quantizes: the integers are those that PyPI's compressed-tensors reads,
a folder guesses what plain torch guesses of them, nearly what it guessed before, and as often right.

    quantized_heads_test.py GUESS_LINES VITRINE MODEL HEADS [unittest arguments]

HEADS are EAGLE-3 heads of MODEL, in int4. Ends with 77 (skipped) where the oracle packages are not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from head_forms import (EagleForm, ask_guesses, eagle_tensors, medusa_guesses, medusa_tensors,
                            random_tensor, write_folder, write_target)
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GUESS_LINES, VITRINE, MODEL, HEADS = sys.argv[1:5]
CONVERTER = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "convert_heads"
HIDDEN, GUESSES = 96, 4
CONFIG = {"model_type": "llama", "hidden_act": "silu", "rope_theta": 10000.0, "hidden_size": HIDDEN,
          "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 6,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 101, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 512, "draft_vocab_size": 37, "mask_token_id": 9}
MEDUSA = {"model_type": "medusa", "num_heads": 4, "num_hidden_layers": 2}
# By bits: how far logits may be from those of torch, whose activations are float32, and from those
# before, as the deviation of the difference over that of a row; and how many first guesses stay.
LIMITS = {8: (0.1, 0.15, 0.8), 4: (0.1, 1.0, 0.25)}

torch.set_num_threads(1)
torch.set_grad_enabled(False)


def convert(*arguments):
    return subprocess.run([sys.executable, CONVERTER, *map(str, arguments)], capture_output=True,
                          text=True, timeout=120)


def numbers_of(folder, bits):
    """The tensors of a quantized folder as floats, by compressed-tensors."""
    tensors = load_file(folder / "model.safetensors")
    found = {name: tensor for name, tensor in tensors.items() if ".weight_" not in name}
    for name, packed in tensors.items():
        if name.endswith("_packed"):
            module = name.removesuffix("_packed")
            shape = torch.Size(tensors[module + "_shape"].tolist())
            scales = tensors[module + "_scale"].float()
            integers = unpack_from_int32(packed, bits, shape).float()
            found[module] = integers * scales.repeat_interleave(32, 1)
    return found


class QuantizedHeads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        _, cls.target = write_target(cls.folder / "target", hidden_size=HIDDEN)

    def heads(self, kind):
        """Random heads of one kind: their tensors and their folder, made once."""
        generator = torch.Generator().manual_seed(len(kind))
        if kind == "medusa":
            tensors = medusa_tensors(generator, hidden=HIDDEN, has_bias=True)
            return tensors, write_folder(self.folder / kind, MEDUSA, tensors)
        tensors = eagle_tensors(generator, CONFIG, target=HIDDEN)
        if kind == "peagle":
            tensors["mask_hidden"] = random_tensor(generator, 1, 1, 3 * HIDDEN)
        return tensors, write_folder(self.folder / kind, CONFIG, tensors)

    def quantized(self, kind, bits):
        tensors, heads = self.heads(kind)
        folder = self.folder / f"{kind} int{bits}"
        if not folder.exists():
            result = convert(heads, folder, "--quantize", f"int{bits}")
            self.assertEqual(result.returncode, 0, result.stderr)
        return tensors, heads, folder

    def ask(self, kind, heads, texts):
        return ask_guesses(GUESS_LINES, self.folder, kind, heads, texts, GUESSES)

    def texts(self, kind):
        generator = torch.Generator().manual_seed(3)
        width = HIDDEN if kind == "medusa" else 3 * HIDDEN
        return [(torch.randint(101, (length,), generator=generator).tolist(),
                 random_tensor(generator, length - 1, width)) for length in range(2, 42)]

    def expected(self, kind, tensors, tokens, features):
        """[(token, logits)] by torch."""
        if kind == "medusa":
            return medusa_guesses(tensors, self.target, features[-1], 4)
        form = EagleForm(CONFIG, tensors, self.target["model.embed_tokens.weight"], {})
        return (form.parallel(tokens, features, GUESSES, 9) if kind == "peagle"
                else form.chain(tokens, features, GUESSES))

    def test_integers(self):
        for kind in ("peagle", "medusa"):
            for bits in LIMITS:
                tensors, _, folder = self.quantized(kind, bits)
                found = numbers_of(folder, bits)
                self.assertEqual(found.keys(), tensors.keys())
                stored = load_file(folder / "model.safetensors")
                for name, tensor in tensors.items():
                    with self.subTest(name, bits=bits):
                        scale = stored.get(name + "_scale")
                        is_matrix = name.endswith(".weight") and tensor.dim() == 2
                        self.assertEqual(scale is not None, is_matrix)
                        if scale is None:
                            self.assertTrue(torch.equal(found[name], tensor))
                            continue
                        # Half a step, or what rounding the scale takes from the largest number.
                        steps = scale.float().repeat_interleave(32, 1)
                        most = steps * (0.5 + 2 ** (bits - 1) * 2.0 ** -11)
                        self.assertTrue(((found[name] - tensor).abs() <= most).all())

    def test_guesses(self):
        for kind in ("eagle3", "peagle", "medusa"):
            texts = self.texts(kind)
            for bits, (from_torch, from_floats, least) in LIMITS.items():
                with self.subTest(kind, bits=bits):
                    _, heads, folder = self.quantized(kind, bits)
                    numbers = numbers_of(folder, bits)
                    found = self.ask(kind, folder, texts)
                    before = self.ask(kind, heads, texts)
                    same, far, moved = 0, [], []
                    for own, old, text in zip(found, before, texts):
                        rows = torch.tensor([own["logits"][0], old["logits"][0]])
                        _, row = self.expected(kind, numbers, *text)[0]
                        far.append((rows[0] - row).std() / row.std())
                        moved.append((rows[0] - rows[1]).std() / row.std())
                        same += own["tokens"][0] == old["tokens"][0]
                    self.assertLess(max(far), from_torch)
                    self.assertLess(max(moved), from_floats)
                    self.assertGreaterEqual(same / len(texts), least)

    def test_as_often_right(self):
        """Greedily on the heads' own model, and every answer is the one without guesses."""
        config = json.loads((pathlib.Path(HEADS) / "config.json").read_text())
        del config["quantization_config"]
        floats = write_folder(self.folder / "floats", config, numbers_of(pathlib.Path(HEADS), 4))
        folder = self.folder / "own"
        result = convert(floats, folder, "--quantize", "int8")
        self.assertEqual(result.returncode, 0, result.stderr)
        prompts = self.folder / "prompts.jsonl"
        lines = pathlib.Path("bench/speculation_free.jsonl").read_text().splitlines()
        prompts.write_text("\n".join(lines[:8]) + "\n")
        rates = []
        for heads in (floats, folder):
            result = subprocess.run(
                [VITRINE, "bench", "speculate", MODEL, "--candidates", f"eagle3={heads}",
                 "--prompts", prompts, "-n", "96", "--repeat", "1", "--draft-max", "4",
                 "--temperature", "0", "--json", "--draft-ungated"], capture_output=True, text=True, check=True)
            found = json.loads(result.stdout)["candidates"][0]
            self.assertEqual(found["identical"], found["prompts"])
            rates.append(found["counts"]["mean_acceptance_length"])
        self.assertGreater(rates[0], 1.5)
        self.assertGreater(rates[1], 0.97 * rates[0])

    def test_corrupt_folders(self):
        """Each is refused with what is wrong, and nothing is guessed."""
        for kind, module in (("eagle3", "midlayer.mlp.up_proj"), ("medusa", "lm_heads.1")):
            _, _, whole = self.quantized(kind, 8)
            tensors = load_file(whole / "model.safetensors")
            config = json.loads((whole / "config.json").read_text())
            scale, packed = module + ".weight_scale", module + ".weight_packed"
            infinite = tensors[scale].clone()
            infinite[3, 1] = float("inf")
            cases = {
                "infinite": ({**tensors, scale: infinite}, config),
                "short": ({**tensors, packed: tensors[packed][:, 1:].clone()}, config),
                "scales": ({name: tensor for name, tensor in tensors.items() if name != scale},
                           config),
                "config": (tensors, {name: value for name, value in config.items()
                                     if name != "quantization_config"}),
                "bits": (tensors, json.loads(json.dumps(config).replace(
                    '"num_bits": 8', '"num_bits": 4'))),
            }
            for name, (changed, said) in cases.items():
                with self.subTest(kind, case=name):
                    heads = write_folder(self.folder / f"{kind} {name}", said, changed)
                    with self.assertRaises(AssertionError) as raised:
                        self.ask(kind, heads, self.texts(kind)[:1])
                    message = str(raised.exception)
                    self.assertIn(f"{kind} {name}", message)
                    self.assertRegex(message, r"expected|finite|makes it")
                    if name not in ("bits", "config"):  # of these the first matrix is named
                        self.assertIn(module, message)

    def test_refusals(self):
        _, heads, folder = self.quantized("eagle3", 8)
        new = self.folder / "never"
        infinite = {"fc.weight": torch.full((4, 64), float("inf"))}
        cases = {
            "quantized already": (folder, new, "--quantize", "int8"),
            "expected a pickle": (heads, new),
            "is there already": (heads, folder, "--quantize", "int4"),
            "multiple of 32 columns": (write_folder(self.folder / "odd", {}, {
                "fc.weight": torch.zeros(4, 33)}), new, "--quantize", "int8"),
            "no finite number": (write_folder(self.folder / "infinite", {}, infinite), new,
                                 "--quantize", "int8"),
            "float16 does not hold": (write_folder(self.folder / "huge", {}, {
                "fc.weight": torch.full((4, 64), 1e38)}), new, "--quantize", "int8"),
            "is no folder": (self.folder / "nowhere", new),
            "invalid choice": (heads, new, "--quantize", "int3"),
        }
        for message, arguments in cases.items():
            with self.subTest(message):
                result = convert(*arguments)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(message, result.stderr)
                self.assertFalse(new.exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
