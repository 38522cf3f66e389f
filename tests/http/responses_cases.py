# SPDX-License-Identifier: Apache-2.0
"""OpenAI's responses, held to what its documentation says."""

import contextlib
import json
import unittest

from agents import agent_server, late_events

PATH = "/v1/responses"
QUESTION = "Once upon a time there was a little fox."
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["place", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}


def setUpModule():
    global stack, server
    stack = contextlib.ExitStack()
    server = stack.enter_context(agent_server())


def tearDownModule():
    stack.close()


def body(**fields):
    return {"model": "m", "max_output_tokens": 24, "input": QUESTION, "temperature": 0, **fields}


def said(response):
    return "".join(
        part["text"]
        for item in response["output"] if item["type"] == "message"
        for part in item["content"]
    )


class Whole(unittest.TestCase):
    def test_has_the_documented_fields(self):
        asked = body(max_output_tokens=5, metadata={"a": "b"}, instructions="Be brief.", store=True)
        status, response = server.post(PATH, asked)
        self.assertEqual(status, 200)
        for field, value in {
            "object": "response", "status": "incomplete", "error": None, "metadata": {"a": "b"},
            "incomplete_details": {"reason": "max_output_tokens"}, "instructions": "Be brief.",
            "max_output_tokens": 5, "parallel_tool_calls": True, "previous_response_id": None,
            "store": False, "temperature": 0, "text": {"format": {"type": "text"}}, "tools": [],
            "tool_choice": "auto", "truncation": "disabled",
        }.items():
            self.assertEqual(response[field], value, field)
        self.assertTrue(response["id"].startswith("resp_"))
        (item,) = response["output"]
        self.assertEqual(set(item), {"id", "type", "status", "role", "content"})
        self.assertEqual((item["type"], item["status"]), ("message", "incomplete"))
        (part,) = item["content"]
        self.assertEqual((part["type"], part["annotations"]), ("output_text", []))
        usage = response["usage"]
        self.assertEqual(usage["output_tokens"], 5)
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + 5)
        self.assertEqual(usage["output_tokens_details"], {"reasoning_tokens": 0})
        self.assertIn("cached_tokens", usage["input_tokens_details"])

    def test_says_what_a_chat_says(self):
        chat = {"messages": [{"role": "system", "content": "Be brief."},
                             {"role": "user", "content": QUESTION}],
                "temperature": 0, "max_tokens": 24}
        _, answer = server.post("/v1/chat/completions", chat)
        text = answer["choices"][0]["message"]["content"]
        part = {"type": "input_text", "text": QUESTION}
        for asked in (
            body(instructions="Be brief."),
            body(input=[{"role": "developer", "content": "Be brief."},
                        {"role": "user", "content": QUESTION}]),
            body(input=[{"type": "message", "role": "system", "content": "Be brief."},
                        {"type": "message", "role": "user", "content": [part]}]),
        ):
            self.assertEqual(said(server.post(PATH, asked)[1]), text)

    def test_holds_the_answer_to_a_schema(self):
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
                  "additionalProperties": False}
        form = {"type": "json_schema", "name": "number", "schema": schema, "strict": True}
        response = server.post(PATH, body(text={"format": form}))[1]
        self.assertEqual(response["status"], "completed")
        self.assertEqual(response["text"]["format"], form)
        self.assertIn(json.loads(said(response))["n"], [1, 2])

    def test_thinks_where_the_template_is_told_to(self):
        response = server.post(PATH, body(reasoning={"effort": "high"}))[1]
        self.assertEqual(response["reasoning"], {"effort": "high", "summary": None})
        item = response["output"][0]
        if item["type"] != "reasoning":
            self.skipTest("the model's template does not think")
        self.assertEqual(item["summary"], [])
        self.assertEqual(item["content"][0]["type"], "reasoning_text")
        self.assertGreater(response["usage"]["output_tokens_details"]["reasoning_tokens"], 0)
        less = server.post(PATH, body(reasoning={"effort": "none"}))[1]
        self.assertEqual(less["output"][0]["type"], "message")


class Streamed(unittest.TestCase):
    def check_numbers(self, events):
        for number, (name, data) in enumerate(events):
            self.assertEqual((name, number), (data["type"], data["sequence_number"]))

    def test_says_the_documented_events(self):
        events = server.events(PATH, body(max_output_tokens=5))
        self.check_numbers(events)
        names = [name.removeprefix("response.") for name, _ in events]
        deltas = names.count("output_text.delta")
        self.assertGreater(deltas, 1)
        self.assertEqual(
            names,
            ["created", "in_progress", "output_item.added", "content_part.added",
             *["output_text.delta"] * deltas, "output_text.done", "content_part.done",
             "output_item.done", "incomplete"],
        )
        said_of = dict(events)
        begun = said_of["response.created"]["response"]
        self.assertEqual((begun["status"], begun["output"]), ("in_progress", []))
        ended = said_of["response.incomplete"]["response"]
        self.assertEqual(ended["id"], begun["id"])
        added = said_of["response.output_item.added"]
        self.assertEqual((added["output_index"], added["item"]["content"]), (0, []))
        self.assertEqual(said_of["response.output_item.done"]["item"], ended["output"][0])
        text = "".join(
            data["delta"] for name, data in events if name == "response.output_text.delta"
        )
        self.assertEqual(text, said_of["response.output_text.done"]["text"])
        self.assertEqual(text, said(ended))
        self.assertEqual(text, said(server.post(PATH, body(max_output_tokens=5))[1]))
        for name in ("content_part.added", "output_text.delta", "output_text.done"):
            data = said_of[f"response.{name}"]
            self.assertEqual((data["output_index"], data["content_index"]), (0, 0))
            self.assertEqual(data["item_id"], added["item"]["id"])

    def test_tells_what_was_thought(self):
        events = server.events(PATH, body(reasoning={"effort": "low"}))
        self.check_numbers(events)
        names = [name for name, _ in events]
        if "response.reasoning_text.delta" not in names:
            self.skipTest("the model's template does not think")
        text = "".join(
            data["delta"] for name, data in events if name == "response.reasoning_text.delta"
        )
        self.assertEqual(text, dict(events)["response.reasoning_text.done"]["text"])

    def test_tells_calls(self):
        asked = body(tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
                     max_output_tokens=200)
        events = server.events(PATH, asked)
        self.check_numbers(events)
        said_of = dict(events)
        self.assertEqual(said_of["response.output_item.added"]["item"]["arguments"], "")
        text = "".join(
            data["delta"]
            for name, data in events if name == "response.function_call_arguments.delta"
        )
        done = said_of["response.function_call_arguments.done"]
        self.assertEqual((done["arguments"], done["name"]), (text, "get_weather"))
        self.assertIn(json.loads(text)["place"], ["Oslo", "Rome"])
        response = said_of["response.completed"]["response"]
        self.assertEqual(response["output"][-1]["arguments"], text)
        self.assertFalse(response["parallel_tool_calls"])


    def test_tells_a_failure(self):
        events = late_events(PATH, body(max_output_tokens=1500, ignore_eos=True))
        self.check_numbers(events)
        self.assertEqual(events[0][0], "response.created")
        name, data = events[-1]
        self.assertEqual((name, data["response"]["status"]), ("response.failed", "failed"))
        self.assertEqual(data["response"]["error"]["code"], "server_error")


class Tools(unittest.TestCase):
    def test_calls_and_reads_results(self):
        asked = body(tools=[TOOL], max_output_tokens=200, parallel_tool_calls=False,
                     tool_choice={"type": "function", "name": "get_weather"})
        status, response = server.post(PATH, asked)
        self.assertEqual(status, 200, response)
        self.assertEqual(response["status"], "completed")
        call = response["output"][-1]
        self.assertEqual(
            set(call), {"id", "type", "status", "call_id", "name", "arguments"}
        )
        self.assertEqual((call["type"], call["status"]), ("function_call", "completed"))
        self.assertIn(json.loads(call["arguments"])["days"], [1, 2, 3])
        self.assertEqual(response["tools"], [TOOL])
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
        turns = [{"role": "user", "content": QUESTION}, *response["output"], output]
        status, after = server.post(PATH, body(input=turns, tools=[TOOL]))
        self.assertEqual(status, 200, after)
        self.assertGreater(after["usage"]["input_tokens"], response["usage"]["input_tokens"])

    def test_turns_of_one_answer_are_one_message(self):
        # A template sees one message of the assistant, as chat completions have it.
        call = {"name": "get_weather", "arguments": '{"place":"Oslo","days":1}'}
        chat = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": name, "type": "function", "function": call} for name in ("a", "b")]},
            {"role": "tool", "tool_call_id": "a", "content": "Rain."},
            {"role": "tool", "tool_call_id": "b", "content": "Sun."},
        ]
        _, answer = server.post("/v1/chat/completions",
                                {"messages": chat, "max_tokens": 1, "tools": [
                                    {"type": "function", "function": {
                                        name: TOOL[name] for name in
                                        ("name", "description", "parameters", "strict")}}]})
        items = [
            {"role": "user", "content": QUESTION},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            *({"type": "function_call", "call_id": name, **call} for name in ("a", "b")),
            {"type": "function_call_output", "call_id": "a", "output": "Rain."},
            {"type": "function_call_output", "call_id": "b",
             "output": [{"type": "input_text", "text": "Sun."}]},
        ]
        _, response = server.post(PATH, body(input=items, tools=[TOOL], max_output_tokens=1))
        self.assertEqual(response["usage"]["input_tokens"], answer["usage"]["prompt_tokens"])


class Refused(unittest.TestCase):
    def check(self, asked, *words, status=400):
        got, headers, text = server.ask("POST", PATH, asked)
        said = json.loads(text)
        self.assertEqual(got, status, said)
        self.assertGreaterEqual(set(said["error"]), {"message", "type", "param", "code"})
        for word in words:
            self.assertIn(word, said["error"]["message"])
        if status == 501:
            self.assertEqual(headers["x-should-retry"], "false")

    def test_what_would_have_to_be_stored(self):
        self.check(body(previous_response_id="resp_1"), "'previous_response_id'", "'input'",
                   status=501)
        self.check(body(conversation="conv_1"), "'conversation'", status=501)
        self.check(body(background=True), "'background'", status=501)
        self.check(body(prompt={"id": "p"}), "'prompt'", status=501)
        self.check(body(input=[{"type": "item_reference", "id": "i"}]), "input[0]", status=501)
        self.assertEqual(server.ask("GET", f"{PATH}/resp_1")[0], 404)

    def test_what_the_model_cannot_read_or_run(self):
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        self.check(body(input=[{"role": "user", "content": [image]}]), "input[0].content[0]",
                   "input_image", status=501)
        self.check(body(tools=[{"type": "web_search"}]), "tools[0]", "web_search", status=501)
        self.check(body(input=[{"type": "computer_call", "id": "c"}]), "input[0]", "computer_call",
                   status=501)
        self.check(body(top_logprobs=2), "top_logprobs", status=501)

    def test_fields_of_another_kind(self):
        for field, value in {
            "input": [], "instructions": 3, "max_output_tokens": "many", "temperature": "hot",
            "top_p": 7, "tools": {}, "tool_choice": "perhaps", "text": [], "reasoning": "deep",
            "metadata": [], "store": "yes", "stream": 1, "parallel_tool_calls": 2, "include": "x",
        }.items():
            self.check(body(**{field: value}), f"'{field}")
        self.check(body(tool_choice="required"), "tool_choice", "tools")
        self.check(body(text={"format": {"type": "xml"}}), "text.format.type")
        self.check(body(text={"format": {"type": "json_schema"}}), "text.format.schema")
        self.check(body(input=[{"role": "robot", "content": "x"}]), "input[0].role")
        self.check(body(input=[{"role": "user"}]), "input[0].content")
        self.check(body(input=["x"]), "input[0]")
        self.check(body(input=[{"type": "function_call", "call_id": "c"}]), "input[0].name")

    def test_hostile_bodies(self):
        for text in (
            b"", b"[]", b"null", b"{", b'{"input":', b"\xff\xfe", b'{"a":1,"a":2}',
            b'{"a":' + b"[" * 200000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
            b'{"input":"\\ud800"}', b"{}",
        ):
            self.check(text)
        self.check(body(input="word " * 20000))
        self.assertEqual(server.post(PATH, body())[0], 200)


if __name__ == "__main__":
    unittest.main()
