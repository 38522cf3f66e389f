# SPDX-License-Identifier: Apache-2.0
"""batch: files of requests; bench serve: a server under a load."""

import json
import pathlib

from tool import MODEL, CliTest

TEXTS = ["Once upon a time", "The king said", "Hello", "A long time ago", "x y z"]


def line(number, **body):
    body = {"prompt": TEXTS[number % len(TEXTS)], "max_tokens": 12, "temperature": 0, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}


class Batch(CliTest):
    def write(self, lines, name="requests.jsonl"):
        (self.folder / name).write_text("\n".join(
            one if isinstance(one, str) else json.dumps(one) for one in lines) + "\n")
        return name

    def batch(self, *more, name="requests.jsonl", **options):
        return self.succeed("batch", MODEL, name, "--out", "answers.jsonl", *more, **options)

    def answers(self):
        read = [json.loads(one) for one in (self.folder / "answers.jsonl").read_text().splitlines()]
        return {one["custom_id"]: one["response"] for one in read}

    def test_each_answer_is_the_one_that_generate_makes(self):
        self.write([line(i) for i in range(9)])
        self.batch("--streams", 4)
        answers = self.answers()
        self.assertEqual(len(answers), 9)
        for i in range(9):
            alone = self.succeed_json("generate", MODEL, "-p", TEXTS[i % len(TEXTS)], "-n", 12,
                                      "--temperature", 0, "--json")
            body = answers[f"r{i}"]["body"]
            self.assertEqual(body["choices"][0]["text"], alone["text"])
            self.assertEqual(body["usage"]["prompt_tokens"], alone["prompt_tokens"])
            self.assertEqual(body["model"], pathlib.Path(MODEL).name)

    def test_goes_on_where_it_was_stopped(self):
        self.write([line(i) for i in range(6)])
        self.batch()
        whole = self.answers()
        kept = (self.folder / "answers.jsonl").read_bytes().splitlines(keepends=True)
        (self.folder / "answers.jsonl").write_bytes(b"".join(kept[:3]) + kept[3][:40])
        result = self.batch()
        self.assertIn(b"3 of 3 requests answered", result.stderr)
        self.assertIn(b"3 were before", result.stderr)
        again = self.answers()
        self.assertEqual({key: one["body"]["choices"] for key, one in whole.items()},
                         {key: one["body"]["choices"] for key, one in again.items()})
        self.assertEqual((self.folder / "answers.jsonl").read_bytes().splitlines()[:3],
                         [one.rstrip() for one in kept[:3]])

    def test_the_next_run_goes_on_from_a_store(self):
        rules = " ".join(f"Rule {i}: tell of a girl by the sea." for i in range(20))
        for run, name in enumerate(("first", "second", "plain")):
            self.write([line(i, prompt=f"{rules} {TEXTS[i % 5]} {run if name != 'plain' else 1}")
                        for i in range(3)])
            store = () if name == "plain" else ("--prefix-store", "store")
            result = self.succeed("batch", MODEL, "requests.jsonl", "--out", f"{name}.jsonl",
                                  "--streams", 1, *store)
            if name == "second":  # also the first of its prompts
                self.assertRegex(result.stderr, rb"[89]. % of the prompts' tokens from the cache")
        answers = [{one["custom_id"]: one["response"]["body"]["choices"] for one in map(
            json.loads, (self.folder / f"{name}.jsonl").read_text().splitlines())}
            for name in ("second", "plain")]
        self.assertEqual(*answers)
        for file in (self.folder / "store").iterdir():
            file.write_bytes(file.read_bytes()[:-1])
        (self.folder / "second.jsonl").unlink()
        result = self.succeed("batch", MODEL, "requests.jsonl", "--out", "second.jsonl",
                              "--prefix-store", "store")
        self.assertIn(b"a stored prefix is left out: store/", result.stderr)
        self.fail_with(2, ["--prefix-store"], "batch", MODEL, "requests.jsonl", "--out", "x.jsonl",
                       "--prefix-store", "")

    def test_an_error_stands_in_its_own_line(self):
        self.write([line(0), line(1, temperature="hot"), line(2, prompt=[1, 10**6]), line(3, n=0)])
        result = self.batch()
        self.assertIn(b"4 of 4 requests answered (3 with an error)", result.stderr)
        answers = self.answers()
        self.assertEqual(answers["r0"]["status_code"], 200)
        for key, word in (("r1", "'temperature'"), ("r2", "token id 1000000"), ("r3", "'n'")):
            self.assertEqual(answers[key]["status_code"], 400)
            self.assertIn(word, answers[key]["body"]["error"]["message"])

    def test_bad_files_are_refused_before_the_model_is_read(self):
        for lines, words in ((["{"], ["line 1", "no JSON object"]),
                             ([line(0), line(0)], ["line 2", "custom_id"]),
                             ([{**line(0), "url": "/v1/images"}], ["/v1/images"]),
                             ([{**line(0), "body": []}], ["body"]),
                             ([{**line(0), "custom_id": 5}], ["custom_id"]),
                             (["[" * 100000], ["line 1"]),
                             ([""], ["no request"])):
            self.write(lines)
            self.fail_with(2, words, "batch", MODEL, "requests.jsonl", "--out", "answers.jsonl")
            self.assertFalse((self.folder / "answers.jsonl").exists())
        self.fail_with(2, ["gone.jsonl"], "batch", MODEL, "gone.jsonl", "--out", "answers.jsonl")
        self.write([line(0)])
        (self.folder / "answers.jsonl").write_text("a list of birds\n")
        self.fail_with(2, ["answers.jsonl", "no answer"], "batch", MODEL, "requests.jsonl", "--out",
                       "answers.jsonl")
        self.assertEqual((self.folder / "answers.jsonl").read_text(), "a list of birds\n")


class BenchServe(CliTest):
    def bench(self, *arguments):
        return self.succeed_json("bench", "serve", MODEL, "--json", *arguments)["figures"]

    def test_a_trace_is_replayed(self):
        trace = [{"time": 0, "prompt": "Once", "max_tokens": 4},
                 {"time": 0.01, "prompt_tokens": 30, "max_tokens": 3, "tenant": "a"},
                 {"time": 0.02, "prompt_ids": [5, 6], "max_tokens": 2, "priority": 3}]
        (self.folder / "trace.jsonl").write_text("\n".join(map(json.dumps, trace)))
        figures = {one["name"]: one["value"] for one in self.bench("--workload", "trace.jsonl")}
        self.assertEqual(figures["requests"], 3)
        self.assertEqual(figures["of these, failed"], 0)

    def test_bad_traces_are_refused(self):
        for text, words in (("{}", ["line 1", "prompt"]), ('{"prompt":"a","time":-1}', ["time"]),
                            ('{"prompt_ids":[99999999]}', ["prompt_ids"]), ("x", ["line 1"]),
                            ('{"prompt":"a","max_tokens":0}', ["max_tokens"]), ("", ["no request"])):
            (self.folder / "trace.jsonl").write_text(text)
            self.fail_with(2, words, "bench", "serve", MODEL, "--workload", "trace.jsonl")
        self.fail_with(2, ["s99"], "bench", "serve", MODEL, "--workload", "s99")

    def test_all_finish_in_a_small_pool(self):
        figures = self.bench("--workload", "s6")
        self.assertEqual([one["value"] for one in figures[:2]], [8, 8])
