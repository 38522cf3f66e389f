# SPDX-License-Identifier: Apache-2.0
"""The self-test that checks of the tree share: files with faults are planted, and each must be
found."""

import pathlib
import tempfile


def self_test(planted, find_problems):
    """`planted`: {file: (its text, what must be said of it, or None: nothing)}. `find_problems(root)`
    is the check's list of problems. Returns what went wrong, and how many cases there are."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, (text, _) in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        problems = find_problems(root)
    wrong = [f"planted in {name}, expected {expected}" for name, (_, expected) in planted.items()
             if (expected is None and any(p.startswith(name) for p in problems)) or
             (expected is not None and not any(name in p and expected in p for p in problems))]
    return wrong, len(planted)
