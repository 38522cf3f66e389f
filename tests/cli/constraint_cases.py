# SPDX-License-Identifier: Apache-2.0
"""generate under a constraint: answers, refusals, and what logs say of them."""

import json
import re

from tool import MODEL, PROMPT, CliTest

SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 99}}}
TAGS = {"triggers": ["<t"], "at_least_one": True,
        "tags": [{"begin": "<tool>", "schema": SCHEMA, "end": "</tool>"},
                 {"begin": "<time>", "regex": "[0-2][0-9]:[0-5][0-9]", "end": "</time>"}]}
GRAMMAR = """root ::= root " and " word | word  # left recursion
word ::= "cat" | "dog" | "the " word
"""


LARK = """start: start SPACE "and" SPACE word | word  # left recursion
word: "cat" | "dog" | "the" SPACE word
SPACE: / +/
"""


class Constraint(CliTest):
    def generate(self, *arguments):
        return self.succeed_json("generate", MODEL, "-p", PROMPT, "--json", "-s", "3", *arguments)

    def setUp(self):
        super().setUp()
        (self.folder / "schema.json").write_text(json.dumps(SCHEMA))
        (self.folder / "words.gbnf").write_text(GRAMMAR)
        (self.folder / "words.lark").write_text(LARK)

    def test_every_kind_of_answer(self):
        for temperature in ("0", "1.5"):
            more = ("-n", "24", "--temperature", temperature)
            value = json.loads(self.generate("--json-schema", "schema.json", *more)["text"])
            self.assertEqual(set(value), {"name", "age"})
            self.assertIsInstance(json.loads(self.generate("--json-object", *more)["text"]), dict)
            text = self.generate("--regex", "[a-z]{3}-[0-9]{2,5}", *more)["text"]
            self.assertRegex(text, r"\A[a-z]{3}-[0-9]{2,5}\Z")
            run = self.generate("--choice", "a cat", "--choice", "a dog", *more)
            self.assertIn(run["text"], ("a cat", "a dog"))
            self.assertEqual(run["reason"], "complete")
            text = self.generate("--grammar", "words.gbnf", *more)["text"]
            self.assertRegex(text, r"\A(the )*(cat|dog)( and (the )*(cat|dog))*\Z")
            run = self.generate("--grammar", "words.lark", "--audit", "lark.vtr", *more)
            self.assertRegex(run["text"], r"\A(the +)*(cat|dog)( +and +(the +)*(cat|dog))*\Z")
            log = json.loads(self.succeed("audit", "export", "lark.vtr", "--json").stdout)
            self.assertEqual(log["constraint"]["kind"], "lark")

    def test_the_limit_answers_for_what_it_took(self):
        whole = self.generate("--json-schema", "schema.json", "-n", "2000", "--temperature", "1")
        self.assertEqual((whole["reason"], whole["constraint"]["limited"]), ("complete", 0))
        # As many tokens as the shortest answer takes, and not one more.
        arguments = ("generate", MODEL, "-p", PROMPT, "-s", "3", "--temperature", "1",
                     "--json-schema", "schema.json", "-n")
        refused = self.run_tool(*arguments, "1")
        self.assertEqual(refused.returncode, 2)
        least = re.search(rb"needs (\d+) tokens as far as is known", refused.stderr)[1].decode()
        result = self.succeed(*arguments, least, "--audit", "run.vtr")
        self.assertEqual(set(json.loads(result.stdout)), {"name", "age"})
        closing, warning = result.stderr.decode().splitlines()
        self.assertTrue(closing.startswith("vitrine: length_constrained: "), closing)
        self.assertRegex(closing, r", \d+ narrowed by the limit of tokens")
        self.assertIn("the limit of tokens took away what could have come", warning)
        self.assertIn("stop: length_constrained\n",
                      self.succeed("audit", "show", "run.vtr").stdout.decode())
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        self.assertEqual(log["stop_reason"], "length_constrained")
        self.assertTrue(any(record["prediction"]["constraint"]["limited"]
                            for record in log["records"] if record["prediction"]))
        lines = self.succeed(*arguments, least, "--json-lines").stdout.splitlines()
        end = json.loads(lines[-1])
        self.assertEqual((end["reason"], end["is_complete"], "failure" in end),
                         ("length_constrained", True, False))
        self.assertEqual(self.generate("--json-schema", "schema.json", "-n", least, "--temperature",
                                       "1")["reason"], "length_constrained")

    def check_tags(self, text):
        """What stands between tags holds no trigger; returns how many tags there are."""
        parts = re.split(r"<tool>(.*?)</tool>|<time>([0-9:]*)</time>", text)
        for prose, tool, time in zip(parts[0::3], parts[1::3], parts[2::3]):
            self.assertNotIn("<t", prose)
            if tool is not None:
                self.assertEqual(set(json.loads(tool)), {"name", "age"})
            else:
                self.assertRegex(time, r"\A[0-2][0-9]:[0-5][0-9]\Z")
        self.assertNotIn("<t", parts[-1])
        return len(parts) // 3

    def test_tags_within_text(self):
        for number, change in enumerate(({}, {"stop_after_first": True}, {"at_least_one": False})):
            (self.folder / "tags.json").write_text(json.dumps({**TAGS, **change}))
            for temperature in ("0", "1.5"):
                run = self.generate("--tags", "tags.json", "-n", "60", "--temperature", temperature,
                                    "--audit", "tags.vtr")
                count = self.check_tags(run["text"])
                self.assertGreaterEqual(count, 0 if number == 2 else 1)
                self.assertTrue(run["constraint"]["is_complete"])
                if number == 1:
                    self.assertEqual((count, run["reason"]), (1, "complete"))
        self.assertIn(b"to the last bit", self.succeed("audit", "replay", "tags.vtr").stdout)
        log = json.loads(self.succeed("audit", "export", "tags.vtr", "--json").stdout)
        self.assertEqual(log["constraint"]["kind"], "tags")
        # A tag that is open near the limit is closed.
        (self.folder / "open.json").write_text(json.dumps(
            {"type": "sequence", "elements": [
                {"type": "const_string", "value": "Now <tool>"},
                {"type": "any_text", "excludes": ["</tool>"]},
                {"type": "const_string", "value": "</tool>"}]}))
        text = self.generate("--tags", "open.json", "-n", "16", "--temperature", "1.5")["text"]
        self.assertTrue(text.startswith("Now <tool>") and text.endswith("</tool>"), text)

    def test_a_schema_that_is_weakened(self):
        hard = {**SCHEMA, "properties": {**SCHEMA["properties"],
                                         "name": {"type": "string", "pattern": "(?<=a$)b"}}}
        (self.folder / "hard.json").write_text(json.dumps(hard))
        run = ("generate", MODEL, "-p", PROMPT, "-n", "40", "--json", "--json-schema", "hard.json")
        self.fail_with(2, ["hard.json", "#/properties/name/pattern"], *run)
        result = self.succeed(*run, "--lenient")
        warnings = [line for line in result.stderr.decode().splitlines() if "warning" in line]
        self.assertEqual(len(warnings), 1)
        self.assertIn("#/properties/name/pattern", warnings[0])
        answer = json.loads(result.stdout)
        self.assertEqual(set(json.loads(answer["text"])), {"name", "age"})
        self.assertEqual([one["pointer"] for one in answer["constraint"]["weakened"]],
                         ["/properties/name/pattern"])
        (self.folder / "answer.json").write_text(answer["text"])
        check = self.succeed("constrain", "check", "hard.json", "--lenient", "--instance",
                             "answer.json").stdout.decode()
        self.assertIn("does not count: '#/properties/name/pattern'", check)
        self.fail_with(2, ["--lenient", "--json-schema"], "generate", MODEL, "-p", PROMPT, "--regex",
                       "a", "--lenient")

    def test_the_schemas_order_of_keys(self):
        schema = {"type": "object", "properties": {"z": {"type": "boolean"}, "a": {"type": "null"}},
                  "required": ["a", "z"], "additionalProperties": False}
        (self.folder / "ordered.json").write_text(json.dumps(schema))
        run = ("--json-schema", "ordered.json", "-n", "30", "--temperature", "2")
        answer = self.generate(*run, "--key-order", "schema", "--audit", "ordered.vtr")
        self.assertEqual(list(json.loads(answer["text"])), ["z", "a"])
        log = json.loads(self.succeed("audit", "export", "ordered.vtr", "--json").stdout)
        self.assertEqual(log["constraint"]["key_order"], "schema")
        self.assertIn(b"equal", self.succeed("audit", "replay", "ordered.vtr").stdout)
        (self.folder / "turned.json").write_text('{"a": null, "z": true}')
        check = ("constrain", "check", "ordered.json", "--instance", "turned.json")
        self.succeed(*check)
        self.assertEqual(self.run_tool(*check, "--key-order", "schema").returncode, 1)
        self.fail_with(2, ["--key-order", "--json-schema"], "generate", MODEL, "-p", PROMPT, "--regex",
                       "a", "--key-order", "schema")

    def test_whole_numbers_and_closed_objects(self):
        schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1})
        for seed in range(4):
            text = self.succeed_json("generate", MODEL, "-p", PROMPT, "--json", "--json-schema", schema, "-n", 30,
                                     "--temperature", 2, "--seed", seed, "--close-objects")["text"]
            self.assertEqual(list(json.loads(text)), ["a"])
            self.assertIsInstance(json.loads(text)["a"], int)
        (self.folder / "whole.json").write_text(schema)
        (self.folder / "broken.json").write_text('{"a": 1.0,\n "b": 2}')
        check = ("constrain", "check", "whole.json", "--instance", "broken.json")
        self.succeed(*check)
        self.assertEqual(self.run_tool(*check, "--integers", "plain").returncode, 1)
        self.assertEqual(self.run_tool(*check, "--close-objects").returncode, 1)
        for option in (["--integers", "any"], ["--close-objects"]):
            self.fail_with(2, [option[0], "--json-schema"], "generate", MODEL, "-p", PROMPT, "--regex", "a",
                           *option)

    def test_what_cannot_end_within_the_room_is_refused(self):
        run = ("generate", MODEL, "-p", PROMPT, "-n", "40")
        for constraint in (["--regex", "(a{1000}){1000}"],
                           ["--json-schema", '{"type": "string", "minLength": 70000}'],
                           ["--json-schema", '{"type": "array", "minItems": 1000000000}'],
                           ["--grammar", 'root ::= (("a"{1000}){1000})']):
            self.fail_with(2, ["tokens", "room for 40", "-n"], *run, *constraint)

    def test_what_contradicts_itself_or_does_not_parse(self):
        run = ("generate", MODEL, "-p", PROMPT)
        self.fail_with(2, ["--json-object", "--regex", "contradict"], *run, "--json-object",
                       "--regex", "a")
        self.fail_with(2, ["--json-schema", "--grammar"], *run, "--json-schema", "schema.json",
                       "--grammar", "words.gbnf")
        self.fail_with(2, ["--whitespace", "--json-schema"], *run, "--whitespace", "rfc")
        self.fail_with(2, ["--on-deadlock"], *run, "--on-deadlock", "validate-retry")
        self.fail_with(2, ["--max-retries"], *run, "--regex", "a", "--max-retries", "2")
        self.fail_with(2, ["regular expression"], *run, "--regex", "(a")
        self.fail_with(2, ["none.json"], *run, "--json-schema", "none.json")
        self.fail_with(2, ["--choice", "empty", "a text"], *run, "--choice", "")
        self.fail_with(2, ["--regex", "empty", "a regular expression"], *run, "--regex", "")
        (self.folder / "bad.json").write_text('{"type": "objekt"}')
        self.fail_with(2, ["bad.json", "schema at"], *run, "--json-schema", "bad.json")
        self.fail_with(2, ["bad.json", "schema at"], "constrain", "check", "bad.json")
        many = "".join(f"[{letter}{i}]?" for i in range(10) for letter in "abcdefghij") * 11
        self.fail_with(2, ["1000 parts in a row"], *run, "--regex", many)
        (self.folder / "bad.gbnf").write_text('root ::= "a" other\n')
        (self.folder / "bad.lark").write_text('start: "a" other\n')
        self.fail_with(2, ["bad.lark", "line 1, column 12", "other"], *run, "--grammar", "bad.lark")
        self.fail_with(2, ["bad.gbnf", "line 1, column 14", "other"], *run, "--grammar", "bad.gbnf")
        (self.folder / "tags.json").write_text('{"tags": [{"begin": "<a>", "end": "b"}]}')
        self.fail_with(2, ["tags.json", "#/tags/0", "content"], *run, "--tags", "tags.json")
        self.fail_with(2, ["--grammar", "--tags"], *run, "--tags", "tags.json", "--grammar",
                       "words.gbnf")
        self.fail_with(2, ["tokens as far as is known", "room for 3", "-n"], *run, "--json-schema",
                       "schema.json", "-n", "3")

    def test_several_answers_and_stop_strings(self):
        run = self.generate("--choice", "a cat", "--choice", "a dog", "--choice", "no", "--n-best",
                            "4", "--temperature", "1.5", "-n", "24")
        texts = [candidate["text"] for candidate in run["candidates"]]
        self.assertEqual(len(texts), 4)
        self.assertLessEqual(set(texts), {"a cat", "a dog", "no"})
        # Inside the answer the stop string is a part of it.
        run = self.generate("--regex", "[a-z]{4}-[0-9]{4}", "--stop", "-", "-n", "24")
        self.assertRegex(run["text"], r"\A[a-z]{4}-[0-9]{4}\Z")
        run = self.generate("--regex", "[a-z]{4}(-[0-9]{4})*", "--stop", "-", "-n", "24",
                            "--temperature", "1.5")
        self.assertRegex(run["text"], r"\A[a-z]{4}(-[0-9]{4})*\Z")

        # Nor does it act where what comes before it is no answer.
        run = self.generate("--json-object", "--stop", "}", "-n", "30", "--temperature", "1")
        self.assertIsInstance(json.loads(run["text"]), dict)
        run = self.generate("--regex", "[0-9]{3,10}", "--stop", "0", "-n", "12")
        self.assertRegex(run["text"], r"\A[0-9]{3,10}\Z")
        run = self.generate("--regex", r"yes(\. yes){1,3}", "--stop", ". y", "-n", "16")
        self.assertEqual((run["text"], run["reason"]), ("yes. yes", "stop string"))
        self.assertTrue(run["constraint"]["is_complete"])

    def test_a_request_of_which_no_end_can_be_spelt_is_refused(self):
        for constraint, text in ((["--regex", "b*a"], "a"), (["--json-object"], "}"),
                                 (["--json-object"], "{")):
            banned = self.succeed_json("tokenize", MODEL, "-p", text, "--json")["ids"]
            self.fail_with(2, ["banned"], "generate", MODEL, "-p", PROMPT, *constraint, "-n", "20",
                           "--ban", *map(str, banned))

    def test_banned_tokens_are_not_counted_on(self):
        one = self.generate("--choice", "no", "-n", "1")["tokens"]
        self.assertEqual(len(one), 1)
        ban = ["--ban", str(one[0])]
        self.fail_with(2, ["needs 2 tokens as far as is known", "room for 1"], "generate", MODEL, "-p",
                       PROMPT, "--choice", "no", "-n", "1", *ban)
        run = self.generate("--choice", "no", "-n", "2", *ban)
        self.assertEqual(run["text"], "no")
        self.assertTrue(run["constraint"]["is_complete"])
        self.assertNotIn(one[0], run["tokens"])
        # A sequence that never comes, though the choice has no other spelling: a deadlock.
        limit = ["--choice", "no", "-n", "2", *ban, "--ban", ",".join(map(str, run["tokens"]))]
        stopped = self.run_tool("generate", MODEL, "-p", PROMPT, "--json", "-s", "3", *limit)
        self.assertEqual(stopped.returncode, 1, stopped.stderr)
        counts = json.loads(stopped.stdout)["constraint"]
        self.assertEqual((counts["deadlocks"], counts["retries"]), (1, 0))
        self.check_failures(limit, counts["failures"])
        again = self.run_tool("generate", MODEL, "-p", PROMPT, "--json", "-s", "3", *limit,
                              "--temperature", "1", "--on-deadlock", "validate-retry",
                              "--max-retries", "2")
        self.assertEqual(json.loads(again.stdout)["constraint"]["retries"], 2, again.stderr)

    def check_failures(self, limit, expected):
        """A deadlock tells where the grammar stood: on the spot, in --json and in either log."""
        self.assertEqual(len(expected), 1)
        self.assertEqual(expected[0]["kind"], "deadlock")
        self.assertEqual(expected[0]["readings"], ["`o`"])
        self.assertEqual(expected[0]["next_bytes"], "'o'")
        self.assertEqual(expected[0]["completion"], "o")
        self.assertGreater(expected[0]["in_time"], 0)
        shown = (f"deadlock in sequence {expected[0]['sequence']} at position {expected[0]['position']}, attempt 0, behind 1 bytes of the "
                 f"answer: of {expected[0]['in_time']} tokens that lead on in time, all are banned",
                 "  `o`", "  allowed there: 'o'", "  would finish it: o")
        run = self.run_tool("generate", MODEL, "-p", PROMPT, "-s", "3", *limit,
                            "--audit", "stuck.vtr", "--audit-level", "full")
        self.assertEqual(run.returncode, 1)
        for line in shown:
            self.assertIn(f"vitrine: {line}\n", run.stderr.decode())
        plain = self.run_tool("generate", MODEL, "-p", PROMPT, "-s", "3", *limit,
                              "--audit", "stuck.json", "--audit-level", "full")
        self.assertEqual(plain.returncode, 1)
        self.succeed("audit", "verify", "stuck.vtr")
        exported = json.loads(self.succeed("audit", "export", "stuck.vtr", "--json").stdout)
        for log in (exported, json.loads((self.folder / "stuck.json").read_text())):
            self.assertEqual(log["constraint_failures"], expected)
            self.assertEqual(log["stop_reason"], "deadlock")
        for log in ("stuck.vtr", "stuck.json"):
            text = self.succeed("audit", "show", log).stdout.decode()
            self.assertIn("\n".join(shown) + "\n", text)
        page = self.succeed("audit", "export", "stuck.vtr", "--html").stdout.decode()
        self.assertIn(shown[0].split(",")[0], page)
        self.succeed("audit", "redact", "stuck.vtr", "less.vtr", "--columns", "failures")
        self.assertNotIn("would finish", self.succeed("audit", "show", "less.vtr").stdout.decode())
        log = json.loads((self.folder / "stuck.json").read_text())
        for key, value, word in (("kind", "stuck", "'stuck'"), ("position", 1e300, "1e+300"),
                                 ("allowed", -2, "-2"), ("readings", [1], "type must be string")):
            damaged = dict(log, constraint_failures=[dict(expected[0], **{key: value})])
            (self.folder / "damaged.json").write_text(json.dumps(damaged))
            self.fail_with(2, ["damaged.json", word.strip("'")], "audit", "show", "damaged.json")

    def test_a_command_judges_answers(self):
        run = self.generate("--regex", "[a-h]{2}", "--temperature", "1.5", "-n", "8",
                            "--max-retries", "200", "--audit", "judged.json",
                            "--validate-with", "tee -a answers; grep -q a answers")
        self.assertIn("a", run["text"])
        self.assertTrue(run["constraint"]["is_complete"])
        answers = (self.folder / "answers").read_text()
        self.assertEqual(len(answers), 2 * (1 + run["constraint"]["rejected_answers"]))
        self.assertTrue(answers.endswith(run["text"]))
        kinds = [one["kind"] for one in run["constraint"]["failures"]]
        self.assertEqual(kinds, ["rejected"] * min(64, run["constraint"]["rejected_answers"]))
        shown = self.succeed("audit", "show", "judged.json", "-n", "0").stdout.decode()
        for attempt in range(1, 1 + run["constraint"]["rejected_answers"]):
            self.assertIn(f"\nattempt {attempt}\n", shown)
        failed = self.run_tool("generate", MODEL, "-p", PROMPT, "--choice", "no", "--max-retries",
                               "2", "--validate-with", "exit 1")
        self.assertEqual(failed.returncode, 1)
        self.assertEqual(failed.stdout.strip(), b"")  # what does not stand is not shown
        several = self.generate("--regex", "[ab]{3}", "--temperature", "1.5", "-n", "10",
                                "--max-retries", "1", "--validate-with", "grep -q ^b", "--n-best",
                                "6")
        reasons = [one["reason"] for one in several["candidates"]]
        rejected = reasons.count("rejected")
        self.assertGreater(rejected, 0)
        self.assertEqual(reasons[6 - rejected:], ["rejected"] * rejected)
        self.assertTrue(several["text"].startswith("b"))
        self.assertGreaterEqual(several["constraint"]["rejected_answers"], 2 * rejected)
        self.assertIn(b"accepted none of 3 answers", failed.stderr)
        for words, command in ((b"cannot be run (exit code 127)", "no-such-x"),
                               (b"was ended by a signal", "kill -9 $$")):
            failed = self.run_tool("generate", MODEL, "-p", PROMPT, "--choice", "no",
                                   "--validate-with", command)
            self.assertEqual(failed.returncode, 2)
            self.assertIn(words, failed.stderr)
        self.fail_with(2, ["--validate-with does nothing here"], "generate", MODEL, "-p", PROMPT,
                       "--validate-with", "true")

    def test_what_is_forced_is_jumped_over(self):
        properties = {name: {"enum": [1, "two"]} for name in
                      ("the_first_long_name", "another_name_of_a_property", "and one more of them")}
        (self.folder / "long.json").write_text(json.dumps(
            {"type": "object", "properties": properties, "required": list(properties),
             "additionalProperties": False}))
        for more in (["--temperature", "1.5"], ["--temperature", "0", "--repetition-penalty", "1.3"]):
            run = self.generate("--json-schema", "long.json", "-n", "120", "--audit", "long.vtr",
                                "--logprobs", "1", *more)
            self.assertEqual(set(json.loads(run["text"])), set(properties))
            counts = run["constraint"]
            self.assertGreater(counts["jumped"], 8)
            self.assertEqual(len(run["logprobs"]), len(run["tokens"]))
            self.assertIn(b"to the last bit", self.succeed("audit", "replay", "long.vtr").stdout)
            log = json.loads(self.succeed("audit", "export", "long.vtr", "--json").stdout)
            self.assertEqual(log["constraint"]["jump_forward"], "on")
            made = [record["prediction"] for record in log["records"] if record["prediction"]]
            self.assertEqual([one["token"] for one in made], run["tokens"])
            for one, other in zip(made, run["logprobs"]):
                # The log has binary16's eleven bits.
                self.assertAlmostEqual(one["logprob"], other["logprob"],
                                       delta=abs(other["logprob"]) * 2**-11)
            # Whether it is recorded changes nothing.
            bare = self.generate("--json-schema", "long.json", "-n", "120", "--audit-mode", "none",
                                 *more)
            self.assertEqual(bare["tokens"], run["tokens"])
            self.assertEqual(bare["constraint"]["jumped"], counts["jumped"])
            alone = self.generate("--json-schema", "long.json", "-n", "120", "--jump-forward", "off",
                                  *more)
            self.assertEqual(set(json.loads(alone["text"])), set(properties))
            self.assertEqual(alone["constraint"]["jumped"], 0)
        best = self.generate("--json-schema", "long.json", "-n", "120", "--n-best", "2",
                             "--temperature", "1.5")
        for candidate in best["candidates"]:
            self.assertEqual(set(json.loads(candidate["text"])), set(properties))
        self.assertGreater(best["constraint"]["jumped"], 8)
        self.fail_with(2, ["--jump-forward"], "generate", MODEL, "-p", PROMPT, "--jump-forward",
                       "off")

    def test_replay(self):
        self.generate("--json-schema", "schema.json", "-n", "30", "--temperature", "1.5", "--audit",
                      "run.vtr")
        result = self.succeed("audit", "replay", "run.vtr")
        self.assertIn(b"to the last bit", result.stdout)
        self.assertNotIn(b"DIFFERENT", result.stdout)

    def test_the_log_says_what_the_mask_did(self):
        run = self.generate("--json-schema", "schema.json", "-n", "30", "--temperature", "1.5",
                            "--audit", "run.vtr")
        counts = run["constraint"]
        self.assertTrue(counts["is_complete"])
        self.assertGreater(counts["jumped"], 0)
        self.assertEqual(counts["masks"] + counts["jumped"], len(run["tokens"]))
        self.succeed("audit", "verify", "run.vtr")
        self.assertIn(b"equal", self.succeed("audit", "replay", "run.vtr").stdout)
        self.succeed("audit", "diff", "run.vtr", "run.vtr")
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        self.assertEqual(log["constraint"]["kind"], "json-schema")
        self.assertRegex(log["constraint"]["sha256"], r"\A[0-9a-f]{64}\Z")
        made = [record["prediction"] for record in log["records"] if record["prediction"]]
        self.assertEqual(len(made), len(run["tokens"]))
        decisions = [prediction["constraint"] for prediction in made]
        self.assertEqual(sum(one["allowed"] == 1 for one in decisions),
                         counts["forced"] + counts["jumped"])
        ruled_out = sum(one["first_ruled_out"] for one in decisions)
        self.assertLessEqual(counts["rejections"], ruled_out)
        self.assertLessEqual(ruled_out, counts["rejections"] + counts["jumped"])
        self.assertEqual(sum(one["limited"] for one in decisions), counts["limited"])
        for prediction in made:
            one = prediction["constraint"]
            self.assertTrue(0 <= one["removed"] <= 1)
            if one["first_ruled_out"]:
                self.assertNotEqual(prediction["top_logprobs"][0]["token"], prediction["token"])
        first = next(record["position"] for record in log["records"]
                     if record["prediction"] and record["prediction"]["constraint"]["first_ruled_out"])
        shown = self.succeed("audit", "show", "run.vtr", "--position", first).stdout.decode()
        self.assertIn("the constraint", shown)
        self.assertIn("the model would have said", shown)
        self.succeed("audit", "export", "run.vtr", "--html", "--out", "run.html")
        page = (self.folder / "run.html").read_text()
        self.assertTrue(re.search(r'"constraint":\[', page))
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "constraint")
        less = json.loads(self.succeed("audit", "export", "less.vtr", "--json").stdout)
        self.assertFalse(any("constraint" in (record["prediction"] or {})
                             for record in less["records"]))
