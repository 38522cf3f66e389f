# SPDX-License-Identifier: Apache-2.0
"""Floods, dribbles, half-closed connections, prompts of 10 MB and grammars that explode: the server
goes on, says why, and keeps nothing."""

import json
import socket
import urllib.parse

from http_case import LONG, HttpCase, metric, raw, resident_kib, wait_until

MIB = 1 << 20


class Hostile(HttpCase):
    def connect(self):
        place = urllib.parse.urlsplit(self.server.url)
        return socket.create_connection((place.hostname, place.port), timeout=30)

    def tearDown(self):
        self.assertEqual(self.ask("/health").status, 200)
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0, 30))

    def head(self, length, path="/v1/completions"):
        return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % (path.encode(), length))

    def test_floods_of_headers_are_cut_off(self):
        floods = [b"A: b\r\n" * 100000, b"A: " + b"b" * (8 * MIB), b"A" * (8 * MIB),
                  b"Cookie: x\r\n" * 10000 + b"\r\n" + b"y" * 1000, b"A:\r\n " * 50000]
        for flood in floods:
            with self.connect() as one:
                try:
                    one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + flood)
                except OSError:
                    pass
                received = b""
                try:
                    one.settimeout(5)
                    while part := one.recv(65536):
                        received += part
                except OSError:
                    pass
                if received:  # a reset may have taken it
                    self.assertRegex(received[:13], rb"^HTTP/1.1 4\d\d", flood[:20])

    def test_floods_of_connections_are_taken_and_given_back(self):
        for _ in range(3):
            many = [self.connect() for _ in range(200)]
            for each in many[::2]:
                each.sendall(b"GET /health HT")
            self.assertEqual(self.ask("/health").status, 200)
            for each in many:
                each.close()
        self.assertTrue(wait_until(lambda: metric(self.server, "http_connections") <= 1, 10))

    def test_a_body_that_dribbles_holds_up_nobody(self):
        body = json.dumps({"prompt": "The", "max_tokens": 2}).encode()
        with self.connect() as slow:
            for byte in self.head(len(body)) + body[:-1]:
                slow.sendall(bytes([byte]))
            self.assertEqual(self.ask("/health").status, 200)
            self.complete(prompt="Somebody else")
            slow.sendall(body[-1:])
            self.assertTrue(slow.recv(100).startswith(b"HTTP/1.1 200"))

    def test_who_half_closes_within_a_body_is_let_go(self):
        for sent in (b"POST /v1/comp", self.head(1000), self.head(1000) + b'{"prompt": '):
            with self.connect() as one:
                one.sendall(sent)
                one.shutdown(socket.SHUT_WR)
                one.settimeout(10)
                self.assertNotIn(b"HTTP/1.1 200", one.recv(1000))
        self.assertTrue(wait_until(lambda: metric(self.server, "http_connections") <= 1, 10))

    def test_who_half_closes_behind_a_body_ends_the_request(self):
        body = json.dumps({**LONG, "stream": True}).encode()
        with self.connect() as one:
            one.sendall(self.head(len(body)) + body)
            self.assertTrue(one.recv(100).startswith(b"HTTP/1.1 200"))
            one.shutdown(socket.SHUT_WR)
            self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0, 5))

    def test_prompts_of_ten_megabytes_are_refused(self):
        texts = ["a" * (10 * MIB), "word " * (2 * MIB), "\u00e9\u4e2d" * (2 * MIB), " " * (10 * MIB),
                 "0123456789" * MIB, "\n" * (10 * MIB)]
        paths = {"/v1/completions": lambda text: {"prompt": text},
                 "/v1/chat/completions": lambda text: {"messages": [{"role": "user",
                                                                     "content": text}]},
                 "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}],
                                               "max_tokens": 1},
                 "/completion": lambda text: {"prompt": text}}
        for number, text in enumerate(texts):
            path = list(paths)[number % len(paths)]
            reply = self.ask(path, paths[path](text))
            self.assertEqual(reply.status, 400, (path, text[:10], reply.text[:200]))
        ids = self.ask("/v1/completions", {"prompt": [5] * (3 * MIB)})
        self.assertEqual(ids.status, 400)
        before = resident_kib(self.server)
        for _ in range(3):
            self.ask("/v1/completions", {"prompt": texts[1]})
        self.assertLess(resident_kib(self.server) - before, 100 << 10)

    def test_grammars_that_explode_are_refused_or_bounded(self):
        deep = {"type": "integer"}
        for _ in range(25):
            deep = {"anyOf": [deep, {"type": "array", "items": deep}]} if len(
                json.dumps(deep)) < 100000 else deep
        wide = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": "a{1,500}"}
                                                 for i in range(300)}}
        forms = [{"structured_outputs": {"regex": "((a{1,999}){1,999}){1,999}"}},
                 {"structured_outputs": {"regex": "(a|b|ab)*" * 2000}},
                 {"structured_outputs": {"regex": "(" * 5000 + "a" + ")" * 5000}},
                 {"structured_outputs": {"choice": ["x" * 20000] * 200}},
                 {"grammar": "root ::= a a a\na ::= b b b\n" + "".join(
                     f"{chr(98 + i)} ::= {(chr(99 + i) + ' ') * 9}\n" for i in range(20)) +
                     'v ::= "x"\n'},
                 {"grammar": "root ::= root root | root"},
                 {"grammar": 'root ::= "a"{1,100000}'},
                 {"json_schema": deep}, {"json_schema": wide},
                 {"json_schema": {"$ref": "#"}},
                 {"json_schema": {"type": "array", "minItems": 10**9}},
                 {"json_schema": {"type": "string", "minLength": 10**9}},
                 {"json_schema": {"enum": list(range(20000))}},
                 {"json_schema": {"allOf": [{"anyOf": [{"const": i}, {"const": -i}]}
                                            for i in range(30)]}}]
        for form in forms:
            reply = self.ask("/v1/completions", {"prompt": "x", "max_tokens": 3, **form})
            self.assertIn(reply.status, (200, 400, 429, 501), (str(form)[:80], reply.text[:200]))

    def test_odd_bytes_in_paths_and_queries_are_told_in_json(self):
        for target in (b"/%00", b"/%ff%fe", b"/v1/models/%ff", b"/v1/models/%00", b"/slots?%ff",
                       b"/v1/audit/%ff", b"/" + b"a" * 8000, b"*", b"http://localhost/health",
                       b"/slots?fail_on_no_slot=", b"/slots?fail_on_no_slot", b"//", b"/%2e%2e/x"):
            reply = raw(self.server, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n"
                        b"Connection: close\r\n\r\n")
            self.assertRegex(reply[:13], rb"^HTTP/1.1 (200|4\d\d|501)", target)
            head, _, body = reply.partition(b"\r\n\r\n")
            self.assertTrue(json.loads(body.decode()), target)
