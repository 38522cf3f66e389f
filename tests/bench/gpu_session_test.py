# SPDX-License-Identifier: Apache-2.0
"""Rehearses scripts/gpu-session and what its bundle runs on a GPU, over the library that runs CUDA
kernels on the CPU: every part, a failing one, a run that is killed, a bundle of another commit.

    gpu_session_test.py BUILD [unittest arguments]

Ends with 77 (skipped) where `gguf` or numpy is not installed.
"""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

try:
    import gguf  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BUILD = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True
from gpu_session import audit, bench_lines, model, summary  # noqa: E402

PARTS = ["card", "model", "audit", "tests", "large", "federation"]
MAX_BYTES = 16 << 20
# Tells its tests and runs them as GoogleTest does: one differs, one dies, one hangs, one leaves the
# device in a fault.
PLANTED = """#!/usr/bin/env python3
import os, sys, time
NAMES = ["Passes", "Differs", "Dies", "Hangs", "Faults", "PassesInTheEnd"]
if "--gtest_list_tests" in sys.argv:
    print("Planted.")
    print("\\n".join("  " + name for name in NAMES))
    sys.exit(0)
chosen = [word for word in sys.argv if word.startswith("--gtest_filter=")][0].split("=")[1]
code = 0
for name in NAMES:
    if "Planted." + name not in chosen.split(":"):
        continue
    print(f"[ RUN      ] Planted.{name}", flush=True)
    if name == "Dies":
        os.abort()
    if name == "Hangs":
        time.sleep(60)
    if name == "Differs":
        print("a.cc:1: Failure\\n  Actual: false (element 7: 0.5 (0x3f000000) and -2 (0xc0000000))")
    if name == "Faults":
        print("a.cc:2: Failure\\nstatus 700: an illegal memory access was encountered", flush=True)
    how = "  FAILED  " if name in ("Differs", "Faults") else "       OK "
    code |= name in ("Differs", "Faults")
    print(f"[{how}] Planted.{name} (1 ms)", flush=True)
    if name == "Faults":
        time.sleep(60)
sys.exit(code)
"""


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.bundle = cls.folder / "bundle"
        made = subprocess.run(
            ["bash", ROOT / "scripts/gpu-session", "--emulated", "--minutes", "6", cls.bundle],
            env={**os.environ, "VITRINE_BUILD": str(BUILD), "VITRINE_VENV": sys.prefix},
            capture_output=True, text=True, timeout=120, check=False)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        cls.command = made.stdout.split()
        cls.facts = json.loads((cls.bundle / "bundle.json").read_text())

    def start(self, *words, name="run-all", out="out"):
        """A folder without a checkout; what a first command unpacked, later ones find."""
        return subprocess.Popen(
            [sys.executable, self.bundle / name, *words, "--out", self.folder / out], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder)

    def run_to_end(self, *words, **options):
        process = self.start(*words, **options)
        output, _ = process.communicate(timeout=400)
        return process.returncode, output

    def results(self, out="out"):
        return json.loads((self.folder / out / "results.json").read_text())

    def plant(self):
        """A program of failing tests, the first of the bundle's."""
        data = PLANTED.encode()
        member = tarfile.TarInfo("bin/planted_test")
        member.size, member.mode = len(data), 0o755
        with tarfile.open(self.bundle / "payload.tar", "a") as archive:
            archive.addfile(member, io.BytesIO(data))
        facts = {**self.facts, "made": "planted",
                 "tests": [{"program": "planted_test", "seconds": 2}, *self.facts["tests"]]}
        (self.bundle / "bundle.json").write_text(json.dumps(facts))

    def test_everything(self):
        self.plant()
        self.assertEqual(self.command[:5], ["python3", str(self.bundle / "run-all"), "--minutes", "6",
                                            "--commit"])
        code, output = self.run_to_end(*self.command[2:])
        found = self.results()
        parts = found["parts"]
        self.assertEqual(code, 1, output)  # the planted tests fail
        self.assertTrue(found["finished"])
        self.assertEqual(list(parts), PARTS)
        self.assertEqual({name: one["status"] for name, one in parts.items()},
                         {"card": "skipped", "model": "ok", "audit": "ok", "tests": "failed",
                          "large": "ok", "federation": "ok"}, output)
        self.assertIn("needs a GPU", parts["card"]["error"])
        self.assertGreater(parts["card"]["host"]["cores"], 0)
        fused, reference = parts["model"]["fused"], parts["model"]["reference"]
        tokens = self.facts["greedy"]["tokens"]
        self.assertEqual((fused["ids_equal"], fused["digests_equal"], fused["first_difference"]),
                         (tokens, tokens, None))
        self.assertEqual(reference["ids"], tokens)
        self.assertEqual(list(parts["audit"]["fused"]["overhead"]), ["deferred"])
        self.assertEqual(list(parts["audit"]["reference"]["overhead"]), ["naive", "deferred"])
        self.check_tests(parts["tests"])
        self.assertEqual(list(parts["large"]["runs"]),
                         ["bf16 deferred, zero experts", "int8 none, zero experts", "bf16 deferred",
                          "int8 none"])
        for run in parts["large"]["runs"].values():
            self.assertEqual([one["batch"] for one in run["batches"]],
                             self.facts["large"]["batches"])
        self.assertGreater(parts["federation"]["mixture"]["tokens_per_second"], 0)
        self.assertEqual(list(found["answers"]), ["1", "17", "18", "21", "22"])
        text = (self.folder / "out/summary.txt").read_text()
        self.assertTrue(output.endswith(text), output)
        self.assertLessEqual(text.count("\n"), 20)
        self.assertIn(self.facts["commit"], text)
        self.assertIn("Planted.Differs", (self.folder / "out/log.txt").read_text())
        self.assertLess(sum(path.stat().st_size for path in (self.folder / "out").iterdir()), MAX_BYTES)
        self.assertEqual(list((self.bundle / "unpacked/scratch").glob("specialist*")), [])

    def check_tests(self, part):
        programs = part["programs"]
        planted = programs["planted_test"]
        self.assertEqual((planted["tests"], planted["passed"]), (6, 2))
        self.assertEqual(list(planted["failed"]),
                         [f"Planted.{name}" for name in ("Differs", "Dies", "Hangs", "Faults")])
        self.assertEqual(planted["failed"]["Planted.Differs"]["first_difference"],
                         {"index": 7, "values": ["0.5", "-2"], "bits": ["0x3f000000", "0xc0000000"]})
        for name, word in (("Dies", "ended with -6"), ("Hangs", "within 2 s"), ("Faults", "status 700")):
            self.assertIn(word, planted["failed"][f"Planted.{name}"]["lines"][-1])
        self.assertEqual(planted["not_run"], [])
        for program in ("cuda_kernel_tests", "cuda_executor_test"):
            self.assertEqual(programs[program]["passed"], programs[program]["tests"], program)
            self.assertGreater(programs[program]["tests"], 1)

    def test_is_ended(self):
        """By a signal that can be caught, and by one that cannot: what was found is there."""
        for number, before, running in ((signal.SIGTERM, "card", "model"),
                                        (signal.SIGKILL, "model", "audit")):
            process = self.start("--minutes", "3", out="ended")
            try:
                self.wait_for("ended", before)
                process.send_signal(number)
                output, _ = process.communicate(timeout=20)
            finally:
                process.kill()
            found = self.results("ended")
            self.assertFalse(found["finished"])
            self.assertIn(found["parts"][before]["status"], ("ok", "skipped"), output)
            self.assertEqual(found["parts"][running]["status"], "running")
            if number == signal.SIGTERM:
                self.assertEqual(process.returncode, 128 + number)
                self.assertIn("ended by signal 15", (self.folder / "ended/summary.txt").read_text())
            (self.folder / "ended/results.json").unlink()

    def wait_for(self, out, part):
        """Until a part has ended and the next one is running."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if (self.folder / out / "results.json").is_file():
                parts = self.results(out)["parts"]
                if part in parts and list(parts)[-1] != part:
                    return
            time.sleep(0.05)
        self.fail(f"{part} did not end")

    def test_nobody_reads(self):
        process = self.start("card", name="run-one", out="unread")
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertTrue(self.results("unread")["finished"])

    def test_short_of_time(self):
        self.run_to_end("--minutes", "0.1", out="short")
        self.assertLess(self.results("short")["seconds"], 12)
        parts = self.results("short")["parts"]
        self.assertEqual(list(parts), PARTS)
        late = [one for one in parts.values() if one["status"] != "ok"]
        self.assertGreater(len(late), 2)
        for one in late:
            self.assertTrue(one["error"])

    def test_another_commit(self):
        code, output = self.run_to_end("card", "--commit", "f" * 40, name="run-one", out="stale")
        self.assertEqual(code, 0, output)
        self.assertIn(f"STALE: the bundle is of commit {self.facts['commit']}, not of ffffffffffff",
                      output)
        self.assertIn("STALE", (self.folder / "stale/summary.txt").read_text())
        tree = self.folder / "tree"
        for words in (("init", "-q"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q",
                                       "--allow-empty", "-m", "Begin")):
            tree.mkdir(exist_ok=True)
            subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)
        _, output = self.run_to_end("card", "--tree", str(tree), name="run-one", out="stale")
        self.assertRegex(output, r"STALE: .* is at [0-9a-f]{12}\n")
        _, output = self.run_to_end("card", "--commit", self.facts["commit"], name="run-one",
                                    out="stale")
        self.assertNotIn("STALE", output)

    def test_deep(self):
        code, output = self.run_to_end(name="run-deep", out="deep")
        self.assertEqual(code, 0, output)
        parts = self.results("deep")["parts"]
        self.assertEqual(list(parts), ["memcheck", "racecheck", "profile"])
        self.assertEqual({one["status"] for one in parts.values()}, {"skipped"}, output)


class Pieces(unittest.TestCase):
    def test_first_difference(self):
        def log():
            return {"records": [
                {"position": at, "token": 4, "prediction":
                 {"token": 9, "logits_digest": "ab", "logprob": -1.5, "entropy": 2.0},
                 "layers": [{"layer": layer, "residual_norm": 1.25, "experts": [5, 2],
                             "weights": [0.75, 0.25]} for layer in range(2)]} for at in range(3)]}

        found = log()
        found["records"][1]["prediction"]["entropy"] += 1e-7  # merged in another order
        compared = model.compare(log(), found)
        self.assertEqual((compared["ids"], compared["ids_equal"], compared["digests_equal"],
                          compared["first_difference"]), (3, 3, 3, None))
        found["records"][2]["prediction"]["logits_digest"] = "ac"
        found["records"][2]["layers"][1]["weights"][1] = -0.25
        compared = model.compare(log(), found)
        self.assertEqual((compared["ids_equal"], compared["digests_equal"]), (3, 2))
        self.assertEqual(compared["first_difference"],
                         {"position": 2, "field": "layer 1 weights 1", "cpu": 0.25, "device": -0.25,
                          "cpu_bits": "0x3e800000", "device_bits": "0xbe800000"})

    def test_plan(self):
        self.assertEqual(audit.plan(10_000, 20, 3), (1000, 50, 200))
        for rate in (5, 60, 300, 2000):
            for seconds in (1, 10, 30):
                for modes in (2, 3):
                    tokens, slice_tokens, slices = audit.plan(rate, seconds, modes)
                    used = 5 * modes * tokens + 2 * (modes - 1) * slices * slice_tokens
                    least = 5 * modes * 50 + 2 * (modes - 1) * 20 * 5
                    self.assertLessEqual(used, max(rate * seconds, least))
                    self.assertGreaterEqual(slices, 20)

    def test_answers(self):
        """From lines as the benches print them."""
        names = {"read": 1, "gate_up W4A8/128 tile 8": 1, "down W4A16/128 tile 8 split": 8,
                 "gate_up W4A8/32 tile 8": 1, "gate_up Q4_KA8/32 tile 8": 1, "down Q6_KA8/32 tile 8": 1,
                 "gate_up Q2_KA8/32 tile 8": 1, "gate_up W8A8/128 tile 8": 1,
                 "gate_up W4A8/128 tile 32": 4096, "linear_float, router": 1, "attention at 4096": 16,
                 "attention_mma at 4096": 16, "rms_norm, bf16": 1, "sample_rows, top-k, top-p": 1,
                 "group_by_expert": 4096, "rope_kv_write": 1, "rope_kv_write, whole rows": 1,
                 "gate_up E4M3AE4M3/128 tile 32": 4096}
        printed = "".join(f"{name:<28} {tokens:6d} {10.0:10.2f} us {24_000_000:12d} bytes "
                          f"{2400.0:9.1f} GB/s\n" for name, tokens in names.items())
        lines = bench_lines.read_lines("NVIDIA H200, 132 SMs\n" + printed)
        self.assertEqual([line["name"] for line in lines], list(names))
        answers = summary.answers({"parts": {
            "card": {"read_gb_per_second": 4000.0, "torch": {"bf16_tflops": 800.0}},
            "large": {"cuda_products_bench": lines}}})
        self.assertEqual(answers["2"], "4000 GB/s")
        for number in (3, 4, 5, 6, 7, 8, 11, 12):
            self.assertEqual(answers[str(number)], "60 to 60 %", number)
        for number in (13, 14, 15):
            self.assertEqual(answers[str(number)], "10.00 us")
        self.assertEqual(answers["10"], "60 to 60 %, 10.00 us")
        self.assertEqual(answers["16"], "10.00 us, by heads 10.00 us")
        self.assertIn("tile 32 20616 (2577 %)", answers["9"])
        self.assertIn("gate_up E4M3AE4M3/128 tile 32 20616", answers["20"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
