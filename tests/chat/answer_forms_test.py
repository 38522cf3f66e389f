# SPDX-License-Identifier: Apache-2.0
"""Answers of each family, taken apart whole, in pieces and cut off, against plain readers.

    answer_forms_test.py ANSWER_LINES [unittest arguments]

ANSWER_LINES is the program built from answer_lines.cc. Random answers (reasoning, content, calls
with arguments of every type) are written as the family's template does; what was written must come
back. Cut off anywhere they must be what plain_parsers.py reads in the same text, and of harmony what
PyPI's `openai-harmony` does. Ends with 77 (skipped) where that is not installed.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

ANSWER_LINES = os.path.abspath(sys.argv[1])
MODELS = pathlib.Path(os.environ.get("VITRINE_MODELS") or "~/.cache/vitrine/models").expanduser()
os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(MODELS)

try:
    import openai_harmony as harmony
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from plain_parsers import FAMILIES, TOOLS, compact, read_plainly

HOSTILE = {
    "hermes": ["<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
               "{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}", "\n", "\\"],
    "kimi-k2": ["<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "functions.f:0", "<|tool_call_argument_begin|>", "{\"a\": 1}", "<|tool_call_end|>"],
    "deepseek": ["<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "f",
                 "<｜tool▁sep｜>", "{\"a\": 1}", "<｜tool▁call▁end｜>"],
    "think": ["<think>", "</think>", "\n", "<", "think>"],
}
COUNT = 3000 if os.environ.get("VITRINE_LONG") else 120
CUTS = 12
WORDS = ["It is", "7 °C", "日本 🙂", "a < b & c", "{\"a\": 1}", "line one\n\nline two", "<b>bold</b>", "- 'x'", "[1, 2]", "ß\t\"q\""]
TEXTS = ["Zürich", "", "true", "5", "null", "a \"quoted\" & 'other' text", "two\nlines\n\n", "  blanks  ", "back\\slash \\n",
         "{\"x\": [1]}", "x, y=2) z", "日本 🙂", "None", "-1.5e3", "<b>"]


def take_apart(cases):
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    result = subprocess.run([ANSWER_LINES], input=lines.encode(), capture_output=True, check=True)
    found = [json.loads(line) for line in result.stdout.decode().split("\n") if line]
    assert len(found) == len(cases), (len(found), len(cases))
    return found


def odd_cuts(text, rng):
    """Pieces of odd sizes: of a byte, of a prime number of them, of random ones."""
    size = len(text.encode())
    step = rng.choice([1, 3, 7, 13, 0])
    return list(range(step, size, step)) if step else sorted(rng.sample(range(size + 1), min(size, rng.randint(1, 9))))


def words(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))


def value_of(kind, rng, depth=0):
    if kind == "either":
        kind = rng.choice(["text", "count"])
    if kind == "note" and rng.random() < 0.4:
        return None
    if kind in ("text", "note"):
        return rng.choice(TEXTS)
    if kind == "count":
        return rng.choice([0, -7, 2**40, 12])
    if kind == "ratio":
        return rng.choice([1.5, -0.25, 3, 1e20])
    if kind == "exact":
        return rng.random() < 0.5
    inner = lambda: value_of(rng.choice(["text", "count", "ratio", "exact", "note"] + ([] if depth else ["tags", "more"])),
                             rng, depth + 1)
    if kind == "tags":
        return [inner() for _ in range(rng.randint(0, 3))]
    return {key: inner() for key in rng.sample(["x", "y_2", "zeta"], rng.randint(0, 3))}


def fits(name, family, value):
    """What a family's form can hold: bare texts no other family's values would read as."""
    text = json.dumps(value)
    if family in ("glm", "minimax-m2", "qwen3-coder"):
        # A text beside other types is one where it reads as none of them.
        if name == "note" and value in ("null", "None") or name == "either" and value == "5":
            return False
        return not (family == "qwen3-coder" and isinstance(value, str) and (value.startswith("\n")))
    return not (family == "gemma4" and ("1e+20" in text or "1e20" in text))


def write_call(name, family, function, arguments, place):
    """What stands between the marks of a call; of kimi-k2 its place, too."""
    return family["write"](function, arguments, *([place] if name == "kimi-k2" else []))


def answer(name, family, rng):
    """(what is meant, text, whether the prompt opened the reasoning)."""
    opened, closed = family.get("think", ("<think>", "</think>"))
    reasoning = words(rng) if rng.random() < 0.6 else ""
    content = words(rng) if rng.random() < 0.6 else ""
    calls = []
    for _ in range(rng.randint(0, 3) if family["call"] else 0):
        if rng.random() < 0.2:
            calls.append(("now", {}))
            continue
        arguments = {key: value_of(key, rng) for key in rng.sample(
            ["text", "count", "ratio", "exact", "tags", "more", "note", "either"], rng.randint(1, 5))}
        calls.append(("search", {key: value for key, value in arguments.items() if fits(key, name, value)}))
    is_open = bool(reasoning) and rng.random() < 0.5
    space = lambda: rng.choice(["", "\n", "\n\n"])
    text = (("" if is_open else opened) + space() + reasoning + space() + closed + space()) if reasoning else ""
    text += content + (space() if calls else "")
    if calls:
        before, after = family.get("section", ("", ""))
        text += before
        for place, (function, arguments) in enumerate(calls):
            body = write_call(name, family, function, arguments, place)
            text += family["call"][0] + body + family["call"][1] + (space() if not before else "")
        text += after
    return (content, reasoning, calls), text, is_open


def found_parts(found, are_texts=()):
    """The parts that the program found; `are_texts`: of which calls the arguments may be cut off."""
    calls = []
    for place, call in enumerate(found["tool_calls"]):
        is_text = place < len(are_texts) and are_texts[place]
        calls.append((call["name"], call["arguments"].strip() if is_text else json.loads(call["arguments"])))
    strip = lambda text: text.strip(" \t\r\n")
    return strip(found["content"]), strip(found["reasoning"]), calls


def same_types(one, other):
    """json's equality takes 1 for 1.0 and for true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_types(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_types, one, other))
    return type(one) is type(other) and one == other


class FormsTest(unittest.TestCase):
    def cases(self, name, family):
        rng = random.Random(name)
        opened = family.get("think", ("<think>",))[0]
        for _ in range(COUNT):
            meant, text, is_open = answer(name, family, rng)
            yield meant, {"format": family.get("format", name), "text": text, "tools": TOOLS,
                          "prompt": "<assistant>" + opened if is_open else "<assistant>"}, is_open, rng

    def test_what_was_written_comes_back(self):
        for name, family in FAMILIES.items():
            with self.subTest(name):
                cases = list(self.cases(name, family))
                pieces = [{**case, "cuts": odd_cuts(case["text"], rng)} for _, case, _, rng in cases]
                whole = take_apart([case for _, case, _, _ in cases])
                for (meant, case, _, _), found, cut in zip(cases, whole, take_apart(pieces)):
                    self.assertNotIn("error", found)
                    self.assertTrue(same_types(found_parts(found), meant), (case["text"], found, meant))
                    self.assertEqual(cut["message"], found["message"], case["text"])
                calls = sum(len(meant[2]) for meant, *_ in cases)
                print(f"{name}: {len(cases)} answers with {calls} calls, whole and in pieces")

    def test_what_was_cut_off(self):
        for name, family in FAMILIES.items():
            with self.subTest(name):
                cases = []
                for _, case, is_open, rng in self.cases(name, family):
                    for _ in range(CUTS):
                        text = case["text"][:rng.randint(0, len(case["text"]))]
                        cases.append(({**case, "text": text, "cuts": odd_cuts(text, rng)}, is_open))
                for (case, is_open), found in zip(cases, take_apart([case for case, _ in cases])):
                    self.assertNotIn("error", found)
                    content, reasoning, calls = read_plainly(family, case["text"], is_open)
                    wanted = (content, reasoning, [call[:2] for call in calls])
                    self.assertTrue(same_types(found_parts(found, [call[2] for call in calls]), wanted),
                                    (case, found, wanted))
                print(f"{name}: {len(cases)} answers cut off")

    def test_cut_off_at_every_place(self):
        """A bracket within a text closes no arguments: cut off behind it, a second call is none."""
        arguments = {"text": "{\"x\": [1]}", "tags": ["f(x)]", {"y_2": "}"}, "]}"], "ratio": -1.5, "note": "}"}
        for name, family in FAMILIES.items():
            if not family["call"]:
                continue
            with self.subTest(name):
                text = "It is" + family.get("section", ("", ""))[0]
                for place in range(2):
                    body = write_call(name, family, "search", arguments, place)
                    text += family["call"][0] + body + family["call"][1]
                text += family.get("section", ("", ""))[1]
                cases = [{"format": family.get("format", name), "text": text[:end], "tools": TOOLS, "prompt": "<assistant>"}
                         for end in range(len(text) + 1)]
                for case, found in zip(cases, take_apart(cases)):
                    self.assertNotIn("error", found)
                    content, reasoning, calls = read_plainly(family, case["text"], False)
                    wanted = (content, reasoning, [call[:2] for call in calls])
                    self.assertTrue(same_types(found_parts(found, [call[2] for call in calls]), wanted),
                                    (case["text"], found, wanted))
                self.assertEqual(len(calls), 2)
                print(f"{name}: cut off at each of {len(cases)} places")

    def test_hostile_texts(self):
        """Marks in any order, of those families where what is no call is plain to say."""
        rng = random.Random(4)
        for name, marks in HOSTILE.items():
            cases = []
            for _ in range(1500):
                space = lambda: rng.choice(["", "", " ", "\n"])
                text = "".join(rng.choice(marks) + space() + rng.choice(["", f"W{place}é"]) + space()
                               for place in range(rng.randint(1, 10)))
                cases.append({"format": name, "text": text, "prompt": "", "cuts": odd_cuts(text, rng)})
            for case, found in zip(cases, take_apart(cases)):
                self.assertNotIn("error", found)
                content, reasoning, calls = read_plainly(FAMILIES[name], case["text"], False)
                wanted = (content, reasoning, [call[:2] for call in calls])
                self.assertTrue(same_types(found_parts(found, [call[2] for call in calls]), wanted), (case, found, wanted))
            print(f"{name}: {len(cases)} hostile texts")


class HarmonyTest(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer"))
        import published_test
        published_test.find_o200k()
        self.encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)

    def test_what_was_cut_off(self):
        """After every number of tokens, as openai-harmony reads a stream."""
        rng = random.Random(12)
        cases, wanted = [], []
        for _ in range(150):
            messages = []
            for _ in range(rng.randint(1, 3)):
                message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, words(rng))
                channel = rng.choice(["analysis", "commentary", "final", "call"])
                if channel == "call":
                    arguments = compact({key: value_of(key, rng) for key in ("text", "tags", "ratio")})
                    message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, arguments)
                    message = message.with_channel("commentary").with_recipient("functions.search")
                    messages.append(message.with_content_type("<|constrain|>json"))
                else:
                    messages.append(message.with_channel(channel))
            tokens = [token for message in messages for token in self.encoding.render(message)]
            opening = self.encoding.encode("<|start|>assistant", allowed_special="all")
            tokens = tokens[len(opening):]
            count = rng.randint(0, len(tokens))
            parser = harmony.StreamableParser(self.encoding, harmony.Role.ASSISTANT)
            for token in tokens[:count]:
                parser.process(token)
            parts = {"content": [], "reasoning": [], "tool_calls": []}
            read = [(message.recipient, message.channel, message.content[0].text) for message in parser.messages]
            in_body = parser.state == harmony.StreamState.CONTENT
            if in_body:
                read.append((parser.current_recipient, parser.current_channel, parser.current_content))
            for recipient, channel, body in read:
                if recipient and recipient != "assistant":
                    parts["tool_calls"].append((recipient.removeprefix("functions."), body.strip()))
                elif body.strip():
                    parts["reasoning" if channel == "analysis" else "content"].append(body.strip())
            # Within a head nothing is said yet; what stands of it there is content here, and not compared.
            if not in_body and count < len(tokens) and count > 0 and "<|end|>" not in self.encoding.decode_utf8(tokens[count - 1:count]):
                continue
            text = self.encoding.decode_utf8(tokens[:count]) if count else ""
            if "\ufffd" in text:
                continue
            cases.append({"format": "harmony", "prompt": "<|start|>assistant", "text": text, "cuts": odd_cuts(text, rng)})
            wanted.append(parts)
        self.assertGreater(len(cases), 75)
        for case, parts, found in zip(cases, wanted, take_apart(cases)):
            with self.subTest(case["text"]):
                self.assertEqual(found["content"].strip(), "\n".join(parts["content"]))
                self.assertEqual(found["reasoning"].strip(), "\n".join(parts["reasoning"]))
                self.assertEqual([(call["name"], call["arguments"].strip()) for call in found["tool_calls"]],
                                 parts["tool_calls"])
        print(f"{len(cases)} answers cut off alike with openai-harmony")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
