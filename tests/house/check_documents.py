# SPDX-License-Identifier: Apache-2.0
"""Fails where a document for people is hard to read: a paragraph or list item of 120 words or more
or a table's cell of 60 or more in README.md or under docs/, docs/performance.md over 1,200 words, a
relative link to a file or heading that is not there, a document that docs/README.md does not name.
`--self-test` plants each and fails unless each is found; `--words` prints each document's words."""

import argparse
import pathlib
import re
import sys
import tempfile

MAX_WORDS = 120  # of a paragraph or list item: it has fewer
MAX_CELL_WORDS = 60
MAX_LENGTHS = {"docs/performance.md": 1200}
MAP = "docs/README.md"
AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# scripts/command_page writes it from the options' own help.
GENERATED = {"docs/command-line.md"}

FENCE = re.compile(r"\s*(```+|~~~+)")
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)


def cells(line):
    line = CODE.sub(lambda code: code[0].replace("|", " "), line.replace("\\|", " "))
    return line.strip().strip("|").split("|")


def blocks(text):
    """(line, kind, text) of all blocks: heading, paragraph, item, cell, code."""
    found = []
    kind, start, held = None, 0, []

    def end():
        nonlocal kind, held
        if kind:
            found.append((start, kind, "\n".join(held)))
        kind, held = None, []

    fence, in_list, after_blank = None, False, True
    for number, line in enumerate(text.splitlines(), 1):
        opening = FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence):
                fence = None
            after_blank = False
            continue
        if opening:
            end()
            fence = opening[1]
        elif not line.strip():
            end()
            after_blank = True
            continue
        elif HEADING.match(line):
            end()
            found.append((number, "heading", HEADING.match(line)[2]))
            in_list = False
        elif line.startswith("    ") and not in_list and (after_blank or kind == "code"):
            if kind != "code":
                end()
                kind, start = "code", number
            held.append(line)
        elif line.lstrip().startswith("|"):
            end()
            found += [(number, "cell", cell) for cell in cells(line)]
        elif ITEM.match(line):
            end()
            kind, start, held, in_list = "item", number, [ITEM.sub("", line, count=1)], True
        else:
            if kind is None or kind == "code":
                end()
                kind, start = "paragraph", number
                in_list = in_list and line.startswith(" ")
            held.append(line)
        after_blank = False
    end()
    return found


def slugs(text):
    """Names of a document's headings as links spell them."""
    seen, names = {}, set()
    for _, kind, heading in blocks(text):
        if kind != "heading":
            continue
        heading = LINK.sub(lambda link: link[0][1:link[0].rindex("](")], heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = seen.get(name, 0)
        seen[name] = again + 1
        names.add(f"{name}-{again}" if again else name)
    return names


def links(text):
    """(line, target) of all relative links outside code."""
    found = []
    for number, kind, block in blocks(text):
        if kind == "code":
            continue
        for link in LINK.finditer(CODE.sub("", block)):
            if not re.match(r"[a-z][a-z0-9+.-]*:", link[1]):
                found.append((number + block[:link.start()].count("\n"), link[1]))
    return found


def documents(root):
    under = [p.relative_to(root).as_posix() for p in sorted((root / "docs").rglob("*.md"))]
    return [name for name in AT_THE_TOP if (root / name).is_file()], under


def check_links(root, name, text):
    problems = []
    for number, target in links(text):
        where, _, heading = target.partition("#")
        path = (root / name).parent / where if where else root / name
        if not path.exists():
            problems.append(f"{name}:{number}: a link to nothing: {target}")
        elif heading and path.suffix == ".md" and heading not in slugs(path.read_text()):
            problems.append(f"{name}:{number}: a link to no heading: {target}")
    return problems


def check(root):
    at_the_top, under = documents(root)
    problems, words = [], {}
    for name in at_the_top + under:
        text = (root / name).read_text(encoding="utf-8")
        words[name] = len(text.split())
        problems += check_links(root, name, text)
        if words[name] > MAX_LENGTHS.get(name, words[name]):
            problems.append(f"{name}: {words[name]} words, expected at most {MAX_LENGTHS[name]}")
        if name in GENERATED:
            continue
        for number, kind, block in blocks(text):
            limit = {"paragraph": MAX_WORDS, "item": MAX_WORDS, "cell": MAX_CELL_WORDS}.get(kind)
            length = len(block.split())
            if limit and length >= limit:
                kind = {"item": "list item", "cell": "table cell"}.get(kind, kind)
                problems.append(f"{name}:{number}: a {kind} of {length} words, "
                                f"expected fewer than {limit}")
    if (root / MAP).is_file():
        text = (root / MAP).read_text(encoding="utf-8")
        named = {((root / MAP).parent / target.partition("#")[0]).resolve()
                 for _, target in links(text)}
        problems += [f"{name}: a document that {MAP} does not name" for name in under
                     if name != MAP and (root / name).resolve() not in named]
    elif under:
        problems.append(f"{MAP}: is missing, expected a map of the documents")
    return problems, words


WORDY = "word " * MAX_WORDS
SHORT = "word " * (MAX_WORDS - 1)
PLANTED = {  # file, its text, what must be said of it (None: nothing)
    "README.md": (f"# Title\n\nFine.\n{WORDY}\n", "README.md:3: a paragraph of 121 words"),
    MAP: ("[a](fine.md), [b](item.md), [c](lab/nested.md), [d](cell.md), [e](performance.md), "
          "[f](gone.md), [g](heading.md), [h](command-line.md), [i](fine.md#two-words)\n",
          "docs/README.md:1: a link to nothing: gone.md"),
    "docs/fine.md": (f"# Two `words`\n\n{SHORT}\n\n- {SHORT}\n- {SHORT}\n\n```\n{WORDY}\n"
                     f"[x](no.md)\n```\n\nText:\n\n    {WORDY}\n\n`[x](no.md)`\n\n"
                     f"| a | `b|{'c ' * 30}` |\n|---|---|\n| {'x ' * 59} | {'x ' * 59} |\n"
                     "[web](https://example.org/none) [up](../README.md#title)\n", None),
    "docs/item.md": (f"- one\n- two\n  {WORDY}\n", "docs/item.md:2: a list item of 121 words"),
    "docs/lab/nested.md": (f"1. one\n\n   {WORDY}\n", "docs/lab/nested.md:3: a paragraph of 120"),
    "docs/cell.md": (f"| a | b |\n|---|---|\n| x | {'x ' * MAX_CELL_WORDS} |\n",
                     "docs/cell.md:3: a table cell of 60 words"),
    "docs/performance.md": ("word\n\n" * 1201, "docs/performance.md: 1201 words"),
    "docs/heading.md": ("# A\n\n[x](fine.md#three-words)\n", "docs/heading.md:3: a link to no head"),
    "docs/lab/lost.md": ("# Lost\n", "docs/lab/lost.md: a document that docs/README.md does not"),
    "docs/command-line.md": (f"{WORDY}\n", None),
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, (text, _) in PLANTED.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        problems, _ = check(root)
        wrong = [f"planted in {name}, expected {expected}, found {problems}"
                 for name, (_, expected) in PLANTED.items()
                 if expected is not None and sum(p.startswith(expected) for p in problems) != 1]
        if len(problems) != sum(expected is not None for _, expected in PLANTED.values()):
            wrong.append(f"expected one problem for each of those, found {problems}")
        (root / MAP).unlink()
        if f"{MAP}: is missing" not in "".join(check(root)[0]):
            wrong.append(f"{MAP} was taken away, and nothing said")
    return wrong, len(PLANTED) + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--words", action="store_true", help="print each document's words")
    arguments = parser.parse_args()
    if arguments.self_test:
        problems, planted = self_test()
        print(f"{planted} planted cases, {len(problems)} wrong")
    else:
        problems, words = check(arguments.root.resolve())
        if not words:
            problems.append("no document found")
        if arguments.words:
            print("\n".join(f"{number:6d} {name}" for name, number in words.items()))
        print(f"{len(words)} documents, {sum(words.values())} words, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
