# SPDX-License-Identifier: Apache-2.0
"""Tags in free text against their definition, written down once more in Python: contents are judged
by `re` and by PyPI's `jsonschema`.

    tags_oracle_test.py CHECK_LINES [SEED [ROUNDS]]

Documents are drawn at random: several tags, triggers that some of them share, ends that their
contents may hold, too. Each is asked about every short text and about random longer ones made of the
document's own pieces; masks are compared with trying each token, and answers of random allowed tokens
are judged. Ends with 77 (skipped) where the oracle is not installed.
"""

import functools
import itertools
import json
import os
import random
import re
import sys
import unittest

try:
    import jsonschema
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from lines import LinesTest

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 400 if os.environ.get("VITRINE_LONG") else 40
LETTERS = "<a>1!"
BEGINS = ["<a>", "<a", "<b>", "<1", "<<", "!a", "<a>a", "11", "<ab"]
ENDS = [">", "!", "</a>", "a", "1", "", "!!"]
PATTERNS = ["1*", "a+", "[a1]{1,3}", "(a|1>)*", "<?a", "[^<]{0,2}", "!|11", "a1|a!1?", "(!a)+"]
SCHEMAS = [{"enum": [1, "a", [1]]}, {"type": "integer"}, {"type": "boolean"},
           {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
           {"type": "string", "maxLength": 2}, {"const": {}},
           {"type": "object", "required": ["a"], "properties": {"a": {"enum": [1, "!"]}},
            "additionalProperties": False}]


def draw_document(rng):
    tags = []
    for begin in rng.sample(BEGINS, rng.randint(1, 3)):
        tag = {"begin": begin}
        if rng.random() < 0.6:
            tag["regex"] = rng.choice(PATTERNS)
        else:
            tag["schema"] = rng.choice(SCHEMAS)
        ends = rng.sample(ENDS, rng.choice([1, 1, 2]))
        tag["end"] = ends if len(ends) > 1 or rng.random() < 0.3 else ends[0]
        tags.append(tag)
    document = {"tags": tags}
    if rng.random() < 0.6:
        triggers = []
        for tag in tags:
            if not any(tag["begin"].startswith(trigger) for trigger in triggers):
                triggers.append(tag["begin"][:rng.randint(1, len(tag["begin"]))])
        document["triggers"] = triggers
    for option in ("at_least_one", "stop_after_first"):
        if rng.random() < 0.25:
            document[option] = True
    if rng.random() < 0.25:
        document["excludes"] = [rng.choice(["aa", "1a", "a!"])]
    return document


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("a key twice")
    return dict(pairs)


def no_constant(name):
    raise ValueError(name)


@functools.lru_cache(maxsize=None)
def is_content(tag_text, content):
    tag = json.loads(tag_text)
    if "regex" in tag:
        return re.fullmatch(tag["regex"], content, re.DOTALL) is not None
    try:
        value = json.loads(content, object_pairs_hook=no_duplicates, parse_constant=no_constant)
        jsonschema.Draft202012Validator(tag["schema"]).validate(value)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


class Judge:
    def __init__(self, document):
        self.tags = [(tag["begin"], tag["end"] if isinstance(tag["end"], list) else [tag["end"]],
                      json.dumps(tag)) for tag in document["tags"]]
        self.triggers = document.get("triggers", [begin for begin, _, _ in self.tags])
        self.excludes = document.get("excludes", [])
        self.begins_with_tag = document.get("at_least_one", False)
        self.ends_with_tag = document.get("stop_after_first", False)

    def behind_tags(self, text, at, trigger=""):
        """Where a tag that begins at `at` may have ended."""
        out = set()
        for begin, ends, tag in self.tags:
            if not begin.startswith(trigger) or not text.startswith(begin, at):
                continue
            first = at + len(begin)
            for last in range(first, len(text) + 1):
                if is_content(tag, text[first:last]):
                    out.update(last + len(end) for end in ends if text.startswith(end, last))
        return out

    def is_free(self, text, first):
        """Free text from `first` on, and what follows it."""
        for last in range(first + 1, len(text) + 1):
            free = text[first:last]
            if any(free.endswith(excluded) for excluded in self.excludes):
                return False
            for trigger in self.triggers:
                if free.endswith(trigger):
                    return any(self.is_behind(text, at)
                               for at in self.behind_tags(text, last - len(trigger), trigger))
        return True

    def is_behind(self, text, at):
        return at == len(text) if self.ends_with_tag else self.is_free(text, at)

    def accepts(self, text):
        if self.begins_with_tag:
            return any(self.is_behind(text, at) for at in self.behind_tags(text, 0))
        return self.is_free(text, 0)


def draw_text(rng, document):
    """Mostly what is nearly right."""
    out = ""
    for _ in range(rng.randint(1, 3)):
        tag = rng.choice(document["tags"])
        content = rng.choice(["1", "a", "11", "a1", "1>", "[1]", "[1, 11]", "true", '"a"', '"!\\u0061"',
                              '{"a":1}', '{"a": "!"}', "{}", "", "!a"])
        end = tag["end"] if isinstance(tag["end"], str) else rng.choice(tag["end"])
        pieces = ["".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 2))), tag["begin"],
                  content, end]
        if rng.random() < 0.3:
            del pieces[rng.randrange(len(pieces))]
        out += "".join(pieces)
    return out


class Tags(LinesTest):
    def test_random_tags(self):
        rng = random.Random(SEED)
        compared = accepted = refused = walked = with_tags = 0
        while compared < 700 * ROUNDS:
            document = draw_document(rng)
            judge = Judge(document)
            texts = ["".join(t) for n in range(5) for t in itertools.product(LETTERS, repeat=n)]
            texts += [draw_text(rng, document) for _ in range(120)]
            answer = self.lines.ask(texts, tags=document)
            if "refused" in answer:
                # A trigger or a beginning that another one always comes before.
                self.assertRegex(answer["refused"], "comes first|none of the triggers|never",
                                 json.dumps(document))
                refused += 1
                self.assertLess(refused, 5 * ROUNDS)
                continue
            for text, ours in zip(texts, answer["verdicts"]):
                theirs = judge.accepts(text)
                self.assertEqual(ours, theirs, f"{json.dumps(document)}\non {text!r}")
                accepted += theirs
                with_tags += theirs and any(trigger in text for trigger in judge.triggers)
            compared += len(texts)
            masks = self.lines.ask(rng.sample(texts[-120:], 2), tags=document, masks=True, walks=4,
                                   seed=rng.randrange(1 << 30))
            self.assertNotIn("wrong", masks, json.dumps(document))
            for text in masks["walked"]:
                text = bytes.fromhex(text).decode("utf-8")
                if len(text) > 60:
                    continue
                walked += 1
                self.assertTrue(judge.accepts(text), f"{json.dumps(document)}\non {text!r}")
        print(f"{compared} texts compared, {accepted} accepted, {with_tags} of them with tags; "
              f"{walked} random answers judged; {refused} documents refused")
        self.assertGreater(with_tags, 5 * ROUNDS)
        self.assertGreater(walked, ROUNDS // 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
