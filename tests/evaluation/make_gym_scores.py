# SPDX-License-Identifier: Apache-2.0
"""Writes gym_scores.jsonl: answers to items of PyPI's reasoning-gym 0.1.25, right ones, wrong ones
and right ones written otherwise, and what reasoning-gym's own score_answer gives for each.

    make_gym_scores.py FOLDER KIND >> tests/evaluation/gym_scores.jsonl

FOLDER holds the unpacked wheel; KIND is one of bench/suite_gym.py. "looser" marks what our scorers
may take on purpose where reasoning-gym compares byte by byte. reasoning-gym is under Apache-2.0.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
sys.dont_write_bytecode = True

import suite_gym  # noqa: E402

ENTRIES = 2  # of each task


def numbers(answer):
    """Texts, and whether they are the right number in another form."""
    wrong = str(int(answer) + 1) if "." not in answer else answer + "1"
    other = answer[1:] if answer.startswith("-") else "-" + answer
    whole = answer if "." in answer else answer + ".0"
    grouped = answer if "." in answer else f"{int(answer):,}"
    return [(answer, False), (wrong, False), (other, answer == "0"), (answer + "7", False),
            ("", False), ("none", False), (whole, True), (grouped, True), (answer + ".", True),
            ("The answer is " + answer, True)]


def texts(answer, numbers_):
    """Texts, and whether they are the right one but for case and marks at the ends."""
    letters = list(answer)
    numbers_.shuffle(letters)
    words = answer.split(" ")
    made = [answer[::-1], "".join(letters), answer[:-1], answer[1:], answer + "s", "x " + answer,
            " ".join(words[1:] + words[:1]), answer.replace(",", ";"), answer.replace(", ", ","), ""]
    return [(answer, False), (answer.upper(), True), (answer + ".", True), (f"**{answer}**", True),
            *((text, text.casefold() == answer.casefold()) for text in made)]


def main(folder, kind):
    numbers_ = random.Random(60)
    for task, entries in suite_gym.open_tasks(folder, kind).items():
        seen = [entries[i] for i in range(ENTRIES + 1)]
        for entry, following in zip(seen, seen[1:]):
            answer = entry["answer"]
            made = numbers(answer) if kind == "numbers" else texts(answer, numbers_)
            made.append((following["answer"], False))
            for text, is_looser in dict(reversed(made)).items():
                print(json.dumps({"kind": kind, "task": task,
                                  "answer": suite_gym.right_answers(task, answer), "text": text,
                                  "score": entries.score_answer(text, entry), "looser": is_looser},
                                 ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
