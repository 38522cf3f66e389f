# SPDX-License-Identifier: Apache-2.0
"""What a gate makes of noise and of planted damage: false alarms, and power by severity.

    gate_power.py VITRINE MODEL --work FOLDER [--noise 8] [--candidates 50] [--seeds 10]
                  [--suite core] [--gate default] [--sweeps expert,channel,rope,merges]

MODEL is a compressed-tensors folder with int4 groups, as the shipped one. First `--noise` copies whose
scales were moved by one ulp tell the gate what noise does (seeds 1 and on: the thresholds), then
`--candidates` others are held to it (seeds 1001 and on): none of them should be refused. Then damage of
growing severity is planted, each `--seeds` times, at places drawn from a seed of its own, on top of
noise (seeds 2001 and on). Printed are refusals by severity, how often the place that the logs name is
the one that was damaged, and the rules that refused. What was evaluated stays in FOLDER, and the same
command goes on there.
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import subprocess
import sys

DAMAGE = pathlib.Path(__file__).resolve().parent / "damage_model.py"
LAYERS, EXPERTS = 4, 8  # of the shipped model

# Severities, mild to heavy, as damage_model.py takes them, and how to tell that the place is named.
SWEEPS = {
    "expert": ["2", "1"],          # bits that are left of one expert's four
    "channel": ["4", "16", "64"],  # largest channels of a layer's norm that are cut off
    "rope": ["1.5", "4"],          # times the base
    "merges": ["1", "5"],          # first merges that are dropped
}


def fail(message):
    sys.exit(f"gate_power.py: {message}")


class Bench:
    def __init__(self, arguments):
        self.vitrine = arguments.vitrine
        self.model = arguments.model
        self.work = arguments.work
        self.suite = arguments.suite
        self.gate = arguments.gate
        self.noise = []
        self.work.mkdir(parents=True, exist_ok=True)

    def evaluate(self, name, model):
        """The results' file and the logs' folder of a model."""
        out, logs = self.work / f"{name}.eval", self.work / f"{name}.logs"
        run = subprocess.run([self.vitrine, "eval", model, "--suite", self.suite, "--out", out,
                              "--audit", logs, "--quiet"], capture_output=True, text=True)
        if run.returncode != 0:
            fail(f"{name}: {run.stderr.strip()}")
        return out, logs

    def damaged(self, name, *options):
        out = self.work / f"{name}.eval"
        if out.exists() and '{"end"' in out.read_text()[-200:]:
            return out, self.work / f"{name}.logs"
        folder = self.work / f"{name}.model"
        source = self.model
        shutil.rmtree(folder, ignore_errors=True)
        for step, option in enumerate(options):
            target = folder if step + 1 == len(options) else self.work / f"{name}.step"
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run([sys.executable, DAMAGE, source, target, *map(str, option)], check=True,
                           capture_output=True)
            source = target
        found = self.evaluate(name, folder)
        shutil.rmtree(folder)
        shutil.rmtree(self.work / f"{name}.step", ignore_errors=True)
        return found

    def judge(self, candidate):
        base, base_logs = self.work / "base.eval", self.work / "base.logs"
        command = [self.vitrine, "gate", base, candidate[0], "--gate", self.gate,
                   "--baseline-logs", base_logs, "--candidate-logs", candidate[1]]
        for out, logs in self.noise:
            command += ["--noise", out, "--noise-logs", logs]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if run.returncode not in (0, 3, 4):
            fail(run.stderr.strip())
        refused = [line.split(": ")[1] for line in run.stdout.splitlines()[1:]
                   if line.startswith("refused: ")]
        parted = [line for line in run.stdout.splitlines() if line.startswith("parted: ")]
        return run.returncode, refused, parted[0] if parted else ""


def is_named(kind, place, refused, parted):
    if kind == "merges":
        return "same inputs" in refused
    if kind == "expert":
        return parted.startswith(f"parted: layer {place[0]}, expert {place[1]}:")
    if kind == "channel":
        return parted.startswith(f"parted: layer {place[0]}:") or parted.startswith(
            f"parted: layer {place[0]},")
    return parted.startswith("parted: layer 0")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vitrine", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--noise", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--suite", default="core")
    parser.add_argument("--gate", default="default")
    parser.add_argument("--sweeps", default=",".join(SWEEPS))
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.evaluate("base", arguments.model)
    noise = [bench.damaged(f"noise{seed}", ["--noise", "--seed", seed])
             for seed in range(1, arguments.noise + 1)]
    bench.noise = noise
    result = {"noise": arguments.noise}

    outcomes, rules = collections.Counter(), collections.Counter()
    for seed in range(1001, 1001 + arguments.candidates):
        code, refused, parted = bench.judge(bench.damaged(f"noise{seed}", ["--noise", "--seed", seed]))
        outcomes[code] += 1
        rules.update(refused + (["a place stands out"] if parted else []))
    result["false_alarms"] = {"candidates": arguments.candidates, "refused": outcomes[3],
                              "passes": outcomes[0], "inconclusive": outcomes[4],
                              "rules": dict(rules)}
    print(f"noise alone: {outcomes[3]} of {arguments.candidates} refused, {outcomes[0]} pass, "
          f"{outcomes[4]} inconclusive {dict(rules) if rules else ''}", flush=True)

    for kind in arguments.sweeps.split(","):
        for severity in SWEEPS[kind]:
            refusals, named, rules = 0, 0, collections.Counter()
            for seed in range(2001, 2001 + arguments.seeds):
                draw = random.Random(f"{kind} {seed}")
                place = (draw.randrange(LAYERS), draw.randrange(EXPERTS))
                option = {"expert": ["--expert", f"{place[0]},{place[1]},{severity}"],
                          "channel": ["--channel", f"{place[0]},{severity}"],
                          "rope": ["--rope", severity],
                          "merges": ["--merges", severity]}[kind]
                found = bench.damaged(f"{kind}-{severity}-{seed}", ["--noise", "--seed", seed], option)
                code, refused, parted = bench.judge(found)
                refusals += code == 3
                named += is_named(kind, place, refused, parted)
                rules.update(refused)
            result.setdefault("damage", []).append(
                {"kind": kind, "severity": severity, "seeds": arguments.seeds, "refused": refusals,
                 "named": named, "rules": dict(rules)})
            print(f"{kind} {severity}: {refusals} of {arguments.seeds} refused, place named in "
                  f"{named}; {dict(rules)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
