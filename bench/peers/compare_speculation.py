# SPDX-License-Identifier: Apache-2.0
"""Vitrine's drafters and llama.cpp's n-gram modes on the same GGUF file and prompts, greedily.

    compare_speculation.py MODEL.gguf --prompts FILE [FILE ...] [-n 100] [--threads 2]
                           [--max-prompts N] [--draft-max 8] [--vitrine build/vitrine] [--json OUT]
                           [--others SHARE] [--llama-speculation PROGRAM] [--build-only]

FILE has a JSON string a line, or an object with a string "prompt"; where its "kind" is "chat", the
prompt is put into the model's chat template. Of each prompt both get the ids of Vitrine's tokenizer.
Both programs answer it, one after the other and each first every second
time, in a process that loads the model and warms up: Vitrine by `bench speculate`, each candidate
beside the same answer without guesses; llama.cpp without guesses and in each mode with its default
settings, each answer with a drafter of its own, the order going on by one at each prompt. Timed is
decoding alone, from the first token of the answer on; its last pass chooses the last token. A speed is
that of these tokens, the median of the prompts; "x plain" and the ratios are medians of each prompt's
own. "identical" counts answers that are the same program's without guesses. What OUT has is not
measured again: a run that was stopped goes on there. llama.cpp is built as compare.py builds it. Run
it on an idle machine, with the file in the page cache; where others may come, --others 0.1 measures a
prompt again during which they used more than that of one processor, up to three times, and keeps the
quietest.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from compare import PACKAGE, ROOT, VERSION, build_llama, check_files, run

MODES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
CANDIDATES = ("suffix", "ngram", "auto")
PLAIN = "plain"
TRIES = 3  # for a quiet moment
PAUSE_SECONDS = 1  # before the next try


def fail(message):
    sys.exit(f"compare_speculation.py: {message}")


def read_prompts(path, most):
    """[(prompt, whether it is a user's message)]"""
    prompts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {error}")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            found = found if isinstance(found, dict) else {"prompt": found}
            prompts.append((found["prompt"], found.get("kind") == "chat"))
        except (ValueError, KeyError):
            prompts.append((None, False))
        if not isinstance(prompts[-1][0], str):
            fail(f"{path}:{number}: no prompt; expected a JSON string, or an object with 'prompt'")
    if not prompts:
        fail(f"{path} has no prompt; expected one a line")
    return prompts[:most]


def rotated(names, turn):
    turn %= len(names)
    return names[turn:] + names[:turn]


def read_json(text, what):
    try:
        return json.loads(text)
    except ValueError:
        fail(f"{what} gave no usable answer: {text[:80]!r}")


def answer_of(tokens, seconds, is_identical, passes):
    """The first token is the prompt's; an answer without a second one has no speed."""
    return {"tokens": tokens, "identical": is_identical, "passes": passes,
            "tps": (tokens - 1) / seconds if tokens > 1 and seconds > 0 else None}


def run_vitrine(arguments, prompt, turn):
    """{candidate or "plain": answer}; the plain one has been made beside each candidate."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "prompt.jsonl"
        path.write_text(json.dumps(prompt) + "\n", encoding="utf-8")
        command = [arguments.vitrine, "bench", "speculate", arguments.model, "--prompts", path,
                   "-n", arguments.tokens, "--repeat", 1, "--threads", arguments.threads,
                   "--draft-max", arguments.draft_max, "--candidates",
                   ",".join(rotated(CANDIDATES, turn)), "--json", "--raw", "--draft-ungated"]
        # 1: an answer was another one, which is counted below.
        result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True,
                                check=False)
    if result.returncode not in (0, 1):
        fail(f"vitrine bench speculate failed (exit code {result.returncode})")
    report = read_json(result.stdout, "vitrine bench speculate")
    found = {one["name"]: one for one in report["candidates"]}
    answers = {name: answer_of(one["tokens"], one["seconds"], one["identical"] == 1,
                               one["counts"]["num_passes"] - 1)
               for name, one in found.items()}
    tokens = {one["tokens"] for one in found.values()}.pop()
    seconds = statistics.median(one["plain_seconds"] for one in found.values())
    return {PLAIN: answer_of(tokens, seconds, True, tokens - 1)} | answers


def run_llama(arguments, program, ids, turn):
    order = rotated((PLAIN, *MODES), turn)
    out = run([program, arguments.model, arguments.tokens, arguments.threads, ",".join(order)],
              "llama_speculation", stdout=subprocess.PIPE, input=" ".join(map(str, ids)))
    lines = [read_json(line, "llama_speculation") for line in out.splitlines()]
    found = {one["mode"]: one for one in lines}
    plain = found[PLAIN]["tokens"]
    return {name: answer_of(len(found[name]["tokens"]), found[name]["seconds"],
                            found[name]["tokens"] == plain, found[name]["passes"])
            for name in (PLAIN, *MODES)}


def render(arguments, message):
    """A user's message as the model's chat template puts it."""
    out = run([arguments.vitrine, "generate", arguments.model, "--chat", "-p", "-", "-n", 1, "--json"],
              "vitrine generate", stdout=subprocess.PIPE, input=message)
    return read_json(out, "vitrine generate")["prompt"]


def read_ids(arguments, prompt):
    # Standard input: a prompt may begin with a dash.
    out = run([arguments.vitrine, "tokenize", arguments.model, "-p", "-", "--json"],
              "vitrine tokenize", stdout=subprocess.PIPE, input=prompt)
    return read_json(out, "vitrine tokenize")["ids"]


def answer(arguments, program, turn, prompt, is_message):
    """{program: {name: answer}}"""
    if is_message:
        prompt = render(arguments, prompt)
    ids = read_ids(arguments, prompt)
    runners = {"vitrine": lambda: run_vitrine(arguments, prompt, turn),
               "llama.cpp": lambda: run_llama(arguments, program, ids, turn)}
    found = {name: runners[name]() for name in rotated(list(runners), turn)}
    return {name: found[name] for name in runners}


class Others:
    """Processor time that other processes than this one's children use, as Linux tells it."""

    def __init__(self):
        self.start, self.began = self.time(), time.monotonic()

    @staticmethod
    def time():
        user, nice, system, _, _, *interrupts = map(
            int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
        own = os.times()
        return ((user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
                - (own.user + own.system + own.children_user + own.children_system))

    def share(self):
        """The share of one processor's time that was used."""
        return max(0.0, self.time() - self.start) / (time.monotonic() - self.began)


def answer_quietly(arguments, *what):
    if arguments.others is None:
        return answer(arguments, *what)
    tries = []
    while True:
        others = Others()
        found = answer(arguments, *what)
        tries.append((others.share(), found))
        if tries[-1][0] <= arguments.others or len(tries) == TRIES:
            return min(tries, key=lambda one: one[0])[1]
        time.sleep(PAUSE_SECONDS)


class Record:
    """Answers by file, in their order, in memory and in --json's file."""

    def __init__(self, arguments):
        self.path = arguments.json
        self.settings = {"model": str(arguments.model), "tokens": arguments.tokens,
                         "threads": arguments.threads, "draft_max": arguments.draft_max}
        self.files = {}
        if self.path is None or not self.path.exists():
            return
        old = read_json(self.path.read_text(), str(self.path))
        if not isinstance(old, dict) or old.get("settings") != self.settings:
            fail(f"{self.path} is of other settings; expected {json.dumps(self.settings)}")
        self.files = old["answers"]

    def add(self, file, found):
        self.files.setdefault(file, []).append(found)
        if self.path is None:
            return
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text(json.dumps({"settings": self.settings, "answers": self.files},
                                        indent=2) + "\n")
        temporary.replace(self.path)


def median_of(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratios(answers, ours, theirs):
    """The speed of one (program, name) over another's, prompt by prompt."""
    for found in answers:
        one, other = (found[program][name]["tps"] for program, name in (ours, theirs))
        yield None if one is None or other is None else one / other


def shown(value, digits, suffix=""):
    return "-" if value is None else f"{value:.{digits}f}{suffix}"


def print_table(title, answers):
    print(f"\n{title}: {len(answers)} prompts\n")
    print(f"{'':<26}{'tokens/s':>10}{'x plain':>10}{'tokens/pass':>13}{'identical':>12}")
    for program, names in answers[0].items():
        for name in names:
            own = [found[program][name] for found in answers]
            passes = sum(one["passes"] for one in own)
            tokens = sum(one["tokens"] - 1 for one in own)
            speed = median_of(ratios(answers, (program, name), (program, PLAIN)))
            same = f"{sum(one['identical'] for one in own)} of {len(own)}"
            print(f"{program + ' ' + name:<26}{shown(median_of(one['tps'] for one in own), 1):>10}"
                  f"{shown(speed, 2, 'x'):>10}{shown(tokens / passes if passes else None, 2):>13}"
                  f"{same:>12}")
    theirs = list(answers[0]["llama.cpp"])
    print("\nspeed of ours over theirs\n" + " " * 10 + "".join(f"{name:>15}" for name in theirs))
    for name in answers[0]["vitrine"]:
        row = (median_of(ratios(answers, ("vitrine", name), ("llama.cpp", other)))
               for other in theirs)
        print(f"{name:<10}" + "".join(f"{shown(value, 2, 'x'):>15}" for value in row))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file")
    parser.add_argument("--prompts", type=pathlib.Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("-n", dest="tokens", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-prompts", type=int, help="only the first so many of each file")
    parser.add_argument("--draft-max", type=int, default=8, help="Vitrine's guesses of a pass")
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--llama-speculation", type=pathlib.Path,
                        help="a llama_speculation that is there already; nothing is built")
    default_cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    parser.add_argument("--cache", type=pathlib.Path, default=default_cache / "vitrine" / "peers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the build")
    parser.add_argument("--others", type=float, metavar="SHARE",
                        help="of one processor: what other processes may use meanwhile (Linux)")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="all figures, to this file")
    parser.add_argument("--build-only", action="store_true", help="build llama.cpp, measure nothing")
    arguments = parser.parse_args()
    if not arguments.build_only and (arguments.model is None or not arguments.prompts):
        parser.error("expected a GGUF file and --prompts")
    most = 1 if arguments.max_prompts is None else arguments.max_prompts
    if min(arguments.tokens, arguments.threads, arguments.draft_max, arguments.jobs, most) < 1:
        parser.error("expected counts from 1 on")
    return arguments


def main():
    arguments = parse_arguments()
    files = {path: read_prompts(path, arguments.max_prompts) for path in arguments.prompts}
    if not arguments.build_only:
        check_files(arguments.vitrine, pathlib.Path(arguments.model))
    program = arguments.llama_speculation or build_llama(
        arguments.cache.expanduser(), arguments.jobs, True, "llama_speculation")
    if arguments.build_only:
        print(program)
        return
    check_files(program)
    record = Record(arguments)
    print(f"{arguments.model}, {arguments.tokens} tokens each at most, {arguments.threads} threads; "
          f"{PACKAGE} {VERSION}, -march=native")
    everything = []
    for path, prompts in files.items():
        for turn in range(len(record.files.get(str(path), [])), len(prompts)):
            record.add(str(path), answer_quietly(arguments, program, turn, *prompts[turn]))
            print(f"\r{path.name}: {turn + 1} of {len(prompts)}", end="\n" * (turn + 1 == len(prompts)),
                  file=sys.stderr, flush=True)
        answers = record.files[str(path)][:len(prompts)]
        print_table(path.name, answers)
        everything += answers
    if len(files) > 1:
        print_table("all", everything)


if __name__ == "__main__":
    main()
