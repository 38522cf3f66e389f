# SPDX-License-Identifier: Apache-2.0
"""Peak memory of `vitrine generate`: at most packed weights + KV + 64 MB.

    memory_test.py VITRINE MODEL
"""
import json
import os
import subprocess
import sys


def peak_bytes(command):
    with open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(command, stdout=nothing, stderr=nothing)
        _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"memory_test: {command[0]} ended with status {status}")
    return usage.ru_maxrss * 1024


def main():
    vitrine, model = sys.argv[1:3]
    facts = json.loads(subprocess.run([vitrine, "inspect", model, "--json"], check=True,
                                      capture_output=True).stdout)
    memory = facts["memory"]
    with open(os.path.join(model, "eval", "heldout.txt"), encoding="utf-8") as text:
        prompt = text.read()[:5000]
    allowed = memory["weight_bytes"] + memory["kv_bytes"] + 64_000_000
    failed = False
    for name, arguments in (("short prompt", ["-p", "Once", "-n", "200"]),
                            ("long prompt", ["-p", prompt, "-n", "200"])):
        peak = peak_bytes([vitrine, "generate", model, "--temperature", "0", *arguments])
        failed |= peak > allowed
        print(f"{name}: peak {peak / 1e6:.0f} MB, allowed {allowed / 1e6:.0f} MB")
    sys.exit(1 if failed else 0)


main()
