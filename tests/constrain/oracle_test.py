"""Constraints against PyPI's `jsonschema` and `regex`, and masks against trying each token.

    oracle_test.py CHECK_LINES [SEED [ROUNDS]]

Schemas are drawn by `hypothesis-jsonschema` and by a grammar of ours that leans on combinations
(allOf, anyOf, oneOf, not, if, contains, dependencies). Instances: drawn from the schema, and mutants
of them. Ends with 77 (skipped) where the oracles are not installed.
"""

import json
import math
import random
import re
import sys
import unittest

try:
    import jsonschema
    import regex
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis_jsonschema import from_schema
    from hypothesis_jsonschema._from_schema import REGEX_PATTERNS  # noqa: F401
except ImportError as error:
    if __name__ == "__main__" and "hypothesis_jsonschema" not in str(error):
        print(f"skipped: {error}")
        sys.exit(77)

from lines import Lines

PROGRAM = sys.argv[1]
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 600

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
            "propertyNames", "uniqueItems", "tuple"])
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
                {"type": ["boolean", "null"]}])})
        else:
            schema["prefixItems"] = [sub() for _ in range(rng.randint(1, 2))]
    return schema


def mutate(rng, value):
    roll = rng.random()
    if roll < 0.3 or not isinstance(value, (list, dict)) or not value:
        return draw_value(rng)
    if isinstance(value, list):
        copy = list(value)
        if roll < 0.6:
            copy[rng.randrange(len(copy))] = draw_value(rng, 1)
        else:
            copy.append(rng.choice([draw_value(rng, 1), copy[0]]))
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


class OracleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lines = Lines(PROGRAM)
        cls.num_walked = 0

    @classmethod
    def tearDownClass(cls):
        cls.lines.close()

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
            answer = self.lines.ask(texts, schema={"type": "string", "pattern": pattern}, masks=False)
            answer = self.lines.ask([json.dumps(t) for t in texts],
                                    schema={"type": "string", "pattern": pattern}, masks=False)
            expected = [compiled.search(t) is not None for t in texts]
            if "refused" in answer:
                self.assertTrue("repetition" in answer["refused"] or
                                ("nothing is valid" in answer["refused"] and not any(expected)),
                                f"{pattern}: {answer}")
                continue
            for text, verdict, want in zip(texts, answer["verdicts"], expected):
                self.assertEqual(verdict, want, f"{pattern!r} on {text!r}")
            judged += len(texts)
            matched += sum(expected)
        print(f"regexes: {judged} searches ({matched} found)")
        self.assertGreater(judged, ROUNDS * 10)


def is_text(value):
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


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
    return rng.choice(["(?=", "(?!"]) + sub() + ")" + sub()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
