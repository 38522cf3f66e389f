# SPDX-License-Identifier: Apache-2.0
"""Several models behind one server: each by its name, with its counts, its logs and its memory."""

import json
import pathlib
import subprocess
import unittest

from http_case import MODEL, TOOL, HttpCase, run, wait_until
from kv_events_cases import ids, names, places
from served import served
from zeromq import DEALER, LIBRARY, Socket, unpack

ADAPTERS = pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters"
FEDERATION = ADAPTERS / "federation.json"


class Models(HttpCase):
    @classmethod
    def options(cls):
        logs = pathlib.Path(cls.folder.name) / "logs"
        logs.mkdir()
        return ("--alias", "tiny", "--metrics", "-m", f"again={MODEL}", "-m", f"three={FEDERATION}",
                "--adapter", str(ADAPTERS / "science"), "--no-logprobs", "--kv-bytes", "60MB",
                "--audit-dir", str(logs), "--streams", "3")

    def complete(self, **body):
        reply = self.ask("/v1/completions", {"prompt": "The king said", "temperature": 0,
                                             "max_tokens": 12, **body})
        self.assertEqual(reply.status, 200, reply.text)
        return reply

    def test_all_are_listed(self):
        listed = self.ask("/v1/models").json["data"]
        self.assertEqual([one["id"] for one in listed], ["tiny", "again", "three", "science"])
        for one in listed:
            self.assertEqual(self.ask("/v1/models/" + one["id"]).json["id"], one["id"])

    def test_a_request_chooses(self):
        alone = json.loads(run("generate", MODEL, "-p", "The king said", "-n", 12, "--temperature",
                               0, "--json"))["text"]
        together = json.loads(run("federate", FEDERATION, "-p", "The king said", "-n", 12,
                                  "--temperature", 0, "--json"))["text"]
        self.assertNotEqual(alone, together)
        for model, text in (("tiny", alone), ("again", alone), ("three", together), ("", alone)):
            reply = self.complete(model=model).json
            self.assertEqual(reply["choices"][0]["text"], text, model)
            self.assertEqual(reply["model"], model or "tiny")
        self.assertEqual(self.complete().json["model"], "tiny")
        self.assertNotEqual(self.complete(model="science").json["choices"][0]["text"], together)

    def test_one_that_there_is_not_is_not_found(self):
        for path, body in (("/v1/completions", {"prompt": "x"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                           ("/v1/messages", {"messages": [{"role": "user", "content": "x"}],
                                             "max_tokens": 1}),
                           ("/v1/responses", {"input": "x"}), ("/completion", {"prompt": "x"}),
                           ("/tokenize", {"content": "x"})):
            reply = self.ask(path, {"model": "gpt-5", **body})
            self.assertEqual(reply.status, 404, (path, reply.text))
            self.assertIn("gpt-5", reply.text)
        error = self.ask("/v1/completions", {"model": "gpt-5", "prompt": "x"}).json["error"]
        self.assertEqual((error["param"], error["code"]), ("model", 404))
        self.assertIn("tiny, again, three, science", error["message"])
        self.assertEqual(self.ask("/v1/models/gpt-5").status, 404)

    def sample(self, name, model):
        for line in self.ask("/metrics").text.splitlines():
            if line.startswith(f'{name}{{model_name="{model}"}}'):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError((name, model))

    def test_counts_are_each_models_own(self):
        name = "vitrine_generation_tokens_total"
        before = {model: self.sample(name, model) for model in ("tiny", "again", "three")}
        self.complete(model="again", max_tokens=7)
        self.complete(model="three", max_tokens=5)
        for model, count in (("tiny", 0), ("again", 7), ("three", 5)):
            self.assertEqual(self.sample(name, model) - before[model], count, model)
            self.assertEqual(self.sample("vitrine_requests_waiting", model), 0)
            self.assertGreaterEqual(self.sample("vllm:num_requests_running", model), 0)
        lines = self.ask("/metrics").text.splitlines()
        families = [line for line in lines if line.startswith("# TYPE")]
        self.assertEqual(len(families), len(set(families)))
        samples = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
        self.assertEqual(len(samples), len(set(samples)))

    def test_logs_name_their_model(self):
        for model in ("tiny", "again"):
            name = self.complete(model=model).headers["x-vitrine-audit-id"]
            receipt = self.ask(f"/v1/audit/{name}/receipt").json
            self.assertEqual(receipt["model"], model)
            log = pathlib.Path(self.folder.name, "logs", name + ".vtr")
            self.assertTrue(wait_until(lambda: subprocess.run(
                [TOOL, "audit", "verify", log], capture_output=True, check=False).returncode == 0))

    def test_messages_of_all_models_are_answered_side_by_side(self):
        models = ["tiny", "again", "three"] * 3
        replies = self.complete(model="tiny", prompt=["The king said"] * 3, max_tokens=30)
        self.assertEqual(len(replies.json["choices"]), 3)
        texts = {model: self.complete(model=model).json["choices"][0]["text"] for model in models}
        self.assertEqual(texts["tiny"], texts["again"])


class ModelOptions(unittest.TestCase):
    def test_memory_is_divided(self):
        def blocks(*options):
            with served(MODEL, "--metrics", "--kv-bytes", "2MB", "-c", "2048", *options) as server:
                told = server.ask("/v1/models").json["data"]
                return [one["max_model_len"] for one in told]

        alone, = blocks()
        self.assertEqual(blocks("-m", f"again={MODEL}"), [alone // 2 // 64 * 64] * 2)

    def test_names_that_are_there_twice_are_refused(self):
        for options in (("-m", MODEL), ("-m", f"tiny={MODEL}", "--alias", "tiny"),
                        ("-m", f"science={MODEL}", "--adapter", str(ADAPTERS / "science"))):
            done = subprocess.run([TOOL, "serve", MODEL, "--port", "0", *options],
                                  capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("NAME=PATH", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    @unittest.skipIf(LIBRARY is None, "there is no libzmq.so.5")
    def test_each_has_its_own_events(self):
        with served(f"tiny={MODEL}", "-m", f"again={MODEL}", "--kv-events", "tcp://127.0.0.1:*",
                    "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-topic",
                    "kv@pod@{model}") as server:
            found = places(server)
            self.assertEqual([one[0] for one in found], ["tiny", "again"])
            for number, (model, _, replay) in enumerate(found):
                prompt = ids(130, number)
                server.ask("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 1})

                def heard(replay=replay):
                    with Socket(DEALER, replay) as socket:
                        socket.send(b"", b"\0" * 8)
                        return socket.receive()

                self.assertTrue(wait_until(lambda: len(heard()[3]) > 0))
                message = heard()
                self.assertEqual(message[1:3], [f"kv@pod@{model}".encode(), b"\0" * 8])
                self.assertEqual(unpack(message[3])[1][0]["block_hashes"], names(prompt))


if __name__ == "__main__":
    unittest.main()
