# SPDX-License-Identifier: Apache-2.0
"""Fails where the label `long` and VITRINE_LONG=1 do not go together: with the label alone a sweep
takes a sample under `scripts/test --long`, with the variable alone `scripts/test` takes all of it."""

import argparse
import json
import re
import subprocess
import sys

ROOT_SCRIPT = "scripts/test"


def tests_of(arguments, *more):
    """The tests that ctest would run: name -> (labels, environment)."""
    shown = subprocess.run([arguments.ctest, "--test-dir", arguments.build, "--show-only=json-v1",
                            *more], capture_output=True, text=True, check=True).stdout
    found = {}
    for test in json.loads(shown)["tests"]:
        properties = {each["name"]: each["value"] for each in test.get("properties", [])}
        found[test["name"]] = properties.get("LABELS", []), properties.get("ENVIRONMENT", [])
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--ctest", required=True)
    arguments = parser.parse_args()
    everything = tests_of(arguments)
    sweeps = {name for name, (labels, _) in everything.items() if "long" in labels}
    problems = [f"{name}: label long {'long' in labels}, VITRINE_LONG=1 {'VITRINE_LONG=1' in set_to}"
                for name, (labels, set_to) in everything.items()
                if ("long" in labels) != ("VITRINE_LONG=1" in set_to)]
    with open(ROOT_SCRIPT, encoding="utf-8") as script:
        passed_over = re.search(r"labels=\(-LE '(.*)'\)", script.read())
    if not passed_over:
        problems.append(f"{ROOT_SCRIPT} says nowhere which label it passes over")
    elif set(everything) - set(tests_of(arguments, "-LE", passed_over[1])) != sweeps:
        problems.append(f"{ROOT_SCRIPT} passes over {passed_over[1]}, which is not the label long alone")
    print(f"{len(everything)} tests, {len(sweeps)} of them long")
    print("\n".join(problems))
    return 1 if problems or not sweeps else 0


if __name__ == "__main__":
    sys.exit(main())
