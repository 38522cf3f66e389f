# SPDX-License-Identifier: Apache-2.0
"""Drives the command line tool on `--device cuda --kernels fused`, over a libvitrine_cuda.so of the
emulator that runs CUDA kernels on the CPU: there is no GPU in it.

usage: device_test.py VITRINE MODEL EMULATED_BACKEND [unittest arguments]
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

from tool import MODEL, SMALL, VITRINE, CliTest, write_byte_model

BACKEND = os.path.abspath(sys.argv[3])
CUDA = ("--device", "cuda", "--kernels", "fused")
PROMPT = "It was a dark"


class DeviceCase(CliTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # The library looks for its backend where it is itself; so does the loader for the library.
        cls.libraries = pathlib.Path(folder.name)
        for library in [*pathlib.Path(VITRINE).parent.glob("libvitrine.so*"), BACKEND]:
            (cls.libraries / pathlib.Path(library).name).symlink_to(library)
        cls.model = cls.libraries / "model"
        write_byte_model(cls.model)

    def run_tool(self, *arguments, **options):
        options.setdefault("env", {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)})
        return super().run_tool(*arguments, **options)

    def generate(self, name, *more):
        return self.succeed("generate", self.model, "-p", PROMPT, "-n", 8, "--seed", 5,
                            "--ignore-end-of-text", "--audit", name, *more).stdout

    def replay(self, name, *more, code=0):
        result = self.run_tool("audit", "replay", name, *more)
        self.assertEqual(result.returncode, code, (result.stdout, result.stderr))
        return result.stdout.decode()


class Commands(DeviceCase):
    def test_score(self):
        ids = self.write_ids([3, 1, 4, 1, 5, 9, 2, 6] * 5)  # more than a step
        outs = []
        for device in ((), CUDA):
            self.succeed("score", SMALL, "--tokens", ids, "--out", "out.json", *device)
            outs.append(json.loads((self.folder / "out.json").read_text()))
        self.assertEqual(len(outs[0]["greedy"]), 24)
        self.assertEqual(outs[0], outs[1])

    def test_inspect(self):
        facts = self.succeed_json("inspect", SMALL, "--plan", "--json", *CUDA)
        self.assertEqual((facts["device"], facts["kernels"], facts["invariant"]),
                         ("cuda:0", "fused", True))
        for key in ("weight_bytes", "kv_bytes", "arena_bytes"):
            self.assertGreater(facts["memory"][key], 0, key)
        ops = self.succeed_json("inspect", SMALL, "--plan", "--json")["plan"]
        self.assertEqual([op["op"] for op in facts["plan"]], [op["op"] for op in ops])
        for op in facts["plan"]:
            self.assertTrue(op["kernel"].startswith("cuda."), op)
        text = self.succeed("inspect", SMALL, "--plan", *CUDA).stdout.decode()
        self.assertIn("cuda:0, fused kernels", text)
        for op in facts["plan"]:
            self.assertIn(op["kernel"], text)

    def test_bench(self):
        found = self.succeed_json("bench", "generate", SMALL, "-p", 20, "-n", 4, "--repeat", 1,
                                  "--batch", "1,4", "--goes-on", "--json", *CUDA)
        self.assertEqual([one["batch"] for one in found["batches"]], [1, 4])
        self.assertEqual((found["device"], found["kernels"]), ("cuda:0", "fused"))
        self.assertGreater(found["decode_tps"], 0)
        self.assertGreater(found["bytes_per_token"], 0)
        for batch in found["batches"]:  # of one measurement each
            self.assertAlmostEqual(batch["ahead_ratio"], batch["ahead_tps"] / batch["chosen_tps"])
        self.assertGreater(found["read_bandwidth"], 0)
        self.assertGreater(found["bandwidth_share"], 0)

    def test_bench_audit(self):
        """The naive recorder has no fused kernels: it is left out, not measured as another."""
        text = self.succeed("bench", "audit", SMALL, "--tokens", 4, "--trials", 1, "--slices", 4,
                            "--slice-tokens", 2, "--out", "out.json", *CUDA).stdout.decode()
        self.assertNotIn("naive", text)
        found = json.loads((self.folder / "out.json").read_text())
        self.assertEqual(found["device"], "cuda:0")
        self.assertEqual([trial["mode"] for trial in found["trials"]], ["none", "deferred"])
        self.assertEqual((list(found["overhead"]), list(found["verdict"])), (["deferred"],) * 2)
        self.fail_with(2, ["naive", "--kernels reference"], "generate", self.model, "-p", PROMPT,
                       "--audit-mode", "naive", *CUDA)

    def test_what_is_not_here(self):
        self.fail_with(2, ["cuda:1", "1 CUDA devices"], "inspect", SMALL, "--device", "cuda:1",
                       "--kernels", "fused")
        # Nor does a library of the reference path lie here.
        for more, instead in (((), "--kernels fused"), (("--device", "cuda"), "--device cpu")):
            self.fail_with(2, ["libvitrine_torch.so", "scripts/build all", instead], "inspect", SMALL,
                           "--kernels", "reference", *more)
        self.assertIn("libtorch  no\n", self.succeed("--version").stdout.decode())


class Speculation(DeviceCase):
    def test_the_answer_is_the_one_without(self):
        for ways in (("--temperature", "0"), ("--repetition-penalty", "1.2")):
            plain = self.generate("plain.vtr", *CUDA, *ways)
            for kind in ("ngram", "suffix", f"draft={self.model}"):
                with self.subTest(kind=kind, ways=ways):
                    guessed = self.generate("guessed.vtr", *CUDA, *ways, "--speculate", kind)
                    self.assertEqual(guessed, plain)
                    found = self.succeed("audit", "diff", "plain.vtr", "guessed.vtr").stdout
                    self.assertIn(b" 0 different", found)
                    (self.folder / "guessed.vtr").unlink()
            (self.folder / "plain.vtr").unlink()

    def test_who_reads_layers_is_refused_by_name(self):
        heads = pathlib.Path(MODEL).parent / "fractalmoe-30m-eagle3"
        for kind, named in ((f"eagle3={heads}", "eagle3"), ("mtp", "mtp"), ("exit=2", "exit"),
                            ("hispec=2", "hispec")):
            with self.subTest(kind=kind):
                self.fail_with(2, [named, "--kernels reference"], "generate", MODEL, "-p", PROMPT,
                               "-n", 2, "--speculate", kind, *CUDA)


class Replay(DeviceCase):
    def test_a_log_of_the_device(self):
        for more in ((), ("--audit-level", "full", "--prompt-logprobs"), ("--attribution",)):
            for name in ("run.vtr", "log.json"):
                (self.folder / name).unlink(missing_ok=True)
                text = self.generate(name, *CUDA, *more)
                (self.folder / "cpu.vtr").unlink(missing_ok=True)
                self.assertEqual(text, self.generate("cpu.vtr", *more))
                report = json.loads(self.replay(name, "--json"))
                self.assertTrue(report["equal"], report)
                self.assertIsNone(report["runtime_difference"])
                self.assertEqual((report["predictions"], report["choices"]["different"]),
                                 (20 if "--prompt-logprobs" in more else 8, 0))
        out = self.replay("run.vtr")
        self.assertTrue(out.startswith("equal: "), out)
        self.assertIn("choose the same 8 tokens again", out)

    def test_from_one_to_the_other(self):
        """Equal, or a value is named that another order of a sum may round otherwise."""
        for model in (self.model, MODEL):  # one block of the head, and eight
            for name, device in (("cpu.vtr", ("--kv-type", "f32")), ("cuda.vtr", CUDA)):
                (self.folder / name).unlink(missing_ok=True)
                self.succeed("generate", model, "-p", PROMPT, "-n", 6, "--seed", 5,
                             "--ignore-end-of-text", "--prompt-logprobs", "--audit", name, *device)
            for name, device in (("cpu.vtr", CUDA), ("cuda.vtr", ("--device", "cpu"))):
                result = self.run_tool("audit", "replay", name, "--json", *device)
                report = json.loads(result.stdout)
                self.assertEqual(result.returncode, 0 if report["equal"] else 1)
                self.assertIn("device c", report["runtime_difference"])
                self.assertEqual(report["choices"], {"equal": 6, "different": 0})
                self.assertEqual(report["records_not_replayed"], 0)
                if not report["equal"]:  # log-sum-exp and entropy: of no layer
                    self.assertIsNone(report["first_difference"]["layer"], report)
        self.succeed("generate", MODEL, "-p", PROMPT, "-n", 2, "--audit", "integers.vtr")
        report = json.loads(self.run_tool("audit", "replay", "integers.vtr", "--json", *CUDA).stdout)
        self.assertNotIn("kv type", report["runtime_difference"])  # CUDA has the CPU's integers
        self.assertEqual(report["choices"], {"equal": 2, "different": 0})

    def test_bf16_activations(self):
        self.succeed("quantize", self.model, "int4", "--scheme", "int4")
        model, bf16 = self.folder / "int4", ("--activation-type", "bf16", "--kv-type", "bf16")
        plan = self.succeed("inspect", model, "--plan", *CUDA, *bf16).stdout.decode()
        self.assertIn("linear_int4g32_a16", plan)
        self.succeed("generate", model, "-p", PROMPT, "-n", 8, "--seed", 5, "--prompt-logprobs",
                     "--ignore-end-of-text", "--audit", "run.vtr", *CUDA, *bf16)
        self.assertTrue(json.loads(self.replay("run.vtr", "--json"))["equal"])
        out = self.replay("run.vtr", "--activation-type", "int8", code=1)
        self.assertTrue(out.startswith("replayed with activation type int8 (logged: bf16)\n"
                                       "DIFFERENT: "), out)
        # On the CPU only who says so gets another kind of products.
        self.fail_with(2, ["--activation-type is BF16", "--activation-type int8"], "audit",
                       "replay", "run.vtr", "--device", "cpu")
        self.replay("run.vtr", "--device", "cpu", "--activation-type", "int8", code=1)
        self.fail_with(2, ["--activation-type is BF16"], "generate", model, "-p", PROMPT, *bf16)
        integers = ("--activation-type", "bf16", "--kv-type", "i16")
        plan = self.succeed("inspect", model, "--plan", *CUDA, *integers).stdout.decode()
        self.assertIn("attention_i16", plan)

    def test_fp8(self):
        self.succeed("quantize", self.model, "fp8", "--scheme", "fp8")
        model = self.folder / "fp8"
        for activations, kernel in (("int8", "linear_e4m3"), ("bf16", "linear_e4m3_a16"),
                                    ("fp8", "linear_e4m3_a8")):
            more = ("--activation-type", activations)
            plan = self.succeed("inspect", model, "--plan", *CUDA, *more).stdout.decode()
            self.assertRegex(plan, rf"{kernel}\b")
            self.succeed("generate", model, "-p", PROMPT, "-n", 4, "--seed", 5,
                         "--ignore-end-of-text", "--audit", f"{activations}.vtr", *CUDA, *more)
            self.assertTrue(json.loads(self.replay(f"{activations}.vtr", "--json"))["equal"])
        self.fail_with(2, ["--activation-type is F8_E4M3"], "audit", "replay", "fp8.vtr",
                       "--device", "cpu")

    def test_what_differs_is_named(self):
        self.generate("log.json", "--audit-level", "full", *CUDA)
        log = json.loads((self.folder / "log.json").read_text())
        log["records"][5]["layers"][1]["weights"][1] += 0.25
        (self.folder / "log.json").write_text(json.dumps(log))
        first = json.loads(self.replay("log.json", "--json", code=1))["first_difference"]
        self.assertEqual((first["position"], first["layer"]), (5, 1))

    def test_a_federation(self):
        self.succeed("quantize", self.model, "int4", "--scheme", "int4")
        path = self.folder / "federation.json"
        path.write_text(json.dumps({
            "federation": 1, "combiner": {"kind": "mixture", "weights": [0.6, 0.4]},
            "specialists": [{"name": "one", "model": str(self.model)},
                            {"name": "two", "model": str(self.folder / "int4")}]}))
        for more in ((), ("--attribution",)):
            texts = [self.succeed("federate", path, "-p", PROMPT, "-n", 8, "--seed", 5, *more,
                                  "--ignore-end-of-text", "--audit", name, *device).stdout
                     for name, device in (("cpu.vtr", ()), ("cuda.vtr", CUDA))]
            self.assertEqual(texts[0], texts[1])
            for name, device in (("cuda.vtr", ()), ("cpu.vtr", CUDA),
                                 ("cuda.vtr", ("--device", "cpu"))):
                report = json.loads(self.replay(name, "--json", *device))
                self.assertTrue(report["equal"], report)
                self.assertEqual(report["runtime_difference"] is None, device == ())
        # What asks for the joint's rows, and for the state that a gate reads, has them.
        text = self.folder / "text.txt"
        text.write_text("".join(chr(97 + i * i % 23) for i in range(400)))
        found = []
        for device in ((), CUDA):
            scores = self.succeed_json("federate", "score", path, text, "--json", *device)
            self.succeed("federate", "fit", path, text, "--combiner", "gate", "--window", 24,
                         "--out", "gate.json", *device)
            gate = json.loads((self.folder / "gate.json").read_text())["combiner"]
            best = self.succeed("federate", self.folder / "gate.json", "-p", PROMPT, "-n", 5,
                                "--n-best", 2, "--seed", 5, "--ignore-end-of-text", *device).stdout
            found.append((scores, gate, best))
        self.assertEqual(found[0], found[1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
