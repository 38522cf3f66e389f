# SPDX-License-Identifier: Apache-2.0
"""Holds what a server is asked and what it answers to what its own /openapi.json says."""

import json
import re
import urllib.parse

from json_schema import Schemas

METHODS = ("get", "post", "delete", "put", "patch")


class Contract:
    """The document of a server, once one has been had."""

    def __init__(self, document):
        self.document = document
        self.schemas = Schemas(document)
        self.paths = [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + "$"), item)
                      for path, item in document["paths"].items()]

    def operations(self):
        """Each operation with its method and its path."""
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item:
                    yield method.upper(), path, item[method]

    def find(self, method, url):
        """The operation that answers; None where there is none."""
        path = urllib.parse.urlsplit(url).path
        found = [item for pattern, item in self.paths if pattern.match(path)]
        return found[0].get(method.lower()) if found else None

    def response(self, operation, status):
        """What is said of a status; None where nothing is."""
        response = operation["responses"].get(str(status))
        return self.schemas.find(response["$ref"]) if response and "$ref" in response else response

    def body_schema(self, operation):
        return operation["requestBody"]["content"]["application/json"]["schema"]

    def problems(self, method, url, sent, status, kind, received):
        """What of an exchange is not as the document has it. `kind`: the reply's Content-Type."""
        operation = self.find(method, url)
        if operation is None:
            return []
        response = self.response(operation, status)
        if response is None:
            return [f"the status {status} is not described"]
        found = []
        if status == 200 and "requestBody" in operation:
            found += self.schemas.problems(self.body_schema(operation), json.loads(sent), "body")
        media = kind.split(";")[0]
        content = response.get("content", {}).get(media)
        if content is None:
            return [*found, f"a reply of type {media} is not described for {status}"]
        if media == "application/json":
            found += self.value_problems(content["schema"], json.loads(received))
        elif media == "text/event-stream":
            for line in received.decode(errors="replace").split("\n"):
                if line.startswith("data: ") and line != "data: [DONE]":
                    found += self.event_problems(content["x-event-schema"], json.loads(line[6:]))
        return found

    def value_problems(self, schema, value):
        found = self.schemas.problems(schema, value, "reply")
        return found + self.schemas.unnamed([schema], value, "reply")

    def event_problems(self, schema, event):
        # A failure in a stream is told as OpenAI's clients read it.
        if isinstance(event, dict) and set(event) == {"error"}:
            schema = {"$ref": "#/components/schemas/Error"}
        return self.value_problems(schema, event)

    def check(self, method, url, sent, status, kind, received):
        """Raises AssertionError where an exchange is not as the document has it."""
        found = self.problems(method, url, sent, status, kind or "", received)
        if found:
            raise AssertionError(f"{method} {url} is not as /openapi.json has it: "
                                 f"{found[:5]}; sent {sent[:300] if sent else sent!r}, "
                                 f"received {received[:300]!r}")


class LazyContract:
    """Gets the document when something is first asked, with the same headers."""

    def __init__(self, fetch):
        self.fetch, self.contract = fetch, None

    def check(self, method, url, sent, headers, status, kind, received):
        if self.contract is None:
            code, text = self.fetch(headers)
            self.contract = Contract(json.loads(text)) if code == 200 else None
        if self.contract is not None:
            self.contract.check(method, url, sent, status, kind, received)
