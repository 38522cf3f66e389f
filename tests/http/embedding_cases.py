# SPDX-License-Identifier: Apache-2.0
"""Embeddings over HTTP, as OpenAI and llama-server have them, beside those of `vitrine embed`.
VITRINE_TOOL names the tool, VITRINE_MODEL a model."""

import base64
import concurrent.futures
import http.client
import json
import time
import os
import struct
import subprocess
import sys
import unittest

from native_case import MODEL, Case


class Embeddings(Case):
    options = ("--embeddings",)
    TEXTS = ["I believe the meaning of life is", "This is a test", "cat"]

    def vectors(self, given, **body):
        answer = self.post("/v1/embeddings", input=given, **body)
        self.assertEqual([each["index"] for each in answer["data"]],
                         list(range(len(answer["data"]))))
        return [each["embedding"] for each in answer["data"]]

    def command(self, text, pooling):
        run = subprocess.run(
            [os.environ["VITRINE_TOOL"], "embed", MODEL, "-p", text, "--pooling", pooling, "-q"],
            capture_output=True, text=True, check=True)
        return json.loads(run.stdout)

    def test_bits_of_the_command(self):
        vectors = self.vectors(self.TEXTS)
        for text, vector in zip(self.TEXTS, vectors):
            theirs = self.command(text, "mean")["embedding"]
            self.assertEqual(struct.pack(f"{len(vector)}f", *vector),
                             struct.pack(f"{len(theirs)}f", *theirs))
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=4)

    def test_forms(self):
        ids = self.ids(self.TEXTS[1], add_special=True)
        one = self.vectors(self.TEXTS[1])
        for given in (ids, [ids], [self.TEXTS[1]], {"prompt_string": self.TEXTS[1]},
                      {"content": [{"type": "text", "text": "This is "},
                                   {"type": "text", "text": "a test"}]}):
            self.assertEqual(self.vectors(given), one)
        self.assertEqual(len(self.vectors([ids, "a", [ids[0], "b", ids[1]]])), 3)
        self.assertEqual(self.vectors(["cat", "dog", "cat"])[0], self.vectors("cat")[0])

    def test_base64(self):
        [plain] = self.vectors("cat")
        [coded] = self.vectors("cat", encoding_format="base64")
        raw = base64.b64decode(coded, validate=True)
        self.assertEqual(raw, struct.pack(f"<{len(plain)}f", *plain))

    def test_usage_and_shape(self):
        answer = self.post("/v1/embeddings", input=["cat", "cat"], model="any")
        count = 2 * len(self.ids("cat", add_special=True))
        self.assertEqual(answer["usage"], {"prompt_tokens": count, "total_tokens": count})
        self.assertEqual(answer["object"], "list")
        self.assertEqual(answer["data"][1]["object"], "embedding")
        width = len(answer["data"][0]["embedding"])
        self.assertEqual(self.vectors("cat", dimensions=width), self.vectors("cat"))

    def test_native_form(self):
        [plain] = self.vectors("cat")
        for path in ("/embeddings", "/embedding"):
            self.assertEqual(self.post(path, content="cat"),
                             [{"index": 0, "embedding": [plain]}])
        self.assertEqual(self.post("/v1/embeddings", content="cat"),
                         [{"index": 0, "embedding": [plain]}])
        [[raw]] = [each["embedding"] for each in
                   self.post("/embedding", content="cat", embd_normalize=-1)]
        self.assertNotEqual(raw, plain)

    def test_refusals(self):
        for body, status in (
                ({}, 400), ({"input": ""}, 400), ({"input": []}, 400), ({"input": [[]]}, 400),
                ({"input": 5}, 400), ({"input": [1.5]}, 400), ({"input": [-1]}, 400),
                ({"input": [10**9]}, 400), ({"input": {"content": "text"}}, 400),
                ({"input": {"content": [{"type": "unknown"}]}}, 400),
                ({"input": {"content": [{"type": "image_url", "image_url": {}}]}}, 400),
                ({"input": "a", "encoding_format": "hex"}, 400),
                ({"input": "a", "dimensions": 3}, 400), ({"input": ["a"] * 3000}, 400),
                ({"input": "a", "embd_normalize": 1}, 501)):
            with self.subTest(body=str(body)[:60]):
                self.refuse("/v1/embeddings", body, status)
        error = self.refuse("/v1/embeddings", {"input": "This is a test " * 512}, 400, "too large")
        self.assertEqual(error["n_ctx"], 512)


    def slow_request(self):
        """A connection whose request takes long, until it is closed."""
        host, port = self.server.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port))
        body = json.dumps({"input": ["word " * 400] * 2048})
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        return connection

    def test_who_is_gone_is_not_waited_for(self):
        slow = self.slow_request()
        slow.close()
        self.assertEqual(len(self.vectors("cat")), 1)

    def test_others_go_on_and_too_many_are_refused(self):
        slow = self.slow_request()
        time.sleep(1)  # its body is read, and nobody overtakes it
        with concurrent.futures.ThreadPoolExecutor(80) as pool:
            asked = [pool.submit(self.server.ask, "/v1/embeddings", {"input": "cat"})
                     for _ in range(80)]
            first = next(concurrent.futures.as_completed(asked)).result()
            self.assertEqual(first.status, 429, first.text)
            self.assertIn("Retry-After", first.headers)
            self.assertTrue(self.ids("cat"))
            slow.close()
            answers = [each.result() for each in asked]
        self.assertEqual({answer.status for answer in answers}, {200, 429})
        self.assertGreaterEqual(sum(answer.status == 200 for answer in answers), 60)
        self.assertEqual(len(self.vectors("cat")), 1)


class EachToken(Case):
    options = ("--embeddings", "--pooling", "none")

    def test_vectors_of_tokens(self):
        [answer] = self.post("/embeddings", input="hello hello hello")
        self.assertEqual(len(answer["embedding"]),
                         len(self.ids("hello hello hello", add_special=True)))
        for vector in answer["embedding"]:
            self.assertGreater(abs(sum(x * x for x in vector) - 1), 1e-3)
        self.refuse("/v1/embeddings", {"input": "hello"}, 400, "Pooling type 'none'")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
