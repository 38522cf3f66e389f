# SPDX-License-Identifier: Apache-2.0
"""Starts `vitrine serve` on a port that is free, for tests, and asks it. Python's library alone."""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from contract import LazyContract

START_SECONDS = 120


class Answer:
    """What a request was answered: `status`, `headers`, `text`, and `json` where it is JSON."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
        self.text = body.decode(errors="replace")

    @property
    def json(self):
        return json.loads(self.text)

    def events(self):
        """The objects of a stream of server-sent events; [DONE] is left out."""
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Served:
    """A server that has been started: `url`, and `errors`, the lines that it wrote."""

    def __init__(self, process, context=None):
        self.process, self.errors, self.url, self.context = process, [], None, context
        self.contract = LazyContract(self._document)
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.errors.append(line)
            found = re.search(r"https?://[^\s/]+:\d+", line)
            if found and self.url is None:
                self.url = found.group()
                self.ready.set()
        self.ready.set()

    def ask(self, path, body=None, headers=None, method=None, timeout=120):
        """Sends JSON, or bytes as they are; GET where there is no body. What is asked and answered
        has to be as /openapi.json says."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        answer = self._exchange(path, body, headers, method, timeout)
        if path != "/health":  # which is asked before the server is ready
            self.contract.check(method or ("GET" if body is None else "POST"), path, body, headers,
                                answer.status, answer.headers["Content-Type"], answer.body)
        return answer

    def _document(self, headers):
        answer = self._exchange("/openapi.json", None, headers, None, 30)
        return answer.status, answer.text

    def _exchange(self, path, body, headers, method, timeout):
        request = urllib.request.Request(
            self.url + path, body, {"Content-Type": "application/json", **(headers or {})},
            method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.context) as reply:
                return Answer(reply.status, reply.headers, reply.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def wait(self):
        if not self.ready.wait(START_SECONDS) or self.url is None:
            raise RuntimeError("the server told no address: " + "".join(self.errors))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.ask("/health", timeout=5).status == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError("the server is not ready: " + "".join(self.errors))


@contextlib.contextmanager
def served(model, *options, context=None):
    """A running server of the tool that VITRINE_TOOL names; SIGTERM ends it. `context`: of TLS."""
    command = [os.environ["VITRINE_TOOL"], "serve", model, "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    try:
        server = Served(process, context)
        server.wait()
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        server.reader.join(5)
        process.stderr.close()
