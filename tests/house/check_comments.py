# SPDX-License-Identifier: Apache-2.0
"""Fails where a comment begins as a fragment that only its neighbour explains ("Of the layers ...",
"The same of ...", "Whose ..."): a stranger reads it twice. Comments of C++, CUDA, JavaScript and
protos are looked at, those of Python, CMake and shell, and docstrings. A note behind a declaration
("///< of the model") may be a phrase in lower case. `--self-test` plants each and fails unless
each is found."""

import argparse
import pathlib
import re
import sys

from planted import self_test

FOLDERS = ("bench", "cmake", "examples", "include", "kernels", "models", "scripts", "src", "tests")
SLASHED = {".h", ".cc", ".cu", ".cuh", ".js", ".proto"}
HASHED = {".py", ".cmake", ".txt", ".sh", ""}

# How a fragment begins, and what takes its place. Nouns stay free to follow: "The same weights as
# ...", "Which kernels run a model." and "That is the head, too." are read alone.
NAME = "name the thing first: what it is, or what it does"
FRAGMENTS = tuple((re.compile(rf"(?:{begins})(?![\w-])"), advice) for begins, advice in (
    (r"Of|Whose|Whom|Of which", NAME),
    (r"The same(?= (?:of|for|in|with|as|where|but|on|under|along|to|by|again|alone)\b|[.,;:])",
     "say what it does, or whose rules it follows by name"),
    (r"Likewise|As (?:above|before|below)", "say again what holds, or name what it is like"),
    (r"Where (?:it|they)(?= )|That (?:an?|the|it|they|so)(?= )|So that",
     "make it a sentence with a subject and a verb"),
    (r"Which (?:is|are|was|were|has|have|had|it|they|may|can)(?= )",
     "make it a sentence with a subject and a verb"),
    (r"(?:In|By|From|For|To|With) (?:which|whom|whose)(?= )|Told|Asked|Shown", NAME),
    (r"And|But|Or|Else|Than", "say under which condition this holds, in a sentence"),
))

QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
WHOLE = {"//": re.compile(r"(\s*)(///?<?|/\*+)\s*(\S.*)"), "#": re.compile(r"(\s*)(#)\s*(\S.*)")}
BEHIND = {"//": re.compile(r"(.*?\S\s+)(///?<?)\s*(\S.*)"), "#": re.compile(r"(.*?\S\s+)(#)\s+(\S.*)")}
DOCSTRING = re.compile(r'\s*[rf]?"""\s*(\S.*)')


def beginnings(lines, mark, has_docstrings):
    """(line, text) of each comment's beginning; lines that go on with one are none."""
    found, held = [], None  # the column and the mark of the comment that goes on
    for number, line in enumerate(lines, 1):
        whole = WHOLE[mark].fullmatch(line)
        if whole:
            place = (len(whole[1]), whole[2])
            is_text = not whole[3].startswith(("SPDX-", "!"))
            if place != held and is_text:
                found.append((number, whole[3]))
            held = place if is_text else None
            continue
        held = None
        docstring = DOCSTRING.match(line) if has_docstrings else None
        if docstring:
            found.append((number, docstring[1]))
            continue
        if mark not in line:
            continue
        # What is quoted keeps its length, and shows no mark.
        behind = BEHIND[mark].fullmatch(QUOTED.sub(lambda text: "_" * len(text[0]), line))
        if behind:
            found.append((number, line[behind.start(3):]))
            held = (len(behind[1]), behind[2])
    return found


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if "/data/" in name or not path.is_file():
                continue
            if path.suffix in SLASHED:
                yield name, path, "//"
            elif path.suffix in HASHED and (path.suffix != ".txt" or path.name == "CMakeLists.txt"):
                yield name, path, "#"


def check(root):
    problems, count = [], 0
    for name, path, mark in sources(root):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, text in beginnings(lines, mark, path.suffix in (".py", "")):
            count += 1
            for begins, advice in FRAGMENTS:
                if begins.match(text):
                    words = text.split()
                    start = " ".join(words[:6]) + (" ..." if len(words) > 6 else "")
                    problems.append(f"{name}:{number}: '{start}': a comment that begins as a "
                                    f"fragment; {advice}")
                    break
    return problems, count


PLANTED = {  # file, its text, what must be said of it (None: nothing)
    "src/kv/of.h": ("int x;\n/// Of layers within a window.\nint y;\n", "of.h:2: 'Of layers within"),
    "src/kv/behind.h": ("int x = 0;  // Of the pool.\n", "behind.h:1: 'Of the pool.'"),
    "src/kv/same.cc": ("// The same of a whole block.\nint x;\n", "whose rules it follows"),
    "src/kv/alone.cc": ("// The same.\nint x;\n", "alone.cc:1: 'The same.'"),
    "src/kv/that.h": ("  /// That a sequence may name.\n  int x;\n", "a subject and a verb"),
    "src/kv/which.h": ("/// Which is read once.\nint x;\n", "a subject and a verb"),
    "kernels/cuda/whose.cu": ("int x;\n// Whose rows are kept.\n", "whose.cu:2"),
    "src/kv/above.cc": ("/* As above, for values. */\n", "say again what holds"),
    "src/kv/else.cc": ("// Else it is copied.\n", "under which condition"),
    "bench/page.js": ("// Where it stands apart.\n", "page.js:1"),
    "bench/note.py": ("x = 1  # Of all runs.\n", "note.py:1"),
    "bench/docs.py": ('def f():\n    """Of each prompt, the speed."""\n', "docs.py:2: 'Of each prompt"),
    "scripts/start": ("#!/usr/bin/env bash\n# Likewise with CUDA.\n", "start:2"),
    "cmake/Find.cmake": ("# Of a library.\n", "Find.cmake:1"),
    "src/kv/fine.h": (
        "// SPDX-License-Identifier: Apache-2.0\n// The block pool: what is free, and what the\n"
        "// Of a name is no matter here.\n/// Which kernels run a model.\nint a;\n"
        "/// The same weights as float32.\nint b;  ///< of the model\n/// That is the head, too.\n"
        'const char* c = "// Of text";\nint d = 0;  // bytes of a page,\n            // Of which\n'
        "/// Offsets count from the end.\n", None),
    "tests/data/theirs.h": ("// Of others.\n", None),
    "docs/page.md": ("# Of pages\n", None),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        problems, count = self_test(PLANTED, lambda root: check(root)[0])
        print(f"{count} planted cases, {len(problems)} wrong")
    else:
        problems, count = check(arguments.root.resolve())
        if count == 0:
            problems.append("no comment found")
        print(f"{count} comments, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
