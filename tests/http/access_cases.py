# SPDX-License-Identifier: Apache-2.0
"""Clients that go, keys, accounts, TLS, and how a server ends."""

import http.client
import json
import pathlib
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse

from http_case import LONG, MODEL, TOOL, HttpCase, metric, resident_kib, run, wait_until
from served import served


class Disconnects(HttpCase):
    def leave(self, body):
        place = urllib.parse.urlsplit(self.server.url)
        connection = http.client.HTTPConnection(place.hostname, place.port)
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0))
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") > 0))
        connection.close()

    def test_a_client_that_goes_ends_its_request(self):
        for stream in (False, True):
            gone = metric(self.server, "http_disconnects_total")
            self.leave({**LONG, "stream": stream, "n": 8, "temperature": 2})
            self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0, 2))
            self.assertTrue(wait_until(
                lambda: metric(self.server, "http_disconnects_total") > gone, 2))

    def test_a_reader_that_stops_holds_up_nobody(self):
        place = urllib.parse.urlsplit(self.server.url)
        body = json.dumps({**LONG, "stream": True, "logprobs": 20}).encode()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((place.hostname, place.port))
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                     b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertTrue(wait_until(lambda: metric(self.server, "client_stalls_total") > 0))
        self.assertEqual(len(self.complete(prompt="The king", max_tokens=5)["choices"]), 1)
        slow.close()
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0, 3))

    def test_memory_stays_flat_over_many_requests(self):
        place = urllib.parse.urlsplit(self.server.url)
        connection = http.client.HTTPConnection(place.hostname, place.port)

        def many(count):
            for i in range(count):
                body = {"prompt": f"Number {i} ", "max_tokens": 2, "stream": i % 2 == 0,
                        "cache_prompt": False}
                connection.request("POST", "/v1/completions", json.dumps(body),
                                   {"Content-Type": "application/json"})
                connection.getresponse().read()

        many(300)
        before = resident_kib(self.server)
        many(700)
        self.assertLess(resident_kib(self.server) - before, 20 << 10)


class Keys(HttpCase):
    ALICE, BOB, AUDITOR = "alice-key-0123", "bob-key-456789", "auditor-key-77"

    @classmethod
    def options(cls):
        folder = pathlib.Path(cls.folder.name)
        (folder / "keys").write_text(f"# tenants\nalice {cls.ALICE}\n\nbob {cls.BOB}\n"
                                     f"auditor {cls.AUDITOR}\n")
        (folder / "logs").mkdir()
        return ("--api-key-file", str(folder / "keys"), "--audit-dir", str(folder / "logs"),
                "--seal", str(folder / "seal"), "--metrics", "--cors-origin", "https://app.example",
                "--strict-model", "--alias", "tiny")

    def ask_as(self, key, *arguments, **named):
        return self.ask(*arguments, headers={"Authorization": f"Bearer {key}"}, **named)

    def test_everything_but_health_wants_a_key(self):
        self.assertEqual(self.ask("/health").status, 200)
        self.assertEqual(self.ask("/v1/health").status, 200)
        for path in ("/v1/models", "/metrics", "/v1/audit/" + "0" * 32):
            for headers in ({}, {"Authorization": "Bearer wrong-key-000"},
                            {"Authorization": self.ALICE}, {"X-Api-Key": self.ALICE[:-1]}):
                reply = self.ask(path, headers=headers)
                self.assertEqual(reply.status, 401)
                self.assertEqual(reply.json["error"]["type"], "authentication_error")
        self.assertEqual(self.ask_as(self.ALICE, "/v1/models").status, 200)
        self.assertEqual(self.ask("/v1/models", headers={"X-Api-Key": self.BOB}).status, 200)

    def test_an_unknown_model_is_not_there(self):
        body = {"prompt": "x", "model": "other", "max_tokens": 1}
        self.assertEqual(self.ask_as(self.ALICE, "/v1/completions", body).status, 404)
        self.assertEqual(self.ask_as(self.ALICE, "/v1/models/other").status, 404)
        self.assertEqual(self.ask_as(self.ALICE, "/v1/models/tiny").json["id"], "tiny")

    def test_an_account_is_for_its_owner_and_for_auditors(self):
        reply = self.ask_as(self.ALICE, "/v1/completions",
                            {"prompt": "The king said", "max_tokens": 9, "temperature": 0.8,
                             "ignore_eos": True})  # Draws of an unknown seed may end the text.
        name = reply.headers["x-vitrine-audit-id"]
        self.assertRegex(name, "^[0-9a-f]{32}$")
        path = "/v1/audit/" + name
        self.assertTrue(wait_until(
            lambda: self.ask_as(self.ALICE, path + "/manifest").status == 200))
        self.assertEqual(self.ask_as(self.BOB, path).status, 404)
        with_key = {"Authorization": f"Bearer {self.AUDITOR}"}
        self.assertEqual(self.ask("/v1/models", headers=with_key).status, 403)
        log = pathlib.Path(self.folder.name, "logs", name + ".vtr")
        for key in (self.ALICE, self.AUDITOR):
            read = self.ask_as(key, path)
            self.assertEqual((read.status, read.body), (200, log.read_bytes()))
        self.assertIn("complete", run("audit", "verify", log).decode())
        replayed = run("audit", "replay", log, "--model", MODEL).decode()
        self.assertIn("choose the same 9 tokens again", replayed)
        receipt = json.loads(self.ask_as(self.ALICE, path + "/receipt").text)
        self.assertEqual((receipt["id"], receipt["model"]), (name, "tiny"))
        for other in ("../keys", "x", name + "/../keys", "0" * 32, name + "%2f..%2fkeys"):
            self.assertEqual(self.ask_as(self.AUDITOR, "/v1/audit/" + other).status, 404, other)

    def test_a_cancelled_request_leaves_a_whole_log(self):
        logs = pathlib.Path(self.folder.name, "logs")
        before = set(logs.glob("*.vtr"))
        place = urllib.parse.urlsplit(self.server.url)
        connection = http.client.HTTPConnection(place.hostname, place.port)
        connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}),
                           {"Content-Type": "application/json", "X-Api-Key": self.ALICE})
        connection.getresponse().read(400)
        connection.close()
        self.assertTrue(wait_until(lambda: list(logs.glob("*.manifest.json")) and
                                   len(list(logs.glob("*.manifest.json"))) ==
                                   len(list(logs.glob("*.vtr")))))
        for log in set(logs.glob("*.vtr")) - before:
            self.assertIn("every one accounted for", run("audit", "verify", log).decode())

    def test_tenants_share_no_prefixes(self):
        body = {"prompt": "A prompt of one tenant that the other one has, too. " * 6,
                "max_tokens": 1}

        def cached(key):
            reply = self.ask_as(key, "/v1/completions", body).json
            return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual(cached(self.ALICE), 0)
        self.assertGreater(cached(self.ALICE), 50)
        self.assertEqual(cached(self.BOB), 0)

    def test_only_named_origins_may_read(self):
        asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        reply = self.ask("/v1/completions", headers=asks, method="OPTIONS")
        self.assertEqual(reply.status, 204)
        self.assertEqual(reply.headers["Access-Control-Allow-Origin"], "https://app.example")
        reply = self.ask("/v1/completions", headers={**asks, "Origin": "https://evil.example"},
                         method="OPTIONS")
        self.assertIsNone(reply.headers["Access-Control-Allow-Origin"])
        self.assertEqual(self.ask("/v1/models", method="OPTIONS").status, 405)

    def test_metrics_are_prometheus_and_name_no_text(self):
        text = self.ask_as(self.ALICE, "/metrics").text
        self.assertRegex(text, r"(?m)^vllm:num_requests_running\{model_name=\"tiny\"\} 0")
        self.assertRegex(text, r"(?m)^# TYPE vllm:time_to_first_token_seconds histogram$")
        bounds = [line for line in text.splitlines()
                  if line.startswith("vitrine_time_to_first_token_seconds_bucket")]
        counts = [float(line.rsplit(" ", 1)[1]) for line in bounds]
        self.assertEqual(counts, sorted(counts))
        self.assertNotIn("king", text)


class Ends(unittest.TestCase):
    def test_sigterm_lets_answers_end(self):
        with served(MODEL, "--metrics") as server:
            place = urllib.parse.urlsplit(server.url)
            connection = http.client.HTTPConnection(place.hostname, place.port)
            connection.request("POST", "/v1/completions", json.dumps({**LONG, "max_tokens": 400}),
                               {"Content-Type": "application/json"})
            wait_until(lambda: metric(server, "requests_running") == 1)
            server.process.terminate()
            reply = json.loads(connection.getresponse().read())
            self.assertEqual(reply["usage"]["completion_tokens"], 400)
            self.assertEqual(server.process.wait(20), 0)

    def test_sigterm_ends_in_time(self):
        with served(MODEL, "--drain-seconds", "0.3", "--streams", "4") as server:
            place = urllib.parse.urlsplit(server.url)
            connection = http.client.HTTPConnection(place.hostname, place.port)
            body = {**LONG, "n": 16, "stream": True, "logprobs": 20}
            connection.request("POST", "/v1/completions", json.dumps(body),
                               {"Content-Type": "application/json"})
            connection.getresponse().read(100)
            server.process.terminate()
            begin = time.monotonic()
            self.assertEqual(server.process.wait(20), 0)
            self.assertLess(time.monotonic() - begin, 5)

    def test_kill_leaves_logs_open_but_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            with served(MODEL, "--audit-dir", folder) as server:
                place = urllib.parse.urlsplit(server.url)
                connection = http.client.HTTPConnection(place.hostname, place.port)
                connection.request("POST", "/v1/completions",
                                   json.dumps({**LONG, "n": 4, "stream": True}),
                                   {"Content-Type": "application/json"})
                connection.getresponse().read(2000)
                server.process.kill()
                server.process.wait()
            logs = list(pathlib.Path(folder).glob("*.vtr"))
            self.assertEqual(len(logs), 4)
            for log in logs:
                told = subprocess.run([TOOL, "audit", "verify", log], capture_output=True,
                                      check=False)
                self.assertIn(b"OPEN: intact", told.stdout + told.stderr)
                self.assertNotIn(b"broken", told.stdout + told.stderr)

    def test_bad_options_are_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys")
            for text, said in (("short\n", "8 at least"), ("", "has no key"),
                               ("a b c d\n", "4 words"), ("12345678\n12345678\n", "each once")):
                keys.write_text(text)
                told = subprocess.run([TOOL, "serve", MODEL, "--port", "0", "--api-key-file", keys],
                                      capture_output=True, check=False)
                self.assertEqual(told.returncode, 2)
                self.assertIn(said, told.stderr.decode())
            for options in (("--audit-dir", folder + "/none"), ("--tls-cert", keys),
                            ("--host", "256.0.0.1"), ("--audit-mode", "none", "--audit-dir", folder)):
                told = subprocess.run([TOOL, "serve", MODEL, "--port", "0", *map(str, options)],
                                      capture_output=True, check=False)
                self.assertNotEqual(told.returncode, 0)
                self.assertLessEqual(told.stderr.decode().strip().count("\n"), 1)


class Tls(unittest.TestCase):
    def test_the_certificate_is_used(self):
        import ssl
        import urllib.request
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                 "/CN=localhost", "-keyout", folder + "/key", "-out", folder + "/cert"],
                capture_output=True, check=False)
            if made.returncode != 0:
                self.skipTest("there is no openssl")
            with served(MODEL, "--tls-cert", folder + "/cert", "--tls-key", folder + "/key",
                        context=ssl._create_unverified_context()) as server:
                self.assertTrue(server.url.startswith("https://"))
                reply = server.ask("/v1/completions", {"prompt": "The", "max_tokens": 30,
                                                       "stream": True})
                self.assertTrue(reply.text.endswith("data: [DONE]\n\n"))
