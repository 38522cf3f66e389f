# SPDX-License-Identifier: Apache-2.0
"""vitrine audit replay."""

import json
import os
import re
import shutil
import struct
import unittest.mock

from tool import MODEL, PROMPT, AuditCase, write_byte_model


def layer_mark(layer):
    """The two bytes that level standard keeps of a layer (docs/vtr-format.md, Marks)."""
    def mark(words):
        value = 0
        for word in words:
            value = (value ^ word) * 0x9E3779B97F4A7C15 % 2**64
        return value >> 56

    def bits(value):
        return struct.unpack("<I", struct.pack("<f", value))[0]

    routes = [word for expert, weight in zip(layer["experts"], layer["weights"])
              for word in (expert, bits(weight))]
    return mark([bits(layer["residual_norm"])]), mark(routes)


def first_marked_difference(ones, others):
    """Position and layer of the first marks that differ between two logs' records of level full."""
    return next((one["position"], own["layer"]) for one, other in zip(ones, others)
                for own, their in zip(one["layers"], other["layers"])
                if layer_mark(own) != layer_mark(their))


class Replay(AuditCase):
    def test_replay_is_equal(self):
        self.generate("run.vtr")
        self.generate("full.vtr", "--audit-level", "full", "--prompt-logprobs", "--threads", 1)
        self.generate("log.json", "--audit-level", "full")
        self.generate("reference.vtr", "--kernels", "reference", tokens=3)
        for name in ("run.vtr", "full.vtr", "log.json", "reference.vtr"):
            for more in ([], ["--threads", 1], ["--threads", 2], ["--force-routes"]):
                if name == "reference.vtr" and "--threads" in more:
                    continue  # only the fused path promises that threads change nothing
                out = self.replay(name, *more)
                self.assertTrue(out.startswith("equal: "), out)
                self.assertNotIn("replayed with", out)
        report = json.loads(self.replay("run.vtr", "--json"))
        self.assertEqual((report["equal"], report["compared"], report["records_equal"],
                          report["predictions"]), (True, "digests", 45, 40))
        self.assertIsNone(report["first_difference"])
        self.assertIsNone(report["runtime_difference"])
        self.assertEqual(json.loads(self.replay("log.json", "--json"))["compared"], "values")
        # A prompt longer than a step, and an open log.
        self.succeed("generate", MODEL, "-p", "word " * 700, "-n", 3, "--audit", "long.vtr")
        self.assertEqual(json.loads(self.replay("long.vtr", "--json"))["predictions"], 3)
        (self.folder / "open.vtr").write_bytes((self.folder / "run.vtr").read_bytes()[:-40])
        out = self.replay("open.vtr")
        self.assertTrue(out.startswith("OPEN: "), out)
        self.assertIn("\nequal: 45 records", out)

    def test_replay_names_what_differs(self):
        self.generate("run.vtr", tokens=3)
        self.generate("log.json", tokens=3)
        # The same model on other kernels, where the log says so.
        report = json.loads(self.replay("log.json", "--kernels", "reference", "--json", code=1))
        self.assertIn("kernels reference (logged: fused)", report["runtime_difference"])
        self.assertIsInstance(report["first_difference"]["layer"], int)
        out = self.replay("run.vtr", "--kernels", "reference", code=1)
        self.assertRegex(out, r"\nDIFFERENT: sequence 1, position 0, ")
        # Also where its rounded values agree, the layer is the first whose unrounded norm or experts
        # differ. Level full has values besides, which may differ earlier, as a processor has it.
        for kernels in ("fused", "reference"):
            for level in ("standard", "full"):
                self.generate(f"{kernels}-{level}.vtr", "--kernels", kernels, "--audit-level", level,
                              tokens=3)
            self.generate(f"{kernels}.json", "--kernels", kernels, "--audit-level", "full", tokens=3)
        position, layer = first_marked_difference(
            *(json.loads((self.folder / f"{kernels}.json").read_text())["records"]
              for kernels in ("fused", "reference")))
        where = f"sequence 1, position {position}: layer {layer}, "
        exact = self.run_tool("audit", "diff", "fused-full.vtr", "reference-full.vtr")
        found = re.search(r"sequence 1, position (\d+): layer (\d+), ", exact.stdout.decode())
        self.assertLessEqual((int(found[1]), int(found[2])), (position, layer))
        for one, other in (("fused-standard", "reference-standard"),
                           ("fused-full", "reference-standard")):
            result = self.run_tool("audit", "diff", f"{one}.vtr", f"{other}.vtr")
            self.assertEqual(result.returncode, 1)
            self.assertIn(where, result.stdout.decode())
        out = self.replay("fused-standard.vtr", "--kernels", "reference", code=1)
        self.assertIn("DIFFERENT: " + where.replace(": ", ", "), out)
        self.assertIn("0 records equal", out)
        # One value of a JSON log changed.
        self.generate("log.json")
        log = json.loads((self.folder / "log.json").read_text())
        log["records"][20]["layers"][2]["weights"][1] += 0.25
        (self.folder / "bad.json").write_text(json.dumps(log))
        first = json.loads(self.replay("bad.json", "--json", code=1))["first_difference"]
        self.assertEqual((first["position"], first["layer"]), (20, 2))
        expert = log["records"][20]["layers"][2]["experts"][1]
        self.assertEqual(first["value"], f"weight of expert {expert}")
        # Another token: from there on the account is another one.
        log = json.loads((self.folder / "log.json").read_text())
        log["records"][3]["token"] += 1
        (self.folder / "bad.json").write_text(json.dumps(log))
        first = json.loads(self.replay("bad.json", "--json", code=1))["first_difference"]
        self.assertEqual(first["position"], 3)
        # No hashes, and a position beyond any model.
        log = json.loads((self.folder / "log.json").read_text())
        log["model"]["sha256"] = {}
        (self.folder / "bad.json").write_text(json.dumps(log))
        self.assertTrue(self.replay("bad.json").startswith("the log names no hashes"))
        log["records"][3]["position"] = 2**63 - 1
        (self.folder / "bad.json").write_text(json.dumps(log))
        self.fail_with(2, ["bad.json", "a record has 9223372036854775807"], "audit", "replay",
                       "bad.json")
        # A position is missing: what follows it cannot be rerun.
        log = json.loads((self.folder / "log.json").read_text())
        del log["records"][30]
        log["counts"]["tokens"] -= 1
        (self.folder / "gap.json").write_text(json.dumps(log))
        report = json.loads(self.replay("gap.json", "--json", code=1))
        self.assertEqual((report["records_equal"], report["records_not_replayed"]), (30, 14))

    def test_replay_of_another_instruction_set(self):
        environment = {**os.environ, "VITRINE_CPU_ISA": "portable"}
        self.succeed("generate", MODEL, "-p", PROMPT, "-n", 10, "--audit", "portable.vtr",
                     env=environment)
        # It is forced, so there is nothing to report, unless whoever runs the tests forces another.
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("VITRINE_CPU_ISA", None)
            self.assertTrue(self.replay("portable.vtr").startswith("equal: "))
        self.generate("log.json", tokens=5)
        log = json.loads((self.folder / "log.json").read_text())
        log["runtime"]["isa"] = "sse9"
        (self.folder / "other.json").write_text(json.dumps(log))
        self.assertIn("(logged: sse9)", self.replay("other.json").splitlines()[0])

    def byte_model(self, scheme):
        """The small model with a vocabulary of single bytes, quantized."""
        if not (self.folder / "small").is_dir():
            write_byte_model(self.folder / "small")
        self.succeed("quantize", "small", scheme, "--scheme", scheme)

    def test_replay_with_another_quantization(self):
        self.byte_model("int8")
        self.byte_model("int4")
        self.succeed("generate", "int8", "-p", PROMPT, "-n", 30, "--ignore-end-of-text", "--audit",
                     "run.vtr")
        self.assertTrue(self.replay("run.vtr").startswith("equal: "))
        self.assertTrue(self.replay("run.vtr", "--model", self.folder / "int8").startswith("equal"))
        self.fail_with(2, ["another model", "model.safetensors", "--force-routes"], "audit",
                       "replay", "run.vtr", "--model", "int4")
        self.fail_with(2, ["another model"], "audit", "replay", "run.vtr", "--model", MODEL)
        out = self.replay("run.vtr", "--model", "int4", "--force-routes", code=1)
        for word in ("another model: model.safetensors", "DIFFERENT: sequence 1, position 0",
                     "\nfree ", "\nforced "):
            self.assertIn(word, out)
        report = json.loads(
            self.replay("run.vtr", "--model", "int4", "--force-routes", "--json", code=1))
        free, forced = report["drift"]["free"], report["drift"]["forced"]
        self.assertEqual((report["is_same_model"], free["predictions"]), (False, 30))
        self.assertGreater(free["mean_abs_logprob_difference"], 0)
        self.assertGreater(forced["mean_abs_logprob_difference"], 0)
        self.assertGreater(free["routes_different"], 0)
        self.assertLess(free["routes_different"], free["routes"])
        self.assertEqual(free["routes"], forced["routes"])
        # One byte of the weights.
        weights = self.folder / "int8" / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1000] ^= 0x10
        weights.write_bytes(data)
        self.fail_with(2, ["another model", "model.safetensors"], "audit", "replay", "run.vtr")
        # The model is gone.
        shutil.rmtree(self.folder / "int8")
        self.fail_with(2, ["int8", "--model"], "audit", "replay", "run.vtr")

    def redact(self, name, target, block):
        """A copy without the given block of each page: a column group that is left out."""
        log = (self.folder / name).read_bytes()
        out, at = bytearray(log[:8]), 8
        while at < len(log):
            tag, head, payload = struct.unpack_from("<4sIQ", log, at)
            fixed = log[at + 16:at + 16 + head + 96]
            content = log[at + 16 + len(fixed):at + 16 + len(fixed) + payload]
            at += 16 + len(fixed) + payload
            kept, index = b"", 0
            while content:
                size = 5 + struct.unpack_from("<I", content, 1)[0]
                kept += bytes(5) if index == block else content[:size]
                content, index = content[size:], index + 1
            out += struct.pack("<4sIQ", tag, head, len(kept)) + fixed + kept
        (self.folder / target).write_bytes(out)

    def test_replay_of_what_is_left_out(self):
        self.generate("run.vtr", tokens=38)  # whose last is not the best
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        last = log["records"][-1]["prediction"]
        is_best = last["token"] == last["top_logprobs"][0]["token"]
        # Index, events, tokens, prediction, routing, norms, digests.
        for block, word in ((2, "token"), (6, "digest")):
            self.redact("run.vtr", "less.vtr", block)
            self.assertIn("column groups of pages were left out", self.verify("less.vtr"))
            self.fail_with(2, [f"the {word} of position 0 was left out"], "audit", "replay",
                           "less.vtr")
        for block in (3, 4, 5):  # the digests still prove what is not there
            self.redact("run.vtr", "less.vtr", block)
            self.verify("less.vtr")
            report = json.loads(self.replay("less.vtr", "--json"))
            # Which token the last record chose stood in its prediction alone; the best is tried.
            unknown = 1 if block == 3 and not is_best else 0
            self.assertEqual((report["equal"], report["records_equal"],
                              report["records_not_checked"]), (True, 43 - unknown, unknown))
        # Layers that differ do so whatever token followed.
        self.redact("run.vtr", "less.vtr", 3)
        report = json.loads(self.replay("less.vtr", "--kernels", "reference", "--json", code=1))
        self.assertEqual((report["records_different"], report["records_not_checked"]), (43, 0))
        self.redact("run.vtr", "less.vtr", 4)
        self.fail_with(2, ["routes", "left out"], "audit", "replay", "less.vtr", "--force-routes")
        self.generate("counters.vtr", "--audit-level", "counters")
        self.fail_with(2, ["counters"], "audit", "replay", "counters.vtr")
        log = bytearray((self.folder / "run.vtr").read_bytes())
        log[len(log) // 2] ^= 4
        (self.folder / "bad.vtr").write_bytes(log)
        self.fail_with(2, ["broken"], "audit", "replay", "bad.vtr")
        self.fail_with(2, ["gone.vtr"], "audit", "replay", "gone.vtr")
        self.fail_with(2, ["no.model"], "audit", "replay", "run.vtr", "--model", "no.model")
        self.fail_with(2, ["device"], "audit", "replay", "run.vtr", "--device", "tpu")
