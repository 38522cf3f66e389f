# SPDX-License-Identifier: Apache-2.0
"""Items that reasoning-gym's generators make, for fetch_suite.py.

The generators are programs. They run in a process of their own, from the wheel whose SHA-256 is
pinned, without site packages and environment. Only the modules of the chosen tasks are loaded: the
packages around them are empty stand-ins, so that nothing else of the wheel runs and none of its
dependencies is needed.
"""

import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator

SEED = 60
SIZE = 20  # items of each task

# Each task, and the module that makes it. What is not here has no one right answer that a scorer
# could compare (propositional_logic), asks for numpy or sympy, or makes other items in each process.
TASKS = {
    "numbers": {
        "chain_sum": "arithmetic.chain_sum", "basic_arithmetic": "arithmetic.basic_arithmetic",
        "products": "arithmetic.products", "decimal_chain_sum": "arithmetic.decimal_chain_sum",
        "gcd": "arithmetic.gcd", "lcm": "arithmetic.lcm", "count_bits": "arithmetic.count_bits",
        "leg_counting": "arithmetic.leg_counting",
        "letter_counting": "algorithmic.letter_counting",
        "number_sequence": "cognition.number_sequences", "aiw": "logic.aiw"},
    "texts": {
        "base_conversion": "algorithmic.base_conversion",
        "spell_backward": "algorithmic.spell_backward",
        "word_sorting": "algorithmic.word_sorting",
        "word_sequence_reversal": "algorithmic.word_sequence_reversal",
        "caesar_cipher": "algorithmic.caesar_cipher",
        "family_relationships": "graphs.family_relationships"},
    "logic": {
        "syllogism": "logic.syllogisms", "circuit_logic": "logic.circuit_logic",
        "course_schedule": "graphs.course_schedule"},
}
PACKAGES = ("reasoning_gym", "reasoning_gym.coaching", "reasoning_gym.arithmetic",
            "reasoning_gym.algorithmic", "reasoning_gym.cognition", "reasoning_gym.logic",
            "reasoning_gym.graphs")
LONGEST_RUN = 120  # seconds


def open_tasks(folder: str, kind: str) -> dict:
    """The data sets of a kind by their names; the unpacked wheel is in the folder."""
    sys.path.insert(0, folder)
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(pathlib.Path(folder, *name.split(".")))]
        sys.modules[name] = package
    for part in ("attributes", "base_curriculum"):
        module = importlib.import_module("reasoning_gym.coaching." + part)
        vars(sys.modules["reasoning_gym.coaching"]).update(vars(module))
    factory = importlib.import_module("reasoning_gym.factory")
    for module in TASKS[kind].values():
        importlib.import_module("reasoning_gym." + module)
    return {name: factory.create_dataset(name, seed=SEED, size=SIZE) for name in TASKS[kind]}


def right_answers(task: str, answer: str) -> str | list[str]:
    """word_sorting's own check passes over the blanks behind commas."""
    return [answer, answer.replace(", ", ",")] if task == "word_sorting" else answer


def print_items(folder: str, kind: str) -> None:
    for name, entries in open_tasks(folder, kind).items():
        for number, entry in enumerate(entries):
            print(json.dumps({"id": f"{name}-{number}", "question": entry["question"].strip(),
                              "answer": right_answers(name, entry["answer"])}))


def items(wheel: zipfile.ZipFile, kind: str) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        for member in wheel.namelist():
            if member.startswith("reasoning_gym/") and member.endswith((".py", ".txt")):
                wheel.extract(member, folder)
        try:
            made = subprocess.run([sys.executable, "-I", "-S", "-B", __file__, folder, kind], cwd=folder,
                                  env={"PYTHONUTF8": "1"}, capture_output=True, text=True,
                                  timeout=LONGEST_RUN, check=False)
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"its generators ran longer than {LONGEST_RUN} s") from error
    if made.returncode != 0:
        said = made.stderr.strip().splitlines()
        raise ValueError(f"its generators failed: {said[-1] if said else made.returncode}")
    yield from map(json.loads, made.stdout.splitlines())


if __name__ == "__main__":
    print_items(*sys.argv[1:])
