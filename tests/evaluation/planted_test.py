# SPDX-License-Identifier: Apache-2.0
"""Planted damage: compare names the place, gate refuses, and a signed verdict fits its records alone.

    planted_test.py VITRINE MODEL FLOAT_MODEL
"""

import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL, MODEL, FLOAT_MODEL = sys.argv[1:4]
TASKS = ["--tasks", "refusals,arithmetic-steps,cloze,prose", "--items", "12"]
DAMAGE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "damage_model.py"


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def byte_tokenizer():
    """A tokenizer.json whose tokens are the 256 bytes, by the letters that GPT-2 writes them as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    for place, byte in enumerate(byte for byte in range(256) if byte not in letters):
        letters[byte] = chr(256 + place)
    return {"version": "1.0", "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                              "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                        "use_regex": True},
            "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)},
                      "merges": []}}


class Planted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.evaluate("base", MODEL)
        for seed in (1, 2):
            cls.evaluate(f"noise{seed}", cls.damage(f"noise{seed}", "--noise", "--seed", seed))

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def damage(cls, name, *options):
        copy = cls.folder / f"{name}.model"
        subprocess.run([sys.executable, DAMAGE, MODEL, copy, *map(str, options)], check=True,
                       capture_output=True)
        return copy

    @classmethod
    def evaluate(cls, name, model):
        made = run(TOOL, "eval", model, *TASKS, "--out", cls.folder / f"{name}.eval", "--audit",
                   cls.folder / f"{name}.logs", "--quiet")
        if made.returncode != 0:
            raise AssertionError(made.stderr)

    def judge(self, name, command, *options):
        noise = []
        for seed in (1, 2):
            noise += ["--noise", self.folder / f"noise{seed}.eval", "--noise-logs",
                      self.folder / f"noise{seed}.logs"]
        if name == "noise2":
            noise = noise[:4]
        return run(TOOL, command, self.folder / "base.eval", self.folder / f"{name}.eval",
                   "--baseline-logs", self.folder / "base.logs", "--candidate-logs",
                   self.folder / f"{name}.logs", *noise, *options)

    def parted(self, name):
        told = self.judge(name, "compare")
        self.assertEqual(told.returncode, 0, told.stderr)
        return [line for line in told.stdout.splitlines() if line.startswith("parted: ")]

    def test_noise_stands_out_nowhere(self):
        self.assertEqual(self.parted("noise2"), [])

    def test_an_expert_is_named(self):
        self.evaluate("expert", self.damage("expert", "--expert", "3,6,1"))
        self.assertEqual(len(self.parted("expert")), 1)
        self.assertRegex(self.parted("expert")[0], r"^parted: layer 3, expert 6: expert output ")

    def test_a_layer_is_named(self):
        self.evaluate("channel", self.damage("channel", "--channel", "1,16"))
        self.assertRegex(self.parted("channel")[0], r"^parted: layer 1: routing ")
        self.evaluate("rope", self.damage("rope", "--rope", "4"))
        self.assertRegex(self.parted("rope")[0], r"^parted: layer 0: routing ")

    def test_a_tokenizer_is_named_and_refused(self):
        self.evaluate("merges", self.damage("merges", "--merges", "30"))
        told = self.judge("merges", "gate")
        self.assertEqual(told.returncode, 3, told.stdout + told.stderr)
        self.assertIn("refused: same inputs: ", told.stdout)
        self.assertIn("the prompts differ (tokenizer or template)",
                      self.judge("merges", "compare", "--html", self.folder / "m.html").stdout
                      + (self.folder / "m.html").read_text())

    def test_a_report_keeps_what_was_said_in_text(self):
        page = self.folder / "report.html"
        told = self.judge("noise1", "compare", "--html", page)
        self.assertEqual(told.returncode, 0, told.stderr)
        text = page.read_text()
        data = text.split('id="data">', 1)[1].split("</script>", 1)[0]
        self.assertNotIn("<", data)
        self.assertEqual(json.loads(data)["candidates"][0]["comparison"]["items"],
                         len((self.folder / "base.eval").read_text().splitlines()) - 2)
        self.assertNotIn("http://", text.replace("http://www.w3.org/2000/svg", ""))
        refused = self.judge("noise1", "compare", "--html", self.folder / "base.eval")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("is an input, too; expected another file", refused.stderr)

    def verify(self, manifest, *options, candidate="noise1"):
        return run(TOOL, "manifest", "verify", manifest, self.folder / "base.eval",
                   self.folder / f"{candidate}.eval", "--noise", self.folder / "noise1.eval",
                   "--noise", self.folder / "noise2.eval", *options)

    def test_a_signed_verdict(self):
        manifest, key = self.folder / "verdict.json", self.folder / "key"
        judged = self.judge("noise1", "gate", "--seal", key, "--manifest", manifest)
        again = self.verify(manifest, "--key", f"{key}.pub")
        self.assertEqual(again.returncode, judged.returncode, again.stderr)
        self.assertIn(", the key that was given\n", again.stdout)
        self.assertEqual(self.verify(manifest).returncode, judged.returncode)
        other = self.verify(manifest, candidate="noise2")
        self.assertEqual(other.returncode, 2)
        self.assertIn("'/predicate/candidate/digest/sha256' is ", other.stderr)
        run(TOOL, "gate", self.folder / "base.eval", self.folder / "noise1.eval", "--seal",
            self.folder / "other", "--manifest", self.folder / "else.json")
        stranger = self.verify(manifest, "--key", self.folder / "other.pub")
        self.assertEqual(stranger.returncode, 2)
        self.assertIn("'signatures' has none by ", stranger.stderr)

        envelope = json.loads(manifest.read_text())
        statement = json.loads(base64.b64decode(envelope["payload"]))
        statement["predicate"]["verdict"]["outcome"] = "passes"
        envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        forged = self.folder / "forged.json"
        forged.write_text(json.dumps(envelope))
        told = self.verify(forged)
        self.assertEqual(told.returncode, 2)
        self.assertIn("'signatures' has none by ", told.stderr)
        text = manifest.read_text()
        for size in range(0, len(text), 1301):
            forged.write_text(text[:size])
            self.assertEqual(self.verify(forged).returncode, 2, size)

    def test_a_refused_checkpoint_gets_no_name(self):
        suite = self.folder / "small.toml"
        suite.write_text('[suite]\nname = "small"\nversion = "1"\nseed = 1\n\n[[task]]\n'
                         'name = "prose"\ndomain = "text"\nkind = "text"\n'
                         'items = "small.jsonl"\nlicence = "CC0-1.0"\nsource = "this test"\n')
        (self.folder / "small.jsonl").write_text(
            json.dumps({"id": "a", "text": "The dog ran over the hill and into the wood, where "
                                           "it was dark and still."}) + "\n")
        source, out = self.folder / "float", self.folder / "made"
        shutil.copytree(FLOAT_MODEL, source)
        (source / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        told = run(TOOL, "quantize", source, out, "--scheme", "int8", "--gate", "exact",
                   "--gate-suite", suite)
        self.assertEqual(told.returncode, 3, told.stdout + told.stderr)
        self.assertIn("refused: equal digests: 1 ", told.stdout)
        self.assertIn("made: gate 'exact' refused it, and nothing was written", told.stderr)
        self.assertFalse(out.exists())
        self.assertTrue((self.folder / "made.eval").exists())
        mild = self.folder / "mild.toml"
        mild.write_text('[gate]\nname = "mild"\n\n[[rule]]\nname = "divergence"\n'
                        'metric = "kl_mean"\nkind = "exact"\nbound = 10.0\n')
        told = run(TOOL, "quantize", source, out, "--scheme", "int8", "--gate", mild,
                   "--gate-suite", suite, "--gate-baseline", self.folder / "made.baseline.eval")
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertTrue((out / "config.json").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
