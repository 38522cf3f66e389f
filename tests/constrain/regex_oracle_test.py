# SPDX-License-Identifier: Apache-2.0
"""Random regular expressions against PyPI's regex: what is accepted, each mask, random answers.

    regex_oracle_test.py CHECK_LINES [SEED [ROUNDS]]
"""

import json
import os
import random
import re
import sys
import unittest

try:
    import regex
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from lines import LinesTest

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 6000 if os.environ.get("VITRINE_LONG") else 600


class RegexOracleTest(LinesTest):
    def test_regexes(self):
        rng = random.Random(SEED)
        texts = ["", "a", "b", "ab", "ba", "aab", "abab", "c", "é", "aé", "0", "a0", "-", "a-b", "aaa", "bbbb",
                 "ab\n", "\n", "a b", " ", "0-9"]
        judged = matched = 0
        for _ in range(ROUNDS * 2):
            pattern = draw_regex(rng, 4)
            python = re.sub(r"\$", r"\\Z", pattern)
            try:
                compiled = regex.compile(python, regex.ASCII | regex.V0)
            except regex.error:
                continue
            answer = self.lines.ask([json.dumps(t) for t in texts],
                                    schema={"type": "string", "pattern": pattern}, masks=False)
            expected = [compiled.search(t) is not None for t in texts]
            if "refused" in answer:
                self.assertTrue("repetition" in answer["refused"] or "within a lookbehind" in answer["refused"] or
                                ("nothing is valid" in answer["refused"] and not any(expected)),
                                f"{pattern}: {answer}")
                continue
            for text, verdict, want in zip(texts, answer["verdicts"], expected):
                self.assertEqual(verdict, want, f"{pattern!r} on {text!r}")
            judged += len(texts)
            matched += sum(expected)
        print(f"regexes: {judged} searches ({matched} found)")
        self.assertGreater(judged, ROUNDS * 10)

    def test_lookbehinds(self):
        rng = random.Random(SEED)
        judged = matched = refused = 0
        for round_ in range(ROUNDS * 2):
            pattern = draw_lookbehind(rng)
            whole = round_ % 2 == 0
            try:
                compiled = regex.compile(as_python(pattern), regex.ASCII | regex.V0)
            except regex.error:
                continue
            texts = ["".join(rng.choice(["a", "b", "ab", "c", "0", "-", " ", "é", "_"]) for _ in range(rng.randrange(7)))
                     for _ in range(25)]
            expected = [(compiled.fullmatch(t) if whole else compiled.search(t)) is not None for t in texts]
            request = {"regex": pattern} if whole else {"schema": {"type": "string", "pattern": pattern}}
            answer = self.lines.ask([t if whole else json.dumps(t, ensure_ascii=False) for t in texts],
                                    masks=round_ % 20 < 2, walks=3, seed=round_, **request)
            if "refused" in answer:
                reasons = ["in a repetition", "within a lookbehind", "too many states", "matches no text", "nothing is valid"]
                self.assertTrue(any(r in answer["refused"] for r in reasons), f"{pattern}: {answer}")
                if "valid" in answer["refused"] or "no text" in answer["refused"]:
                    self.assertFalse(any(expected), f"{pattern}: {answer}")
                refused += 1
                continue
            self.assertNotIn("wrong", answer, pattern)
            for text, verdict, want in zip(texts, answer["verdicts"], expected):
                self.assertEqual(verdict, want, f"{pattern!r} on {text!r}")
            for text in answer["walked"]:
                text = bytes.fromhex(text).decode("utf-8")
                found = compiled.fullmatch(text) if whole else compiled.search(json.loads(text))
                self.assertIsNotNone(found, f"{pattern!r} walked to {text!r}")
            judged += len(texts)
            matched += sum(expected)
        print(f"lookbehinds: {judged} texts ({matched} match), {refused} patterns refused")
        self.assertGreater(matched, ROUNDS)
        self.assertGreater(judged, ROUNDS * 10)


def draw_regex(rng, depth):
    roll = rng.random()
    if depth == 0 or roll < 0.3:
        return rng.choice(["a", "b", "0", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", r"\S", "é", "-", "[a-c]"])
    sub = lambda: draw_regex(rng, depth - 1)  # noqa: E731
    if roll < 0.5:
        return sub() + sub()
    if roll < 0.6:
        return f"(?:{sub()}|{sub()})"
    if roll < 0.8:
        return f"(?:{sub()}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '{0,2}', '{2,}'])}"
    if roll < 0.88:
        return "^" + sub()
    if roll < 0.96:
        return sub() + "$"
    if roll < 0.98:
        return rng.choice(["(?=", "(?!"]) + sub() + ")" + sub()
    return sub() + rng.choice(["(?<=", "(?<!"]) + sub() + ")"


def as_python(pattern):
    """With ECMA-262's white space and line ends in place of Python's; no class of the pattern has any."""
    space = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
    for ecma, python in ((r"\s", f"[{space}]"), (r"\S", f"[^{space}]"), (".", "[^\n\r\u2028\u2029]"), ("$", r"\Z")):
        pattern = pattern.replace(ecma, python)
    return pattern


def draw_lookbehind(rng):
    """Lookbehinds, word boundaries and lookaheads between parts that have none, or few."""
    part = lambda: re.sub(r"[$^]", "", draw_regex(rng, 2))  # noqa: E731
    out = rng.choice(["", "^", part()])
    for _ in range(rng.randrange(1, 4)):
        out += rng.choice([
            f"(?<={part()})", f"(?<!{part()})", f"(?<=^{part()})", f"(?<!{part()}|{part()})", r"\b", r"\B",
            f"(?={part()})", f"(?!{part()})", f"(?=(?:{part()})(?<!{part()}))", f"(?<=(?<!{part()}){part()})",
            f"(?:{part()}|{part()}(?<!{part()}))", f"(?:(?<!{part()}){part()})" + "{1,3}"])
        out += part()
    return out + rng.choice(["", "", "$"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
