# SPDX-License-Identifier: Apache-2.0
"""/openapi.json: all routes are in it, and what it says of fields is what the server does. Every
other test here holds what it asks and is answered to the same document (contract.py)."""

import json
import pathlib
import re

from contract import Contract
from http_case import HttpCase

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src" / "http"
ROUTE = re.compile(r'\{\s*(?:\.method = )?"(GET|POST|PUT|PATCH|DELETE)",\s*(?:\.path = )?"([^"]+)"')

SAID = [{"role": "user", "content": "x"}]
BODIES = {"/v1/chat/completions": {"messages": SAID, "max_tokens": 1},
          "/v1/completions": {"prompt": "x", "max_tokens": 1},
          "/v1/messages": {"messages": SAID, "max_tokens": 1},
          "/v1/responses": {"input": "x", "max_output_tokens": 1},
          "/completion": {"prompt": "x", "n_predict": 1},
          "/v1/chat/completions/input_tokens": {"messages": SAID}}
# What needs another field beside it, or is bounded by an option, too.
NOT_ALONE = {"n", "n_cmpl", "top_logprobs", "prompt_logprobs", "stream_options"}


def references(value):
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "$ref":
                yield each
            else:
                yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


class Openapi(HttpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.document = cls.server.ask("/openapi.json").json
        cls.contract = Contract(cls.document)

    def test_every_registered_route_is_described(self):
        registered = {route for path in SOURCES.glob("*.cc")
                      for route in ROUTE.findall(path.read_text())}
        self.assertGreater(len(registered), 30)
        described = {(method, path) for method, path, _ in self.contract.operations()}
        for method, path in registered:
            if path.endswith("*"):
                stem = path[:-1] + "{"
                found = {(m, p) for m, p in described if m == method and p.startswith(stem)}
            else:
                found = {(method, path)} & described
            self.assertTrue(found, (method, path))
            described -= found
        self.assertEqual(described, set())

    def test_every_operation_is_told(self):
        names = set()
        for method, path, operation in self.contract.operations():
            self.assertTrue(operation["summary"].endswith("."), (method, path))
            self.assertTrue(operation["tags"], (method, path))
            self.assertNotIn(operation["operationId"], names)
            names.add(operation["operationId"])
            for status in operation["responses"]:
                response = self.contract.response(operation, status)
                self.assertTrue(response["description"], (method, path, status))
                self.assertTrue(response["content"], (method, path, status))
            if method == "POST" and "200" in operation["responses"]:
                self.assertTrue(self.contract.body_schema(operation), (method, path))
            templates = re.findall(r"\{(\w+)\}", path)
            self.assertEqual(
                templates, [each["name"] for each in self.document["paths"][path].get(
                    "parameters", [])])

    def test_every_reference_resolves_and_everything_is_referred_to(self):
        found = set(references(self.document))
        for reference in found:
            self.assertTrue(self.contract.schemas.find(reference), reference)
        for part in ("schemas", "responses", "headers"):
            for name in self.document["components"][part]:
                self.assertIn(f"#/components/{part}/{name}", found)

    def test_described_routes_are_there(self):
        for method, path, operation in self.contract.operations():
            url = re.sub(r"\{\w+\}", "none", path)
            reply = self.ask(url, b"{}" if method == "POST" else None, method=method)
            self.assertNotEqual(reply.status, 405, (method, path))
            self.assertIn(str(reply.status), operation["responses"], (method, path))
            self.assertNotIn("there is no '" + url, reply.text)

    def fields(self, path):
        schema = self.contract.body_schema(self.document["paths"][path]["post"])
        for part in self.contract.schemas.whole(schema):
            for name, field in part.get("properties", {}).items():
                if isinstance(field, dict):
                    yield name, field

    def test_fields_have_the_types_and_the_bounds_that_it_says(self):
        for path, body in BODIES.items():
            for name, field in self.fields(path):
                wrong = [{"one": [2]}, [[3]], "word", 7, True, -7.5,
                         *(field[word] + step for word, step in (("minimum", -1), ("maximum", 1))
                           if word in field)]
                for value in wrong:
                    if not self.contract.schemas.problems(field, value):
                        continue
                    with self.subTest(path=path, name=name, value=value):
                        reply = self.ask(path, {**body, name: value})
                        self.assertIn(reply.status, (400, 501), reply.text)

    def test_what_it_allows_is_taken(self):
        for path, body in BODIES.items():
            for name, field in self.fields(path):
                if name in NOT_ALONE or name in body:
                    continue
                right = [field[word] for word in ("minimum", "maximum") if word in field]
                if "null" in field.get("type", []):
                    right.append(None)
                if "boolean" in field.get("type", []) and name not in ("stream", "logprobs"):
                    right.append(True)
                for value in right:
                    with self.subTest(path=path, name=name, value=value):
                        reply = self.ask(path, {**body, name: value})
                        self.assertEqual(reply.status, 200, reply.text)

    def test_a_wrong_contract_is_noticed(self):
        sent = json.dumps({"prompt": "x"}).encode()
        kept = self.ask("/v1/completions", {"prompt": "x", "max_tokens": 1}).text

        def problems(received=kept, status=200, body=sent, kind="application/json"):
            return self.contract.problems("POST", "/v1/completions", body, status, kind,
                                          received.encode())

        self.assertEqual(problems(), [])
        self.assertTrue(problems(status=418))
        self.assertTrue(problems(kind="text/plain"))
        self.assertTrue(problems(body=b'{"prompt": []}'))
        self.assertTrue(problems(body=b'{"prompt": "x", "top_p": 2}'))
        self.assertTrue(problems(kept.replace('"text"', '"words"')))
        self.assertTrue(problems(kept.replace('"usage":', '"unknown": 1, "usage":')))


class GuardedOpenapi(HttpCase):
    KEY = "a-key-of-the-test"

    @classmethod
    def options(cls):
        return ("--api-key", cls.KEY)

    def test_it_is_for_who_has_a_key(self):
        self.assertEqual(self.ask("/openapi.json").status, 401)
        for headers in ({"Authorization": f"Bearer {self.KEY}"}, {"X-Api-Key": self.KEY}):
            document = self.ask("/openapi.json", headers=headers).json
            self.assertEqual(document["openapi"], "3.1.0")
        open_ones = {path for _, path, operation in Contract(document).operations()
                     if operation["security"] == []}
        self.assertEqual(open_ones, {"/", "/health", "/v1/health"})
        ways = document["paths"]["/v1/models"]["get"]["security"]
        self.assertEqual(ways, [{"bearer": []}, {"key": []}])
        schemes = document["components"]["securitySchemes"]
        self.assertEqual(schemes["bearer"]["scheme"], "bearer")
        self.assertEqual((schemes["key"]["in"], schemes["key"]["name"]), ("header", "X-Api-Key"))

    def test_whoever_needs_no_key_is_told_so(self):
        for path in ("/", "/health", "/v1/health"):
            self.assertEqual(self.ask(path).status, 200)


class AnthropicModels(HttpCase):
    HEADERS = {"anthropic-version": "2023-06-01"}

    def test_the_list_has_anthropics_form(self):
        told = self.ask("/v1/models", headers=self.HEADERS).json
        self.assertEqual(set(told), {"data", "has_more", "first_id", "last_id"})
        self.assertEqual((told["has_more"], told["first_id"], told["last_id"]),
                         (False, "tiny", "tiny"))
        model = told["data"][0]
        self.assertEqual((model["type"], model["id"], model["display_name"]),
                         ("model", "tiny", "tiny"))
        self.assertRegex(model["created_at"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(self.ask("/v1/models/tiny", headers=self.HEADERS).json, model)

    def test_others_get_openais(self):
        told = self.ask("/v1/models").json
        self.assertEqual((told["object"], told["data"][0]["object"]), ("list", "model"))
