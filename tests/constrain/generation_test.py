# SPDX-License-Identifier: Apache-2.0
"""200 generations from the shipped model at temperature 1.5 under 20 schemas, with little room:
each must parse and be valid.

    generation_test.py GENERATE_LINES MODEL

Ends with 77 (skipped) where `jsonschema` is not installed.
"""

import json
import subprocess
import sys
import unittest

try:
    import jsonschema
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
ROOMS = [0, 1, 2, 4, 7, 12, 20, 40, 80, 150]  # tokens beyond those that an answer needs

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age"],
          "properties": {"name": {"type": "string", "minLength": 1},
                         "age": {"type": "integer", "minimum": 0, "maximum": 130},
                         "email": {"type": "string", "format": "email"}}}
SCHEMAS = [
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3},
    {"type": "object", "required": ["city", "temperature"],
     "properties": {"city": {"type": "string"}, "temperature": {"type": "number"},
                    "unit": {"enum": ["celsius", "fahrenheit"]}}},
    {"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z][a-z]+){1,3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "minLength": 30, "maxLength": 60},
    {"type": "integer", "minimum": 100, "multipleOf": 5},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"enum": ["yes", "no", "maybe", {"reason": "unknown"}]},
    {"type": "array", "items": {"enum": ["red", "green", "blue", "black"]}, "uniqueItems": True,
     "minItems": 2},
    {"type": "array", "contains": {"type": "boolean"}, "minItems": 2, "maxItems": 5,
     "items": {"type": ["boolean", "string"]}},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2,
     "items": {"type": "null"}},
    {"oneOf": [{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
               {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}]},
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "number"}, "minItems": 3}]},
    {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": ["circle", "square"]}},
     "if": {"properties": {"kind": {"const": "circle"}}}, "then": {"required": ["radius"]},
     "else": {"required": ["side"]}},
    {"type": "object", "patternProperties": {"^x-": {"type": "string"}},
     "additionalProperties": False, "minProperties": 2},
    {"type": "object", "not": {"required": ["password"]}, "required": ["user"]},
    {"$defs": {"node": {"type": "object", "required": ["value", "children"],
                        "additionalProperties": False,
                        "properties": {"value": {"type": "integer"},
                                       "children": {"type": "array", "maxItems": 2,
                                                    "items": {"$ref": "#/$defs/node"}}}}},
     "$ref": "#/$defs/node"},
    {"type": "object", "required": ["items", "total"], "additionalProperties": False,
     "properties": {"items": {"type": "array", "minItems": 1, "items": {
         "type": "object", "required": ["id", "price"],
         "properties": {"id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
                        "price": {"type": "number", "minimum": 0}}}},
                    "total": {"type": "number"}}},
]


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"a key twice: {keys}")
    return dict(pairs)


class Generations(unittest.TestCase):
    def test_every_answer_is_valid(self):
        self.assertEqual(len(SCHEMAS) * len(ROOMS), 200)
        requests = [{"schema": schema, "prompt": "The answer is", "extra": extra,
                     "temperature": 1.5, "seed": 100 * number + index}
                    for number, schema in enumerate(SCHEMAS) for index, extra in enumerate(ROOMS)]
        result = subprocess.run([PROGRAM, MODEL], text=True, encoding="utf-8", check=False,
                                input="".join(json.dumps(request) + "\n" for request in requests),
                                stdout=subprocess.PIPE, timeout=600)
        self.assertEqual(result.returncode, 0)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(len(answers), len(requests))
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        for request, answer in zip(requests, answers):
            with self.subTest(request=request, answer=answer):
                self.assertTrue(answer["is_complete"])
                value = json.loads(answer["text"], object_pairs_hook=no_duplicates)
                jsonschema.Draft202012Validator(request["schema"], format_checker=checker).validate(
                    value)
        # The room was short often enough to have been of consequence.
        self.assertGreater(sum(answer["limited"] > 0 for answer in answers), 60)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
