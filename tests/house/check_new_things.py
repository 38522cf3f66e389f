# SPDX-License-Identifier: Apache-2.0
"""Counts the files that know a thing by its name: an architecture, a drafter, a codec of keys and
values. Each takes one: the file that registers it. Fails where another file of src/ names it, and
where an example in tests/ is known to more than its own file and its tests. `--self-test` plants
such files and fails unless each is found."""

import argparse
import pathlib
import re
import sys

from planted import self_test

# What is registered, where, and how its names stand there.
THINGS = {
    "an architecture": ("src/model", re.compile(r"\.model_types = \{([^}]*)\}")),
    "a drafter": ("src/speculate", re.compile(r"VITRINE_REGISTER_DRAFTER\(([^,]*),")),
}
# The same word for something else: the layers that EAGLE heads bring, whatever model they guess for;
# tokenizers and architectures of GGUF files, which are named for the models that had them first; a
# format of chat models' answers.
OTHER_MEANINGS = {
    ("llama", "src/draft_heads/eagle_config.cc"), ("qwen3", "src/draft_heads/eagle_config.cc"),
    ("llama", "src/checkpoint/gguf_tokenizer.cc"), ("llama", "src/model/mixtral.cc"),
    ("qwen2", "src/checkpoint/gguf_pre_tokenizer.cc"),
    ("llama4", "src/checkpoint/gguf_pre_tokenizer.cc"), ("mistral", "src/chat/output_mistral.cc"),
}
# Things that tests add: all names of each, and which files may hold these.
EXAMPLES = {
    "an architecture": (("example", "example_text", "example_that_sees", "example-gguf"),
                        "tests/engine/example_architecture.cc", "tests/engine/new_things_test.cc"),
    "a drafter": (("example-drafter",), "tests/engine/example_drafter.cc",
                  "tests/engine/new_things_test.cc"),
    "a codec": (("keys:bf16,values:f32",), "tests/engine/mixed_codec.cc",
                "tests/engine/kv_codec_test.cc"),
}
QUOTED = re.compile(r'"([^"\n\\]*)"')
COMMENT = re.compile(r"//[^\n]*")


def sources_of(root, folder):
    for source in sorted((root / folder).rglob("*")):
        if source.suffix in (".h", ".cc"):
            yield (source.relative_to(root).as_posix(),
                   COMMENT.sub("", source.read_text(encoding="utf-8")))


def check(root):
    problems, counts = [], {}
    quoted = {name: set(QUOTED.findall(text)) for name, text in sources_of(root, "src")}
    for thing, (folder, pattern) in THINGS.items():
        for file, text in sources_of(root, folder):
            for names in pattern.findall(text):
                for name in QUOTED.findall(names):
                    counts[thing] = counts.get(thing, 0) + 1
                    problems += [f"{other}: names {thing}, '{name}'; expected {file} alone to know it"
                                 for other, words in quoted.items()
                                 if name in words and other != file and
                                 (name, other) not in OTHER_MEANINGS]
    tests = {name: set(QUOTED.findall(text)) for name, text in sources_of(root, "tests")}
    for thing, (names, own, test) in EXAMPLES.items():
        for name in names:
            for other, words in {**quoted, **tests}.items():
                if name in words and other not in (own, test):
                    problems.append(f"{other}: names {thing}, '{name}'; expected {own} alone to "
                                    "know it")
        if own not in tests or not set(names) <= tests[own]:
            problems.append(f"{own}: expected the example of {thing}")
    return problems, counts


EXAMPLE_FILES = {own: ("\n".join(f'auto a = "{name}";' for name in names) + "\n", None)
                 for names, own, _ in EXAMPLES.values()}
PLANTED = {  # file, its text, what must be said (None: nothing)
    **EXAMPLE_FILES,
    "src/model/new.cc": ('x = {.model_types = {"new", "new_text"}, .build = build};\n', None),
    "src/checkpoint/config.cc": ('if (type == "new_text") {}\n', "names an architecture"),
    "src/checkpoint/comment.cc": ('// as "new" has it\n', None),
    "src/model/llama.cc": ('x = {.model_types = {"llama"}};\n', None),
    "src/draft_heads/eagle_config.cc": ('auto a = "llama";\n', None),
    "src/speculate/own.cc": ('VITRINE_REGISTER_DRAFTER("own", &make);\n', None),
    "src/engine/guess.cc": ('if (name == "own") {}\n', "names a drafter"),
    "src/model/decoder.cc": ('if (type == "example") {}\n', "names an architecture, 'example'"),
    "tests/engine/new_things_test.cc": ('load("example-gguf");\n', None),
    "tests/engine/other_test.cc": ('codecs = {"keys:bf16,values:f32"};\n', "names a codec"),
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
        problems, counts = check(arguments.root.resolve())
        for thing in THINGS:
            if counts.get(thing, 0) == 0:
                problems.append(f"nothing is registered as {thing}")
            print(f"{thing}: {counts.get(thing, 0)} names, each known to 1 file")
        print(f"{len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
