# SPDX-License-Identifier: Apache-2.0
"""Random answers that may call functions, drawn from the masks over a vocabulary: each call that is
read from one is whole and its arguments are valid, and what has to be called is called.

    tool_calls_test.py TOOL_CALL_LINES TOKENIZER_JSON

Ends with 77 (skipped) where `jsonschema` is not installed.
"""

import collections
import itertools
import json
import subprocess
import sys
import unittest

try:
    import jsonschema
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM, TOKENIZER = sys.argv[1], sys.argv[2]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "additionalProperties": False, "required": ["city"],
                       "properties": {"city": {"type": "string"},
                                      "unit": {"enum": ["celsius", "fahrenheit"]},
                                      "days": {"type": "integer", "minimum": 1, "maximum": 14}}}}},
    {"type": "function", "function": {
        "name": "send.mail", "parameters": {
            "required": ["to", "body"], "$defs": {"address": {"type": "string", "minLength": 3}},
            "properties": {"to": {"type": "array", "items": {"$ref": "#/$defs/address"}, "minItems": 1},
                           "body": {"type": "string"}, "headers": {"type": "object"}}}}},
    {"name": "now"},
]
SCHEMAS = {"get_weather": TOOLS[0]["function"]["parameters"],
           "send.mail": {"type": "object", **TOOLS[1]["function"]["parameters"]},
           "now": {"type": "object", "additionalProperties": False}}
HARMONY_MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
FORMATS = {
    "hermes": {"begins": ["<tool_call>\n{\"name\": \"now", "<tool_call>\n{\"name\": \"get",
                          "}\n</tool_call>\n<tool_call>\n"],
               "wishes": ["<tool_calls>[", "</tool_call>", "}}\n</tool_call>", "<think>", "</think>\n\n", "\""],
               "marks": ["<tool_call>", "</tool_call>", "<tool_calls>", "<TOOLCALL>"],
               "cases": [{}, {"template": "<think>"}, {"prompt": "assistant\n<think>\n"},
                         {"special": ["<tool_call>", "</tool_call>", "<think>", "</think>"]}]},
    "harmony": {"begins": ["<|channel|>commentary to=functions.now", "<|channel|>analysis<|message|>",
                           "<|end|><|start|>assistant"],
                "wishes": ["<|channel|>analysis<|message|>",
                           "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
                           " to=functions.get_weather", "<|end|><|start|>assistant", "<|call|>",
                           "<|end|>", "\"", "<|return|>"],
                "marks": ["<|call|>", "<|return|>", *HARMONY_MARKS],
                "cases": [{"prompt": "<|start|>assistant"},
                          {"prompt": "<|start|>assistant", "special": HARMONY_MARKS}]},
}
for name, marks, source, wishes in [
        ("kimi-k2", ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                     "<|tool_call_end|>"], "<think>",
         ["<|tool_calls_section_begin|><|tool_call_begin|>functions.now:", "<think>"]),
        ("deepseek", ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                      "<｜tool▁call▁end｜>"], "",
         ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now", "<think>"]),
        ("deepseek", ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"], "<think>```json",
         ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now", "```", "\"```\""]),
        ("mistral", ["[TOOL_CALLS]"], "[ARGS]", ["[TOOL_CALLS]now[", "[TOOL_CALLS]", "[THINK]"]),
        ("mistral", ["[TOOL_CALLS]"], "", ["[TOOL_CALLS][{\"name\": \"now", "\"}]", "[/THINK]"])]:
    FORMATS[f"{name} {source}"] = {
        "begins": wishes[:1], "wishes": [*wishes[1:], *marks, "</think>\n\n", "\"", "}}"],
        "marks": marks, "cases": [{"template": source}]}
CHOICES = ["auto", "auto, led to a call", "none", "required", "now", "send.mail"]
ROOMS = [0, 40, 120]


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"a key twice: {keys}")
    return dict(pairs)


def ask(requests):
    result = subprocess.run([PROGRAM, TOKENIZER], text=True, encoding="utf-8", check=False,
                            input="".join(json.dumps(request) + "\n" for request in requests),
                            stdout=subprocess.PIPE, timeout=600)
    assert result.returncode == 0, result.returncode
    return [json.loads(line) for line in result.stdout.splitlines()]


class ToolCalls(unittest.TestCase):
    def check(self, request, answer):
        marks = FORMATS[request["form"]]["marks"]
        self.assertTrue(answer["is_complete"])
        calls = answer["tool_calls"]
        for call in calls:
            self.assertIn(call["name"], SCHEMAS)
            arguments = json.loads(call["arguments"], object_pairs_hook=no_duplicates)
            jsonschema.Draft202012Validator(SCHEMAS[call["name"]]).validate(arguments)
        # What is no call of the format is read as content, its mark included.
        for mark in marks:
            self.assertNotIn(mark, answer["content"])
        choice = request["choice"]
        if choice == "none":
            self.assertEqual(calls, [])
        elif choice != "auto":
            self.assertGreater(len(calls), 0)
            if request["format"] != "harmony":
                self.assertEqual(answer["content"], "")
        if choice in SCHEMAS:
            self.assertEqual({call["name"] for call in calls}, {choice})
        if not request["parallel"] or choice in SCHEMAS:
            self.assertLessEqual(len(calls), 1)

    def test_random_answers(self):
        requests = []
        for name, form in FORMATS.items():
            for number, (case, choice, room) in enumerate(
                    itertools.product(form["cases"], CHOICES, ROOMS)):
                choice, _, is_led = choice.partition(", ")
                requests.append({"format": name.split()[0], "form": name, "tools": TOOLS, "choice": choice, "room": room,
                                 "seed": 31 * number + room, "wishes": form["begins"] * 3 + form["wishes"],
                                 "first": form["begins"][0] if is_led else "",
                                 "parallel": number % 5 != 0, **case})
        answers = ask(requests)
        self.assertEqual(len(answers), len(requests))
        seen = collections.Counter()
        for request, answer in zip(requests, answers):
            with self.subTest(request=request, answer=answer):
                self.check(request, answer)
            kind = (request["format"], "auto" if request["choice"] == "auto" else "other")
            seen[(*kind, "calls" if answer["tool_calls"] else "free")] += 1
            seen[(*kind, "several")] += len(answer["tool_calls"]) > 1
            seen[(*kind, "reasoning")] += answer["reasoning"] != ""
        kinds = [(name, "auto", kind) for name in ("deepseek", "harmony", "hermes", "kimi-k2", "mistral")
                 for kind in ("calls", "free")]
        kinds += [("hermes", "other", "several"), ("hermes", "auto", "reasoning"),
                  ("hermes", "other", "reasoning"), ("harmony", "other", "reasoning")]
        for kind in kinds:
            self.assertGreater(seen[kind], 0, (kind, seen))

    def test_other_formats_are_refused_by_name(self):
        [answer] = ask([{"format": "glm", "tools": TOOLS, "choice": "auto", "room": 0, "seed": 0}])
        self.assertRegex(answer["error"], "'glm'.*expected one of deepseek, harmony, hermes, kimi-k2, mistral")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
