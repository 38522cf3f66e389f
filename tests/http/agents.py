# SPDX-License-Identifier: Apache-2.0
"""What tests of interfaces for agents share: a model that chats, and a client that keeps streams."""

import contextlib
import http.client
import json
import os
import pathlib
import tempfile
import urllib.parse

from contract import LazyContract
from served import served

MODEL = os.environ.get("VITRINE_MODEL", "models/fractalmoe-30m-int4")

# Turns, calls and results, and a place to think, for a model that has no template of its own.
TEMPLATE = """
{%- if tools %}<|tools|>{{ tools | tojson }}
{% endif -%}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{% endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>
{% endif %}{% endif -%}
"""


class Client:
    """Asks a server."""

    def __init__(self, url):
        self.url = url
        self.address = urllib.parse.urlsplit(url).netloc
        self.contract = LazyContract(self._document)

    def _document(self, headers):
        status, _, text = self._exchange("GET", "/openapi.json", None, headers)
        return status, text

    def ask(self, method, path, body=None, headers=None):
        """Returns the status, the headers in lower case, and the body's bytes. What is asked and
        answered has to be as /openapi.json says."""
        status, read, text = self._exchange(method, path, body, headers)
        sent = json.dumps(body) if isinstance(body, (dict, list)) else body
        self.contract.check(method, path, sent, headers, status, read.get("content-type"), text)
        return status, read, text

    def _exchange(self, method, path, body, headers):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            given = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body, given)
            reply = connection.getresponse()
            read = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, read, reply.read()
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        """Returns the status and what the body says."""
        status, _, text = self.ask("POST", path, body, headers)
        return status, json.loads(text)

    def events(self, path, body, headers=None):
        """Returns a stream's events, each with its name (or None) and what its data says."""
        status, read, text = self.ask("POST", path, {**body, "stream": True}, headers)
        if status != 200 or not read["content-type"].startswith("text/event-stream"):
            raise AssertionError(f"{status} {text!r}")
        return [event for event in map(read_event, text.decode().split("\n\n")) if event]


def read_event(frame):
    """Reads a frame of a stream; None where it is a comment alone."""
    name, data = None, []
    for line in frame.split("\n"):
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    if not data:
        return None
    text = "\n".join(data)
    return name, text if text == "[DONE]" else json.loads(text)


@contextlib.contextmanager
def agent_server(*options):
    """A client of a server whose model has a chat template."""
    config = pathlib.Path(MODEL) / "tokenizer_config.json"
    with tempfile.TemporaryDirectory() as folder:
        if config.exists() and "chat_template" not in json.loads(config.read_text()):
            template = pathlib.Path(folder) / "template.jinja"
            template.write_text(TEMPLATE)
            options = ("--chat-template", str(template), *options)
        with served(MODEL, *options) as server:
            yield Client(server.url)


def late_events(path, body):
    """A stream's events that the server cut off since it took too long, once it had begun."""
    for seconds in ("0.2", "0.8", "3.2"):
        with agent_server("--request-seconds", seconds) as client:
            status, _, text = client.ask("POST", path, {**body, "stream": True})
            if status == 200:
                return [event for event in map(read_event, text.decode().split("\n\n")) if event]
            if status != 408:
                break
    raise AssertionError(f"{status} {text!r}")
