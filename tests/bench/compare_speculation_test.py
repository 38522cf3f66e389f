# SPDX-License-Identifier: Apache-2.0
"""bench/peers/compare_speculation.py: which program gets what and when, and what is made of their
figures, with programs that print given ones."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers" / "compare_speculation.py"

# Both write down what they are called with. A prompt's ids are its characters; the prompt "differs"
# gets another text with guesses from each.
VITRINE = """#!{python}
import json, pathlib, sys
with pathlib.Path({log!r}).open("a") as log:
    print("vitrine", *sys.argv[1:], file=log)
if sys.argv[1] == "generate":
    print(json.dumps({{"prompt": "".join(["<", sys.stdin.read(), ">"])}}))
    sys.exit()
if sys.argv[1] == "tokenize":
    print(json.dumps({{"ids": list(map(ord, sys.stdin.read()))}}))
    sys.exit()
options = dict(zip(sys.argv[4::2], sys.argv[5::2]))
prompt, = map(json.loads, pathlib.Path(options["--prompts"]).read_text().splitlines())
same = 0 if prompt == "differs" else 1
tokens = 1 if prompt == "short" else 101
print(json.dumps({{"candidates": [
    {{"name": name, "tokens": tokens, "seconds": seconds, "plain_seconds": plain, "identical": same,
      "counts": {{"num_passes": 1 if prompt == "short" else 51}}}}
    for name, seconds, plain in (("auto", 0.5, 1.0), ("ngram", 0.25, 0.9), ("suffix", 0.2, 5.0))]}}))
sys.exit(1 - same)
"""
LLAMA = """#!{python}
import json, pathlib, sys
ids = list(map(int, sys.stdin.read().split()))
with pathlib.Path({log!r}).open("a") as log:
    print("llama", *sys.argv[1:], "".join(map(chr, ids)), file=log)
for mode in sys.argv[4].split(","):
    tokens = [7] if ids == list(map(ord, "short")) else list(range(101))
    seconds = 0.5 if mode == "ngram-mod" else 2.0
    if ids == list(map(ord, "differs")) and mode == "ngram-cache":
        tokens = tokens[:51]
    print(json.dumps({{"mode": mode, "seconds": seconds, "passes": max(len(tokens) - 1, 0),
                       "drafted": 0, "accepted": 0, "tokens": tokens}}))
"""


class CompareSpeculation(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        self.write_programs(VITRINE, LLAMA)
        (self.folder / "model.gguf").write_text("")
        (self.folder / "some.jsonl").write_text('"-same"\n\n{"kind": "x", "prompt": "differs"}\n')
        (self.folder / "more.jsonl").write_text(
            '"short"\n{"kind": "chat", "prompt": "hello"}\n')

    def write_programs(self, vitrine, llama):
        for name, text in (("vitrine", vitrine), ("llama_speculation", llama)):
            path = self.folder / name
            path.write_text(text.format(python=sys.executable, log=str(self.log)))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def compare(self, *arguments):
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--vitrine", self.folder / "vitrine",
             "--llama-speculation", self.folder / "llama_speculation", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False, cwd=self.folder)

    def test_tables(self):
        result = self.compare("model.gguf", "--prompts", "some.jsonl", "more.jsonl", "-n", 101,
                              "--threads", 3, "--draft-max", 5, "--json", "out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = [line.split() for line in self.log.read_text().splitlines()]
        measured = [call for call in calls if call[1] not in ("tokenize", "generate")]
        # Each first in turn.
        self.assertEqual([call[0] for call in measured],
                         ["vitrine", "llama", "llama", "vitrine"] * 2)
        self.assertEqual(measured[1], [
            "llama", "model.gguf", "101", "3",
            "plain,ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache", "-same"])
        self.assertEqual(measured[2][4:], [
            "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache,plain", "differs"])
        self.assertEqual(measured[0][1:5], ["bench", "speculate", "model.gguf", "--prompts"])
        self.assertEqual(" ".join(measured[0][6:]), "-n 101 --repeat 1 --threads 3 --draft-max 5 "
                                                    "--candidates suffix,ngram,auto --json --raw "
                                                    "--draft-ungated")
        self.assertIn("ngram,auto,suffix", measured[3])
        self.assertEqual(measured[6][-1], "<hello>")
        titles = ("some.jsonl: 2 prompts", "more.jsonl: 2 prompts", "all: 4 prompts")
        starts = [result.stdout.index(title) for title in titles]
        some, more, everything = (
            [line.split() for line in result.stdout[start:end].splitlines()]
            for start, end in zip(starts, [*starts[1:], None]))
        # 100 tokens behind the first, over the seconds; the plain ones' median of the three.
        self.assertIn(["vitrine", "plain", "100.0", "1.00x", "1.00", "2", "of", "2"], some)
        self.assertIn(["vitrine", "suffix", "500.0", "5.00x", "2.00", "1", "of", "2"], some)
        self.assertIn(["vitrine", "auto", "200.0", "2.00x", "2.00", "1", "of", "2"], some)
        self.assertIn(["llama.cpp", "plain", "50.0", "1.00x", "1.00", "2", "of", "2"], some)
        self.assertIn(["llama.cpp", "ngram-mod", "200.0", "4.00x", "1.00", "2", "of", "2"], some)
        # 50 tokens a second, and 25 of the answer that is half as long.
        self.assertIn(["llama.cpp", "ngram-cache", "37.5", "0.75x", "1.00", "1", "of", "2"], some)
        self.assertIn(["plain", "2.00x", "2.00x", "2.00x", "2.00x", "0.50x", "3.00x"], some)
        self.assertIn(["ngram", "8.00x", "8.00x", "8.00x", "8.00x", "2.00x", "12.00x"], some)
        # An answer of one token has no speed, and counts as the same.
        self.assertIn(["vitrine", "ngram", "400.0", "4.00x", "2.00", "2", "of", "2"], more)
        self.assertIn(["llama.cpp", "ngram-cache", "50.0", "1.00x", "1.00", "3", "of", "4"],
                      everything)
        found = json.loads((self.folder / "out.json").read_text())
        self.assertEqual({name: len(answers) for name, answers in found["answers"].items()},
                         {"some.jsonl": 2, "more.jsonl": 2})
        self.assertIsNone(found["answers"]["more.jsonl"][0]["vitrine"]["suffix"]["tps"])

    def test_a_run_that_was_stopped_goes_on(self):
        arguments = ("model.gguf", "--prompts", "some.jsonl", "more.jsonl", "--json")
        whole = self.compare(*arguments, "whole.json")
        calls = self.log.read_text().splitlines()
        record = json.loads((self.folder / "whole.json").read_text())
        del record["answers"]["more.jsonl"]
        record["answers"]["some.jsonl"].pop()
        (self.folder / "part.json").write_text(json.dumps(record))
        self.log.unlink()
        rest = self.compare(*arguments, "part.json")
        self.assertEqual((rest.returncode, rest.stdout), (0, whole.stdout))
        measured = [line.split()[:2] for line in self.log.read_text().splitlines()]
        self.assertEqual(measured, [line.split()[:2] for line in calls][3:])
        self.assertEqual((self.folder / "part.json").read_text(),
                         (self.folder / "whole.json").read_text())
        self.assertEqual(self.compare(*arguments, "part.json").stdout, whole.stdout)
        self.assertEqual(len(self.log.read_text().splitlines()), len(measured))
        self.fails("other settings", *arguments, "part.json", "--threads", 1)
        for text in ("", "[]", "{}"):
            (self.folder / "part.json").write_text(text)
            self.fails("part.json", *arguments, "part.json")

    @unittest.skipUnless(os.path.exists("/proc/stat"), "needs Linux")
    def test_a_prompt_is_measured_again_where_others_ran(self):
        arguments = ("model.gguf", "--prompts", "more.jsonl", "--max-prompts", 1)
        self.assertEqual(self.compare(*arguments, "--others", 1000).returncode, 0)
        self.assertEqual(len(self.log.read_text().splitlines()), 3)
        # One that is not its own keeps a processor busy.
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            try:
                result = self.compare(*arguments, "--others", 0.2)
            finally:
                busy.kill()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.log.read_text().splitlines()), 3 + 3 * 3)
        self.assertIn("more.jsonl: 1 prompts", result.stdout)

    def test_mistakes(self):
        prompts = ("--prompts", "some.jsonl")
        for text, word in (("", "no prompt"), ("\n\n", "no prompt"), ("3\n", "bad.jsonl:1"),
                           ('"a"\n{"text": "b"}\n', "bad.jsonl:2"), ('"open\n', "bad.jsonl:1"),
                           ("[]\n", "bad.jsonl:1")):
            (self.folder / "bad.jsonl").write_text(text)
            self.fails(word, "model.gguf", "--prompts", "bad.jsonl")
        (self.folder / "bad.jsonl").write_bytes(b'"\xff"\n')
        self.fails("bad.jsonl", "model.gguf", "--prompts", "bad.jsonl")
        self.fails("none.jsonl", "model.gguf", "--prompts", "none.jsonl")
        self.fails("gone.gguf", "gone.gguf", *prompts)
        self.fails("GGUF", *prompts)
        self.fails("--prompts", "model.gguf")
        for option in ("-n", "--threads", "--max-prompts", "--draft-max"):
            self.fails("from 1", "model.gguf", *prompts, option, "0")
        self.assertFalse(self.log.exists())  # no program ran
        failing = "#!/bin/sh\nexit 3\n"
        for vitrine, llama, word in (
                (failing, LLAMA, "exit code 3"), (VITRINE, failing, "exit code 3"),
                (VITRINE.replace("same =", "sys.exit(1)\nsame ="), LLAMA, "no usable answer"),
                (VITRINE, LLAMA.replace("json.dumps", "str"), "no usable answer")):
            self.write_programs(vitrine, llama)
            self.fails(word, "model.gguf", *prompts)

    def fails(self, word, *arguments):
        result = self.compare(*arguments)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(word, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertNotIn("tokens/s", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
