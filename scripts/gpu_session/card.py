# SPDX-License-Identifier: Apache-2.0
"""What the card is, how fast its memory is read and how fast it multiplies bf16."""

import json
import os
import platform
import sys

from .bench_lines import read_lines
from .session import Failed, Skipped

SMI = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory",
       "power.limit", "compute_cap")

# Prints one line of JSON. Apart from here torch is imported nowhere.
TORCH = """
import json, torch
assert torch.cuda.is_available(), "torch sees no CUDA device"
card = torch.cuda.get_device_properties(0)
n = 8192
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    a @ b
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
for _ in range(10):
    a @ b
end.record()
torch.cuda.synchronize()
print(json.dumps({
    "torch": torch.__version__, "torch_cuda": torch.version.cuda, "name": card.name,
    "capability": f"{card.major}.{card.minor}", "multiprocessors": card.multi_processor_count,
    "memory_bytes": card.total_memory, "l2_bytes": getattr(card, "L2_cache_size", None),
    "bf16_tflops": 10 * 2 * n**3 / begin.elapsed_time(end) / 1e9}))
"""


def run(session):
    session.keep(host=host())
    session.step("nvidia-smi", lambda: smi(session))
    session.step("bandwidth", lambda: bandwidth(session))
    session.step("torch", lambda: torch_facts(session))


def host():
    facts = {"python": platform.python_version(), "system": platform.platform(),
             "cores": len(os.sched_getaffinity(0))}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            facts["processor"] = next((line.split(":", 1)[1].strip() for line in file
                                       if line.startswith("model name")), "")
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except OSError:
        pass
    return facts


def smi(session):
    session.needs_gpu()
    try:
        done = session.run(["nvidia-smi", "--query-gpu=" + ",".join(SMI),
                            "--format=csv,noheader"], 10)
    except FileNotFoundError as error:
        raise Skipped("there is no nvidia-smi") from error
    if done.code != 0:
        raise Failed(done.last_line())
    session.keep(smi=dict(zip(SMI, (word.strip() for word in done.output.splitlines()[0].split(",")))))


def bandwidth(session):
    session.needs_gpu()
    done = session.run([session.program("cuda_kernels_bench"), "read"], 10)
    lines = read_lines(done.output)
    if done.code != 0 or not lines:
        raise Failed(done.last_line())
    session.keep(read_gb_per_second=lines[0]["gb_per_second"])


def torch_facts(session):
    session.needs_gpu()
    done = session.run([sys.executable, "-c", TORCH], 30)
    if done.timed_out or done.code != 0:
        raise Failed(done.last_line())
    session.keep(torch=json.loads(done.output.splitlines()[-1]))
