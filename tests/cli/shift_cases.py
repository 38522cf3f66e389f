# SPDX-License-Identifier: Apache-2.0
"""`--context-shift`, and `/compact` of a conversation."""

import json

from chat_cases import ChatCase
from tool import MODEL, PROMPT, AuditCase

LONG = ["-p", PROMPT, "-n", 60, "-c", 32, "--seed", 4, "--ignore-end-of-text"]


class ContextShift(AuditCase):
    def test_an_answer_outgrows_its_context(self):
        prompt = self.prompt_tokens()
        cut = self.succeed_json("generate", MODEL, *LONG, "--json")
        self.assertEqual(cut["reason"], "context full")
        self.assertNotIn("context_shifts", cut)
        result = self.succeed("generate", MODEL, *LONG, "--json", "--context-shift", "--keep", 4)
        out = json.loads(result.stdout)
        self.assertEqual((out["reason"], len(out["tokens"])), ("length", 60))
        self.assertEqual(out["tokens"][:len(cut["tokens"])], cut["tokens"])
        self.assertIs(out["invariant"], False)
        first = out["context_shifts"][0]
        self.assertEqual(first, {"tokens": 32 - prompt + 1, "kept": 4, "dropped": 14})
        dropped = sum(shift["dropped"] for shift in out["context_shifts"])
        self.assertIn(b"tokens dropped", result.stderr)
        self.assertIn(str(dropped).encode(), result.stderr)
        # All of the prompt stays.
        kept = self.succeed_json("generate", MODEL, *LONG, "--json", "--context-shift", "--keep", -1)
        self.assertEqual(kept["context_shifts"][0]["kept"], prompt)
        # Nothing is shifted where there is room.
        fits = self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 4, "--json", "--context-shift")
        self.assertEqual((fits["context_shifts"], fits["invariant"]), ([], True))

    def test_the_log_says_what_was_dropped_and_is_replayed(self):
        for log in ("run.vtr", "run.json"):
            self.succeed("generate", MODEL, *LONG, "--context-shift", "--keep", 4, "--audit", log)
            self.assertIn("equal: ", self.replay(log))
            shown = self.succeed("audit", "show", log).stdout.decode()
            self.assertIn("keep 4", shown)
            self.assertRegex(shown, r"the context was shifted \d times?, \d+ tokens dropped")
        self.verify("run.vtr")

    def test_what_does_not_go_with_it(self):
        for more, words in ((["--keep", 3], ["--keep 3", "--context-shift"]),
                            (["--context-shift", "--keep", 31], ["--keep 31", "-c"]),
                            (["--context-shift", "--regex", "a+"], ["a constraint"]),
                            (["--context-shift", "--speculate", "suffix"], ["--speculate"]),
                            (["--context-shift", "--n-best", 2], ["--n-best"]),
                            (["--context-shift", "--keep", -2], ["--keep"])):
            self.fail_with(2, words, "generate", MODEL, *LONG, *more)


class Compact(ChatCase):
    def test_the_oldest_turns_go(self):
        text = "Hi there\nAnd you?\nAnd they?\n/compact\nAnd we?\n"
        out, err = self.chat(text, "-c", 100, "--system", "Be brief.", n=12)
        self.assertIn("turns are forgotten: 'Hi there'", err)
        self.assertEqual(out.count("\n"), 4, out)
        # What is left is the conversation of the turns that are left.
        self.chat(text + "/save s.json\n", "-c", 100, "--system", "Be brief.", n=12)
        messages = json.loads((self.folder / "s.json").read_text())["messages"]
        self.assertEqual(messages[0], {"role": "system", "content": "Be brief."})
        self.assertNotIn("Hi there", [one["content"] for one in messages])
        self.assertEqual(messages[-2]["content"], "And we?")
        _, err = self.chat("Hi\n/compact\n", code=2)
        self.assertIn("expected several, or /reset", err)

    def test_a_full_conversation_offers_it(self):
        _, err = self.chat("Hi there\nAnd you?\nAnd they?\nAnd we?\nAnd all?\n/compact\nHi\n", "-c", 64,
                           n=20, code=2)
        self.assertIn("forget its oldest turns with /compact", err)
        self.assertIn("turns are forgotten", err)

    def test_a_conversation_is_shifted(self):
        out, err = self.chat("Hi there\nAnd you?\nAnd they?\nAnd we?\nAnd all?\n", "-c", 64,
                             "--context-shift", "--keep", -1, "--system", "Be brief.", n=20)
        self.assertEqual(out.count("\n"), 5, out)
        for more in (["--speculate", "suffix"], ["--regex", "a+"]):
            _, refused = self.chat("Hi\n", "--context-shift", *more, code=2)
            self.assertIn("expected one of them", refused)
        self.assertRegex(err, r"of the conversation's \d+ the first \d+ are kept and \d+ behind them")
