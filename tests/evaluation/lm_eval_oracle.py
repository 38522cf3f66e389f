# SPDX-License-Identifier: Apache-2.0
"""lm-eval as the oracle of samples. Needs `pip install lm_eval==0.4.13`, no torch; not run in CI.

usage: lm_eval_oracle.py score FOLDER [TASK …]   lm-eval's tasks, filters and metrics over the samples
                                     that `vitrine samples RUN.eval --out FOLDER` wrote, item by item;
                                     TASK: one whose choices are normalised by bytes
       lm_eval_oracle.py make FOLDER             the fixture in tests/evaluation/lm_eval: samples that lm-eval
                                         logs of a model that is made up
"""

import hashlib
import json
import logging
import pathlib
import sys
import tempfile

import lm_eval
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.filters import build_filter_ensemble
from lm_eval.loggers import EvaluationTracker

logging.disable(logging.WARNING)
NUMBER = r"-?\d+(?:\.\d+)?"


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def task_config(folder, name, **config):
    """Returns what lm-eval reads of a task whose documents are FOLDER/NAME.jsonl."""
    return {"task": name, "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}, **config}


def task_of(folder, name, docs, config):
    """Makes a task of lm-eval's on these documents."""
    folder = pathlib.Path(folder)
    write_lines(folder / f"{name}.jsonl", docs)
    return ConfigurableTask(config=task_config(folder, name, **config))


def filtered(responses, docs, steps):
    """What a filter of lm-eval's makes of answers."""
    ensemble = build_filter_ensemble("read", steps)

    class Instance:
        def __init__(self, response, doc):
            self.resps, self.doc, self.filtered_resps = [response], doc, {}

    instances = [Instance(response, doc) for response, doc in zip(responses, docs)]
    ensemble.apply(instances)
    return [one.filtered_resps["read"] for one in instances]


def score_choices(folder, name, samples, by_bytes):
    """Pairs of what lm-eval says and what Vitrine said: acc, and by bytes and characters."""
    docs = [{"prompt": one["arguments"]["gen_args_0"]["arg_0"], "choices": one["doc"]["choices"],
             "answer": int(one["target"])} for one in samples]
    task = task_of(folder, name, docs, {
        "output_type": "multiple_choice", "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
        "metric_list": [{"metric": metric} for metric in ("acc", "acc_norm", "acc_bytes")]})
    for one, doc in zip(samples, task.eval_docs):
        pairs = [(float(value), False) for value, _ in one["filtered_resps"]]
        told = task.process_results(doc, pairs)
        alike = {"acc": (told["acc"], one["acc"])}
        for metric in ("acc_bytes", "acc_norm") if name in by_bytes else ():
            alike[metric] = (told[metric], one["score"])
        yield one, alike


def score_answers(folder, name, samples):
    """Yields the same of answers: exact_match behind the filter that is nearest to the scorer."""
    scorer = samples[0]["filter"]
    steps = {"number": [["regex", {"regex_pattern": f"({NUMBER})", "group_select": -1}]],
             "regex": [["regex", {"regex_pattern": r"is (\w+)"}]]}.get(scorer, [])
    steps = [*steps, ["take_first", {}]]
    docs = [{"prompt": one["arguments"]["gen_args_0"]["arg_0"], "answer": one["target"]}
            for one in samples]
    task = task_of(folder, name, docs, {
        "output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "exact_match", "ignore_case": True,
                         "ignore_punctuation": scorer == "exact"}]})
    answers = filtered([one["resps"][0][0] for one in samples], docs, steps)
    for one, doc, answer in zip(samples, task.eval_docs, answers):
        told = task.process_results(doc, [answer])["exact_match"]
        yield one, {"exact_match": (float(told), float(one["score"]))}


def score(folder, *by_bytes):
    """Prints a line a task and metric, and each item that differs."""
    with tempfile.TemporaryDirectory() as work:
        for path in sorted(pathlib.Path(folder).glob("samples_*.jsonl")):
            samples = [json.loads(line) for line in path.read_text().splitlines()]
            name = path.stem.removeprefix("samples_").replace("-", "_")
            for one in samples:
                texts = (json.dumps(one["doc"], indent=2, ensure_ascii=False),
                         one["arguments"]["gen_args_0"]["arg_0"], one["target"])
                hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
                if hashes != [one["doc_hash"], one["prompt_hash"], one["target_hash"]]:
                    print(f"{name} {one['doc_id']}: hashes differ")
            if len(samples[0]["resps"]) > 1:
                scored = list(score_choices(work, name, samples, by_bytes))
            elif "byte_perplexity" in samples[0]:
                continue
            else:
                scored = list(score_answers(work, name, samples))
            for metric in scored[0][1]:
                same = sum(told[metric][0] == told[metric][1] for _, told in scored)
                print(f"{name:<24} {metric:<12} {same} of {len(scored)} alike")
                for one, told in scored:
                    if told[metric][0] != told[metric][1]:
                        print(f"    item {one['doc']['id']}: lm-eval {told[metric][0]}, Vitrine "
                              f"{told[metric][1]}; {one['resps'][0][0]!r}; right {one['target']!r}")


class MadeUp(LM):
    """Answers by a hash of the question: as good as no model, and the same each time."""

    def number(self, text):
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32

    def loglikelihood(self, requests):
        return [(-10 * self.number(one.args[0] + one.args[1]), False) for one in requests]

    def loglikelihood_rolling(self, requests):
        return [(-50 * self.number(one.args[0]),) for one in requests]

    def generate_until(self, requests):
        answers = []
        for one in requests:
            right = eval(one.args[0].removesuffix(" ="))  # noqa: S307: our own sums, below
            share = self.number(one.args[0])
            answers.append(f" It is #### {right}." if share < 0.4 else
                           f" {right}" if share < 0.7 else f" about {right + 1}, I think")
        return answers


def make(folder):
    """Runs lm-eval on two small tasks and logs its samples."""
    choices = [{"q": f"{a} and {b} make", "choices": [f" {a + b}", f" {a + b + 2}", " elf"],
                "gold": 0} for a, b in ((1, 2), (2, 2), (3, 5), (4, 1), (6, 3), (2, 7))]
    choices[2]["choices"][2] = " zwölf"
    sums = [{"q": f"{a} * {b} =", "a": str(a * b)} for a, b in ((2, 3), (4, 4), (5, 7), (9, 2),
                                                                 (3, 3), (8, 6), (7, 1), (6, 6))]
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tasks = [
            task_of(work, "made_choices", choices, {
                "output_type": "multiple_choice", "doc_to_text": "{{q}}", "target_delimiter": "",
                "doc_to_choice": "{{choices}}", "doc_to_target": "gold",
                "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}),
            task_of(work, "made_sums", sums, {
                "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
                "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
                "filter_list": [
                    {"name": "strict-match", "filter": [
                        {"function": "regex", "regex_pattern": f"#### ({NUMBER})"},
                        {"function": "take_first"}]},
                    {"name": "flexible-extract", "filter": [
                        {"function": "regex", "group_select": -1, "regex_pattern": f"({NUMBER})"},
                        {"function": "take_first"}]}],
                "metric_list": [{"metric": "exact_match"}]})]
        results = lm_eval.evaluate(lm=MadeUp(), task_dict={task.config.task: task for task in tasks},
                                   log_samples=True, bootstrap_iters=0)
        tracker = EvaluationTracker(output_path=work + "/out")
        tracker.general_config_tracker.model_name_sanitized = "made-up"
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for name in samples:
            tracker.save_results_samples(name, samples[name])
            written = next(pathlib.Path(work).glob(f"out/**/samples_{name}_*.jsonl"))
            target = pathlib.Path(folder) / f"samples_{name}_2026-11-29T07-00-00.000000.jsonl"
            target.write_text(written.read_text())


if __name__ == "__main__":
    {"score": score, "make": make}[sys.argv[1]](*sys.argv[2:])
