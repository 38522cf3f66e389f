# SPDX-License-Identifier: Apache-2.0
"""bench/peers/compare.py: which program runs when, and what is made of their figures, with two
programs that print given ones."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers" / "compare.py"

# Writes its name and arguments down; its figures depend on how often it ran.
PROGRAM = """#!{python}
import json, pathlib, sys
log = pathlib.Path({log!r})
calls = log.read_text().splitlines() if log.exists() else []
log.write_text("\\n".join([*calls, " ".join([{name!r}, *sys.argv[1:]])]) + "\\n")
index = sum(call.startswith({name!r}) for call in calls)
print(json.dumps({name!r} == "vitrine" and {{
    "prefill_tps": 300.0 + 10 * index, "decode_tps": 50.0, "bandwidth_share": 0.9,
    "load_seconds": 1.0, "first_token_seconds": 1.5, "peak_rss": 10, "isa": "avx512"}} or {{
    "prefill": {{"512": [90.0, 100.0, 101.0], "2048": [95.0, 98.0, 300.0]}},
    "decode": [40.0, 41.0, 10.0], "load_seconds": 2.0, "first_token_seconds": 3.0,
    "peak_rss": 20, "system_info": "CPU : AVX2 = 1 | "}}))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        for name in ("vitrine", "llama_speed"):
            path = self.folder / name
            path.write_text(PROGRAM.format(python=sys.executable, log=str(self.log), name=name))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (self.folder / "model.gguf").write_text("")

    def compare(self, *arguments):
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--vitrine", self.folder / "vitrine", "--llama-speed",
             self.folder / "llama_speed", *map(str, arguments)], capture_output=True, text=True,
            timeout=120, check=False, cwd=self.folder)

    def test_pairs(self):
        result = self.compare("model.gguf", "-p", 128, "-n", 16, "-d", 4, "--threads", "2", "--pairs",
                              3, "--repeat", 2, "--ubatch", "512,2048", "--kv-type", "i16", "--json", "out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.log.read_text().splitlines()
        names = [call.split()[0] for call in calls]
        # One pair first that is dropped; then each begins with another.
        self.assertEqual(names, ["vitrine", "llama_speed", "vitrine", "llama_speed", "llama_speed",
                                 "vitrine", "vitrine", "llama_speed"])
        self.assertEqual(calls[0].split()[1:], (
            "bench generate model.gguf -p 128 -n 16 --depth 4 --threads 2 --repeat 2 --audit "
            "deferred --kv-type i16 --json").split())
        self.assertEqual(calls[1].split()[1:],
                         "model.gguf -p 128 -n 16 -d 4 -t 2 -r 2 -ub 512,2048".split())
        found = json.loads((self.folder / "out.json").read_text())["2"]
        self.assertEqual([pair["vitrine"]["prefill_tps"] for pair in found], [310, 320, 330])
        # Medians within a run; the better physical batch.
        self.assertEqual({(pair["llama.cpp"]["prefill_tps"], pair["llama.cpp"]["decode_tps"],
                           pair["llama.cpp"]["ubatch"]) for pair in found}, {(100.0, 40.0, 512)})
        row = result.stdout.splitlines()[-1]
        self.assertEqual(row, "| model | 2 | 320 / 100 | 3.20 (3.10 to 3.30) | 50 / 40 | "
                              "1.25 (1.25 to 1.25) | 1.50 / 3.00 | 90 % |")
        self.assertIn("first_token_seconds        1.50 /       3.00   ratio 2.000", result.stdout)
        self.assertIn("AVX2 = 1", result.stdout)

    def test_thread_counts(self):
        result = self.compare("model.gguf", "--threads", "1,2", "--pairs", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split(" | ")[1] for line in result.stdout.splitlines()[-2:]],
                         ["1", "2"])
        self.assertEqual(len(self.log.read_text().splitlines()), 6)

    def test_mistakes(self):
        for arguments, word in ((("gone.gguf",), "gone.gguf"), ((), "GGUF"),
                                (("model.gguf", "--pairs", 0), "from 1"),
                                (("model.gguf", "--threads", "0"), "--threads")):
            result = self.compare(*arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(word, result.stderr)
        (self.folder / "vitrine").write_text("#!/bin/sh\nexit 3\n")
        result = self.compare("model.gguf")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("exit code 3", result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertFalse(os.path.exists(self.folder / "out.json"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
