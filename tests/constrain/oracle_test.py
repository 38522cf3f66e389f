# SPDX-License-Identifier: Apache-2.0
"""Constraints against PyPI's `jsonschema`, and masks against trying each token.

    oracle_test.py CHECK_LINES [SEED [ROUNDS]]

Schemas are drawn by `hypothesis-jsonschema` and by a grammar of ours that leans on combinations
(allOf, anyOf, oneOf, not, if, contains, dependencies). Instances: drawn from the schema, and mutants
of them. Ends with 77 (skipped) where the oracles are not installed.
"""

import json
import math
import os
import random
import re
import sys
import unittest

try:
    import jsonschema
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis_jsonschema import from_schema
    from hypothesis_jsonschema._from_schema import REGEX_PATTERNS  # noqa: F401
except ImportError as error:
    if __name__ == "__main__" and "hypothesis_jsonschema" not in str(error):
        print(f"skipped: {error}")
        sys.exit(77)

from lines import LinesTest

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 6000 if os.environ.get("VITRINE_LONG") else 600

STRINGS = ["", "a", "b", "ab", "abc", "foo", "bar", "10", "x y", "é", "\t", "\"", "\\", "aa", "😀"]
NUMBERS = [0, 1, 2, 3, 5, 10, -1, -2, 0.5, 1.5, 2.25, -0.5, 100, 1.0]
KEYS = ["a", "b", "foo", "bar", "ab", "x", "é"]
PATTERNS = ["^a", "b$", "^[a-z]*$", "^(a|b)+$", "o", "^.{2}$", "^(?!foo$)", "^x", "[0-9]"]


def draw_value(rng, depth=2):
    kind = rng.randrange(8 if depth > 0 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind <= 4:
        return rng.choice(STRINGS)
    if kind == 5:
        return [draw_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {k: draw_value(rng, depth - 1) for k in rng.sample(KEYS, rng.randrange(4))}


def draw_schema(rng, depth=3):
    roll = rng.random()
    if depth == 0 or roll < 0.08:
        return rng.choice([True, {}, {"type": "string"}, {"type": "integer"}, {"const": "a"},
                           {"type": "number"}, {"type": "null"}, {"type": "boolean"}, {"enum": [1, "a"]}])
    sub = lambda: draw_schema(rng, depth - 1)  # noqa: E731
    schema = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        keyword = rng.choice([
            "type", "type", "enum", "const", "string", "number", "object", "object", "object", "array", "array",
            "allOf", "anyOf", "oneOf", "oneOf", "not", "if", "contains", "dependencies", "patternProperties",
            "propertyNames", "uniqueItems", "tuple", "unevaluated", "unevaluated"])
        if keyword == "type":
            schema["type"] = rng.choice(["null", "boolean", "integer", "number", "string", "array", "object",
                                         ["string", "object"], ["array", "integer"]])
        elif keyword == "enum":
            schema["enum"] = [draw_value(rng, 1) for _ in range(rng.randint(1, 4))]
        elif keyword == "const":
            schema["const"] = draw_value(rng, 1)
        elif keyword == "string":
            schema[rng.choice(["minLength", "maxLength"])] = rng.randrange(4)
            if rng.random() < 0.5:
                schema["pattern"] = rng.choice(PATTERNS)
        elif keyword == "number":
            schema[rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])] = rng.choice(NUMBERS)
            if rng.random() < 0.4:
                schema["multipleOf"] = rng.choice([1, 2, 0.5, 3])
        elif keyword == "object":
            schema["properties"] = {k: sub() for k in rng.sample(KEYS, rng.randint(1, 3))}
            if rng.random() < 0.6:
                schema["required"] = rng.sample(KEYS, rng.randint(1, 2))
            if rng.random() < 0.5:
                schema["additionalProperties"] = rng.choice([False, False, sub()])
            if rng.random() < 0.25:
                schema[rng.choice(["minProperties", "maxProperties"])] = rng.randrange(4)
        elif keyword == "array":
            schema["items"] = sub()
            if rng.random() < 0.5:
                schema[rng.choice(["minItems", "maxItems"])] = rng.randrange(4)
        elif keyword in ("allOf", "anyOf", "oneOf"):
            schema[keyword] = [sub() for _ in range(rng.randint(1, 3))]
        elif keyword in ("not", "contains"):
            schema[keyword] = sub()
        elif keyword == "if":
            schema.update({"if": sub(), "then": sub(), "else": sub()})
        elif keyword == "dependencies":
            schema["dependentRequired"] = {rng.choice(KEYS): [rng.choice(KEYS)]}
            if rng.random() < 0.5:
                schema["dependentSchemas"] = {rng.choice(KEYS): sub()}
        elif keyword == "patternProperties":
            schema["patternProperties"] = {rng.choice(PATTERNS): sub()}
        elif keyword == "propertyNames":
            schema["propertyNames"] = rng.choice([{"pattern": "^[a-z]+$"}, {"maxLength": 2}, {"enum": KEYS[:3]}])
        elif keyword == "uniqueItems":
            schema.update({"uniqueItems": True, "items": rng.choice([
                {"type": "string"}, {"enum": [1, 2, "a"]}, {"type": "integer", "minimum": 0, "maximum": 2},
                {"type": ["boolean", "null"]}, {}, {"type": "object"}, {"type": ["array", "integer"]}, sub()])})
            if rng.random() < 0.4:
                schema["prefixItems"] = [sub() for _ in range(rng.randint(1, 2))]
            if rng.random() < 0.3:
                schema["contains"] = rng.choice([{"type": "string"}, {"type": ["object", "number"]}, sub()])
                schema[rng.choice(["minContains", "maxContains"])] = rng.randint(1, 2)
            if rng.random() < 0.3:
                schema = {"not": schema}
        elif keyword == "unevaluated":
            schema[rng.choice(["unevaluatedProperties", "unevaluatedItems"])] = rng.choice([False, False, True, sub()])
            if rng.random() < 0.7:
                schema[rng.choice(["allOf", "anyOf", "oneOf"])] = [sub() for _ in range(rng.randint(1, 3))]
        else:
            schema["prefixItems"] = [sub() for _ in range(rng.randint(1, 2))]
    return schema


def draw_hard(rng):
    """A schema that is refused, at least in part."""
    return rng.choice([
        {"pattern": r"(a)\1"}, {"properties": {"a": {"pattern": r"(?<=a$)x"}}}, {"items": {"$ref": "other.json"}},
        {"not": {"pattern": r"(?<=a$)b"}}, {"oneOf": [{"pattern": r"(?<=a$)b"}, {"type": "object"}]},
        {"patternProperties": {r"(a)\1": False}, "additionalProperties": {"type": "string"}},
        {"properties": {"foo": {"contains": {"pattern": r"(b)\1"}, "maxContains": 1}}},
        {"not": {"patternProperties": {"^a": {"type": "string"}}, "maxProperties": 1}},
        {"if": {"pattern": r"(a)\1"}, "then": {"type": "null"}, "else": {"maxLength": 2}}])


def draw_ordered(rng, depth):
    """Objects whose keys are named in several places; deeper ones under a single schema each."""
    def members(depth):
        return {k: draw_ordered(rng, depth - 1) if depth > 1 and rng.random() < 0.4 else
                rng.choice([True, {"type": "integer"}, {"type": "string"}])
                for k in rng.sample(KEYS, rng.randint(1, 4))}

    def flat():
        out = {}
        if rng.random() < 0.9:
            out["properties"] = {k: True for k in rng.sample(KEYS, rng.randint(1, 3))}
        if rng.random() < 0.5:
            out["required"] = rng.sample(KEYS, rng.randint(1, 2))
        return out

    schema = {"type": "object", "properties": members(depth)}
    if rng.random() < 0.5:
        schema["required"] = rng.sample(KEYS, rng.randint(1, 2))
    if rng.random() < 0.3:
        schema["additionalProperties"] = rng.choice([False, {"type": "integer"}])
    if rng.random() < 0.3:
        schema["patternProperties"] = {rng.choice(PATTERNS): {"type": ["string", "integer", "object"]}}
    for keyword in ("minProperties", "maxProperties"):
        if rng.random() < 0.2:
            schema[keyword] = rng.randrange(1, 5)
    for keyword in ("allOf", "anyOf", "oneOf"):
        if rng.random() < 0.25:
            schema[keyword] = [flat() for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.2:
        schema.update({"if": flat(), "then": flat(), "else": flat()})
    items = list(schema.items())
    rng.shuffle(items)
    return dict(items)


def key_order(schema):
    """The keys of a schema's properties, each where it appears first (docs/constraints.md)."""
    out = list(schema.get("properties", {}))
    for keyword in ("allOf", "anyOf", "oneOf"):
        out += [key for part in schema.get(keyword, []) for key in key_order(part)]
    for keyword in ("if", "then", "else"):
        out += key_order(schema[keyword]) if keyword in schema else []
    return list(dict.fromkeys(out))


def stands_in_order(schema, value):
    if not isinstance(value, dict) or not isinstance(schema, dict):
        return True
    rank = {key: i for i, key in enumerate(key_order(schema))}
    ranks = [rank.get(key, len(rank)) for key in value]
    return ranks == sorted(ranks) and all(
        stands_in_order(schema.get("properties", {}).get(k, True), v) for k, v in value.items())


def in_order(schema, value):
    if not isinstance(value, dict) or not isinstance(schema, dict):
        return value
    rank = {key: i for i, key in enumerate(key_order(schema))}
    keys = sorted(value, key=lambda key: rank.get(key, len(rank)))
    return {k: in_order(schema.get("properties", {}).get(k, True), value[k]) for k in keys}


def draw_members(rng, schema):
    properties = schema.get("properties", {})
    def member(key):
        inner = properties.get(key, True)
        if isinstance(inner, dict) and inner["type"] == "object":
            return draw_members(rng, inner)
        return rng.choice([1, 2, "a"]) if inner is True else 1 if inner["type"] == "integer" else "b"
    keys = set(rng.sample(KEYS, rng.randrange(len(KEYS)))) | (set(schema.get("required", [])) if rng.random() < 0.8 else set())
    return {key: member(key) for key in sorted(keys)}


def shuffled(rng, value):
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: shuffled(rng, value[key]) for key in keys}


def mutate(rng, value):
    roll = rng.random()
    if roll < 0.3 or not isinstance(value, (list, dict)) or not value:
        return draw_value(rng)
    if isinstance(value, list):
        copy = list(value)
        if roll < 0.6:
            copy[rng.randrange(len(copy))] = draw_value(rng, 1)
        else:
            copy.append(rng.choice([draw_value(rng, 1), copy[0], turned(rng, copy[0])]))
        return copy
    copy = dict(value)
    key = rng.choice(list(copy))
    if roll < 0.6:
        copy[key] = mutate(rng, copy[key])
    elif roll < 0.8:
        del copy[key]
    else:
        copy[rng.choice(KEYS)] = draw_value(rng, 1)
    return copy


def turned(rng, value):
    """The same value, otherwise spelt."""
    if isinstance(value, dict):
        return dict(sorted(((k, turned(rng, v)) for k, v in value.items()), key=lambda _: rng.random()))
    if isinstance(value, list):
        return [turned(rng, v) for v in value]
    return float(value) if type(value) is int else value


def dump(rng, value):
    return json.dumps(value, ensure_ascii=rng.random() < 0.5,
                      separators=rng.choice([(",", ":"), (", ", ": ")]))


def is_plain(value):
    """No number whose spelling has an exponent."""
    if isinstance(value, float):
        return math.isfinite(value) and "e" not in repr(value)
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return True


class OracleTest(LinesTest):
    num_walked = 0

    def compare(self, rng, schema, values, masks):
        """(judged, valid) counts; none where the schema is refused."""
        values = [v for v in values if is_plain(v)]
        answer = self.lines.ask([dump(rng, v) for v in values], schema=schema, masks=masks, walks=4,
                                seed=rng.randrange(1 << 30))
        self.assertNotIn("wrong", answer, f"{json.dumps(schema)}: {answer.get('wrong')}")
        validator = jsonschema.Draft202012Validator(schema)
        expected = [validator.is_valid(v) for v in values]
        if "refused" in answer:
            if "nothing is valid" in answer["refused"]:
                self.assertFalse(any(expected), f"{json.dumps(schema)} accepts {values}")
            return None, answer["refused"]
        for walked in answer["walked"]:
            text = bytes.fromhex(walked).decode("utf-8")
            if re.search(r"[0-9.]{16}|[0-9][eE]", text):
                continue  # more digits than Python's floats have
            value = json.loads(text)
            self.assertTrue(validator.is_valid(value), f"made {text} under {json.dumps(schema)}")
            type(self).num_walked += 1
        for value, verdict, want in zip(values, answer["verdicts"], expected):
            self.assertEqual(verdict, want, f"{json.dumps(value)} under {json.dumps(schema)}")
        return len(values), sum(expected)

    def test_combinations(self):
        rng = random.Random(SEED)
        judged = valid = refused = 0
        for number in range(ROUNDS):
            schema = draw_schema(rng)
            values = [draw_value(rng, 3) for _ in range(25)]
            for key in ("enum", "const"):
                if isinstance(schema, dict) and key in schema:
                    values += schema[key] if key == "enum" else [schema[key]]
            values += [mutate(rng, rng.choice(values)) for _ in range(25)]
            try:
                values += [mutate(rng, v) for v in values if
                           jsonschema.Draft202012Validator(schema).is_valid(v)]
            except jsonschema.exceptions.SchemaError:
                continue
            count, good = self.compare(rng, schema, values, masks=number % 10 == 0)
            if count is None:
                refused += 1
            else:
                judged += count
                valid += good
        print(f"combinations: {judged} instances of {ROUNDS - refused} schemas ({valid} valid); "
              f"{refused} schemas refused; {self.num_walked} answers made")
        self.assertGreater(judged, ROUNDS * 15)
        self.assertGreater(valid, judged // 20)
        self.assertGreater(self.num_walked, ROUNDS)

    def test_key_order(self):
        rng = random.Random(SEED + 2)
        judged = valid = refused = 0
        for number in range(ROUNDS // 2):
            schema = draw_ordered(rng, 2)
            validator = jsonschema.Draft202012Validator(schema)
            values = [shuffled(rng, draw_members(rng, schema)) for _ in range(40)]
            values += [in_order(schema, shuffled(rng, v)) for v in values]
            values = [v for v in values if is_plain(v)]
            answer = self.lines.ask([dump(rng, v) for v in values], schema=schema, key_order="schema",
                                    masks=number % 10 == 0, walks=4, seed=rng.randrange(1 << 30))
            self.assertNotIn("wrong", answer, f"{json.dumps(schema)}: {answer.get('wrong')}")
            if "refused" in answer:
                refused += 1
                self.assertTrue("nothing is valid" not in answer["refused"]
                                or not any(map(validator.is_valid, values)), json.dumps(schema))
                continue
            for walked in answer["walked"]:
                text = bytes.fromhex(walked).decode("utf-8")
                if re.search(r"[0-9.]{16}|[0-9][eE]", text):
                    continue
                value = json.loads(text)
                self.assertTrue(validator.is_valid(value) and stands_in_order(schema, value),
                                f"made {text} under {json.dumps(schema)}")
            for value, verdict in zip(values, answer["verdicts"]):
                want = validator.is_valid(value) and stands_in_order(schema, value)
                self.assertEqual(verdict, want, f"{json.dumps(value)} under {json.dumps(schema)}")
                judged += 1
                valid += want
        print(f"key order: {judged} instances ({valid} valid); {refused} schemas refused")
        self.assertGreater(judged, ROUNDS * 10)
        self.assertGreater(valid, judged // 20)

    def test_lenient(self):
        rng = random.Random(SEED + 3)
        judged = weakened = 0
        for number in range(ROUNDS):
            schema = draw_schema(rng)
            if isinstance(schema, dict) and number % 2:
                schema = {"allOf": [schema, draw_hard(rng)]}
            values = [v for v in (draw_value(rng, 3) for _ in range(25)) if is_plain(v)]
            texts = [dump(rng, v) for v in values]
            strict = self.lines.ask(texts, schema=schema)
            lenient = self.lines.ask(texts, schema=schema, lenient=True, walks=2, seed=number)
            self.assertNotIn("wrong", lenient, f"{json.dumps(schema)}: {lenient.get('wrong')}")
            if "refused" not in strict:
                self.assertEqual(lenient["weakened"], [], json.dumps(schema))
                self.assertEqual(lenient["verdicts"], strict["verdicts"], json.dumps(schema))
                continue
            if "refused" in lenient:  # what no answer can meet, weakened or not
                self.assertIn("nothing is valid", lenient["refused"], json.dumps(schema))
                continue
            self.assertNotEqual(lenient["weakened"], [], json.dumps(schema))
            weakened += 1
            validator = jsonschema.Draft202012Validator(schema)
            for value, verdict in zip(values, lenient["verdicts"]):
                judged += 1
                try:
                    self.assertTrue(verdict or not validator.is_valid(value),
                                    f"{json.dumps(value)} under {json.dumps(schema)}, without {lenient['weakened']}")
                except re.error:
                    pass
        print(f"lenient: {weakened} schemas weakened, {judged} instances")
        self.assertGreater(weakened, ROUNDS // 10)

    def test_hypothesis(self):
        rng = random.Random(SEED)
        counts = [0, 0, 0]
        schemas = [draw_schema(rng, 2) for _ in range(ROUNDS // 8)]
        for schema in schemas:
            if schema is True:
                continue
            values = []

            @seed(SEED)
            @settings(max_examples=20, database=None, deadline=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))
            @given(from_schema(schema))
            def collect(value):
                values.append(value)

            try:
                collect()
            except Exception:  # not every schema can be drawn from
                counts[2] += 1
                continue
            values = [v for v in values if "\\ud" not in json.dumps(v).lower() or is_text(v)]
            count, good = self.compare(rng, schema, values, masks=False)
            if count is not None:
                counts[0] += count
                counts[1] += good
        print(f"hypothesis-jsonschema: {counts[0]} instances ({counts[1]} valid)")
        self.assertGreater(counts[0], ROUNDS // 4)


def is_text(value):
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
