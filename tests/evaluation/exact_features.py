# SPDX-License-Identifier: Apache-2.0
"""What claims to change no bit of an answer, held to the gate `exact` over a sample of the core suite.

    exact_features.py VITRINE MODEL [--all]

Threads, answers that are made together, the recorder, guesses ahead and each instruction set that the
processor has must give 0 flips and equal digests; a model with scales moved by one ulp must not.
`--all` takes the whole core suite.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL, MODEL = sys.argv[1], sys.argv[2]
SAMPLE = [] if "--all" in sys.argv[3:] else [
    "--tasks", "arithmetic-choice,arithmetic-steps,json-record-constrained,vt,refusals,cloze,prose",
    "--items", "4"]
DAMAGE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "damage_model.py"


class ExactFeatures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.base = cls.evaluate("base", "--threads", "1")

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def evaluate(cls, name, *options, model=MODEL, **variables):
        out = cls.folder / f"{name}.eval"
        run = subprocess.run([TOOL, "eval", model, "--out", out, "--quiet", *SAMPLE, *options],
                             capture_output=True, text=True, env={**os.environ, **variables})
        if run.returncode != 0:
            raise AssertionError(f"{name}: {run.stderr}")
        return out

    def gate(self, candidate):
        return subprocess.run([TOOL, "gate", self.base, candidate, "--gate", "exact"],
                              capture_output=True, text=True)

    def assert_exact(self, candidate):
        run = self.gate(candidate)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_threads(self):
        self.assert_exact(self.evaluate("threads", "--threads", "2"))

    def test_answers_made_one_by_one(self):
        self.assert_exact(self.evaluate("alone", "--parallel", "1"))

    def test_recorder(self):
        self.assert_exact(self.evaluate("audited", "--audit", self.folder / "logs"))

    def test_guesses_ahead(self):
        for drafter in ("ngram", "suffix"):
            self.assert_exact(self.evaluate(drafter, "--speculate", drafter))

    def test_instruction_sets(self):
        flags = pathlib.Path("/proc/cpuinfo").read_text()
        for isa in [name for name in ("avx2", "avx512_vnni") if name in flags] + ["portable"]:
            isa = isa.removesuffix("_vnni")
            self.assert_exact(self.evaluate(isa, VITRINE_CPU_ISA=isa))

    def test_noise_is_no_exact_feature(self):
        copy = self.folder / "noise"
        subprocess.run([sys.executable, DAMAGE, MODEL, copy, "--noise"], check=True,
                       capture_output=True)
        run = self.gate(self.evaluate("noise", model=copy))
        self.assertEqual(run.returncode, 3, run.stdout + run.stderr)
        self.assertIn("refused: equal digests", run.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
