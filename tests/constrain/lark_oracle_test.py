# SPDX-License-Identifier: Apache-2.0
"""Grammars in Lark's notation against PyPI's `lark` (Earley, every way to cut a text into terminals).

    lark_oracle_test.py CHECK_LINES [SEED [ROUNDS]]

Grammars are drawn at random: rules that refer to each other in any way, terminals with repetitions,
flags and ranges, text that is ignored between terminals. Each one is asked about every short text
and about random longer ones; masks are compared with trying each token. Ends with 77 (skipped)
where the oracle is not installed.
"""

import itertools
import os
import random
import signal
import sys
import unittest

try:
    import lark
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from lines import LinesTest

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 600 if os.environ.get("VITRINE_LONG") else 60
LETTERS = "abC "


def draw_atom(rng, names):
    roll = rng.random()
    if names and roll < 0.45:
        return rng.choice(names)
    return rng.choice(['"a"', '"b"', '"ab"', '"c"i', '"a".."b"', "/[ab]/", "/a+b?/", "/c/i", "/b./",
                       '"a" "b"'])


def draw_body(rng, names, depth=1):
    """Alternatives of sequences; none is empty, which Lark does not take for terminals."""
    def item():
        if depth > 0 and rng.random() < 0.25:
            inner = "(" + draw_body(rng, names, depth - 1) + ")"
        else:
            inner = "(" + draw_atom(rng, names) + ")"
        roll = rng.random()
        if roll < 0.15:
            return f"[{inner}]"
        return inner + rng.choice(["", "", "", "?", "*", "+", "~2", "~1..2"])

    return " | ".join(" ".join(item() for _ in range(rng.randint(1, 2)))
                      for _ in range(rng.randint(1, 2)))


def draw_grammar(rng):
    terminals = ["A", "_B"][:rng.randint(0, 2)]
    rules = ["start", "one", "_two"][:rng.randint(1, 3)]
    lines = []
    for i, rule in enumerate(rules):
        # Every rule is reached; any may lead back to any.
        needed = rules[i + 1:i + 2] + (terminals if i == 0 else [])
        body = draw_body(rng, rules + terminals)
        if needed:
            body += " | " + " ".join(needed) + rng.choice(["", ' "b"'])
        if rng.random() < 0.5:
            body = '"a" | ' + body
        lines.append(f"{rule}: {body}")
    for terminal in terminals:
        # Lark tries what its first match by `re` covers, and less: terminals whose first match is
        # the longest one are those on which it can judge.
        lines.append(f"{terminal}: " + rng.choice(
            ['"a"+ "c"i', '("ab" | "b")+', '"a".."b" "b"', "/[ab]{2}/ LOW", '/a+b?/', '"b"~1..3',
             "/b.?/", '"a" ["b"] "C"?']))
        if "LOW" in lines[-1] and not any(line.startswith("LOW:") for line in lines):
            lines.append('LOW: "a".."b" | "c"i')
    if rng.random() < 0.4:
        lines.append(rng.choice(['%ignore " "', "%ignore / +/", "%import common.WS\n%ignore WS"]))
    return "\n".join(lines) + "\n"


def accepts(oracle, text):
    try:
        oracle.parse(text)
        return True
    except lark.exceptions.LarkError:
        return False


class TooSlow(Exception):
    pass


def stop(*_):
    raise TooSlow


class Grammars(LinesTest):
    def test_random_grammars(self):
        rng = random.Random(SEED)
        compared = accepted = without_end = slow = 0
        signal.signal(signal.SIGALRM, stop)
        for _ in range(ROUNDS):
            grammar = draw_grammar(rng)
            texts = ["".join(t) for n in range(4) for t in itertools.product(LETTERS, repeat=n)]
            texts += ["".join(rng.choice(LETTERS) for _ in range(rng.randint(4, 7)))
                      for _ in range(20)]
            signal.setitimer(signal.ITIMER_REAL, 1)  # Lark lists every reading there is
            try:
                oracle = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
                expected = [accepts(oracle, text) for text in texts]
            except TooSlow:
                slow += 1
                continue
            except RuntimeError as error:  # a defect of Lark's own, as it says
                self.assertIn("Please report this bug", str(error))
                continue
            except lark.exceptions.LarkError as error:
                # What Lark alone does not take: a terminal that is empty, a rule that is said twice.
                self.assertRegex(str(error), "zero-width|defined twice|duplicate|twice", grammar)
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            answer = self.lines.ask(texts, lark=grammar)
            if "refused" in answer:
                self.assertIn("no text that ends", answer["refused"], grammar)
                self.assertFalse(any(expected), grammar)
                without_end += 1
                continue
            for text, ours, theirs in zip(texts, answer["verdicts"], expected):
                self.assertEqual(ours, theirs, f"{grammar}\non {text!r}")
            compared += len(texts)
            accepted += sum(expected)
            masks = self.lines.ask(rng.sample(texts, 3), lark=grammar, masks=True, walks=3)
            self.assertNotIn("wrong", masks, grammar)
            for text in masks["walked"]:
                if len(text) < 16:
                    self.assertTrue(accepts(oracle, bytes.fromhex(text).decode("utf-8")),
                                    f"{grammar}\non {text}")
        print(f"{compared} texts compared, {accepted} accepted; grammars: {without_end} without end, "
              f"{slow} too ambiguous for Lark")
        self.assertGreater(compared, 40 * ROUNDS)
        self.assertGreater(accepted, 2 * ROUNDS)

    def test_common_terminals(self):
        rng = random.Random(SEED)
        texts = ["".join(rng.choice("01.eE+-aZ_ \t\r\n\"\\/*#") for _ in range(rng.randint(1, 5)))
                 for _ in range(800)]
        for name in ("DIGIT", "HEXDIGIT", "INT", "SIGNED_INT", "DECIMAL", "FLOAT", "SIGNED_FLOAT",
                     "NUMBER", "SIGNED_NUMBER", "LCASE_LETTER", "UCASE_LETTER", "LETTER", "WORD",
                     "CNAME", "WS_INLINE", "WS", "CR", "LF", "NEWLINE", "SH_COMMENT", "CPP_COMMENT",
                     "SQL_COMMENT"):
            grammar = f"%import common.{name}\nstart: {name}\n"
            oracle = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
            verdicts = self.lines.ask(texts, lark=grammar)["verdicts"]
            for text, ours in zip(texts, verdicts):
                self.assertEqual(ours, accepts(oracle, text), f"{name} on {text!r}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
