# SPDX-License-Identifier: Apache-2.0
"""Layers for drafts (MTP) against a plain torch form.

    mtp_oracle_test.py MTP_LINES ORACLES [unittest arguments]

Ends with 77 (skipped) where the oracle packages are not installed.
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
    from mtp_zoo import MODELS, MtpForm, write_mtp_model
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MTP_LINES, ORACLES = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
TOKENS = [(37 * i * i + 11 * i + 5) % 151 for i in range(90)]
CUTS = [2, 3, 9, 10, 76, 90]
LIMIT = 1e-4
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"
CONVERTERS = sorted(CACHE.glob("peers/*/vendor/llama.cpp/convert_hf_to_gguf.py"))
# The converter without a vocabulary, which it has no option for.
WITHOUT_VOCABULARY = """
import pathlib, runpy, sys
script = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(script.parent), str(script.parent / "gguf-py")]
from conversion import base, deepseek, glm, qwen
for module in (deepseek, glm, qwen):
    for part in vars(module).values():
        if isinstance(part, type) and issubclass(part, base.TextModel):
            part.set_vocab = base.TextModel._set_vocab_none
sys.argv = sys.argv[1:]
runpy.run_path(str(script), run_name="__main__")
"""


def lines(model, tokens=TOKENS, cuts=CUTS, guesses=4, layer=0):
    request = {"model": str(model), "tokens": tokens, "cuts": cuts, "guesses": guesses,
               "layer": layer}
    result = subprocess.run([MTP_LINES], input=json.dumps(request) + "\n", capture_output=True,
                            text=True, timeout=120, check=True)
    return json.loads(result.stdout)


class MtpOracleTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.path = pathlib.Path(self.scratch.name)

    def fits(self, form, model, limit=LIMIT):
        for layer in range(len(form.layers)):
            found = lines(model, layer=layer)
            self.assertNotIn("error", found)
            logits, streams, _ = form.run(TOKENS[1:], form.states(TOKENS[:-1]), layer)
            for expected, own in ((logits, found["logits"]), (streams, found["streams"])):
                worst = (expected - torch.tensor(own)).abs().max().item()
                self.assertLessEqual(worst, limit)
        self.assertEqual(found["guesses"], [form.guesses(TOKENS[:cut], 4) for cut in CUTS])

    def test_families(self):
        for name in MODELS:
            with self.subTest(name):
                folder = self.path / name
                self.fits(write_mtp_model(folder, name), folder)

    def test_several_layers(self):
        for name, layers in (("deepseek_v3", 2), ("glm4_moe", 3), ("glm4_moe_lite", 5)):
            with self.subTest(name, layers=layers):
                folder = self.path / name
                form = write_mtp_model(folder, name, layers=layers)
                self.fits(form, folder)
                one = [MtpForm.guesses(form, TOKENS[:cut], 4) for cut in CUTS]
                form.layers = form.layers[:1]
                self.assertNotEqual(one, [form.guesses(TOKENS[:cut], 4) for cut in CUTS])
        tensors = load_file(folder / "model.safetensors")
        name = "model.layers.6.enorm.weight"
        save_file({key: value for key, value in tensors.items() if key != name},
                  folder / "model.safetensors", metadata={"format": "pt"})
        self.assertIn(f"'{name}' is missing", lines(folder)["error"])

    @unittest.skipUnless(CONVERTERS, "llama.cpp's source package is not there; bench/peers unpacks it")
    def test_gguf_files_of_llama_cpps_converter(self):
        """Files have what the converter does not write by itself: MTP layers of DeepSeek-V3 (its
        code for GLM-4.7-Flash, a form of DeepSeek's, does), dense layers of Qwen3-Next."""
        written_as = {"deepseek_v3": "Glm4MoeLiteForCausalLM"}
        without = {"qwen3_next": {"mlp_only_layers": []}}
        for name in MODELS:
            with self.subTest(name):
                folder, file = self.path / name, self.path / f"{name}.gguf"
                form = write_mtp_model(folder, name, **without.get(name, {}))
                written = json.loads((folder / "config.json").read_text())
                written["mtp_num_hidden_layers"] = 1
                if name in written_as:
                    written["architectures"] = [written_as[name]]
                (folder / "config.json").write_text(json.dumps(written))
                subprocess.run([sys.executable, "-c", WITHOUT_VOCABULARY, str(CONVERTERS[-1]),
                                str(folder), "--outfile", str(file), "--outtype", "f32"],
                               capture_output=True, timeout=120, check=True)
                self.fits(form, file)

    def test_a_head_of_its_own(self):
        form = write_mtp_model(self.path, "deepseek_v3", own_head=True)
        self.fits(form, self.path)
        shared = lines(self.path)["logits"]
        tensors = load_file(self.path / "model.safetensors")
        del tensors["model.layers.3.shared_head.head.weight"]
        save_file(tensors, self.path / "model.safetensors", metadata={"format": "pt"})
        self.assertNotEqual(shared, lines(self.path)["logits"])

    def test_each_part_counts(self):
        """Every tensor of the layer moves the logits; so does the order of the two halves."""
        form = write_mtp_model(self.path, "glm4_moe")
        logits, _, _ = form.run(TOKENS[1:], form.states(TOKENS[:-1]))
        tensors = load_file(self.path / "model.safetensors")
        hidden = tensors["model.norm.weight"].numel()
        halves = [tensors["model.layers.2.eh_proj.weight"][:, part] for part in
                  (slice(hidden, None), slice(hidden))]
        parts = ("enorm", "hnorm", "eh_proj", "shared_head.norm", "self_attn.o_proj")
        scale = torch.linspace(0.5, 1.5, hidden)  # a factor before a norm would be taken out again
        changes = [{name: tensors[name] * (scale if tensors[name].dim() == 1 else scale[:, None])}
                   for name in (f"model.layers.2.{part}.weight" for part in parts)]
        changes.append({"model.layers.2.mlp.gate.weight":
                        -tensors["model.layers.2.mlp.gate.weight"]})
        changes.append({"model.layers.2.eh_proj.weight": torch.cat(halves, 1)})
        for change in changes:
            save_file({**tensors, **change}, self.path / "model.safetensors",
                      metadata={"format": "pt"})
            moved = (logits - torch.tensor(lines(self.path)["logits"])).abs().max().item()
            self.assertGreater(moved, 10 * LIMIT, list(change))

    def test_what_is_wrong_is_said_in_a_line(self):
        write_mtp_model(self.path, "qwen3_next")
        tensors = load_file(self.path / "model.safetensors")

        def error(changed):
            save_file(changed, self.path / "model.safetensors", metadata={"format": "pt"})
            message = lines(self.path)["error"]
            self.assertNotIn("\n", message)
            return message

        for name in ("mtp.fc.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight",
                     "mtp.layers.0.self_attn.q_proj.weight"):
            if name != "mtp.fc.weight":
                without = {key: value for key, value in tensors.items() if key != name}
                self.assertIn(f"'{name}' is missing", error(without))
            short = {**tensors, name: tensors[name][:-1].clone()}
            self.assertIn(name, error(short))
        self.assertIn("has no layer that drafts (MTP)", error(
            {key: value for key, value in tensors.items() if not key.startswith("mtp.")}))
        with self.subTest("another family"):
            self.assertIn("field 'model_type' is 'qwen3_moe', of which no layer that drafts",
                          lines(ORACLES / "qwen3_moe")["error"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
