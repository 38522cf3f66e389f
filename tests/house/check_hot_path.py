# SPDX-License-Identifier: Apache-2.0
"""Fails on a call in the hot-path rooms that reads a device value back, waits for a device, or writes
to a standard stream. `--self-test` plants each and fails unless each is found.

src/backend_torch/naive_audit.cc is exempt: it breaks the rule to measure it.
src/backend_torch/readback.cc, and src/backend_cuda/cuda_readback.cc, which does it for CUDA's fused
path, must hold exactly one copy to the host each; waiting for that copy is allowed there."""

import argparse
import pathlib
import re
import sys
import tempfile

FOLDERS = ("src/ops", "src/model", "src/kv", "src/engine", "src/sample", "src/backend_torch",
           "src/backend_cuda", "kernels")
NAIVE = "src/backend_torch/naive_audit.cc"
READBACK = "src/backend_torch/readback.cc"
READBACKS = {READBACK, "src/backend_cuda/cuda_readback.cc"}
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

COPIES = {
    "reads a value back": r"(?:\.|->)item\s*[<(]",
    "copies to the host": r"(?:\.|->)cpu\s*\(",
    "moves to the host": r"(?:\.|->)to\s*\([^;]*?(?:\bkCPU\b|DeviceType::CPU|\"cpu\")",
    "copies into a host tensor": r"\b\w*(?:cpu|host)\w*(?:\.|->)copy_\s*\(",
    "copies from the device": r"\bcuda(?:Memcpy\w*DeviceToHost|MemcpyFromSymbol\w*)\b",
    "copies synchronously": r"\bcudaMemcpy(?:2D|3D)?\s*\(",
    "reads a scalar back": r"\b_local_scalar_dense\b",
}
WAITS = {
    "waits for the device": r"\b(?:device_)?[sS]ynchronize\s*\(",
    "waits in the CUDA runtime": r"\bcuda(?:Device|Stream|Event|Ctx)Synchronize\b",
    "blocks on an event": r"(?:\.|->)block\s*\(\s*\)",
}
OTHERS = {
    "decides on a device value": r"(?:\.|->|\bat::)(?:is_nonzero|equal|allclose|tolist)\s*\(",
    "learns a shape from the device":
        r"(?:\.|->|\bat::)(?:nonzero|nonzero_numpy|masked_select|unique_?\w*|argwhere)\s*\(",
    "prints": r"\bstd::(?:cout|cerr|clog)\b|\bat::print\s*\(|\b(?:std::)?f?printf\s*\(|"
              r"#\s*include\s*<iostream>",
}


def without_comments(text):
    """The text with comments and the content of strings blanked, line breaks kept."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

    def blank(match):
        if match[0] == '"cpu"':
            return match[0]
        if match[0].startswith('"'):
            return '""'
        return "\n" * match[0].count("\n") or " "
    return token.sub(blank, text)


def findings(text, rules):
    for what, pattern in rules.items():
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            yield line, what, " ".join(match[0].split())


def check(root):
    problems, count = [], 0
    for folder in FOLDERS:
        for source in sorted((root / folder).rglob("*")):
            name = source.relative_to(root).as_posix()
            if source.suffix not in SUFFIXES or name == NAIVE:
                continue
            count += 1
            text = without_comments(source.read_text(encoding="utf-8"))
            rules = OTHERS if name in READBACKS else COPIES | WAITS | OTHERS
            problems += [f"{name}:{line}: {what}: {code}"
                         for line, what, code in findings(text, rules)]
            if name in READBACKS:
                copies = list(findings(text, COPIES))
                if len(copies) != 1:
                    problems.append(f"{name}: {len(copies)} copies to the host, expected exactly one")
    return problems, count


PLANTED = {  # file, its text, what must be said (None: nothing)
    "src/ops/item.cc": ("float x = t.item<float>();", "reads a value back"),
    "src/ops/item2.cc": ("auto x = t.sum()\n  .item();", "reads a value back"),
    "src/backend_torch/ops/item.cc": ("float x = t.item<float>();", "reads a value back"),
    "src/model/cpu.cc": ("auto x = logits.cpu();", "copies to the host"),
    "src/engine/to.cc": ("auto x = t.to(at::TensorOptions()\n  .device(at::kCPU), true);", "moves to"),
    "src/engine/to2.cc": ('auto x = t.to("cpu");', "moves to the host"),
    "src/engine/copy.cc": ("host_buffer.copy_(t);", "copies into a host tensor"),
    "src/kv/sync.cc": ("at::cuda::device_synchronize();\nstream.synchronize();", "waits for the device"),
    "src/backend_cuda/sync.cc": ("cudaStreamSynchronize(s);", "waits in the CUDA runtime"),
    "src/backend_cuda/copy.cc": ("cudaMemcpyAsync(d, s, n, cudaMemcpyDeviceToHost, q);", "copies from"),
    "kernels/cuda/copy.cu": ("cudaMemcpy(d, s, n, k);", "copies synchronously"),
    "src/ops/branch.cc": ("if (mask.is_nonzero()) {}", "decides on a device value"),
    "src/ops/shape.cc": ("auto rows = at::nonzero(mask);", "learns a shape"),
    "src/sample/print.cc": ("#include <iostream>\nvoid f(at::Tensor t) { std::cout << t; }", "prints"),
    "src/sample/fine.cc": ("// t.item() is forbidden\nauto s = \"t.cpu()\"; x.copy_(y); t.to(kBF16);", None),
    NAIVE: ("float x = t.item<float>();", None),
    READBACK: ("host.copy_(device);\nstream.synchronize();", None),
    "src/backend_cuda/cuda_readback.cc": (
        "cudaMemcpyAsync(h, d, n, cudaMemcpyDeviceToHost, s);\ncudaStreamSynchronize(s);", None),
    "examples/fine.cc": ("std::cout << 1;", None),
}


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, (text, _) in PLANTED.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        problems, _ = check(root)
        for name, (_, expected) in PLANTED.items():
            mine = [p for p in problems if p.startswith(name + ":")]
            if (expected is None) != (not mine) or not all(expected in p for p in mine[:1]):
                failures.append(f"planted in {name}, expected {expected}, said {mine}")
        for copies in ("", "host.copy_(a);\nhost.copy_(b);"):
            (root / READBACK).write_text(copies)
            if not any("expected exactly one" in p for p in check(root)[0]):
                failures.append(f"{READBACK} with {copies!r} was let through")
    return failures, len(PLANTED) + 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        problems, count = self_test()
        print(f"{count} planted cases, {len(problems)} wrong")
    else:
        problems, count = check(arguments.root)
        if not (arguments.root / READBACK).is_file():
            problems.append(f"{READBACK}: is not there; expected the one counted readback")
        print(f"{count} files of the hot path read, {len(problems)} findings")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
