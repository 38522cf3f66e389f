# SPDX-License-Identifier: Apache-2.0
"""vitrine chat --speculate: the conversation of chat without, and what a drafter knows of it."""

import pathlib
import re

from chat_cases import ChatCase
from tool import MODEL

SHIPPED = pathlib.Path(MODEL).parent / "fractalmoe-30m-eagle3"
UNGATED = "--draft-ungated"
TURNS = "Hi there\nAnd you?\n/regen\n/undo\nA dog\n/reset\nHi there\n"


class ChatSpeculation(ChatCase):
    def talk(self, *more):
        result = self.run_tool("chat", self.model, "-n", 40, "-s", 7, *more, stdin=TURNS.encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode(), result.stderr.decode()

    def test_the_conversation_is_the_one_without(self):
        for way in (("--temperature", 0), ("--temperature", 0.8, "--repetition-penalty", 1.2),
                    ("--regex", "([a-z]{3,8} ){5,9}end")):
            plain, err = self.talk(*way)
            self.assertNotIn("guess", err)
            for kind, *more in (("suffix", UNGATED), ("auto",), ("exit=2", UNGATED),
                                (f"draft={self.model}", UNGATED), (f"eagle3={SHIPPED}", UNGATED),
                                (f"eagle3={SHIPPED}",), ("suffix", UNGATED, "--draft-tree", "6x3")):
                with self.subTest(way=way, kind=kind, more=more):
                    found, err = self.talk(*way, "--speculate", kind, *more)
                    self.assertEqual(found, plain)
                    name = "suffix" if kind == "auto" else kind.partition("=")[0]
                    self.assertRegex(err, f"; {name}: (no guess|\\d+ of \\d+ guesses right)")

    def test_a_drafter_knows_the_turns_before(self):
        """The model itself is right whatever the conversation's course."""
        _, err = self.talk("--temperature", 0, "--speculate", f"draft={self.model}", UNGATED)
        right, all_of_them = re.search(r"draft: (\d+) of (\d+) guesses right", err).groups()
        self.assertEqual(right, all_of_them)
        self.assertGreater(int(right), 100)

    def test_the_log(self):
        plain, _ = self.talk("--audit", "plain.vtr")
        for kind in ("suffix", f"eagle3={SHIPPED}"):
            found, _ = self.talk("--audit", "run.vtr", "--speculate", kind, UNGATED)
            self.assertEqual(found, plain)
            self.succeed("audit", "verify", "run.vtr")
            self.succeed("audit", "replay", "run.vtr")
            out = self.succeed("audit", "show", "run.vtr").stdout.decode()
            self.assertIn(f"drafter={kind}", out)
            self.assertRegex(out, r"guesses +\w+: \d+ of \d+ right")

    def test_refusals(self):
        for arguments, words in ((("--speculate", "hydra"), ["hydra", "suffix"]),
                                 (("--draft-threshold", 2), ["--draft-threshold", "--speculate"]),
                                 (("--speculate", "auto", UNGATED), [UNGATED, "suffix"]),
                                 (("--speculate", "eagle3=none"), ["none", "no folder"])):
            self.fail_with(2, words, "chat", self.model, *arguments)
