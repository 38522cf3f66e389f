# SPDX-License-Identifier: Apache-2.0
"""Vitrine and llama.cpp on the same GGUF file, by turns on the same machine.

    compare.py MODEL.gguf [-p 256] [-n 64] [-d 0] [--threads 1,2] [--pairs 5] [--repeat 3]
               [--ubatch 512,2048] [--without-amx] [--vitrine build/vitrine] [--json OUT]
               [--build-only]

llama.cpp is built once, with -march=native, from the source package of PyPI's `llama-cpp-python`
into a folder outside the tree (--cache). Each of a pair is a process of its own that loads the file
once; every other pair begins with the other program. Both get the same token ids, and only their own
calls are timed: a prompt of -p tokens, and -n tokens one by one, each after -d tokens of context. Of
llama.cpp's prefill the best of the physical batches in --ubatch counts. Printed are each pair's
figures, and the ratio of the medians over all pairs with the range of the pairs' own ratios. Before
each process as much memory as it needs is touched and freed. Run it on an idle machine, with the
file in the page cache (the first pair of all is dropped).
"""

import argparse
import json
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
FIGURES = ("prefill_tps", "decode_tps", "load_seconds", "first_token_seconds")


def fail(message):
    sys.exit(f"compare.py: {message}")


def run(command, what, **options):
    result = subprocess.run([str(part) for part in command], text=True, check=False, **options)
    if result.returncode != 0:
        fail(f"{what} failed (exit code {result.returncode}): {' '.join(map(str, command))}")
    return result.stdout


def unpack_sources(cache):
    folder = cache / f"llama_cpp_python-{VERSION}"
    if (folder / "vendor" / "llama.cpp" / "CMakeLists.txt").is_file():
        return folder / "vendor" / "llama.cpp"
    run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-binary", PACKAGE, "--dest", cache, f"{PACKAGE}=={VERSION}"],
        f"the download of {PACKAGE} {VERSION}", stdout=sys.stderr)
    archive = cache / f"llama_cpp_python-{VERSION}.tar.gz"
    if not archive.is_file():
        fail(f"pip did not leave {archive}")
    unpacked = cache / "unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as sources:
        # Debian 12's Python 3.11.2 has no filters yet.
        sources.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked / folder.name).rename(folder)
    unpacked.rmdir()
    return folder / "vendor" / "llama.cpp"


def build_llama(cache, jobs, amx, name="llama_speed"):
    """The path of a program of this folder, built where it is older than its source."""
    cache.mkdir(parents=True, exist_ok=True)
    sources = unpack_sources(cache)
    build = cache / f"build-{VERSION}{'' if amx else '-without-amx'}"
    program = build / name
    if program.is_file() and all(program.stat().st_mtime > (HERE / source).stat().st_mtime
                                 for source in (f"{name}.cc", "CMakeLists.txt", "gcc_amx.h")):
        return program
    print(f"building llama.cpp in {build} (once; some minutes)", file=sys.stderr)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    # --fresh: the sources may stand elsewhere than when it was built last.
    run(["cmake", "--fresh", *generator, "-S", HERE, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
         f"-DLLAMA_CPP_DIR={sources}", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
         f"-DPEERS_AMX={'ON' if amx else 'OFF'}"],
        "cmake", stdout=sys.stderr)
    run(["cmake", "--build", build, "--target", name, "-j", str(jobs)], "the build",
        stdout=sys.stderr)
    return program


def best_list(lists):
    """Of lists of speeds, the one with the highest median, and its key."""
    key = max(lists, key=lambda name: statistics.median(lists[name]))
    return key, lists[key]


def run_llama(program, model, threads, arguments):
    found = json.loads(run(
        [program, model, "-p", arguments.prompt, "-n", arguments.tokens, "-d", arguments.depth,
         "-t", threads, "-r", arguments.repeat, "-ub", arguments.ubatch], "llama_speed",
        stdout=subprocess.PIPE))
    ubatch, prefill = best_list(found["prefill"])
    return {"prefill_tps": statistics.median(prefill), "ubatch": int(ubatch),
            "decode_tps": statistics.median(found["decode"]),
            **{key: found[key] for key in ("load_seconds", "first_token_seconds", "peak_rss",
                                           "system_info")}}


def run_vitrine(program, model, threads, arguments):
    return json.loads(run(
        [program, "bench", "generate", model, "-p", arguments.prompt, "-n", arguments.tokens,
         "--depth", arguments.depth, "--threads", threads, "--repeat", arguments.repeat, "--audit",
         arguments.audit, *(["--kv-type", arguments.kv_type] if arguments.kv_type else []),
         "--json"],
        "vitrine bench generate", stdout=subprocess.PIPE))


def bring_memory(model):
    """Touches as much memory as a process will need, and frees it: in a virtual machine the first
    touch of what was given back to the host can cost more than all else of a load, and whoever
    comes first would pay it. In large pages, if there are: small ones leave gaps that no large page
    fits into, and large pages serve small ones as well."""
    available = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = max(mmap.PAGESIZE, min(pathlib.Path(model).stat().st_size * 3 // 2, available // 2))
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[::mmap.PAGESIZE] = bytes(-(-size // mmap.PAGESIZE))


def run_pairs(runners, pairs, model, report):
    """[{name: figures}] of `pairs` pairs; each begins with another than the one before."""
    names = list(runners)
    results = []
    for index in range(pairs):
        order = names if index % 2 == 0 else names[::-1]
        results.append({})
        for name in order:
            bring_memory(model)
            results[-1][name] = runners[name]()
        report(index + 1, order[0], results[-1])
    return results


def compare(results, figure, inverted=False):
    """The medians of both, their ratio (ours to llama.cpp's, inverted for times), and the least and
    the largest ratio of one pair."""
    ours = [pair["vitrine"][figure] for pair in results]
    theirs = [pair["llama.cpp"][figure] for pair in results]
    ratio = (lambda a, b: b / a) if inverted else (lambda a, b: a / b)
    single = [ratio(a, b) for a, b in zip(ours, theirs)]
    medians = statistics.median(ours), statistics.median(theirs)
    return {"vitrine": medians[0], "llama.cpp": medians[1], "ratio": ratio(*medians),
            "lowest": min(single), "highest": max(single)}


def print_pair(index, first, pair):
    ours, theirs = pair["vitrine"], pair["llama.cpp"]
    print(f"pair {index:<3}  prefill {ours['prefill_tps']:9.1f} / {theirs['prefill_tps']:9.1f}   "
          f"decode {ours['decode_tps']:8.1f} / {theirs['decode_tps']:8.1f}   first token "
          f"{ours['first_token_seconds']:6.2f} / {theirs['first_token_seconds']:6.2f} s   "
          f"({first} first)", flush=True)


def table_row(arguments, threads, results):
    """A row of the table in docs/performance.md."""
    cells = [pathlib.Path(arguments.model).stem, str(threads)]
    for figure in ("prefill_tps", "decode_tps"):
        found = compare(results, figure)
        cells.append(f"{found['vitrine']:.0f} / {found['llama.cpp']:.0f}")
        cells.append(f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})")
    found = compare(results, "first_token_seconds", inverted=True)
    cells.append(f"{found['vitrine']:.2f} / {found['llama.cpp']:.2f}")
    share = [pair["vitrine"]["bandwidth_share"] for pair in results]
    cells.append("-" if None in share else f"{100 * statistics.median(share):.0f} %")
    return "| " + " | ".join(cells) + " |"


def table_head(arguments):
    names = ["model", "threads", f"prefill {arguments.prompt}, tokens/s", "ratio",
             f"decode {arguments.tokens}, tokens/s", "ratio", "first token, s", "bandwidth used"]
    return "| " + " | ".join(names) + " |\n|" + "---|" * len(names)


def parse_threads(text):
    values = [int(part) for part in text.split(",")]
    if not values or min(values) < 1:
        raise ValueError
    return values


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file")
    parser.add_argument("-p", dest="prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("-n", dest="tokens", type=int, default=64, help="tokens decoded one by one")
    parser.add_argument("-d", dest="depth", type=int, default=0,
                        help="tokens in the context before either")
    parser.add_argument("--threads", type=parse_threads, default=[1, 2], help="as 1,2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="measurements within one process")
    parser.add_argument("--ubatch", default="512,2048",
                        help="llama.cpp's physical batches; the best for the prompt counts")
    parser.add_argument("--audit", choices=("none", "deferred"), default="deferred",
                        help="Vitrine's recorder")
    parser.add_argument("--kv-type", choices=("f32", "f16", "bf16", "i16"),
                        help="what ours keeps keys and values in, other than its default; "
                             "llama.cpp's are float16")
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--llama-speed", type=pathlib.Path,
                        help="a llama_speed that is there already; nothing is built")
    default_cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    parser.add_argument("--cache", type=pathlib.Path, default=default_cache / "vitrine" / "peers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the build")
    parser.add_argument("--without-amx", action="store_true",
                        help="build llama.cpp without AMX (ours: VITRINE_CPU_ISA=avx512)")
    parser.add_argument("--json", type=pathlib.Path, help="all figures, to this file")
    parser.add_argument("--build-only", action="store_true", help="build llama.cpp, measure nothing")
    arguments = parser.parse_args()
    if arguments.model is None and not arguments.build_only:
        parser.error("expected a GGUF file")
    if min(arguments.prompt, arguments.tokens, arguments.pairs, arguments.repeat,
           arguments.jobs) < 1 or arguments.depth < 0:
        parser.error("expected counts from 1 on")
    return arguments


def main():
    arguments = parse_arguments()
    llama = arguments.llama_speed or build_llama(arguments.cache.expanduser(), arguments.jobs,
                                                       not arguments.without_amx)
    if arguments.build_only:
        print(llama)
        return
    for path in (arguments.vitrine, llama, pathlib.Path(arguments.model)):
        if not path.is_file():
            fail(f"{path} is not there")
    everything, rows = {}, []
    for threads in arguments.threads:
        print(f"\n{arguments.model}, threads {threads}: vitrine / llama.cpp, tokens/s")
        runners = {
            "vitrine": lambda: run_vitrine(arguments.vitrine, arguments.model, threads, arguments),
            "llama.cpp": lambda: run_llama(llama, arguments.model, threads, arguments)}
        if not rows:
            run_pairs(runners, 1, arguments.model, lambda *_: None)  # brings the file into the page cache
        results = run_pairs(runners, arguments.pairs, arguments.model, print_pair)
        for figure in FIGURES:
            found = compare(results, figure, inverted=figure.endswith("seconds"))
            print(f"{figure:<20} {found['vitrine']:10.2f} / {found['llama.cpp']:10.2f}   ratio "
                  f"{found['ratio']:.3f}   pairs {found['lowest']:.3f} to {found['highest']:.3f}")
        everything[str(threads)] = results
        rows.append(table_row(arguments, threads, results))
    last = results[-1]
    print(f"\nvitrine: {last['vitrine']['isa']}, recorder {arguments.audit}\n"
          f"llama.cpp ({PACKAGE} {VERSION}, -march=native, best physical batch "
          f"{last['llama.cpp']['ubatch']}): {last['llama.cpp']['system_info'].strip()}\n")
    print(table_head(arguments))
    print("\n".join(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
