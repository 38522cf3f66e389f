# SPDX-License-Identifier: Apache-2.0
"""Holds values to JSON Schemas of an OpenAPI document, as far as this server's uses them. Python's
library alone."""

import re

# Words that say nothing of a value.
NOTES = {"description", "default", "format", "contentEncoding"}
TYPES = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict,
         "number": (int, float), "integer": (int, float)}


def is_of_type(value, name):
    if name in ("number", "integer") and isinstance(value, bool):
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[name])


def same(a, b):
    return a == b and isinstance(a, bool) == isinstance(b, bool)


class Schemas:
    """The schemas of a document."""

    def __init__(self, document):
        self.document = document

    def find(self, reference):
        """What "#/a/b" refers to. Raises KeyError."""
        found = self.document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return found

    def problems(self, schema, value, place="$"):
        """What of the value is not as the schema has it, a line each."""
        if isinstance(schema, bool):
            return [] if schema else [f"{place} is there"]
        found = []
        for word, rule in schema.items():
            if word in NOTES or word.startswith("x-"):
                continue
            check = getattr(self, "check_" + word.replace("$", ""), None)
            if check is None:
                raise ValueError(f"{place}: the word {word!r} of a schema is not known here")
            found += check(rule, value, place)
        return found

    def check_ref(self, rule, value, place):
        return self.problems(self.find(rule), value, place)

    def check_type(self, rule, value, place):
        names = rule if isinstance(rule, list) else [rule]
        if any(is_of_type(value, name) for name in names):
            return []
        return [f"{place} is {str(value)[:60]!r}; expected {rule}"]

    def check_enum(self, rule, value, place):
        return [] if any(same(value, each) for each in rule) else [
            f"{place} is {str(value)[:60]!r}; expected one of {rule}"]

    def check_const(self, rule, value, place):
        return self.check_enum([rule], value, place)

    def check_not(self, rule, value, place):
        return [] if self.problems(rule, value, place) else [f"{place} is {str(value)[:60]!r}"]

    def check_allOf(self, rule, value, place):
        return [each for schema in rule for each in self.problems(schema, value, place)]

    def check_anyOf(self, rule, value, place):
        tried = [self.problems(schema, value, place) for schema in rule]
        return [] if [] in tried else min(tried, key=len)

    def compare(self, kind, is_right, value, place, rule):
        if not is_of_type(value, kind) or is_right(value):
            return []
        return [f"{place} is {str(value)[:60]!r}; a bound is {rule}"]

    def check_minimum(self, rule, value, place):
        return self.compare("number", lambda x: x >= rule, value, place, rule)

    def check_maximum(self, rule, value, place):
        return self.compare("number", lambda x: x <= rule, value, place, rule)

    def check_exclusiveMaximum(self, rule, value, place):
        return self.compare("number", lambda x: x < rule, value, place, rule)

    def check_minLength(self, rule, value, place):
        return self.compare("string", lambda x: len(x) >= rule, value, place, rule)

    def check_maxLength(self, rule, value, place):
        return self.compare("string", lambda x: len(x) <= rule, value, place, rule)

    def check_pattern(self, rule, value, place):
        return self.compare("string", lambda x: re.search(rule, x), value, place, rule)

    def check_minItems(self, rule, value, place):
        return self.compare("array", lambda x: len(x) >= rule, value, place, rule)

    def check_maxItems(self, rule, value, place):
        return self.compare("array", lambda x: len(x) <= rule, value, place, rule)

    def check_items(self, rule, value, place):
        if not isinstance(value, list):
            return []
        return [each for i, item in enumerate(value)
                for each in self.problems(rule, item, f"{place}[{i}]")]

    def check_prefixItems(self, rule, value, place):
        if not isinstance(value, list):
            return []
        return [each for i, (schema, item) in enumerate(zip(rule, value))
                for each in self.problems(schema, item, f"{place}[{i}]")]

    def check_required(self, rule, value, place):
        if not isinstance(value, dict):
            return []
        return [f"{place}.{name} is not there" for name in rule if name not in value]

    def check_properties(self, rule, value, place):
        if not isinstance(value, dict):
            return []
        return [each for name, schema in rule.items() if name in value
                for each in self.problems(schema, value[name], f"{place}.{name}")]

    def check_patternProperties(self, rule, value, place):
        if not isinstance(value, dict):
            return []
        return [each for pattern, schema in rule.items() for name in value
                if re.search(pattern, name)
                for each in self.problems(schema, value[name], f"{place}.{name}")]

    def check_propertyNames(self, rule, value, place):
        if not isinstance(value, dict):
            return []
        return [each for name in value for each in self.problems(rule, name, place + " (a key)")]

    def check_additionalProperties(self, rule, value, place):
        if not isinstance(value, dict):
            return []
        return [each for name, one in value.items()
                for each in self.problems(rule, one, f"{place}.{name}")]

    # ---- What a schema does not name --------------------------------------------------------------

    def whole(self, schema):
        """The schemas that a schema consists of, its alternatives among them."""
        if isinstance(schema, bool):
            return []
        parts = [schema]
        if "$ref" in schema:
            parts += self.whole(self.find(schema["$ref"]))
        for word in ("allOf", "anyOf"):
            parts += [part for each in schema.get(word, []) for part in self.whole(each)]
        return parts

    def unnamed(self, schemas, value, place="$"):
        """Fields of the value that no schema names, where one names fields."""
        parts = [part for schema in schemas for part in self.whole(schema)]
        if isinstance(value, list):
            items = [part["items"] for part in parts if "items" in part]
            return [each for i, item in enumerate(value)
                    for each in self.unnamed(items, item, f"{place}[{i}]")] if items else []
        if not isinstance(value, dict) or any("additionalProperties" in part for part in parts):
            return []
        named = [part["properties"] for part in parts if "properties" in part]
        if not named:
            return []
        patterns = [pattern for part in parts for pattern in part.get("patternProperties", {})]
        found = [f"{place}.{name} is not named" for name in value
                 if not any(name in each for each in named) and
                 not any(re.search(pattern, name) for pattern in patterns)]
        for name, one in value.items():
            schemas = [each[name] for each in named if name in each]
            found += self.unnamed(schemas, one, f"{place}.{name}")
        return found
