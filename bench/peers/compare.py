# SPDX-License-Identifier: Apache-2.0
"""Vitrine, llama.cpp and ik_llama.cpp on the same GGUF file, by turns on the same machine.

    compare.py MODEL.gguf [-p 256] [-n 64] [-d 0] [--threads 1,2] [--pairs 5] [--repeat 3]
               [--ubatch 512,2048] [--without-amx] [--ik-llama FOLDER] [--vitrine build/vitrine]
               [--json OUT] [--build-only]

llama.cpp is built once, with -march=native, from the source package of PyPI's `llama-cpp-python`
into a folder outside the tree (--cache). ik_llama.cpp takes part where --ik-llama names a build
folder of it (with bin/llama-bench), as it is and with `-rtr 1`. In each of --pairs rounds every
program runs once, in a process of its own that loads the file once; each round begins with the next
program. Vitrine and llama.cpp get the same token ids, llama-bench takes its own (ik_llama.py), and
only the calls are timed: a prompt of -p tokens, and -n tokens one by one, each after -d tokens of
context. Of a peer's prefill the best of the physical batches in --ubatch counts. Printed are each
round's figures, and the ratio of the medians over all rounds with the range of the rounds' own
ratios; what a program does not say is a dash. Before each process as much memory as it needs is
touched and freed. Run it on an idle machine, with the file in the page cache (the first round is
dropped).
"""

import argparse
import functools
import json
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile

import ik_llama

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
FIGURES = ("prefill_tps", "decode_tps", "load_seconds", "first_token_seconds")


def fail(message):
    sys.exit(f"compare.py: {message}")


def run(command, what, **options):
    try:
        result = subprocess.run([str(part) for part in command], text=True, check=False, **options)
    except OSError as error:
        fail(f"{what} could not be started: {error}")
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
    """The list of speeds with the highest median, behind its key."""
    key = max(lists, key=lambda name: statistics.median(lists[name]))
    return key, lists[key]


def take_medians(found):
    """The figures of a peer from what it measured; None for what it did not."""
    ubatch, prefill = best_list(found["prefill"]) if found["prefill"] else (None, None)
    return {"prefill_tps": prefill and statistics.median(prefill),
            "ubatch": ubatch and int(ubatch), "decode_tps": statistics.median(found["decode"]),
            **{key: found[key] for key in ("load_seconds", "first_token_seconds", "peak_rss",
                                           "system_info")}}


def run_llama(program, model, threads, arguments):
    return take_medians(json.loads(run(
        [program, model, "-p", arguments.prompt, "-n", arguments.tokens, "-d", arguments.depth,
         "-t", threads, "-r", arguments.repeat, "-ub", arguments.ubatch], "llama_speed",
        stdout=subprocess.PIPE)))


def run_ik_llama(program, model, threads, repack, arguments):
    try:
        return take_medians(ik_llama.read(
            run(ik_llama.command(program, model, threads, repack, arguments),
                "ik_llama.cpp's llama-bench", stdout=subprocess.PIPE), arguments))
    except ValueError as error:
        fail(error)


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


def run_rounds(runners, rounds, model, report):
    """[{name: figures}] of `rounds` rounds; each begins with the program after the one before."""
    names = list(runners)
    results = []
    for index in range(rounds):
        turn = index % len(names)
        order = names[turn:] + names[:turn]
        figures = {}
        for name in order:
            bring_memory(model)
            figures[name] = runners[name]()
        results.append({name: figures[name] for name in names})
        report(index + 1, order[0], results[-1])
    return results


def compare(results, peer, figure):
    """The medians of both, their ratio (ours to the peer's, inverted for times), and the least and
    the largest ratio of one round; None for what the peer does not say."""
    ours = [figures["vitrine"][figure] for figures in results]
    theirs = [figures[peer][figure] for figures in results]
    if None in theirs:
        return {"ours": statistics.median(ours),
                **dict.fromkeys(("theirs", "ratio", "lowest", "highest"))}
    inverted = figure.endswith("seconds")
    ratio = (lambda a, b: b / a) if inverted else (lambda a, b: a / b)
    single = [ratio(a, b) for a, b in zip(ours, theirs)]
    medians = statistics.median(ours), statistics.median(theirs)
    return {"ours": medians[0], "theirs": medians[1], "ratio": ratio(*medians),
            "lowest": min(single), "highest": max(single)}


def number(value, digits, width=0):
    return ("-" if value is None else f"{value:.{digits}f}").rjust(width)


def print_round(index, first, figures):
    def side_by_side(figure, digits, width):
        return " / ".join(number(one[figure], digits, width) for one in figures.values())

    print(f"pair {index:<3}  prefill {side_by_side('prefill_tps', 1, 9)}   "
          f"decode {side_by_side('decode_tps', 1, 8)}   first token "
          f"{side_by_side('first_token_seconds', 2, 6)} s   ({first} first)", flush=True)


def print_summary(results, peers):
    for figure in FIGURES:
        for peer in peers:
            found = compare(results, peer, figure)
            print(f"{figure:<20} {number(found['ours'], 2, 10)} / {number(found['theirs'], 2, 10)}"
                  f"   ratio {number(found['ratio'], 3)}   pairs {number(found['lowest'], 3)} to "
                  f"{number(found['highest'], 3)}" + (f"   {peer}" if len(peers) > 1 else ""))


def table_rows(arguments, threads, results, peers):
    """Rows of a table as docs/performance.md has them: one for each peer, which is named where
    there are several."""
    rows = []
    for peer in peers:
        cells = [pathlib.Path(arguments.model).stem, str(threads)] + [peer] * (len(peers) > 1)
        for figure in ("prefill_tps", "decode_tps"):
            found = compare(results, peer, figure)
            cells.append(f"{number(found['ours'], 0)} / {number(found['theirs'], 0)}")
            cells.append("-" if found["ratio"] is None else
                         f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})")
        found = compare(results, peer, "first_token_seconds")
        cells.append(f"{number(found['ours'], 2)} / {number(found['theirs'], 2)}")
        share = [figures["vitrine"]["bandwidth_share"] for figures in results]
        cells.append("-" if None in share else f"{100 * statistics.median(share):.0f} %")
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def table_head(arguments, peers):
    names = ["model", "threads", *["peer"] * (len(peers) > 1),
             f"prefill {arguments.prompt}, tokens/s", "ratio",
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
    parser.add_argument("--pairs", type=int, default=5,
                        help="rounds in which each program runs once")
    parser.add_argument("--repeat", type=int, default=3, help="measurements within one process")
    parser.add_argument("--ubatch", default="512,2048",
                        help="physical batches of the peers; the best for the prompt counts")
    parser.add_argument("--audit", choices=("none", "deferred"), default="deferred",
                        help="Vitrine's recorder")
    parser.add_argument("--kv-type", choices=("f32", "f16", "bf16", "i16"),
                        help="what ours keeps keys and values in, other than its default; "
                             "the peers' are float16")
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--llama-speed", type=pathlib.Path,
                        help="a llama_speed that is there already; nothing is built")
    parser.add_argument("--ik-llama", type=pathlib.Path, metavar="FOLDER",
                        help="a build folder of ik_llama.cpp, with bin/llama-bench; runs as it is "
                             "and with -rtr 1")
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


def check_files(*paths):
    for path in paths:
        if not path.is_file():
            fail(f"{path} is not there")


def find_peers(arguments):
    """{name: what runs it on so many threads}, in the tables' order."""
    peers = {}
    # A mistake in the folder's name is found before llama.cpp is built.
    if arguments.ik_llama is not None:
        try:
            program = ik_llama.find_program(arguments.ik_llama)
        except ValueError as error:
            fail(error)
        for name, repack in ik_llama.REPACK.items():
            peers[name] = lambda threads, repack=repack: run_ik_llama(
                program, arguments.model, threads, repack, arguments)
    llama = arguments.llama_speed or build_llama(arguments.cache.expanduser(), arguments.jobs,
                                                 not arguments.without_amx)
    check_files(llama)
    return {"llama.cpp": lambda threads: run_llama(llama, arguments.model, threads, arguments),
            **peers}


def print_peers(last, arguments):
    """What ran, from the figures of the last round."""
    print(f"\nvitrine: {last['vitrine']['isa']}, recorder {arguments.audit}")
    for name, figures in last.items():
        if name == "vitrine":
            continue
        facts = [f"{PACKAGE} {VERSION}", "-march=native"] if name == "llama.cpp" else []
        if figures["ubatch"] is not None:
            facts.append(f"best physical batch {figures['ubatch']}")
        print(f"{name}{' (' + ', '.join(facts) + ')' if facts else ''}: "
              f"{figures['system_info'].strip()}")
    print()


def main():
    arguments = parse_arguments()
    if arguments.build_only:
        print(build_llama(arguments.cache.expanduser(), arguments.jobs, not arguments.without_amx))
        return
    check_files(arguments.vitrine, pathlib.Path(arguments.model))
    peers = find_peers(arguments)
    everything, rows = {}, []
    for threads in arguments.threads:
        runners = {
            "vitrine": lambda: run_vitrine(arguments.vitrine, arguments.model, threads, arguments),
            **{name: functools.partial(runner, threads) for name, runner in peers.items()}}
        print(f"\n{arguments.model}, threads {threads}: {' / '.join(runners)}, tokens/s")
        if not rows:  # brings the file into the page cache
            run_rounds(runners, 1, arguments.model, lambda *_: None)
        results = run_rounds(runners, arguments.pairs, arguments.model, print_round)
        print_summary(results, list(peers))
        everything[str(threads)] = results
        rows += table_rows(arguments, threads, results, list(peers))
    print_peers(results[-1], arguments)
    print(table_head(arguments, list(peers)))
    print("\n".join(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
