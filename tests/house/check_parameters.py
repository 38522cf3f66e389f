# SPDX-License-Identifier: Apache-2.0
"""Fails where parameters of ops are looked at by a dynamic_cast (the library and its backends each
compile src/ops, and types compared by address are not found across them), where a struct of them
does not name itself, and where two have one name. `--self-test` plants each and fails unless each
is found."""

import argparse
import pathlib
import re
import sys

from planted import self_test

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
# Whatever looks at an op's parameters.
LOOKING = ("src/ops", "src/model", "src/draft_heads", "src/backend_cuda/ops",
           "src/backend_torch/ops")
LOOKING_FILES = ("src/engine/kv_", "src/engine/audit_layout", "src/engine/mtp_")
CAST = re.compile(r"\bdynamic_cast\s*<|\btypeid\s*\(")
STRUCT = re.compile(r"\b(?:struct|class)\s+(\w+)\s*(final)?\s*:\s*(?:public\s+)?"
                    r"(?:ops::)?(OpParameters(?:Of<(\w+)>)?)\s*\{(.*?)^\};", re.DOTALL | re.MULTILINE)
KIND = re.compile(r'static constexpr std::string_view kKind = "(\w+)";')
COMMENT = re.compile(r"//[^\n]*")


def looks(name):
    return name.startswith(tuple(f + "/" for f in LOOKING) + LOOKING_FILES)


def check(root):
    problems, kinds = [], {}
    for source in sorted((root / "src").rglob("*")):
        if source.suffix not in SUFFIXES or not source.is_file():
            continue
        name = source.relative_to(root).as_posix()
        text = COMMENT.sub("", source.read_text(encoding="utf-8"))
        if looks(name):
            for match in CAST.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{name}:{line}: {match[0]}: expected OpNode::find or OpNode::as")
        for struct, final, base, own, body in STRUCT.findall(text):
            if struct == "OpParametersOf":
                continue
            if own != struct or not final:
                problems.append(f"{name}: {struct} is an {base}; expected a final struct of "
                                f"OpParametersOf<{struct}>")
            kind = KIND.search(body)
            if not kind:
                problems.append(f"{name}: {struct} has no kKind")
            elif kind[1] in kinds:
                problems.append(f"{name}: {struct} is '{kind[1]}', as {kinds[kind[1]]} is")
            else:
                kinds[kind[1]] = struct
    return problems, len(kinds)


def struct_of(name, kind, base=None, final=" final"):
    base = base or f"OpParametersOf<{name}>"
    named = f'  static constexpr std::string_view kKind = "{kind}";\n' if kind else ""
    return f"struct {name}{final} : {base} {{\n{named}  int width = 0;\n}};\n"


PLANTED = {  # file, its text, what must be said (None: nothing)
    "src/ops/fine.h": (struct_of("Fine", "fine"), None),
    "src/ops/comment.h": ("// no dynamic_cast<T> here\n", None),
    "src/ops/cast.cc": ("auto* p = dynamic_cast<const P*>(q);\n", "expected OpNode::find"),
    "src/model/cast.cc": ("\nbool b = typeid(*p) == typeid(P);\n", "cast.cc:2: typeid("),
    "src/engine/kv_cast.cc": ("auto* p = dynamic_cast<const P*>(q);\n", "expected OpNode::find"),
    "src/engine/model.cc": ("auto* p = dynamic_cast<Model*>(q);\n", None),
    "src/ops/plain.h": (struct_of("Plain", "plain", "OpParameters"), "final struct of"),
    "src/ops/other.h": (struct_of("Other", "other", "OpParametersOf<Fine>"), "final struct of"),
    "src/ops/open.h": (struct_of("Open", "open", final=""), "final struct of"),
    "src/ops/nameless.h": (struct_of("Nameless", ""), "has no kKind"),
    "src/ops/twice.h": (struct_of("Twice", "fine"), "as Fine is"),
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
            problems.append("no parameters found")
        print(f"{count} kinds of parameters, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
