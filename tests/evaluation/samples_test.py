# SPDX-License-Identifier: Apache-2.0
"""`vitrine samples`: lm-eval's samples become results, and results samples.

What lm-eval logs lies in lm_eval/ (lm_eval_oracle.py made it with lm-eval 0.4.13).

usage: samples_test.py VITRINE [unittest arguments]
"""

import base64
import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import unittest

from remote_test import CHOICES, SUITE, VITRINE, RemoteTest

MADE = pathlib.Path(__file__).resolve().parent / "lm_eval"


class SamplesTest(RemoteTest):
    def samples(self, *arguments):
        return subprocess.run([VITRINE, "samples", *map(str, arguments)], cwd=self.folder,
                              capture_output=True, text=True, timeout=120, check=False)

    def read(self, *inputs):
        run = self.samples(*inputs, "--out", "read.eval")
        self.assertEqual(run.returncode, 0, run.stderr)
        head, *items, end = map(json.loads, (self.folder / "read.eval").read_text().splitlines())
        self.assertEqual(end["end"]["items"], len(items))
        return head, {(item["task"], item["id"]): item for item in items}

    def made(self, task):
        path = next(MADE.glob(f"samples_{task}_*.jsonl"))
        return [json.loads(line) for line in path.read_text().splitlines()]


class FromLmEval(SamplesTest):
    def test_what_lm_eval_logged(self):
        head, items = self.read(MADE)
        tasks = {task["name"]: task for task in head["suite"]["tasks"]}
        self.assertEqual(sorted(tasks), ["made_choices", "made_sums@flexible-extract",
                                         "made_sums@strict-match"])
        self.assertEqual(tasks["made_choices"]["kind"], "choice")
        self.assertAlmostEqual(tasks["made_choices"]["chance"], 1 / 3)
        samples = self.made("made_choices")
        self.assertEqual(sum(key[0] == "made_choices" for key in items), len(samples))
        for sample in samples:
            item = items["made_choices", str(sample["doc_id"])]
            self.assertEqual((item["score"], item["right"]), (sample["acc"], sample["acc"] == 1.0))
            self.assertEqual(item["parts"]["acc_norm"], sample["acc_norm"])
            nats = [float(value) for value, _ in sample["filtered_resps"]]
            found = base64.b64decode(item["choice_logprobs"])
            self.assertEqual(list(struct.unpack(f"<{len(nats)}d", found)), nats)
            self.assertEqual(item["right_choice"], int(sample["target"]))
            self.assertEqual(item["answer"], sample["doc"]["choices"][nats.index(max(nats))])
            self.assertEqual(item["expected"], sample["doc"]["choices"][sample["doc"]["gold"]])
        for sample in self.made("made_sums"):
            item = items[f"made_sums@{sample['filter']}", str(sample["doc_id"])]
            self.assertEqual(item["score"], sample["exact_match"])
            self.assertEqual(item["answer"], sample["resps"][0][0])
            self.assertEqual(item["extracted"], sample["filtered_resps"][0])
            self.assertEqual(item["parsed"], sample["filtered_resps"][0] != "[invalid]")

    def test_other_questions_are_another_suite(self):
        first, _ = self.read(MADE)
        again, _ = self.read(*sorted(MADE.glob("samples_*.jsonl")))
        self.assertEqual(first["suite"]["sha256"], again["suite"]["sha256"])
        samples = self.made("made_sums")
        path = self.folder / "samples_made_sums.jsonl"
        for change, is_other in (({"resps": [["7"]]}, False), ({"prompt_hash": "0" * 64}, True)):
            lines = [json.dumps({**one, **change}) for one in samples]
            path.write_text("\n".join(lines))  # the last line may lack its end
            other, _ = self.read(MADE / next(MADE.glob("samples_made_choices_*")).name, path)
            self.assertEqual(other["suite"]["sha256"] != first["suite"]["sha256"], is_other)

    def test_bad_samples(self):
        good = self.made("made_choices")[0]
        path = self.folder / "samples_bad.jsonl"
        for change, words in (
                ({"doc_id": None}, ["'doc_id'", "missing"]), ({"doc_id": 1.5}, ["'doc_id'"]),
                ({"metrics": 3}, ["'metrics'"]), ({"metrics": ["nothing"]}, ["'nothing'"]),
                ({"metrics": []}, ["'metrics'"]), ({"acc": 7, "acc_norm": 7}, ["'metrics'"]),
                ({"filtered_resps": []}, ["'filtered_resps'"]),
                ({"filtered_resps": [["x", "False"]] * 3}, ["'filtered_resps'"]),
                ({"filtered_resps": [["1.0", "False"]] * 3}, ["'filtered_resps'"]),
                ({"doc_hash": 5}, ["'doc_hash'"]), ({"target_hash": None}, ["'target_hash'"])):
            with self.subTest(change=change):
                path.write_text(json.dumps({**good, **change}) + "\n")
                self.refuse(["samples_bad.jsonl, line 1", *words], path)
        for text, words in (("", ["no line"]), ("[1]\n", ["line 1"]), ("{\n", ["line 1"]),
                            ("[" * 9999 + "\n", ["line 1"]),
                            (2 * (json.dumps(good) + "\n"), ["line 2", "already"])):
            with self.subTest(text=text[:20]):
                path.write_text(text)
                self.refuse(words, path)

    def refuse(self, words, *inputs, out="bad.eval"):
        self.assert_refused(self.samples(*inputs, "--out", out), *words)
        if out == "bad.eval":
            self.assertFalse((self.folder / out).exists())

    def test_texts_and_names(self):
        good = self.made("made_sums")[0]
        path = self.folder / "samples_rolling.jsonl"
        rolling = {**good, "arguments": {"gen_args_0": {"arg_0": "x"}}, "resps": [["-3.5"]],
                   "filtered_resps": ["-3.5"], "metrics": ["share"], "share": 0.5}
        path.write_text(json.dumps(rolling) + "\n")
        self.refuse(["a whole text"], path)
        path.write_text(json.dumps(good) + "\n")
        self.refuse(["an input"], path, out=path)
        other = self.folder / "samples_rolling_2026-11-29T03-12-24.284643.jsonl"
        other.write_text(path.read_text())
        self.refuse(["'rolling'", "already"], path, other)
        (self.folder / "empty").mkdir()
        self.refuse(["samples_*.jsonl"], self.folder / "empty")


class ToLmEval(SamplesTest):
    def test_results_as_samples(self):
        items = self.assert_whole(self.eval(self.serve().url, suite=SUITE + CHOICES))
        run = self.samples("out.eval", "--suite", "suite.toml", "--out", "made")
        self.assertEqual(run.returncode, 0, run.stderr)
        words = [json.loads(line) for line in
                 (self.folder / "made" / "samples_words.jsonl").read_text().splitlines()]
        self.assertEqual([one["doc"]["id"] for one in words], [f"w{i}" for i in range(5)])
        for one in words:
            self.assertEqual(one["resps"], [[items[one["doc"]["id"]]["answer"]]])
            self.assertEqual((one["target"], one["score"], one["metrics"]),
                             (one["doc"]["answer"], 1.0, ["score"]))
            asked = one["arguments"]["gen_args_0"]
            self.assertEqual(json.loads(asked["arg_0"]),
                             [{"role": "user", "content": one["doc"]["prompt"]}])
            self.assertEqual(asked["arg_1"]["max_gen_toks"], 16)
            hashed = {"doc_hash": json.dumps(one["doc"], indent=2, ensure_ascii=False),
                      "prompt_hash": asked["arg_0"], "target_hash": one["target"]}
            for name, text in hashed.items():
                self.assertEqual(one[name], hashlib.sha256(text.encode()).hexdigest(), name)
        picks = [json.loads(line) for line in
                 (self.folder / "made" / "samples_picks.jsonl").read_text().splitlines()]
        for one in picks:
            nats = [float(value) for value, _ in one["filtered_resps"]]
            self.assertEqual(one["resps"], [[pair] for pair in one["filtered_resps"]])
            self.assertEqual(one["acc"], float(nats.index(max(nats)) == int(one["target"])))
            self.assertEqual(one["arguments"]["gen_args_1"],
                             {"arg_0": one["doc"]["prompt"], "arg_1": one["doc"]["choices"][1]})
        # Read back they have the same scores.
        _, back = self.read(self.folder / "made")
        self.assertEqual({key[1]: item["score"] for key, item in back.items()
                          if key[0].startswith("words")}, {str(i): 1.0 for i in range(5)})

    def test_another_suite(self):
        self.assert_whole(self.eval(self.serve().url))
        (self.folder / "suite.toml").write_text(SUITE.replace("16", "17"))
        run = self.samples("out.eval", "--suite", "suite.toml", "--out", "made")
        self.assert_refused(run, "digest", "the same suite")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
