# SPDX-License-Identifier: Apache-2.0
"""The evidence of compression: manifests of folders, who signs them, and whether they still hold."""

import hashlib
import json
import pathlib
import random
import shutil
import struct

from tool import MODEL, SMALL, AuditCase, write_byte_model

try:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Key
except ImportError:
    Envelope = None

SEAL = "vitrine_manifest.dsse.json"
TEXT = "The ship came home late, and nobody knew why. "


class CompressionEvidence(AuditCase):
    def write_adapter(self, model, rank=2):
        """As PEFT writes one, of the first layer's queries."""
        weights = (pathlib.Path(model) / "model.safetensors").read_bytes()
        header = json.loads(weights[8:8 + struct.unpack("<Q", weights[:8])[0]])
        module = "model.layers.0.self_attn.q_proj"
        rows, cols = header[f"{module}.weight"]["shape"]
        tensors, data, draw = {}, b"", random.Random(3)
        for half, shape in (("A", [rank, cols]), ("B", [rows, rank])):
            values = [draw.uniform(-0.3, 0.3) for _ in range(shape[0] * shape[1])]
            part = struct.pack(f"<{len(values)}f", *values)
            tensors[f"base_model.model.{module}.lora_{half}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        text = json.dumps(tensors).encode()
        (self.folder / "lora").mkdir()
        (self.folder / "lora" / "adapter_model.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + data)
        (self.folder / "lora" / "adapter_config.json").write_text(json.dumps({
            "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"],
            "base_model_name_or_path": "small", "bias": "none"}))
        return "lora"

    def write_calibration(self, name="s.vcal", **more):
        """A small model has no tokenizer; its ids are written by hand."""
        (self.folder / name).write_text(json.dumps({
            "schema": "vitrine-calibration", "schema_version": 1, "tokenizer_sha256": "",
            "manifest": {"tokens": 800, "corpus": {"merkle_root": "ab" * 32, "salts": ["12", "34"]}},
            "texts": [[i * 7 % 200 for i in range(j, j + 40)] for j in range(20)], **more}))

    def quantize(self, *more):
        self.write_calibration()
        return self.succeed("quantize", SMALL, "out", "--scheme", "int4", "--method", "gptq",
                            "--calibration", "s.vcal", *more)

    def test_a_manifest_is_told(self):
        self.quantize("--expires", "2999-12-31")
        told = self.succeed("inspect", "out", "--manifest", "--source", SMALL).stdout.decode()
        for words in ("method          gptq", "calibrated", "expires         2999-12-31", "same",
                      "signed          no", "root " + "ab" * 32, "missing"):
            self.assertIn(words, told)
        account = self.succeed_json("inspect", "out", "--manifest", "--json")
        for file in account["files"]:
            path = self.folder / "out" / file["name"]
            if file["of"] == "result":
                self.assertEqual(file["sha256"], hashlib.sha256(path.read_bytes()).hexdigest())
                self.assertEqual(file["state"], "same")
            else:
                self.assertEqual(file["state"], "not checked")
        # With salts, whoever guesses a document could tell that it was used.
        self.assertNotIn("salts", (self.folder / "out" / "vitrine_manifest.json").read_text())
        weights = self.folder / "out" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        changed = self.run_tool("inspect", "out", "--manifest")
        self.assertEqual(changed.returncode, 1)
        self.assertIn("changed", changed.stdout.decode())
        self.assert_one_line(changed.stderr, "out", "model.safetensors is changed")
        self.fail_with(2, ["vitrine_manifest.json", "quantize"], "inspect", SMALL, "--manifest")
        self.fail_with(2, ["--manifest"], "inspect", "out", "--source", SMALL)

    def test_a_folder_is_signed(self):
        self.quantize("--seal", "key")
        verified = self.succeed("manifest", "verify", "out", "--key", "key.pub").stdout.decode()
        self.assertIn("the key that was given", verified)
        self.assertIn("names itself", self.succeed("manifest", "verify", "out").stdout.decode())
        if Envelope is not None:  # by securesystemslib alone
            envelope = Envelope.from_dict(json.loads((self.folder / "out" / SEAL).read_text()))
            value = (self.folder / "key.pub").read_text().split()[1]
            key = Key.from_dict(value, {"keytype": "ed25519", "scheme": "ed25519",
                                        "keyval": {"public": value}})
            self.assertEqual(len(envelope.verify([key], threshold=1)), 1)
            statement = json.loads(envelope.payload)
            for subject in statement["subject"]:
                content = (self.folder / "out" / subject["name"]).read_bytes()
                self.assertEqual(subject["digest"]["sha256"], hashlib.sha256(content).hexdigest())
            self.assertEqual(statement["predicate"]["manifest"],
                             json.loads((self.folder / "out" / "vitrine_manifest.json").read_text()))
        self.succeed("audit", "keygen", "other")
        self.fail_with(2, [SEAL, "signatures"], "manifest", "verify", "out", "--key", "other.pub")
        extra = self.folder / "out" / "model-00002-of-00002.safetensors"
        extra.write_bytes(b"weights")
        self.fail_with(2, [extra.name, "does not name"], "manifest", "verify", "out")
        extra.unlink()
        config = self.folder / "out" / "config.json"
        before = config.read_text()
        config.write_text(before + " ")
        self.fail_with(2, ["config.json", "was changed"], "manifest", "verify", "out")
        config.write_text(before)
        self.succeed("manifest", "verify", "out")
        (self.folder / "out" / SEAL).unlink()
        self.fail_with(2, ["out", "not signed", "--seal"], "manifest", "verify", "out")
        self.fail_with(2, ["key", "expected baseline"], "manifest", "verify", "key")
        self.fail_with(2, ["no results"], "manifest", "verify", "out", "a.eval", "b.eval")

    def test_a_folder_expires(self):
        self.quantize("--seal", "key", "--expires", "2020-02-29")
        expired = self.run_tool("manifest", "verify", "out", "--key", "key.pub")
        self.assertEqual(expired.returncode, 3)
        self.assert_one_line(expired.stderr, "expired", "2020-02-29")
        self.fail_with(2, ["--expires", "2021-02-29", "no day"], "quantize", SMALL, "b", "--scheme",
                       "int4", "--expires", "2021-02-29")
        self.fail_with(2, ["--seal", ".gguf"], "quantize", SMALL, "b.gguf", "--type", "f16", "--seal",
                       "key")
        # A calibration's own day, where no other is named.
        self.write_calibration("dated.vcal", manifest={"expires": "2020-01-01"})
        self.succeed("quantize", SMALL, "c", "--scheme", "int4", "--method", "gptq", "--calibration",
                     "dated.vcal", "--seal", "key")
        self.assertEqual(self.run_tool("manifest", "verify", "c").returncode, 3)

    def calibrate(self, *more):
        (self.folder / "texts").mkdir(exist_ok=True)
        (self.folder / "texts" / "a.txt").write_text(TEXT * 60)
        (self.folder / "texts" / "b.txt").write_text("\n".join(
            f"def f{i}(x): return x ** {i} + {i * 7919 % 101}" for i in range(120)))
        return self.succeed("calibrate", MODEL, "--text", "texts", "--tokens", 600, "--window", 64,
                            "--out", "a.vcal", *more).stdout.decode()

    def test_a_calibration_counts_experts(self):
        (self.folder / "report.json").write_text('{"found": 3}')
        told = self.calibrate("--expires", "2030-01-01", "--scrubber-report", "report.json")
        self.assertRegex(told, r"experts with fewer than \d+ tokens: \d+ of \d+")
        self.assertRegex(told, r"channels above 10 times the median: in \d+ of \d+ norms")
        made = json.loads((self.folder / "a.vcal").read_text())
        statistics = made["statistics"]
        self.assertEqual(statistics["tokens"], made["manifest"]["tokens"])
        config = json.loads((self.folder / MODEL / "config.json").read_text())
        self.assertEqual(len(statistics["routing"]), config["num_hidden_layers"])
        for layer in statistics["routing"]:
            self.assertEqual(sum(layer["tokens"]), statistics["tokens"] * config["num_experts_per_tok"])
        self.assertEqual(made["manifest"]["expires"], "2030-01-01")
        self.assertEqual(made["manifest"]["scrubber_report"], {
            "name": "report.json", "bytes": 12,
            "sha256": hashlib.sha256(b'{"found": 3}').hexdigest()})
        self.assertNotIn("experts with", self.calibrate("--no-statistics"))
        self.assertNotIn("statistics", json.loads((self.folder / "a.vcal").read_text()))
        self.fail_with(2, ["--expires", "soon"], "calibrate", MODEL, "--text", "texts", "--out",
                       "b.vcal", "--expires", "soon")
        self.fail_with(2, ["gone.json"], "calibrate", MODEL, "--text", "texts", "--out", "b.vcal",
                       "--scrubber-report", "gone.json")

    def test_windows_cover(self):
        self.generate("run.vtr", "--seal", "key", "--audit-level", "counters", tokens=80)
        shutil.move(self.folder / "run.vtr", self.folder / "texts.vtr")
        (self.folder / "runs").mkdir()
        shutil.move(self.folder / "texts.vtr", self.folder / "runs" / "run.vtr")
        told = self.calibrate("--cover", "--pool", "1500", "--starved-below", 20, "--from-audit",
                              "runs", "--audit-key", "key.pub")
        self.assertRegex(told, r"cover: from 1\d+ tokens in \d+ windows: \d+ of \d+ experts starve")
        self.assertRegex(told, r"live routing: \d+ tokens in 1 logs; starved experts have [\d.]+ %")
        choice = json.loads((self.folder / "a.vcal").read_text())["manifest"]["choice"]
        self.assertLessEqual(choice["starved"], choice["starved_in_turn"])
        self.assertEqual(choice["live"]["logs"][0]["name"], "run.vtr")
        self.fail_with(2, ["--cover"], "calibrate", MODEL, "--text", "texts", "--out", "b.vcal",
                       "--cover", "--no-statistics")
        self.succeed("audit", "keygen", "other")
        self.fail_with(2, ["run.vtr", "broken"], "calibrate", MODEL, "--text", "texts", "--out",
                       "b.vcal", "--cover", "--from-audit", "runs", "--audit-key", "other.pub")
        self.fail_with(2, ["texts", "no .vtr"], "calibrate", MODEL, "--text", "texts", "--out",
                       "b.vcal", "--cover", "--from-audit", "texts")

    def test_drift(self):
        self.calibrate()
        self.generate("run.vtr", "--prompt-logprobs", tokens=400)
        none = self.run_tool("manifest", "drift", "a.vcal", "run.vtr", "--most", "1")
        self.assertEqual(none.returncode, 0, none.stderr)
        drifted = self.run_tool("manifest", "drift", "a.vcal", "run.vtr", "--most", "0.02")
        self.assertEqual(drifted.returncode, 3, drifted.stderr)
        self.assert_one_line(drifted.stderr, "calibration expired", "a.vcal", "layer")
        told = json.loads(self.run_tool("manifest", "drift", "a.vcal", "run.vtr", "--most", "0.02",
                                        "--json").stdout)
        self.assertTrue(told["expired"])
        self.assertGreater(max(layer["divergence"] for layer in told["layers"]), 0.02)
        self.fail_with(2, ["too few", "--most"], "manifest", "drift", "a.vcal", "run.vtr", "--most",
                       "0.0001")
        self.write_calibration()
        self.fail_with(2, ["s.vcal", "no statistics"], "manifest", "drift", "s.vcal", "run.vtr")
        # Counts of another model do not go into a folder's manifest, nor beside its logs.
        made = json.loads((self.folder / "a.vcal").read_text())
        self.write_calibration("foreign.vcal", statistics=made["statistics"])
        self.fail_with(2, ["foreign.vcal", "statistics/routing"], "quantize", SMALL, "b", "--scheme",
                       "int4", "--method", "gptq", "--calibration", "foreign.vcal")
        made["statistics"]["routing"].pop()
        (self.folder / "less.vcal").write_text(json.dumps(made))
        self.fail_with(2, ["other layers"], "manifest", "drift", "less.vcal", "run.vtr")

    def test_adapters_are_compared(self):
        (self.folder / "text.txt").write_text(TEXT * 30)
        adapter = self.write_adapter(SMALL)
        write_byte_model(self.folder / "bytes")
        made = self.succeed("quantize", "bytes", "out", "--scheme", "int4", "--eval", "text.txt",
                            "--adapter", f"{adapter}:2", "--adapter", adapter).stdout.decode()
        self.assertIn("adapter lora: mean KL", made)
        found = json.loads((self.folder / "out" / "vitrine_manifest.json").read_text())["adapters"]
        self.assertEqual([one["scale"] for one in found], [2, 1])
        for one in found:
            self.assertGreater(one["effect_before"], 0)
            self.assertGreater(one["effect_after"], 0)
            self.assertGreater(one["mean_kl"], 0)
            self.assertEqual(len(one["sha256"]), 2)
        self.assertGreater(found[0]["effect_before"], found[1]["effect_before"])
        self.assertIn("adapter ", self.succeed("inspect", "out", "--manifest").stdout.decode())
        self.fail_with(2, ["--adapter", "--eval"], "quantize", "bytes", "b", "--scheme", "int4",
                       "--adapter", adapter)
        self.fail_with(2, ["gone"], "quantize", "bytes", "b", "--scheme", "int4", "--eval", "text.txt",
                       "--adapter", "gone")

    def test_drift_of_a_folder(self):
        write_byte_model(self.folder / "bytes")
        (self.folder / "a.txt").write_text(TEXT * 20)
        self.succeed("calibrate", "bytes", "--text", "a.txt", "--tokens", 600, "--window", 64, "--out",
                     "a.vcal")
        self.succeed("quantize", "bytes", "out", "--scheme", "int4", "--method", "gptq",
                     "--calibration", "a.vcal")
        self.succeed("generate", "bytes", "-p", TEXT, "-n", 100, "--ignore-end-of-text", "--audit",
                     "run.vtr")
        of_folder = self.succeed_json("manifest", "drift", "out", "run.vtr", "--most", "1", "--json")
        of_file = self.succeed_json("manifest", "drift", "a.vcal", "run.vtr", "--most", "1", "--json")
        self.assertEqual(of_folder["layers"], of_file["layers"])
        shutil.rmtree(self.folder / "out")
        self.quantize()
        self.fail_with(2, ["vitrine_manifest.json", "no statistics"], "manifest", "drift", "out",
                       "run.vtr")
