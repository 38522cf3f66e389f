# SPDX-License-Identifier: Apache-2.0
"""Gaps in code, as llama-server's /infill fills them. VITRINE_TOOL names the tool, VITRINE_MODEL a
model; where it has no marks of infilling, and none can be put into its vocabulary, nothing is
tested."""

import pathlib
import sys
import tempfile
import unittest

from native_case import GREEDY, MODEL, Case

MARKS = {"<|tales|>": "<|fim_prefix|>", "<|speeches|>": "<|fim_suffix|>",
         "<|math|>": "<|fim_middle|>", "<|reserved_0|>": "<|repo_name|>",
         "<|reserved_1|>": "<|file_sep|>"}


class Infill(Case):
    """A folder whose vocabulary has special tokens of other names gets marks in their place."""

    @classmethod
    def model(cls):
        folder = pathlib.Path(MODEL)
        tokenizer = folder / "tokenizer.json"
        if not tokenizer.is_file() or "<|tales|>" not in tokenizer.read_text():
            return MODEL
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        for file in folder.iterdir():
            if file.name in ("tokenizer.json", "vitrine_manifest.json"):
                continue
            (pathlib.Path(temporary.name) / file.name).symlink_to(file.resolve())
        text = tokenizer.read_text()
        for name, mark in MARKS.items():
            text = text.replace(name, mark)
        (pathlib.Path(temporary.name) / "tokenizer.json").write_text(text)
        return temporary.name

    CODE = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n\nprint(add(1, 2))\n",
            "n_predict": 8, **GREEDY}

    def marks(self):
        answer = self.server.ask("/infill", self.CODE)
        if answer.status == 501:
            self.skipTest("the model has no marks of infilling")
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json

    def test_gap(self):
        answer = self.marks()
        self.assertTrue(answer["content"])
        self.assertIn("def add(a, b):", answer["prompt"])
        self.assertLess(answer["prompt"].index("def add"), answer["prompt"].index("print(add"))
        streamed = self.server.ask("/infill", {**self.CODE, "stream": True}).events()
        self.assertEqual("".join(event["content"] for event in streamed), answer["content"])

    def test_form(self):
        self.marks()
        if len(self.ids("<|file_sep|>")) != 1:
            self.skipTest("the model has no mark of files")
        body = {**self.CODE, "input_prefix": "one", "input_suffix": "two", "prompt": "three",
                "input_extra": [{"filename": "a.h", "text": "four"}]}
        self.assertTrue(self.post("/infill", **body)["prompt"].endswith(
            "<|repo_name|>myproject\n<|file_sep|>a.h\nfour<|file_sep|>filename\n"
            "<|fim_prefix|>onethree<|fim_suffix|>two<|fim_middle|>"))

    def test_neighbours_and_prompt(self):
        self.marks()
        extra = [{"filename": "llama.h", "text": "int32_t llama_n_threads();\n"}, {"text": "b"}]
        answer = self.post("/infill", **{**self.CODE, "input_extra": extra, "prompt": "a +"})
        prompt = answer["prompt"]
        self.assertLess(prompt.index("llama.h"), prompt.index("def add"))
        self.assertIn("return a +", prompt)

    def test_long_files_are_cut(self):
        self.marks()
        long = "".join(f"line_{i} = {i}\n" for i in range(2000))
        answer = self.post("/infill", **{**self.CODE, "input_prefix": long, "input_suffix": long})
        self.assertLess(answer["tokens_evaluated"], 512)
        self.assertIn("line_1999", answer["prompt"])
        self.assertIn("line_0 = 0", answer["prompt"])

    def test_text_is_no_mark(self):
        self.marks()
        mark = next(text for text in ("<|fim_middle|>", "<fim_middle>", "<MID>")
                    if len(self.ids(text)) == 1)
        body = {name: mark for name in ("input_prefix", "input_suffix", "prompt")}
        body["input_extra"] = [{"filename": mark, "text": mark}]
        answer = self.post("/infill", **body, n_predict=1)
        # Five texts spell a mark; as marks they would be five tokens.
        plain = len(self.ids(mark, parse_special=False))
        self.assertGreaterEqual(answer["tokens_evaluated"], 5 * plain)

    def test_refusals(self):
        self.marks()
        for change in ({"input_prefix": None}, {"input_suffix": None}, {"input_prefix": 5},
                       {"prompt": [1]}, {"input_extra": {}}, {"input_extra": [{}]},
                       {"input_extra": [5]}, {"input_extra": [{"filename": "ok"}]},
                       {"input_extra": [{"filename": 1, "text": "a"}]},
                       {"input_extra": [{"filename": "a", "text": 4}]}):
            with self.subTest(change=change):
                self.refuse("/infill", {**self.CODE, **change}, 400)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
