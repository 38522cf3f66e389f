# SPDX-License-Identifier: Apache-2.0
"""What tests of llama-server's own routes share: a server for the tests of a class."""

import os
import unittest

import served

MODEL = os.environ.get("VITRINE_MODEL", "")
PROMPT = "Once upon a time there was a little"
GREEDY = {"temperature": 0.0, "seed": 1}


class Case(unittest.TestCase):
    """One server for all tests of a class."""

    options = ()

    @classmethod
    def model(cls):
        return MODEL

    @classmethod
    def setUpClass(cls):
        cls.stack = served.served(cls.model(), "--context", "512", *cls.options)
        cls.server = cls.stack.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.stack.__exit__(None, None, None)

    def post(self, path, **body):
        answer = self.server.ask(path, body)
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json

    def complete(self, **body):
        return self.post("/completion", **{"prompt": PROMPT, "n_predict": 8, **GREEDY, **body})

    def stream(self, **body):
        answer = self.server.ask(
            "/completion", {"prompt": PROMPT, "n_predict": 8, "stream": True, **GREEDY, **body})
        self.assertEqual(answer.status, 200, answer.text)
        self.assertNotIn("[DONE]", answer.text)
        return answer.events()

    def refuse(self, path, body, status, *words):
        answer = self.server.ask(path, body)
        self.assertEqual(answer.status, status, answer.text)
        error = answer.json["error"]
        self.assertEqual(error["code"], status)
        for word in words:
            self.assertIn(word, error["message"])
        if status == 501:
            self.assertEqual(answer.headers["x-should-retry"], "false")
        return error

    def ids(self, text, **options):
        return self.post("/tokenize", content=text, **options)["tokens"]
