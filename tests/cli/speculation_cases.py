# SPDX-License-Identifier: Apache-2.0
"""generate --speculate: the answer of generate without, what is told of it, and bench speculate."""

import json
import pathlib

from tool import MODEL, PROMPT, AuditCase

FEDERATION = str(pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters" / "federation.json")
PENALTIES = ("--repetition-penalty", "1.2", "--dry-multiplier", "0.8")
WAYS = {"greedy": ("--temperature", "0"), "sampled": ("--temperature", "0.9"),
        "penalties": ("--temperature", "0.9", *PENALTIES), "mirostat": ("--mirostat", "2"),
        "pattern": ("--regex", "([a-z]{3,8} ){9,20}end"), "several": ("--n-best", "3"),
        "stop": ("--stop", "e", "--stop", "the"), "logprobs": ("--logprobs", "3")}


def without_times(answer):
    for field in ("timings", "tokens_per_second", "speculation"):
        answer.pop(field, None)
    answer.get("constraint", {}).pop("mask_seconds", None)
    return answer


class Speculation(AuditCase):
    def answer(self, *arguments):
        return self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", "120", "-s", "5", "--json",
                                 "--ignore-end-of-text", *arguments)

    def test_the_answer_is_the_one_without(self):
        accepted = 0
        for name, arguments in WAYS.items():
            plain = without_times(self.answer(*arguments))
            for kind in ("ngram", "suffix", "exit=2", "hispec=3", "auto"):
                with self.subTest(way=name, kind=kind):
                    found = self.answer("--speculate", kind, *arguments)
                    counts = found["speculation"]
                    self.assertIsNone(counts["problem"])
                    accepted += counts["num_accepted_draft_tokens"]
                    self.assertEqual(sum(counts["acceptance_histogram"]), counts["num_spec_steps"])
                    self.assertEqual(without_times(found), plain)
        self.assertGreater(accepted, 100)

    def test_what_is_told(self):
        counts = self.answer("--speculate", "suffix", "--draft-max", "3",
                             "--temperature", "0")["speculation"]
        self.assertEqual(counts["drafter"], "suffix")
        self.assertEqual(len(counts["acceptance_histogram"]), 4)
        right = sum(n * passes for n, passes in enumerate(counts["acceptance_histogram"]))
        self.assertEqual(right, counts["num_accepted_draft_tokens"])
        self.assertEqual(counts["num_passes"] + right, 120)
        self.assertAlmostEqual(counts["mean_acceptance_length"],
                               1 + right / counts["num_spec_steps"])
        self.assertAlmostEqual(counts["draft_acceptance_rate"], right / counts["num_draft_tokens"])
        self.assertEqual(counts["num_discarded_tokens"], counts["num_draft_tokens"] - right)
        result = self.succeed("generate", MODEL, "-p", PROMPT, "-n", "60", "--summary",
                              "--speculate", "ngram", "--temperature", "0")
        self.assertIn(b"guesses     ngram: ", result.stdout)
        self.assertIn(b"; ngram: ", result.stderr)
        self.assertNotIn(b"guess", self.succeed("generate", MODEL, "-p", PROMPT).stderr)

    def test_the_log_is_the_one_without(self):
        self.generate("plain.vtr", "--audit-level", "full", tokens=80)
        self.generate("guessed.vtr", "--audit-level", "full", "--speculate", "ngram", tokens=80)
        self.assertIn(b"0 different",
                      self.succeed("audit", "diff", "plain.vtr", "guessed.vtr").stdout)
        for name in ("plain.vtr", "guessed.vtr"):
            self.verify(name)
            self.assertTrue(self.replay(name).startswith("equal: "))

    def test_early_exit_gives_the_same_log(self):
        self.generate("plain.vtr", "--audit-level", "full", tokens=80)
        for kind in ("exit=3", "hispec=2"):
            self.generate("guessed.vtr", "--audit-level", "full", "--speculate", kind, tokens=80)
            self.assertIn(b"0 different",
                          self.succeed("audit", "diff", "plain.vtr", "guessed.vtr").stdout)
            self.verify("guessed.vtr")
            self.assertTrue(self.replay("guessed.vtr").startswith("equal: "))

    def test_the_same_table_gives_the_same_passes(self):
        costs = self.succeed("bench", "speculate", MODEL, "--cost", "--json").stdout
        table = json.loads(costs)["costs"]
        self.assertEqual([cost["tokens"] for cost in table], [1, 2, 3, 4, 6, 8, 12, 16])
        self.assertEqual(table[0]["passes_of_one"], 1)
        (self.folder / "costs.json").write_bytes(costs)
        runs = [self.answer("--speculate", "auto", "--draft-costs", "costs.json")["speculation"]
                for _ in range(2)]
        for run in runs:
            run.pop("draft_seconds")
        self.assertEqual(runs[0], runs[1])
        (self.folder / "dear.json").write_text(json.dumps(
            {"costs": [{"tokens": 1, "seconds": 1}, {"tokens": 2, "seconds": 100}]}))
        dear = self.answer("--speculate", "auto", "--draft-costs", "dear.json")["speculation"]
        self.assertLess(dear["num_spec_steps"], 12)
        self.assertGreater(dear["num_paused_passes"], 40)

    def test_refusals(self):
        generate = ("generate", MODEL, "-p", PROMPT)
        self.fail_with(2, ["--draft-costs", "--speculate"], *generate, "--draft-costs", "x.json")
        self.fail_with(2, ["--draft-threshold", "--speculate"], *generate, "--draft-threshold", "2")
        self.fail_with(2, ["--draft-costs", "auto"], *generate, "--speculate", "ngram",
                       "--draft-costs", "x.json")
        auto = (*generate, "--speculate", "auto", "--draft-costs")
        self.fail_with(2, ["none.json"], *auto, "none.json")
        for text, word in (("", "costs"), ("[]", "costs"), ('{"costs": 3}', "costs"),
                           ('{"costs": [{"tokens": 1}]}', "costs"),
                           ('{"costs": []}', "none of one token"),
                           ('{"costs": [{"tokens": 2, "seconds": 1}]}', "none of one token"),
                           ('{"costs": [{"tokens": 1, "seconds": -1}]}', "above 0"),
                           ('{"costs": [{"tokens": 1, "seconds": 1}, {"tokens": 1, "seconds": 1}]}',
                            "each once")):
            (self.folder / "bad.json").write_text(text)
            self.fail_with(2, ["bad.json", word], *auto, "bad.json")
        for kind in ("exit=", "exit=x", "exit=0", "exit=-1", "exit=1.5", "hispec=1", "hispec=",
                     "exit=99999999999"):
            self.fail_with(2, [kind, "number of layers"], *generate, "--speculate", kind)
        for kind in ("exit=4", "exit=99", "hispec=4"):
            self.fail_with(2, ["fractalmoe", "of the model's 4"], *generate, "--speculate", kind)
        self.fail_with(2, ["exit=2", "federation"], "federate", FEDERATION, "-p", PROMPT,
                       "--speculate", "exit=2")
        self.fail_with(2, ["--prompts", "--cost"], "bench", "speculate", MODEL)
        for text in ("", "\n \n", "3\n", '{"text": "x"}\n', '"open\n'):
            (self.folder / "prompts.jsonl").write_text(text)
            self.fail_with(2, ["prompts.jsonl", "expected"], "bench", "speculate", MODEL,
                           "--prompts", "prompts.jsonl")

    def test_bench(self):
        (self.folder / "prompts.jsonl").write_text(
            json.dumps("one two three one two") + "\n\n" + json.dumps({"prompt": PROMPT}) + "\n")
        arguments = ("bench", "speculate", MODEL, "--prompts", "prompts.jsonl", "-n", "40",
                     "--repeat", "1")
        report = self.succeed_json(*arguments, "--json")
        self.assertEqual([one["name"] for one in report["candidates"]],
                         ["ngram", "suffix", "auto"])
        for one in report["candidates"]:
            self.assertEqual((one["identical"], one["prompts"]), (2, 2))
            self.assertGreater(one["ratio"], 0)
        out = self.succeed(*arguments, "--candidates", "ngram").stdout.decode()
        self.assertIn("2 of 2", out)
