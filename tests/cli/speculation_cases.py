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


UNGATED = ("--draft-ungated",)  # what is guessed hangs on no clock


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
        accepted = of_trees = 0
        for name, arguments in WAYS.items():
            plain = without_times(self.answer(*arguments))
            for one, *tree in (("ngram",), ("suffix",), ("exit=2",), ("hispec=3",), ("auto",),
                                ("ngram", "--draft-tree", "9x3"), ("suffix", "--draft-tree", "9x3"),
                                ("gated exit=2",), ("gated ngram",)):
                with self.subTest(way=name, kind=one, tree=tree):
                    kind = one.removeprefix("gated ")
                    gate = UNGATED if kind == one and kind != "auto" else ()
                    found = self.answer("--speculate", kind, *tree, *arguments, *gate)
                    counts = found["speculation"]
                    self.assertIsNone(counts["problem"])
                    accepted += counts["num_accepted_draft_tokens"]
                    of_trees += counts["num_spec_steps"] if tree else 0
                    self.assertEqual(sum(counts["acceptance_histogram"]), counts["num_spec_steps"])
                    self.assertEqual(without_times(found), plain)
        self.assertGreater(accepted, 100)
        self.assertGreater(of_trees, 100)  # there is room for branches

    def test_what_is_told(self):
        counts = self.answer("--speculate", "suffix", "--draft-max", "3", *UNGATED,
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
        self.assertLess(0, counts["verify_seconds"])
        self.assertLessEqual(counts["rejected_seconds"], counts["verify_seconds"] * 3 / 4 + 1e-9)
        self.assertGreaterEqual(counts["draft_index_bytes"], 4 * 120)
        self.assertEqual((counts["draft_weight_bytes"], counts["draft_kv_bytes"]), (0, 0))
        result = self.succeed("generate", MODEL, "-p", PROMPT, "-n", "60", "--summary",
                              "--speculate", "ngram", *UNGATED, "--temperature", "0")
        self.assertIn(b"guesses     ngram: ", result.stdout)
        self.assertIn(b"ms of it what was wrong\n", result.stdout)
        self.assertIn(b"MiB keys and values", result.stdout)
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

    def test_rejection_is_another_answer_that_repeats_itself(self):
        rejection = ("--speculate", "hispec=3", "--accept", "rejection", "--temperature", "0.9")
        found = [self.answer(*rejection) for _ in range(2)]
        self.assertEqual(*map(without_times, (dict(one) for one in found)))
        plain = self.answer("--temperature", "0.9")
        self.assertNotEqual(without_times(dict(found[0]))["text"], plain["text"])
        greedy = ("--temperature", "0")
        self.assertEqual(without_times(self.answer(*greedy, *rejection[:4])),
                         without_times(self.answer(*greedy)))
        self.generate("run.vtr", *rejection, tokens=60)
        self.verify("run.vtr")
        replayed = self.replay("run.vtr")
        self.assertTrue(replayed.startswith("equal: "))
        self.assertNotIn("the log's sampler and seed choose", replayed)
        self.assertIn(b"draft_acceptance=rejection",
                      self.succeed("audit", "show", "run.vtr").stdout)
        self.generate("plain.vtr", *rejection[:2], "--temperature", "0.9", tokens=60)
        self.assertIn("the log's sampler and seed choose", self.replay("plain.vtr"))
        self.assertNotIn(b"draft_acceptance", self.succeed("audit", "show", "plain.vtr").stdout)

    def test_guesses_that_were_replaced_are_counted(self):
        counts = self.answer("--speculate", "hispec=3", *UNGATED)["speculation"]
        self.assertGreater(counts["num_replaced_draft_tokens"], 0)
        out = self.succeed("generate", MODEL, "-p", PROMPT, "-n", "60", "--summary",
                           "--speculate", "hispec=3", *UNGATED).stdout
        self.assertIn(b"guesses replaced by the drafter's own check\n", out)
        counts = self.answer("--speculate", "exit=3", *UNGATED)["speculation"]
        self.assertEqual(counts["num_replaced_draft_tokens"], 0)

    def test_early_exit_gives_the_same_log(self):
        self.generate("plain.vtr", "--audit-level", "full", tokens=80)
        for kind in ("exit=3", "hispec=2"):
            self.generate("guessed.vtr", "--audit-level", "full", "--speculate", kind, tokens=80)
            self.assertIn(b"0 different",
                          self.succeed("audit", "diff", "plain.vtr", "guessed.vtr").stdout)
            self.verify("guessed.vtr")
            self.assertTrue(self.replay("guessed.vtr").startswith("equal: "))

    def log(self, name, *more):
        """A log with guesses, and what the run told of them."""
        result = self.generate(name, "--speculate", "ngram", *UNGATED, "--temperature", "0",
                               "--json", *more, tokens=80)
        counts = json.loads(result.stdout)["speculation"]
        self.assertGreater(counts["num_accepted_draft_tokens"], 0)
        self.assertGreater(counts["num_discarded_tokens"], 0)
        return counts

    def drafts(self, name):
        """What a log has of guesses: a .json itself, a .vtr in its export."""
        if name.endswith(".vtr"):
            log = self.succeed_json("audit", "export", name, "--json")
        else:
            log = json.loads((self.folder / name).read_text())
        return log.get("drafts", [])

    def test_the_log_has_what_was_guessed(self):
        counts = self.log("run.vtr")
        self.log("run.json")
        drafts = self.drafts("run.vtr")
        self.assertEqual(drafts, self.drafts("run.json"))
        self.assertEqual(len(drafts), counts["num_spec_steps"])
        for field, total in (("tokens", "num_draft_tokens"),
                             ("accepted", "num_accepted_draft_tokens")):
            self.assertEqual(sum(len(one[field]) for one in drafts), counts[total])
        discarded = sum(one["discarded"] for one in drafts)
        self.assertEqual(discarded, counts["num_discarded_tokens"])
        self.assertIn(f"{discarded} discarded", self.verify("run.vtr"))
        # The last record of a position is the one that stands.
        tokens = {record["position"]: record["token"]
                  for record in json.loads((self.folder / "run.json").read_text())["records"]}
        for one in drafts:
            self.assertEqual(one["drafter"], "ngram")
            self.assertNotIn("parents", one)
            self.assertEqual(one["accepted"], list(range(len(one["accepted"]))))
            for place in one["accepted"]:
                self.assertEqual(one["tokens"][place], tokens[one["position"] + place])
        for name in ("run.vtr", "run.json"):
            out = self.succeed("audit", "show", name).stdout.decode()
            self.assertIn(f"guesses   ngram: {counts['num_accepted_draft_tokens']} of "
                          f"{counts['num_draft_tokens']} right in {len(drafts)} passes, "
                          f"{discarded} positions thrown away\n", out)
            self.assertIn("drafter=ngram", out)
            self.assertTrue(self.replay(name).startswith("equal: "))
        right = next(one for one in drafts if one["accepted"])
        out = self.succeed("audit", "show", "run.vtr", "--position",
                           right["position"]).stdout.decode()
        self.assertIn(f"position {right['position']}: guessed by ngram at depth 1: ", out)
        self.assertIn("(right)\n", out)
        self.generate("plain.vtr", "--temperature", "0", tokens=80)
        self.assertEqual(self.drafts("plain.vtr"), [])
        self.assertNotIn("guess", self.succeed("audit", "show", "plain.vtr").stdout.decode())
        self.assertIn(b"0 different", self.succeed("audit", "diff", "plain.vtr", "run.vtr").stdout)

    def test_guesses_go_with_the_tokens(self):
        self.log("run.vtr")
        for column in ("tokens", "drafts"):
            self.succeed("audit", "redact", "run.vtr", f"{column}.vtr", "--columns", column)
            self.verify(f"{column}.vtr")
            self.assertEqual(self.drafts(f"{column}.vtr"), [])
        self.log("prompt.vtr", "--redact", "prompt")
        self.verify("prompt.vtr")
        self.assertEqual(self.drafts("prompt.vtr"), [])
        self.succeed("audit", "keygen", "owner")
        self.log("closed.vtr", "--encrypt-for", "owner.pub")
        self.assertEqual(self.drafts("closed.vtr"), [])
        opened = self.succeed_json("audit", "export", "closed.vtr", "--json", "--decrypt", "owner")
        self.log("same.vtr")
        self.assertEqual(opened["drafts"], self.drafts("same.vtr"))
        self.fail_with(2, ["'drafts' without 'tokens'"], "generate", MODEL, "-p", PROMPT,
                       "--audit", "no.vtr", "--encrypt-for", "owner.pub:drafts")

    def test_forged_guesses_are_refused(self):
        self.log("run.json")
        log = json.loads((self.folder / "run.json").read_text())
        good = {"sequence": 1, "position": 9, "drafter": "ngram", "tokens": [1, 2],
                "accepted": [0], "discarded": 1}
        for change in ({"tokens": [-1, 2]}, {"tokens": ["a", 2]}, {"parents": [-1]},
                       {"parents": [-1, 1]}, {"parents": [-2, 0]}, {"accepted": [2]},
                       {"accepted": [1.5]}, {"discarded": 3}, {"discarded": -1}, {"drafter": 3},
                       {"position": "x"}):
            with self.subTest(change=change):
                log["drafts"] = [good | change]
                (self.folder / "bad.json").write_text(json.dumps(log))
                self.fail_with(2, ["bad.json"], "audit", "show", "bad.json")
        log["drafts"] = [good]
        (self.folder / "good.json").write_text(json.dumps(log))
        self.assertIn("1 of 2 right in 1 passes",
                      self.succeed("audit", "show", "good.json").stdout.decode())

    def test_the_same_table_gives_the_same_passes(self):
        costs = self.succeed("bench", "speculate", MODEL, "--cost", "--json").stdout
        table = json.loads(costs)["costs"]
        self.assertEqual([cost["tokens"] for cost in table], [1, 2, 3, 4, 6, 8, 12, 16])
        self.assertEqual(table[0]["passes_of_one"], 1)
        # Two experts of eight, and what a token reads of each layer and outside of them.
        plan = self.succeed_json("inspect", MODEL, "--plan", "--json")["plan"]
        experts = sum(op["weight_bytes"] for op in plan if op["op"] == "experts")
        others = sum(op["weight_bytes"] for op in plan) - experts
        for cost in table:
            times = 4 * (1 - 0.75 ** cost["tokens"])
            self.assertAlmostEqual(cost["expected_experts"], times)
            self.assertAlmostEqual(cost["expected_weights"],
                                   (others + times * experts) / (others + experts))
        self.assertIn(b"   experts   weights\n",
                      self.succeed("bench", "speculate", MODEL, "--cost").stdout)
        (self.folder / "costs.json").write_bytes(costs)
        runs = [self.answer("--speculate", "auto", "--draft-costs", "costs.json")["speculation"]
                for _ in range(2)]
        for run in runs:
            for field in ("draft_seconds", "verify_seconds", "rejected_seconds"):
                run.pop(field)
        self.assertEqual(runs[0], runs[1])
        (self.folder / "dear.json").write_text(json.dumps(
            {"costs": [{"tokens": 1, "seconds": 1}, {"tokens": 2, "seconds": 100}]}))
        dear = self.answer("--speculate", "auto", "--draft-costs", "dear.json")["speculation"]
        self.assertLess(dear["num_spec_steps"], 12)
        self.assertGreater(dear["num_paused_passes"], 40)

    def test_the_gate_is_for_all_who_guess(self):
        """A call that takes as long as many passes is made twice; without a gate always."""
        (self.folder / "quick.json").write_text(json.dumps(
            {"costs": [{"tokens": 1, "seconds": 1e-9}, {"tokens": 9, "seconds": 2e-9}]}))
        costs = ("--draft-costs", "quick.json")
        for kind in ("exit=2", "hispec=3", f"draft={MODEL}"):
            with self.subTest(kind):
                gated = self.answer("--speculate", kind, *costs)["speculation"]
                self.assertLessEqual(gated["num_spec_steps"], 2)
                self.assertGreater(gated["num_paused_passes"], 100)
                ungated = self.answer("--speculate", kind, *UNGATED)["speculation"]
                self.assertGreater(ungated["num_spec_steps"], 20)
                self.assertEqual(ungated["num_paused_passes"], 0)

    def test_refusals(self):
        generate = ("generate", MODEL, "-p", PROMPT)
        self.fail_with(2, ["--draft-costs", "--speculate"], *generate, "--draft-costs", "x.json")
        self.fail_with(2, ["--draft-threshold", "--speculate"], *generate, "--draft-threshold", "2")
        self.fail_with(2, ["--accept rejection", "--speculate"], *generate, "--accept", "rejection")
        self.fail_with(2, ["--accept rejection", "--draft-tree"], *generate, "--speculate", "suffix",
                       "--accept", "rejection", "--draft-tree", "8x4")
        self.fail_with(2, ["--accept", "typical"], *generate, "--speculate", "suffix",
                       "--accept", "typical")
        self.fail_with(2, ["--draft-costs", "--draft-ungated"], *generate, "--speculate", "ngram",
                       "--draft-costs", "x.json", *UNGATED)
        self.fail_with(2, ["--draft-ungated", "--speculate"], *generate, *UNGATED)
        self.fail_with(2, ["--draft-ungated", "suffix"], *generate, "--speculate", "auto", *UNGATED)
        self.fail_with(2, ["--draft-ungated", "--draft-threshold"], *generate, "--speculate",
                       "ngram", *UNGATED, "--draft-threshold", "1")
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
        self.assertNotIn("draft_depth", report)
        out = self.succeed(*arguments, "--candidates", "ngram").stdout.decode()
        self.assertIn("2 of 2", out)
        self.assertIn("answers", report["candidates"][0])
        report = self.succeed_json(*arguments, "--json", "--draft-tree", "12x3")
        self.assertEqual((report["draft_max"], report["draft_depth"]), (12, 3))
        for one in report["candidates"]:
            self.assertEqual(one["identical"], 2)
            self.assertLessEqual(len(one["counts"]["acceptance_histogram"]), 13)
            self.assertEqual(sum(one["counts"]["acceptance_histogram"][4:]), 0)
        out = self.succeed(*arguments, "--draft-tree", "12x3").stdout.decode()
        self.assertIn("12 guesses a pass at most, on paths of 3\n", out)
        self.fail_with(2, ["--draft-tree", "3x12"], *arguments, "--draft-tree", "3x12")

    def test_selection(self):
        """Prompts are messages where the model has a template; short answers stand apart."""
        (self.folder / "talks").mkdir()
        for path in pathlib.Path(MODEL).iterdir():
            (self.folder / "talks" / path.name).symlink_to(path.resolve())
        template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
        (self.folder / "talks" / "tokenizer_config.json").unlink(missing_ok=True)
        (self.folder / "talks" / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": template}))
        for name, text in (("plain", "Once upon a time"), ("put", "<Once upon a time>")):
            (self.folder / f"{name}.jsonl").write_text(json.dumps(text) + "\n")
        arguments = ("-n", "60", "--repeat", "2", "--candidates", "suffix", "--draft-ungated",
                     "--json")

        def counts(model, prompts, *more):
            report = self.succeed_json("bench", "speculate", model, "--prompts", prompts, *arguments,
                                       *more)
            found = report["candidates"][0]
            return [found["tokens"], found["different_tokens"],
                    found["counts"]["acceptance_histogram"]]

        message = counts("talks", "plain.jsonl")
        self.assertEqual(message, counts("talks", "put.jsonl", "--raw"))
        raw = counts("talks", "plain.jsonl", "--raw")
        self.assertEqual(raw, counts(MODEL, "plain.jsonl"))
        self.assertNotEqual(message, raw)
        self.assertEqual(raw[0], 120)
        select = ("bench", "speculate", MODEL, "--prompts", "plain.jsonl", "--candidates", "ngram",
                  "--repeat", "1", "--select")
        out = self.succeed(*select, "-n", "60").stdout.decode()
        self.assertRegex(out, r"T = 0 .*x .*x +\d\.\d\d to \d\.\d\d  (pays|does not pay|too close)")
        self.assertNotIn("are not counted", out)
        out = self.succeed(*select, "-n", "15").stdout.decode()
        self.assertEqual(out.count("too short to tell\n"), 3)
        self.assertIn("ngram, T = 0.7: 1 of 1 answers have fewer than 16 tokens, 15 together, and "
                      "are not counted (", out)
        short = self.succeed_json(*select, "-n", "15", "--json")["candidates"][0]
        self.assertEqual((short["ratio"], short["short_answers"], short["short_tokens"],
                          short["tokens"], short["verdict"]),
                         (None, 1, 15, 15, "too short to tell"))

    def test_bench_of_right_runs(self):
        texts = (PROMPT, "one two three")
        (self.folder / "prompts.jsonl").write_text(
            "".join(json.dumps(text) + "\n" for text in (*texts, 3)))
        plain = [self.succeed_json("generate", MODEL, "-p", text, "-n", "150", "--temperature", "0",
                                   "--ignore-end-of-text", "--json")["tokens"] for text in texts]
        arguments = ("bench", "speculate", MODEL, "--prompts", "prompts.jsonl", "--max-prompts", "2",
                     "-n", "150", "--repeat", "1", "--right-runs", "1,7,64")
        for more in ((), ("--kinds", "greedy,sampled,penalties")):
            report = self.succeed_json(*arguments, *more, "--json")
            self.assertEqual(report["draft_max"], 65)
            self.assertEqual(len(report["candidates"]), 3 * (3 if more else 1))
            for one in report["candidates"]:
                with self.subTest(name=one["name"], answers=one["answers"]):
                    run = int(one["name"].removesuffix(" right"))
                    self.assertEqual((one["identical"], one["prompts"], one["tokens"]), (2, 2, 300))
                    if one["answers"] == "greedy":
                        self.assertEqual(one["different_tokens"],
                                         sum(len(set(tokens)) for tokens in plain))
                    # The prompt's pass chooses the first token, and no guess stands where the
                    # last one will.
                    whole, left = divmod(150 - 1, run + 1)
                    passes = [run + 1] * whole + [left] * (left > 0)
                    counts = one["counts"]
                    self.assertEqual(counts["num_passes"], 2 * (1 + len(passes)))
                    self.assertEqual(counts["num_accepted_draft_tokens"],
                                     2 * sum(tokens - 1 for tokens in passes))
                    histogram = [0] * (run + 2)
                    for tokens in passes:
                        histogram[tokens - 1] += 2
                    # A pass without guesses is none with guesses of which none was right.
                    histogram[0] = 0
                    self.assertEqual(counts["acceptance_histogram"], histogram)
        out = self.succeed(*arguments).stdout.decode()
        self.assertIn("64 right", out)
        self.assertIn("different tokens in an answer of 150\n", out)
        for value in ("0", "-1", "255", "x", "3,0"):
            self.fail_with(2, ["--right-runs"], *arguments[:-1], value)
        for other in (("--candidates", "ngram"), ("--draft-max", "8"), ("--select",), ("--cost",),
                      ("--head-layers", "1"), ("--draft-costs", "costs.json")):
            self.fail_with(2, ["--right-runs", other[0]], *arguments, *other)
