# SPDX-License-Identifier: Apache-2.0
"""Measures what a gate makes of noise and of planted damage: false alarms, and power by severity.

    gate_power.py VITRINE MODEL --work FOLDER [--noise 8] [--candidates 50] [--seeds 10]
                  [--suite core] [--tasks A,B] [--gates default,rounding] [--sweeps expert,kv,rope] [--jobs 1]

MODEL is a compressed-tensors folder with int4 groups, as the shipped one. First `--noise` copies whose
scales were moved by one ulp tell the gate what noise does (seeds 1 and on: the thresholds), then
`--candidates` others are held to it (seeds 1001 and on): none of them should be refused. Then damage of
growing severity is planted, each `--seeds` times, at places drawn from a seed of its own, on top of
noise (seeds 2001 and on). Printed are refusals by severity, how often the place that the logs name is
the one that was damaged, and the rules that refused, for each gate. What was evaluated stays in
FOLDER, and the same command goes on there.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import shutil
import subprocess
import sys

DAMAGE = pathlib.Path(__file__).resolve().parent / "damage_model.py"
LAYERS, EXPERTS = 4, 8  # of the shipped model

# Severities, mild to heavy, as damage_model.py takes them.
SWEEPS = {
    "expert": ["2", "1", "0"],         # bits that are left of one expert's four
    "experts": ["0"],                  # the same of two experts
    "kv": ["2", "1"],                  # bits of the weights that make a layer's keys and values
    "channel": ["64", "128", "256"],   # largest channels of a layer's norm that are cut off
    "rope": ["4", "16", "100"],        # times the base
    "merges": ["1"],                   # first merges that are dropped
    "template": ["no system turn"],    # a chat template that lost it, beside one that has it
}

TURNS = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
         "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SYSTEM_TURN = ("{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful "
               "assistant.<|im_end|>\n{% endif %}")


def fail(message):
    sys.exit(f"gate_power.py: {message}")


class Bench:
    def __init__(self, arguments):
        self.vitrine = arguments.vitrine.resolve()
        self.model = arguments.model
        self.work = arguments.work
        self.suite = ["--suite", arguments.suite]
        if arguments.tasks:
            self.suite += ["--tasks", arguments.tasks]
        self.gates = arguments.gates.split(",")
        self.noise = []
        self.jobs = arguments.jobs
        self.pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
        self.work.mkdir(parents=True, exist_ok=True)

    def template(self, name, text):
        path = self.work / f"{name}.jinja"
        path.write_text(text)
        return ["--chat-template", path]

    def evaluate(self, name, model, *options):
        """The results' file and the logs' folder of a model."""
        out, logs = self.work / f"{name}.eval", self.work / f"{name}.logs"
        if self.jobs > 1:
            options = [*options, "--threads", "1"]
        run = subprocess.run([self.vitrine, "eval", model, *self.suite, "--out", out,
                              "--audit", logs, "--quiet", *options], capture_output=True,
                             text=True)
        if run.returncode != 0:
            fail(f"{name}: {run.stderr.strip()}")
        return out, logs

    def damaged(self, name, *steps, options=()):
        out = self.work / f"{name}.eval"
        if out.exists() and '{"end"' in out.read_text()[-200:]:
            return out, self.work / f"{name}.logs"
        folder = self.work / f"{name}.model"
        source = self.model
        shutil.rmtree(folder, ignore_errors=True)
        for number, step in enumerate(steps):
            target = folder if number + 1 == len(steps) else self.work / f"{name}.step{number}"
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run([sys.executable, DAMAGE, source, target, *map(str, step)], check=True,
                           capture_output=True)
            if number > 0:
                shutil.rmtree(source)
            source = target
        found = self.evaluate(name, folder, *options)
        shutil.rmtree(folder)
        return found

    def judge(self, candidate, gate, base="base"):
        """Returns the exit code, the rules that refused, and, of the first gate, where the logs part."""
        has_logs, has_noise = gate == self.gates[0], base == "base"
        command = [self.vitrine, "gate", self.work / f"{base}.eval", candidate[0], "--gate", gate]
        if has_logs:
            command += ["--baseline-logs", self.work / f"{base}.logs", "--candidate-logs",
                        candidate[1]]
        for out, logs in self.noise if has_noise else []:
            command += ["--noise", out]
            command += ["--noise-logs", logs] if has_logs else []
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if run.returncode not in (0, 3, 4):
            fail(run.stderr.strip())
        refused = [line.split(": ")[1] for line in run.stdout.splitlines()[1:]
                   if line.startswith("refused: ")]
        parted = [line for line in run.stdout.splitlines() if line.startswith("parted: ")]
        return run.returncode, refused, parted[0] if parted else ""


class Damage:
    """Holds one planting: what is done to the model, and how to tell that the place is named."""

    def __init__(self, kind, severity, seed):
        draw = random.Random(f"{kind} {seed}")
        self.kind, self.seed = kind, seed
        self.layer, expert = draw.randrange(LAYERS), draw.randrange(EXPERTS)
        other = (self.layer + 1 + draw.randrange(LAYERS - 1)) % LAYERS
        places = [(self.layer, expert), (other, draw.randrange(EXPERTS))]
        self.experts = places[:{"expert": 1, "experts": 2}.get(kind, 0)]
        cut = [["--expert", f"{layer},{expert},{severity}"] for layer, expert in self.experts]
        self.steps = {"expert": cut, "experts": cut,
                      "kv": [["--kv", f"{self.layer},{severity}"]],
                      "channel": [["--channel", f"{self.layer},{severity}"]],
                      "rope": [["--rope", severity]], "merges": [["--merges", severity]],
                      "template": []}[kind]

    def is_named(self, refused, parted):
        if self.kind in ("merges", "template"):
            return "same inputs" in refused
        if self.experts:
            layer, expert = min(self.experts)
            return parted.startswith(f"parted: layer {layer}, expert {expert}:")
        layer = 0 if self.kind == "rope" else self.layer
        return parted.startswith((f"parted: layer {layer}:", f"parted: layer {layer},"))


class Tally:
    """Counts verdicts of one gate over several candidates."""

    def __init__(self):
        self.outcomes, self.rules = collections.Counter(), collections.Counter()

    def add(self, code, rules):
        self.outcomes[code] += 1
        self.rules.update(rules)

    def result(self):
        return {"refused": self.outcomes[3], "passes": self.outcomes[0],
                "inconclusive": self.outcomes[4], "rules": dict(self.rules)}


def hold_noise(bench, count):
    tallies = {gate: Tally() for gate in bench.gates}

    def judge(seed):
        candidate = bench.damaged(f"noise{seed}", ["--noise", "--seed", seed])
        return [bench.judge(candidate, gate) for gate in bench.gates]

    for verdicts in bench.pool.map(judge, range(1001, 1001 + count)):
        for tally, (code, refused, parted) in zip(tallies.values(), verdicts):
            tally.add(code, refused + (["a place stands out"] if parted else []))
    for gate, tally in tallies.items():
        print(f"noise alone, {gate}: {tally.outcomes[3]} of {count} refused, {tally.outcomes[0]} "
              f"pass, {tally.outcomes[4]} inconclusive {dict(tally.rules)}", flush=True)
    return {gate: tally.result() for gate, tally in tallies.items()}


def hold_damage(bench, kind, severity, seeds):
    tallies, named = {gate: Tally() for gate in bench.gates}, 0
    base, options = "base", []
    if kind == "template":
        base = "base-template"
        bench.evaluate(base, bench.model, *bench.template("whole", SYSTEM_TURN + TURNS))
        options = bench.template("cut", TURNS)

    def judge(damage):
        candidate = bench.damaged(f"{kind}-{severity.replace(' ', '-')}-{damage.seed}",
                                  ["--noise", "--seed", damage.seed], *damage.steps,
                                  options=options)
        return [bench.judge(candidate, gate, base) for gate in bench.gates]

    damages = [Damage(kind, severity, seed) for seed in range(2001, 2001 + seeds)]
    for damage, verdicts in zip(damages, bench.pool.map(judge, damages)):
        for tally, (code, refused, _) in zip(tallies.values(), verdicts):
            tally.add(code, refused)
        _, refused, parted = verdicts[0]
        named += damage.is_named(refused, parted)
    for gate, tally in tallies.items():
        print(f"{kind} {severity}, {gate}: {tally.outcomes[3]} of {seeds} refused; "
              f"{dict(tally.rules)}", flush=True)
    print(f"{kind} {severity}: place named in {named} of {seeds}", flush=True)
    return {"kind": kind, "severity": severity, "seeds": seeds, "named": named,
            "gates": {gate: tally.result() for gate, tally in tallies.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vitrine", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--noise", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--suite", default="core")
    parser.add_argument("--tasks", help="some of its tasks or domains")
    parser.add_argument("--gates", default="default,rounding")
    parser.add_argument("--jobs", type=int, default=1, help="candidates at once, a thread each")
    parser.add_argument("--sweeps", default=",".join(SWEEPS))
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.evaluate("base", arguments.model)
    bench.noise = list(bench.pool.map(
        lambda seed: bench.damaged(f"noise{seed}", ["--noise", "--seed", seed]),
        range(1, arguments.noise + 1)))
    result = {"noise": arguments.noise, "candidates": arguments.candidates,
              "false_alarms": hold_noise(bench, arguments.candidates)}
    result["damage"] = [hold_damage(bench, kind, severity, arguments.seeds)
                        for kind in arguments.sweeps.split(",") for severity in SWEEPS[kind]]
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
