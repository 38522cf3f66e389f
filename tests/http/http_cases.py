# SPDX-License-Identifier: Apache-2.0
"""OpenAI's routes, streams and mistakes."""

import base64
import json
import pathlib
import socket
import struct
import tempfile
import time
import urllib.parse

from http_case import MODEL, HttpCase, raw, run


class Completions(HttpCase):
    def test_answer_is_the_one_that_generate_makes(self):
        alone = json.loads(run("generate", MODEL, "-p", "The king said", "-n", 12, "--temperature",
                               0, "--json"))
        body = self.complete(prompt="The king said", max_tokens=12)
        self.assertEqual(body["choices"][0]["text"], alone["text"])
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual(body["model"], "tiny")
        self.assertEqual(body["usage"]["completion_tokens"], 12)
        self.assertEqual(body["usage"]["total_tokens"], body["usage"]["prompt_tokens"] + 12)

    def test_stream_adds_up_to_the_whole_answer(self):
        body = {"prompt": "The king said", "max_tokens": 20, "temperature": 0, "logprobs": 2}
        whole = self.complete(**body)
        reply = self.ask("/v1/completions", {**body, "stream": True,
                                             "stream_options": {"include_usage": True}})
        self.assertTrue(reply.headers["Content-Type"].startswith("text/event-stream"))
        self.assertTrue(reply.text.endswith("data: [DONE]\n\n"))
        chunks = reply.events()
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"], whole["usage"] | {
            "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]})
        choices = [chunk["choices"][0] for chunk in chunks[:-1]]
        self.assertEqual("".join(one["text"] for one in choices), whole["choices"][0]["text"])
        self.assertEqual([one["finish_reason"] for one in choices[:-1]], [None] * (len(choices) - 1))
        self.assertEqual(choices[-1]["finish_reason"], "length")
        self.assertEqual(choices[-1]["text"], "")
        for name in ("tokens", "token_logprobs", "text_offset"):
            told = [value for one in choices if one["logprobs"] for value in one["logprobs"][name]]
            self.assertEqual(told, whole["choices"][0]["logprobs"][name], name)
        self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)

    def test_prompts_come_as_ids_and_several_at_once(self):
        text = self.complete(prompt="Once upon a time")["choices"][0]
        ids = json.loads(run("tokenize", MODEL, "-p", "Once upon a time", "--json"))["ids"]
        self.assertEqual(self.complete(prompt=ids)["choices"][0]["text"], text["text"])
        both = self.complete(prompt=["Once upon a time", "The king said"], n=2, seed=3)
        self.assertEqual([one["index"] for one in both["choices"]], [0, 1, 2, 3])
        self.assertEqual(both["choices"][0]["text"], text["text"])
        self.assertEqual(both["choices"][1]["text"], text["text"])
        self.assertEqual(self.complete(prompt=[ids, ids])["choices"][1]["text"], text["text"])

    def test_seed_repeats_and_no_seed_does_not(self):
        body = {"prompt": "The", "max_tokens": 24, "temperature": 1.5}
        texts = [self.complete(**body, seed=11)["choices"][0]["text"] for _ in range(2)]
        self.assertEqual(texts[0], texts[1])
        free = {self.complete(**body)["choices"][0]["text"] for _ in range(4)}
        self.assertGreater(len(free), 1)

    def test_echoed_prompt_has_the_numbers_that_score_has(self):
        ids = json.loads(run("tokenize", MODEL, "-p", "The second King of France said", "--json"))
        with tempfile.TemporaryDirectory() as folder:
            given, made = pathlib.Path(folder, "ids.json"), pathlib.Path(folder, "out.json")
            given.write_text(json.dumps(ids["ids"]))
            run("score", MODEL, "--tokens", given, "--out", made)
            scored = json.loads(made.read_text())["token_logprobs"]
        for count in (0, 1, 5):
            body = self.complete(prompt=ids["ids"], max_tokens=count, logprobs=1, echo=True)
            told = body["choices"][0]["logprobs"]
            self.assertIsNone(told["token_logprobs"][0])
            self.assertIsNone(told["top_logprobs"][0])
            self.assertEqual(told["token_logprobs"][1:len(ids["ids"])], scored)
            self.assertEqual(len(told["tokens"]), len(ids["ids"]) + count)
            self.assertEqual("".join(told["tokens"]), body["choices"][0]["text"])
        streamed = self.ask("/v1/completions", {"prompt": ids["ids"], "max_tokens": 2, "logprobs": 1,
                                                "echo": True, "temperature": 0, "stream": True})
        told = [value for chunk in streamed.events() if chunk["choices"][0]["logprobs"]
                for value in chunk["choices"][0]["logprobs"]["token_logprobs"]]
        self.assertEqual(told[1:len(ids["ids"])], scored)
        again = self.complete(prompt=ids["ids"], prompt_logprobs=2)["choices"][0]["prompt_logprobs"]
        self.assertIsNone(again[0])
        self.assertEqual([one[str(token)]["logprob"] for one, token in zip(again[1:],
                                                                          ids["ids"][1:])], scored)
        self.assertTrue(all(len(one) in (2, 3) for one in again[1:]))

    def test_stop_texts_end_an_answer_and_are_left_out(self):
        whole = self.complete(prompt="Once upon a time", max_tokens=40)["choices"][0]["text"]
        stop = whole[10:13]
        cut = self.complete(prompt="Once upon a time", max_tokens=40, stop=[stop])["choices"][0]
        self.assertEqual(cut["text"], whole[:whole.index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")

    def test_constraints_hold(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"],
                  "additionalProperties": False}
        for form in ({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
                     {"structured_outputs": {"json": schema}}, {"json_schema": schema}):
            body = self.complete(prompt="Age:", max_tokens=60, **form)
            self.assertIsInstance(json.loads(body["choices"][0]["text"])["age"], int)
        body = self.complete(prompt="Yes or no?", structured_outputs={"choice": ["yes", "no"]})
        self.assertIn(body["choices"][0]["text"], ("yes", "no"))

    def test_experts_come_in_the_form_of_sglang(self):
        body = self.complete(prompt="The king said", max_tokens=3, return_routed_experts=True)
        told = body["choices"][0]["sgl_ext"]
        tokens, layers, top_k = told["shape"]
        prompt = body["usage"]["prompt_tokens"]
        self.assertEqual(tokens, prompt + 2)  # the last token is not computed
        experts = struct.unpack(f"<{tokens * layers * top_k}i",
                                base64.b64decode(told["routed_experts"]))
        weights = struct.unpack(f"<{tokens * layers * top_k}f",
                                base64.b64decode(told["routed_weights"]))
        facts = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        self.assertEqual(top_k, facts["num_experts_per_tok"])
        self.assertTrue(all(0 <= one < facts["num_experts"] for one in experts))
        for token in range(tokens * layers):
            self.assertAlmostEqual(sum(weights[token * top_k:(token + 1) * top_k]), 1, places=4)
        # What comes out of the cache has its experts, too.
        again = self.complete(prompt="The king said", max_tokens=3, return_routed_experts=True)
        self.assertEqual(again["choices"][0]["sgl_ext"], told)

    def test_account_tells_each_token(self):
        body = self.complete(prompt="The king said", max_tokens=4, account=True, logprobs=1,
                             return_token_ids=True)
        account = body["choices"][0]["account"]
        self.assertEqual([one["id"] for one in account], body["choices"][0]["token_ids"])
        for one, logprob in zip(account, body["choices"][0]["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(one["logprob"], logprob, places=3)
            self.assertEqual(one["alternatives"][0]["id"], one["id"])  # greedy
            self.assertTrue(one["experts"])


class Chat(HttpCase):
    def chat(self, **body):
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0,
                "max_tokens": 6, **body}
        return self.ask("/v1/chat/completions", body)

    def test_answer_and_stream_agree(self):
        whole = self.chat(logprobs=True, top_logprobs=2).json
        message = whole["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        chunks = self.chat(stream=True).events()
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(chunks[-1]["choices"][0]["delta"], {})
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        self.assertEqual(text, message["content"])
        scores = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(scores), 6)
        self.assertEqual([len(one["top_logprobs"]) for one in scores], [2] * 6)

    def test_what_a_message_says_never_becomes_a_special_token(self):
        def prompt_ids(text):
            reply = self.chat(messages=[{"role": "user", "content": text}], return_token_ids=True)
            return reply.json["prompt_token_ids"]

        plain, forged = prompt_ids("abc"), prompt_ids("a<|endoftext|>bc")
        self.assertNotIn(0, plain)
        self.assertNotIn(0, forged)
        self.assertGreater(len(forged), len(plain))

    def test_second_turn_begins_with_what_the_first_computed(self):
        first = [{"role": "user", "content": "Tell me of the king. " * 12}]
        answer = self.chat(messages=first).json
        said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
        second = self.chat(messages=[*first, said, {"role": "user", "content": "Go on"}]).json
        self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"],
                           answer["usage"]["prompt_tokens"] - 2)

    def test_template_variables_may_not_stand_for_messages(self):
        reply = self.chat(chat_template_kwargs={"messages": []})
        self.assertEqual(reply.status, 400)
        self.assertEqual(reply.json["error"]["param"], "chat_template_kwargs.messages")


class Mistakes(HttpCase):
    def test_each_has_its_status_and_its_body(self):
        cases = [("/v1/completions", {"prompt": "x", "temperature": "hot"}, 400, "temperature"),
                 ("/v1/completions", {}, 400, "prompt"),
                 ("/v1/completions", b"{", 400, None), ("/v1/completions", b"[]", 400, None),
                 ("/v1/completions", b"\xff\xfe", 400, None), ("/v1/completions", b"", 400, None),
                 ("/v1/completions", b"[" * 100000, 400, None),
                 ("/v1/completions", b'{"prompt": "\\ud800", "max_tokens": 1}', 400, None),
                 ("/v1/completions", {"prompt": "x", "max_tokens": 1e300}, 400, "max_tokens"),
                 ("/v1/completions", {"prompt": [10**9]}, 400, None),
                 ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400, "logprobs"),
                 ("/v1/completions", {"prompt": "x", "n": 17}, 400, "n"),
                 ("/v1/completions", {"prompt": "x", "stream_options": {}}, 400, "stream_options"),
                 ("/v1/completions", {"prompt": "x", "prompt_logprobs": -1}, 400,
                  "prompt_logprobs"),
                 ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "("}}, 400,
                  None),
                 ("/v1/chat/completions", {"messages": []}, 400, "messages"),
                 ("/v1/chat/completions", {"messages": [{"role": 3}]}, 400, "messages[0]"),
                 ("/nowhere", None, 404, None), ("/v1/completions", None, 405, None)]
        for path, body, status, param in cases:
            reply = self.ask(path, body)
            self.assertEqual(reply.status, status, (path, body, reply.text))
            error = reply.json["error"]
            self.assertEqual(error["code"], status)
            self.assertTrue(error["message"])
            if param is not None:
                self.assertEqual(error["param"], param)

    def test_what_is_not_there_is_not_to_be_asked_for_again(self):
        for path, body in (("/slots", None), ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
                           ("/v1/responses", {"input": "a", "background": True})):
            reply = self.ask(path, body)
            self.assertEqual((reply.status, reply.headers["x-should-retry"]), (501, "false"), path)

    def test_too_long_a_prompt_says_how_long(self):
        reply = self.ask("/v1/completions", {"prompt": [5] * 3000})
        self.assertEqual(reply.status, 400)
        error = reply.json["error"]
        self.assertEqual(error["type"], "exceed_context_size_error")
        self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (3000, 2048))

    def test_a_failure_before_the_first_token_is_a_status_in_a_stream_too(self):
        reply = self.ask("/v1/completions", {"prompt": [5] * 3000, "stream": True})
        self.assertEqual(reply.status, 400)

    def test_a_body_of_another_type_is_refused(self):
        reply = self.ask("/v1/completions", b'{"prompt": "x"}', headers={"Content-Type":
                                                                         "text/plain"})
        self.assertEqual(reply.status, 415)

    def test_bodies_that_cost_much_to_read_are_refused_at_once(self):
        many = b",".join(b'"%d":0' % i for i in range(200000))
        for path in ("/v1/messages", "/v1/responses", "/v1/chat/completions", "/completion"):
            begin = time.monotonic()
            for body in (b"{" + many + b"}", b'{"x":[' + b"{}," * 300000 + b"{}]}"):
                reply = self.ask(path, body)
                self.assertEqual(reply.status, 400, (path, reply.text[:200]))
            self.assertLess(time.monotonic() - begin, 20, path)
        grammar = 'root ::= "' + "a" * 1000000 + '"'
        reply = self.ask("/v1/completions", {"prompt": ["a"] * 2000, "grammar": grammar})
        self.assertEqual(reply.status, 400)

    def test_what_is_not_read_of_one_request_is_not_the_next(self):
        hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        place = urllib.parse.urlsplit(self.server.url)
        heads = [b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\n"
                 b"Access-Control-Request-Method: GET\r\n",
                 b"GET /health HTTP/1.1\r\nHost: localhost\r\n"]
        for head in heads:
            with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
                connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(hidden))
                time.sleep(0.1)
                try:
                    connection.sendall(hidden)
                except OSError:
                    pass
                received = b""
                try:
                    while part := connection.recv(65536):
                        received += part
                except OSError:
                    pass
                self.assertEqual(received.count(b"HTTP/1.1 "), 1, received)
        reply = raw(self.server, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                 b"Transfer-Encoding: chunked, identity\r\n\r\n" + hidden, wait=1)
        self.assertTrue(reply.startswith(b"HTTP/1.1 400"), reply)
        self.assertEqual(reply.count(b"HTTP/1.1 "), 1)

    def test_a_refusal_reaches_who_is_still_sending(self):
        place = urllib.parse.urlsplit(self.server.url)
        with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
            connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n"
                               b"Content-Length: 20000000\r\n\r\n")
            for _ in range(20):
                connection.sendall(b"x" * 20000)
            self.assertTrue(connection.recv(1000).startswith(b"HTTP/1.1 404"))

    def test_strangers_bytes_end_nothing(self):
        hostile = [b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                   b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
                   b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999"
                   b"\r\n\r\n",
                   b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                   b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
                   b"\r\n\r\nzz\r\n",
                   b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad\x01Name: 1\r\n\r\n"]
        for data in hostile:
            reply = raw(self.server, data, wait=1)
            self.assertRegex(reply[:12], rb"^HTTP/1.1 [45]", data[:60])
        self.assertEqual(self.ask("/health").status, 200)

    def test_two_requests_in_a_row_are_both_answered(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        reply = raw(self.server, one + b"\r\n" + one + b"Connection: close\r\n\r\n")
        self.assertEqual(reply.count(b"HTTP/1.1 200 OK"), 2)

    def test_old_clients_get_no_chunks(self):
        body = json.dumps({"prompt": "The", "max_tokens": 3, "stream": True}).encode()
        reply = raw(self.server, b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\n"
                                 b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.assertIn(b"\r\n\r\ndata: {", reply)
        self.assertNotIn(b"chunked", reply)

    def test_whoever_waits_for_continue_hears_it(self):
        body = json.dumps({"prompt": "The", "max_tokens": 1}).encode()
        place = urllib.parse.urlsplit(self.server.url)
        with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: "
                               b"100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertEqual(connection.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.sendall(body)
            self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 200 OK"))

    def test_pages_of_others_and_names_of_others_are_refused(self):
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            self.assertEqual(self.ask("/v1/models", headers=headers).status, 403)
        self.assertEqual(self.ask("/v1/models", headers={"Host": "127.0.0.1"}).status, 200)
        self.assertEqual(self.ask("/v1/models", headers={"Origin": self.server.url}).status, 200)

    def test_request_id_is_told_and_never_trusted(self):
        self.assertEqual(self.ask("/health", headers={"x-request-id": "abc-1"})
                         .headers["x-request-id"], "abc-1")
        told = self.ask("/health", headers={"x-request-id": "../../etc"}).headers["x-request-id"]
        self.assertRegex(told, "^[0-9a-f]{32}$")
