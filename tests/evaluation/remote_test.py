# SPDX-License-Identifier: Apache-2.0
"""`vitrine eval http://…`: a server that behaves, one that cannot do all, and hostile ones.

usage: remote_test.py VITRINE [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from fake_server import Fake, echo, said

VITRINE = os.path.abspath(sys.argv[1])
SUITE = """[suite]
name = "small"
version = "1"
[[task]]
name = "words"
domain = "logic"
kind = "answer"
scorer = "exact"
items = "words.jsonl"
licence = "Apache-2.0"
source = "this test"
max_new_tokens = 16
"""
CHOICES = """[[task]]
name = "picks"
domain = "logic"
kind = "choice"
form = "text"
items = "picks.jsonl"
licence = "Apache-2.0"
source = "this test"
chance = 0.5
"""
WORDS = [{"id": f"w{i}", "prompt": f"Say word{i}", "answer": f"word{i}"} for i in range(5)]
PICKS = [{"id": "p1", "prompt": "Grün ist", "choices": ["Gras", "Schnee"], "answer": 0},
         {"id": "p2", "prompt": "It is", "choices": ["zz", "aa"], "answer": 1}]


class RemoteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, items in (("words", WORDS), ("picks", PICKS)):
            lines = "".join(json.dumps(item) + "\n" for item in items)
            (self.folder / f"{name}.jsonl").write_text(lines)

    def serve(self, kind=Fake, **options):
        fake = kind(**options)
        self.addCleanup(fake.stop)
        return fake

    def eval(self, url, *more, suite=SUITE, overwrites=True):
        (self.folder / "suite.toml").write_text(suite)
        began = time.monotonic()
        run = subprocess.run(
            [VITRINE, "eval", url, "--suite", "suite.toml", "--out", "out.eval", "--json",
             "--api-retries", "2", *["--overwrite"] * overwrites, *map(str, more)], cwd=self.folder, capture_output=True,
            text=True, timeout=240, check=False)
        self.seconds = time.monotonic() - began
        return run

    def items(self):
        lines = (self.folder / "out.eval").read_text().splitlines()
        return {item["id"]: item for item in map(json.loads, lines) if "id" in item}

    def assert_whole(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)
        items = self.items()
        self.assertEqual({key: items[key]["answer"] for key in ("w0", "w4")},
                         {"w0": "word0", "w4": "word4"})
        self.assertEqual([items[f"w{i}"]["right"] for i in range(5)], [True] * 5)
        return items

    def assert_refused(self, run, *words):
        self.assertEqual(run.returncode, 2, run.stderr + run.stdout)
        lines = run.stderr.splitlines()
        self.assertEqual(len(lines), 1, run.stderr)
        self.assertLess(len(lines[0]), 1200)
        for word in words:
            self.assertIn(word, lines[0])


class Behaved(RemoteTest):
    def test_streams(self):
        fake = self.serve()
        items = self.assert_whole(self.eval(fake.url + "/"))
        self.assertEqual(items["w1"]["prompt_tokens"], 7)
        self.assertGreater(items["w1"]["first_token_seconds"], 0)
        self.assertGreaterEqual(items["w1"]["total_seconds"], items["w1"]["first_token_seconds"])
        asked = next(body for body in fake.asked if said(body) == "word3")
        self.assertEqual((asked["model"], asked["temperature"], asked["max_tokens"]),
                         ("fake", 0.0, 16))
        self.assertTrue(asked["stream"])
        self.assertNotIn("return_token_ids", asked)  # of a maker that has no such field

    def test_whole_bodies(self):
        class Whole(Fake):
            def chat(self, to, body):
                to.send(200, {"choices": [{"index": 0, "finish_reason": "stop", "message": {
                    "role": "assistant", "content": said(body)}}], "usage": {"prompt_tokens": 3}})

        items = self.assert_whole(self.eval(self.serve(Whole).url))
        self.assertEqual(items["w2"]["prompt_tokens"], 3)

    def test_calls_and_reasoning(self):
        class Calls(Fake):
            def chat(self, to, body):
                to.begin_stream()
                for delta in ({"reasoning_content": "hm", "reasoning": "hm"}, {"content": "so"},
                              {"tool_calls": [{"index": 0, "id": "c", "type": "function",
                                               "function": {"name": "look", "arguments": ""}}]},
                              {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
                              {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}):
                    to.event({"choices": [{"index": 0, "delta": delta, "logprobs": None}]})
                to.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
                to.event("[DONE]")

        run = self.eval(self.serve(Calls).url)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.items()["w0"]["answer"],
                         'so\n{"name": "look", "arguments": {"a":1}}')

    def test_choices_by_echo(self):
        for least in (0, 1):
            class Echo(Fake):
                def complete(self, to, body):
                    if body["max_tokens"] < least:
                        return to.send(400, {"error": {"message": "max_tokens is too small"}})
                    return super().complete(to, body)

            with self.subTest(least=least):
                (self.folder / "out.eval").unlink(missing_ok=True)
                run = self.eval(self.serve(Echo).url, suite=SUITE + CHOICES)
                items = self.assert_whole(run)
                # "p1": the text that has fewer characters; "p2": the one of the alphabet's begin.
                self.assertEqual((items["p1"]["answer"], items["p2"]["answer"]), ("Gras", "aa"))

    def test_prompts_one_by_one(self):
        class Single(Fake):
            def complete(self, to, body):
                if isinstance(body["prompt"], list):
                    return to.send(422, {"detail": "one prompt"})
                return super().complete(to, body)

        items = self.assert_whole(self.eval(self.serve(Single).url, suite=SUITE + CHOICES))
        self.assertEqual(items["p2"]["answer"], "aa")

    def test_a_server_that_cannot_echo(self):
        class Mute(Fake):
            def complete(self, to, body):
                to.send(500, {"error": {"message": "Only no echo is supported"}})

        items = self.assert_whole(self.eval(self.serve(Mute).url, suite=SUITE + CHOICES))
        self.assertIn("'echo'", items["p1"]["error"])
        self.assertFalse(items["p1"]["right"])

    def test_logprobs_refused(self):
        class Shy(Fake):
            def chat(self, to, body):
                if "logprobs" in body:
                    return to.send(400, {"error": {"message": "logprobs is not supported"}})
                return super().chat(to, body)

        self.assert_whole(self.eval(self.serve(Shy).url))

    def test_an_item_that_is_refused(self):
        class Picky(Fake):
            def chat(self, to, body):
                if said(body) == "word2":
                    return to.send(400, {"error": {"message": "too long\nby far"}})
                return super().chat(to, body)

        run = self.eval(self.serve(Picky).url)
        self.assertEqual(run.returncode, 0, run.stderr)
        items = self.items()
        self.assertIn("too long by far", items["w2"]["error"])
        self.assertTrue(items["w3"]["right"])

    def test_model_by_name(self):
        fake = self.serve()
        self.assert_refused(self.eval(fake.url, "--api-model", "other"), "'other'", "fake")
        self.assert_whole(self.eval(fake.url, "--api-model", "fake"))


class Gone(RemoteTest):
    def test_cut_off_once(self):
        class Cut(Fake):
            cut = 0

            def chat(self, to, body):
                with self.lock:
                    is_cut = said(body) == "word1" and self.cut == 0
                    self.cut += is_cut
                if not is_cut:
                    return super().chat(to, body)
                to.begin_stream()
                return to.event({"choices": [{"index": 0, "delta": {"content": "wrong"}}]})

        fake = self.serve(Cut)
        self.assert_whole(self.eval(fake.url))
        self.assertEqual(fake.prompts().count("word1"), 2)

    def test_busy(self):
        class Busy(Fake):
            times = 0

            def chat(self, to, body):
                with self.lock:
                    self.times += 1
                    is_busy = self.times in (3, 4)
                if is_busy:
                    return to.send(429, {"error": {"message": "slow down"}},
                                   headers=[("Retry-After", "1")])
                return super().chat(to, body)

        self.assert_whole(self.eval(self.serve(Busy).url, "--parallel", 1))
        self.assertGreater(self.seconds, 1.0)

    def test_stops_in_the_middle_and_comes_back(self):
        class Mortal(Fake):
            def chat(self, to, body):
                if said(body) == "word3":
                    to.close_connection = True  # no reply at all
                    return None
                return super().chat(to, body)

        fake = Mortal()
        self.assert_refused(self.eval(fake.url, "--parallel", 1), fake.url, "3 times")
        fake.stop()
        self.assertEqual(sorted(self.items()), ["w0", "w1", "w2"])
        self.assert_refused(self.eval(fake.url, overwrites=False), fake.url, "expected a server")
        fake = self.serve(Fake, port=fake.port)
        self.assert_whole(self.eval(fake.url, overwrites=False))
        self.assertEqual(sorted(fake.prompts()), ["word3", "word4"])

    def test_silence(self):
        class Silent(Fake):
            def chat(self, to, body):
                if body["max_tokens"] == 1:
                    return super().chat(to, body)
                to.begin_stream()
                for _ in range(300):  # what only keeps the connection open is no answer
                    to.wfile.write(b": still here\n\n")
                    to.wfile.flush()
                    time.sleep(0.1)
                return None

        self.assert_refused(self.eval(self.serve(Silent).url, "--api-timeout", 1), "for 1 s")
        self.assertLess(self.seconds, 25)

    def test_a_key(self):
        class Locked(Fake):
            def models(self, to):
                if to.headers.get("Authorization") != "Bearer secret":
                    return to.send(401, {"error": {"message": "no"}})
                return super().models(to)

        fake = self.serve(Locked)
        self.assert_refused(self.eval(fake.url), "401", "--api-key")
        self.assert_whole(self.eval(fake.url, "--api-key", "secret"))
        self.assertNotIn("secret", (self.folder / "out.eval").read_text())

    def test_addresses(self):
        for url in ("http://", "http://u:p@127.0.0.1:1/v1", "http://127.0.0.1:1/v1?x=1",
                    "http:///v1"):
            with self.subTest(url=url):
                self.assert_refused(self.eval(url), "http://HOST:PORT/v1")


def chat_events(*events):
    """A server that says these in place of an answer."""

    class Odd(Fake):
        def chat(self, to, body):
            if body["max_tokens"] == 1:
                return super().chat(to, body)
            to.begin_stream()
            for one in events:
                to.event(one)
            return None

    return Odd


class Hostile(RemoteTest):
    def refuse_events(self, *events, words=()):
        run = self.eval(self.serve(chat_events(*events)).url)
        self.assert_refused(run, "http://127.0.0.1", *words)

    def test_what_is_no_answer(self):
        choice = lambda **fields: {"choices": [{"index": 0, **fields}]}
        for event, words in (
                ("{", ["JSON object"]), ("[1]", ["JSON object"]), ("\u0000\u0007", ["JSON object"]),
                ("[" * 100000, ["JSON object"]), ("{}", ["'choices'", "missing"]),
                ({"choices": 3}, ["'choices'", "is 3"]), ({"choices": [3]}, ["'choices'"]),
                (choice(delta=7), ["'delta'"]), (choice(delta={"content": 7}), ["'content'"]),
                (choice(delta={"tool_calls": 1}), ["'tool_calls'"]),
                (choice(delta={"tool_calls": [1]}), ["'tool_calls'"]),
                (choice(delta={"tool_calls": [{"index": 1e9}]}), ["'tool_calls'"]),
                (choice(delta={"tool_calls": [{"function": {"name": {}}}]}), ["'name'"]),
                (choice(delta={}, logprobs=5), ["'logprobs'"]),
                (choice(delta={}, logprobs={"content": [{"logprob": "x"}]}), ["'logprobs'"]),
                (choice(delta={}, logprobs={"content": [{"logprob": 5.0}]}), ["'logprobs'"]),
                (choice(delta={}, token_ids=[-1]), ["'token_ids'"]),
                (choice(delta={}, finish_reason=[]), ["'finish_reason'"]),
                ({"choices": [{"index": -1}]}, ["'index'"]),
                ({"choices": [], "usage": {"prompt_tokens": 1e300}}, ["'prompt_tokens'"]),
                ({"choices": [], "usage": []}, ["'usage'"])):
            with self.subTest(event=str(event)[:60]):
                self.refuse_events(event, words=words)

    def test_a_body_that_is_no_json(self):
        class Page(Fake):
            def chat(self, to, body):
                if body["max_tokens"] == 1:
                    return super().chat(to, body)
                return to.send(200, b"<html>\n<b>hello</b></html>", "text/html")

        self.assert_refused(self.eval(self.serve(Page).url), "<html>", "JSON object")

    def test_endless_streams(self):
        class Endless(Fake):
            line = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' * 100

            def chat(self, to, body):
                if body["max_tokens"] == 1:
                    return super().chat(to, body)
                to.begin_stream()
                while True:
                    to.wfile.write(self.line)

        self.assert_refused(self.eval(self.serve(Endless).url), "events; expected its end")

        class Line(Endless):
            line = b"data: " + b"x" * (1 << 16)

        self.assert_refused(self.eval(self.serve(Line).url), "bytes")

    def test_huge_bodies(self):
        class Huge(Fake):
            def models(self, to):
                to.send_response(200)
                to.end_headers()
                try:
                    while True:
                        to.wfile.write(b" " * (1 << 20))
                except OSError:
                    to.close_connection = True

        self.assert_refused(self.eval(self.serve(Huge).url), "64 MiB")

    def test_no_http(self):
        class Raw(Fake):
            def models(self, to):
                to.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
                to.close_connection = True

        self.assert_refused(self.eval(self.serve(Raw).url), "/models")

    def test_models(self):
        for reply in ({}, {"data": 1}, {"data": []}, {"data": [1]}, {"data": [{"id": 4}]}):
            class Odd(Fake):
                def models(self, to):
                    to.send(200, reply)

            with self.subTest(reply=reply):
                self.assert_refused(self.eval(self.serve(Odd).url), "/models")

    def test_echoes_that_do_not_fit(self):
        good = echo("Grün ist Gras", 0)

        def odd(**logprobs):
            class Odd(Fake):
                def complete(self, to, body):
                    if body["prompt"] == "One two three four":
                        return super().complete(to, body)
                    choice = {**good, "logprobs": {**good["logprobs"], **logprobs}}
                    return to.send(200, {"choices": [choice, {**choice, "index": 1}]})

            return Odd

        values = good["logprobs"]["token_logprobs"]
        for fake in (odd(token_logprobs=5), odd(token_logprobs=[]), odd(text_offset=[0]),
                     odd(text_offset=["a"] * len(values)), odd(token_logprobs=["x"] * len(values)),
                     odd(token_logprobs=[7.5] * len(values))):
            self.assert_refused(self.eval(self.serve(fake).url, suite=SUITE + CHOICES),
                                "/completions")

        class Fewer(Fake):
            def complete(self, to, body):
                if body["prompt"] == "One two three four":
                    return super().complete(to, body)
                return to.send(200, {"choices": [good, good]})

        self.assert_refused(self.eval(self.serve(Fewer).url, suite=SUITE + CHOICES), "'index'")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
