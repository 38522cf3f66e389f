# SPDX-License-Identifier: Apache-2.0
"""The sampler's options on the command line: generate and chat."""

import json
import math
import pathlib

from tool import MODEL, PROMPT, AuditCase

BASE = ("generate", MODEL, "-p", PROMPT, "--ignore-end-of-text")


class Sampling(AuditCase):
    def tokens(self, *more, n=24):
        return self.succeed_json(*BASE, "-n", n, "--seed", 3, "--json", *more)["tokens"]

    def test_each_option_does_something_and_can_be_replayed(self):
        plain = self.tokens()
        ids = ",".join(str(i) for i in set(plain))
        for number, more in enumerate((
                ("--temperature", 1.5), ("--dynamic-temperature", 0.7), ("--top-k", 2),
                ("--top-p", 0.3), ("--min-p", 0.5), ("--typical-p", 0.2), ("--top-n-sigma", 0.5),
                ("--xtc-probability", 1), ("--dry-multiplier", 8, "--dry-allowed-length", 1),
                ("--repetition-penalty", 3), ("--frequency-penalty", 2), ("--presence-penalty", 5),
                ("--logit-bias", f"{plain[0]}=-20"), ("--ban", plain[0]),
                ("--ban", f"{plain[0]},{plain[1]}"), ("--mirostat", 2, "--mirostat-tau", 1),
                ("--samplers", "top_k;temperature"))):
            log = f"run{number}.vtr"
            tokens = self.tokens(*more, "--audit", log, "--audit-mode", "deferred")
            self.assertNotEqual(tokens, plain, more)
            self.assertEqual(self.tokens(*more), tokens, more)
            report = self.succeed_json("audit", "replay", log, "--json")
            self.assertEqual(report["choices"], {"equal": 24, "different": 0}, more)
        # What is exempt is as without a penalty.
        self.assertEqual(self.tokens("--presence-penalty", 50, "--penalty-exempt", ids, n=1),
                         plain[:1])

    def test_ban_and_bias_hold(self):
        banned = self.tokens()[:6]
        options = [x for i in banned for x in ("--ban", i)]
        self.assertFalse(set(banned) & set(self.tokens(*options, n=60)))
        self.assertEqual(set(self.tokens("--logit-bias", f"{banned[0]}=1000")), {banned[0]})

    def test_a_changed_choice_is_found(self):
        self.succeed(*BASE, "-n", 20, "--seed", 3, "--audit", "log.json")
        log = json.loads((self.folder / "log.json").read_text())
        self.assertEqual(log["sampler"]["samplers"].split(";")[4:6], ["constraint", "temperature"])
        log["sampler"]["temperature"] = 3
        (self.folder / "log.json").write_text(json.dumps(log))
        result = self.run_tool("audit", "replay", "log.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("DIFFERENT CHOICE: sequence 1, position ", result.stdout.decode())
        # Options that are none.
        log["sampler"]["temperature"] = "hot"
        (self.folder / "log.json").write_text(json.dumps(log))
        self.fail_with(2, ["log.json", "temperature", "'hot'"], "audit", "replay", "log.json")
        del log["sampler"]["temperature"]
        log["sampler"]["json_schema"] = "s.json"  # something else decided, too
        (self.folder / "log.json").write_text(json.dumps(log))
        self.assertNotIn("choices", self.succeed_json("audit", "replay", "log.json", "--json"))

    def test_stop(self):
        text = self.succeed_json(*BASE, "-n", 40, "--seed", 3, "--json")["text"]
        stop = text[30:37]
        cut = text[:text.index(stop)]
        out = self.succeed_json(*BASE, "-n", 40, "--seed", 3, "--json", "--stop", "never there",
                                "--stop", stop)
        self.assertEqual((out["text"], out["reason"]), (cut, "stop string"))
        self.assertLess(len(out["tokens"]), 40)
        streamed = self.succeed(*BASE, "-n", 40, "--seed", 3, "--stop", stop, "--audit", "log.json")
        self.assertEqual(streamed.stdout.decode(), cut + "\n")
        self.assert_one_line(streamed.stderr, "stop string: ")
        log = json.loads((self.folder / "log.json").read_text())
        self.assertEqual(log["stop_reason"], "stop string")
        # A beginning of it at the end of the answer is printed.
        whole = self.succeed(*BASE, "-n", 40, "--seed", 3, "--stop", text[-3:] + "\x01")
        self.assertEqual(whole.stdout.decode(), text + "\n")

    def test_logprobs(self):
        out = self.succeed_json(*BASE, "-n", 6, "--seed", 3, "--json", "--logprobs", 4, "--audit",
                                "log.json", "--audit-level", "full")
        self.assertEqual([entry["token"] for entry in out["logprobs"]], out["tokens"])
        records = json.loads((self.folder / "log.json").read_text())["records"]
        recorded = [r["prediction"] for r in records if r["prediction"]]
        for entry, prediction in zip(out["logprobs"], recorded, strict=True):
            self.assertEqual(len(entry["best"]), 4)
            self.assertTrue(math.isclose(entry["logprob"], prediction["logprob"], abs_tol=1e-4))
            best = [b["logprob"] for b in entry["best"]]
            self.assertEqual(best, sorted(best, reverse=True))
        lines = self.succeed(*BASE, "-n", 6, "--seed", 3, "--logprobs", 4).stdout.decode()
        table = lines.split("\n\n")[0].split("\n")
        self.assertEqual([len(line.split("\t")) for line in table], [3 + 4] * 6)

    def test_n_best(self):
        arguments = (*BASE, "-n", 12, "--seed", 3, "--json")
        out = self.succeed_json(*arguments, "--n-best", 4, "--logprobs", 1, "--audit", "run.vtr")
        found = out["candidates"]
        self.assertEqual(sorted(c["branch"] for c in found), [0, 1, 2, 3])
        totals = [c["logprob"] for c in found]
        self.assertEqual(totals, sorted(totals, reverse=True))
        for candidate in found:
            self.assertTrue(math.isclose(candidate["logprob"],
                                         sum(e["logprob"] for e in candidate["logprobs"])))
        self.assertEqual((out["text"], out["tokens"]), (found[0]["text"], found[0]["tokens"]))
        self.assertGreater(len({tuple(c["tokens"]) for c in found}), 1)
        # Branch 0 is the answer alone.
        alone = self.succeed_json(*arguments)["tokens"]
        self.assertEqual(next(c["tokens"] for c in found if c["branch"] == 0), alone)
        report = self.succeed_json("audit", "replay", "run.vtr", "--json")
        self.assertEqual(report["choices"], {"equal": 48, "different": 0})
        text = self.succeed(*BASE, "-n", 5, "--n-best", 2, "--stop", "zzz").stdout.decode()
        self.assertIn("candidate 2 of 2: branch ", text)

    def test_explain(self):
        result = self.succeed(*BASE, "-n", 1, "--seed", 3, "--explain", "--presence-penalty", 1)
        first = result.stderr.decode().split("\n")[0]
        self.assertEqual(first, "vitrine: sampler: penalties (repetition = 1, frequency = 0, "
                                "presence = 1, window = all) > constraint > temperature (0.8) > "
                                "softmax > top_k (k = 40) > top_p (p = 0.95) > min_p (p = 0.05) > "
                                "renormalisation > draw")
        out = self.succeed_json(*BASE, "-n", 1, "--explain", "--json", "--samplers",
                                "min-p,temperature")
        self.assertEqual(out["sampler"], "constraint > softmax > min_p (p = 0.05) > "
                                         "temperature (0.8) > renormalisation > draw")

    def test_chat(self):
        arguments = ("chat", MODEL, "--chat-template", "plain.jinja", "-n", 10, "--seed", 1)
        (self.folder / "plain.jinja").write_text(
            "{% for m in messages %}{{ m.content }}\n{% endfor %}")
        plain = self.succeed(*arguments, "--ban", 1, "--explain", stdin=b"Once upon a time\n")
        self.assertIn(b"sampler: ban (1 sequence) > constraint", plain.stderr)
        text = plain.stdout.decode().rstrip("\n")
        stopped = self.succeed(*arguments, "--ban", 1, "--stop", text[5:9],
                               stdin=b"Once upon a time\n").stdout.decode()
        self.assertEqual(stopped, text[:text.index(text[5:9])] + "\n")

    def test_what_is_off_by_its_value_needs_no_stage(self):
        self.succeed(*BASE, "-n", 2, "--mirostat", 2, "--top-k", 0, "--top-p", 1, "--min-p", 0)

    def test_the_models_own_values(self):
        """generation_config.json's temperature, top_k and top_p, where none are given."""
        model = self.folder / "own"
        model.mkdir()
        for path in pathlib.Path(MODEL).iterdir():
            if path.is_file() and path.name != "generation_config.json":
                (model / path.name).symlink_to(path)
        config = json.loads((pathlib.Path(MODEL) / "generation_config.json").read_text())
        base = ("-p", PROMPT, "-n", 24, "--ignore-end-of-text", "--seed", 3)
        explain = lambda *more: self.succeed_json("generate", model, *base, "--explain", "--json", *more)["sampler"]
        write = lambda **values: (model / "generation_config.json").write_text(json.dumps({**config, **values}))
        write(temperature=0.6, top_k=7, top_p=None)
        result = self.succeed("generate", model, *base)
        self.assertIn("sampling as the model's generation_config.json says: --temperature 0.6, --top-k 7\n",
                      result.stderr.decode())
        given = self.succeed("generate", MODEL, *base, "--temperature", 0.6, "--top-k", 7)
        self.assertEqual(result.stdout, given.stdout)
        for words in ("temperature (0.6)", "top_k (k = 7)", "top_p (p = 0.95)", "min_p (p = 0.05)"):
            self.assertIn(words, explain())
        # What is given counts.
        result = self.succeed("generate", model, *base, "--temperature", 0, "--top-k", 9)
        self.assertNotIn("generation_config", result.stderr.decode())
        self.assertEqual(result.stdout, self.succeed("generate", MODEL, *base, "--temperature", 0).stdout)
        self.assertIn("top_k (k = 9)", explain("--top-k", 9))
        # The log has what was used, and the conversation uses it, too.
        self.succeed("generate", model, *base, "--audit", "own.json")
        log = json.loads((self.folder / "own.json").read_text())
        self.assertEqual((float(log["sampler"]["temperature"]), int(log["sampler"]["top_k"])), (0.6, 7))
        (self.folder / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        result = self.run_tool("chat", model, "-n", 2, "--chat-template", "t.jinja", stdin=b"Hi\n")
        self.assertIn("says: --temperature 0.6, --top-k 7\n", result.stderr.decode())
        # The shipped model's own values are the tool's: nothing is told.
        self.assertNotIn("generation_config", self.succeed("generate", MODEL, *base).stderr.decode())
        write(top_p=0)
        self.fail_with(2, ["generation_config.json", "'top_p' is 0", "above 0"], "generate", model, *base)

    def test_mistakes(self):
        for options, words in (
                (("--typical-p", 0), ["typical_p is 0"]),
                (("--top-n-sigma", -1), ["top_n_sigma is -1"]),
                (("--xtc-probability", 2), ["xtc_probability is 2"]),
                (("--repetition-penalty", 0), ["repetition_penalty is 0"]),
                (("--dry-base", 0.5), ["dry_base is 0.5"]),
                (("--mirostat", 1), ["mirostat is 1", "2 (mirostat 2)"]),
                (("--logit-bias", "5"), ["logit_bias is '5'", "ID=V"]),
                (("--logit-bias", "999999=1"), ["logit_bias", "999999", "vocabulary"]),
                (("--ban", "999999"), ["ban", "999999", "vocabulary"]),
                (("--penalty-exempt", "-1"), ["penalty_exempt", "-1"]),
                (("--samplers", "top_k;tpo_p"), ["'tpo_p'", "top_n_sigma"]),
                (("--samplers", "top_k;top_k"), ["'top_k' twice"]),
                (("--samplers", "top_k;constraint"), ["'constraint' behind 'top_k'"]),
                (("--samplers", "temperature", "--top-k", 3), ["--top-k does nothing"]),
                (("--mirostat", 2, "--top-k", 3), ["--top-k does nothing", "--mirostat 2"]),
                (("--stop", ""), ["stop string is empty"]), (("--logprobs", 0), ["--logprobs"]),
                (("--n-best", 0), ["--n-best"]),
                (("--n-best", 2, "--prompt-logprobs"), ["--n-best 1"])):
            with self.subTest(options=options):
                self.fail_with(2, words, *BASE, "-n", 2, *options)
