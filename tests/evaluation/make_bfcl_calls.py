# SPDX-License-Identifier: Apache-2.0
"""Writes bfcl_calls.jsonl: calls made from the core suite's tools and possible answers, right and
broken ones, and whether the checker of PyPI's bfcl-eval 2026.3.23 takes them.

    make_bfcl_calls.py FOLDER > tests/evaluation/bfcl_calls.jsonl

FOLDER holds the unpacked wheel. Only its checker is used: what that imports for other languages and
model names is replaced.
"""

import copy
import json
import pathlib
import random
import sys
import types

ITEMS = pathlib.Path(__file__).parents[2] / "examples" / "suites" / "core" / "tools.jsonl"
TYPES = {"object": "dict", "number": "float"}


class ModelNames(dict):
    def __getitem__(self, name):
        return types.SimpleNamespace(underscore_to_dot=False)


def load_checker(folder):
    sys.path.insert(0, folder)
    models = types.ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = ModelNames()
    sys.modules[models.__name__] = models
    for language in ("java", "js"):
        name = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{language}_type_converter"
        module = types.ModuleType(name)
        setattr(module, f"{language}_type_converter", None)
        sys.modules[name] = module
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    return lambda tools, calls, answer: ast_checker(
        tools, calls, answer, Language.PYTHON, "parallel", "any")["valid"]


def bfcl_type(schema):
    typed = dict(schema, type=TYPES.get(schema["type"], schema["type"]))
    if "properties" in typed:
        typed["properties"] = {k: bfcl_type(v) for k, v in typed["properties"].items()}
    if "items" in typed:
        typed["items"] = bfcl_type(typed["items"])
    return typed


def right_call(possible, numbers):
    (name, arguments), = possible.items()
    made = {}
    for argument, values in arguments.items():
        if "" not in values or numbers.random() < 0.5:
            made[argument] = numbers.choice([value for value in values if value != ""])
    return {name: copy.deepcopy(made)}


def other_value(value, numbers):
    if isinstance(value, str):
        return numbers.choice([value.upper() + ".", value + " more", 7])
    if isinstance(value, list):
        return numbers.choice([value[::-1], value + ["Zoe"], [1]])
    return numbers.choice([value + 1, str(value), float(value), None])


def broken_call(call, numbers):
    (name, arguments), = call.items()
    kind = numbers.choice(["drop", "add", "name", "value", "value", "value"])
    if kind == "name" or not arguments:
        return {numbers.choice(["get_time", "search_contacts"]): arguments}
    argument = numbers.choice(list(arguments))
    if kind == "drop":
        arguments.pop(argument)
    elif kind == "add":
        arguments["further"] = 1
    else:
        arguments[argument] = other_value(arguments[argument], numbers)
    return {name: arguments}


def main():
    check = load_checker(sys.argv[1])
    numbers = random.Random(60)
    for line in ITEMS.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        tools = [dict(tool["function"], parameters=bfcl_type(tool["function"]["parameters"]))
                 for tool in item["tools"]]
        for trial in range(8 if item["answer"] else 0):
            calls = [right_call(possible, numbers) for possible in item["answer"]]
            if trial > 1:
                place = numbers.randrange(len(calls))
                calls[place] = broken_call(calls[place], numbers)
            if trial % 3 == 0:
                calls.reverse()
            is_right = check(tools, copy.deepcopy(calls), copy.deepcopy(item["answer"]))
            print(json.dumps({"id": item["id"], "calls": calls, "right": is_right}))


if __name__ == "__main__":
    main()
