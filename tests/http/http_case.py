# SPDX-License-Identifier: Apache-2.0
"""What tests of the server share: a server for each class, and a few ways to ask."""

import os
import pathlib
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse

from served import served

MODEL = os.environ["VITRINE_MODEL"]
TOOL = os.environ["VITRINE_TOOL"]
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True}


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, check=True).stdout


def raw(server, data, wait=5.0):
    """Sends bytes and returns what comes back until the server closes, or nothing comes."""
    place = urllib.parse.urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=wait) as connection:
        connection.sendall(data)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except TimeoutError:
            pass
        return received


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def metric(server, name):
    for line in server.ask("/metrics").text.splitlines():
        if line.startswith(f"vitrine_{name}{{"):
            return float(line.rsplit(" ", 1)[1])
    raise KeyError(name)


def resident_kib(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if "VmRSS" in line).split()[1])


class HttpCase(unittest.TestCase):
    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        (pathlib.Path(cls.folder.name) / "template.jinja").write_text(TEMPLATE)
        cls.context = served(MODEL, "--chat-template",
                             str(pathlib.Path(cls.folder.name) / "template.jinja"),
                             *cls.options())
        cls.server = cls.context.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)
        cls.folder.cleanup()

    @classmethod
    def options(cls):
        return ("--metrics", "--alias", "tiny")

    def ask(self, *arguments, **named):
        return self.server.ask(*arguments, **named)

    def complete(self, **body):
        reply = self.ask("/v1/completions", {"temperature": 0, "max_tokens": 8, **body})
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json
