# SPDX-License-Identifier: Apache-2.0
"""Anthropic's messages, held to what its documentation says."""

import contextlib
import json
import pathlib
import tempfile
import unittest

from agents import agent_server, late_events

PATH = "/v1/messages"
QUESTION = [{"role": "user", "content": "Once upon a time there was a little fox."}]
TOOL = {
    "name": "get_weather",
    "description": "Tells the weather of a place.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["place", "days"],
        "additionalProperties": False,
    },
}


def setUpModule():
    global stack, server
    stack = contextlib.ExitStack()
    server = stack.enter_context(agent_server())


def tearDownModule():
    stack.close()


def body(**fields):
    return {"model": "m", "max_tokens": 24, "messages": QUESTION, "temperature": 0, **fields}


def said(message):
    return "".join(block.get("text", "") for block in message["content"])


class Whole(unittest.TestCase):
    def test_has_the_documented_fields(self):
        status, message = server.post(PATH, body(max_tokens=5))
        self.assertEqual(status, 200)
        self.assertEqual(
            set(message),
            {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"},
        )
        self.assertTrue(message["id"].startswith("msg_"))
        self.assertEqual((message["type"], message["role"]), ("message", "assistant"))
        self.assertEqual(message["stop_reason"], "max_tokens")
        self.assertIsNone(message["stop_sequence"])
        self.assertEqual(list(message["content"][0]), ["type", "text"])
        self.assertEqual(message["usage"]["output_tokens"], 5)

    def test_repeats_itself_from_the_cache(self):
        question = [{"role": "user", "content": "A long story about bees. " * 20}]
        first = server.post(PATH, body(messages=question))[1]
        again = server.post(PATH, body(messages=question))[1]
        self.assertEqual(first["content"], again["content"])
        self.assertGreater(again["usage"]["cache_read_input_tokens"], 40)
        whole = [
            each["usage"]["input_tokens"] + each["usage"]["cache_read_input_tokens"]
            for each in (first, again)
        ]
        self.assertEqual(whole[0], whole[1])

    def test_names_the_text_that_ended_it(self):
        text = said(server.post(PATH, body())[1])
        words = text.split(" ")
        # Two words that come later than the one that ends it, should they come twice.
        late = max((" ".join(["", *words[i:i + 2]]) for i in range(5, len(words) - 1)), key=text.find)
        stops = ["never to be said", " " + words[4], late]
        message = server.post(PATH, body(stop_sequences=stops))[1]
        self.assertEqual(message["stop_reason"], "stop_sequence")
        self.assertEqual(message["stop_sequence"], stops[1])
        self.assertTrue(" ".join(words).startswith(said(message)))
        self.assertNotIn(stops[1], said(message))

    def test_goes_on_behind_what_the_assistant_began(self):
        whole = said(server.post(PATH, body())[1])
        start = " ".join(whole.split(" ")[:5])
        turns = [*QUESTION, {"role": "assistant", "content": start}]
        rest = said(server.post(PATH, body(messages=turns))[1])
        self.assertTrue((start + rest).startswith(whole), (start, rest, whole))

    def test_reads_system_and_blocks_as_texts(self):
        blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
        cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
        one = server.post(PATH, body(system="Be brief."))[1]
        other = server.post(PATH, body(system=[cached], messages=blocks))[1]
        self.assertEqual(one["content"], other["content"])
        self.assertNotEqual(one["content"], server.post(PATH, body())[1]["content"])

    def test_thinks_where_the_template_is_told_to(self):
        _, message = server.post(PATH, body(thinking={"type": "enabled", "budget_tokens": 1024}))
        if message["content"][0]["type"] != "thinking":
            self.skipTest("the model's template does not think")
        block = message["content"][0]
        self.assertEqual(set(block), {"type", "thinking", "signature"})
        self.assertTrue(block["thinking"])
        usage = message["usage"]
        self.assertEqual(usage["output_tokens_details"]["thinking_tokens"], usage["output_tokens"])
        hidden = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
        block = server.post(PATH, body(thinking=hidden))[1]["content"][0]
        self.assertEqual((block["type"], block["thinking"]), ("thinking", ""))

    def test_holds_the_answer_to_a_schema(self):
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
                  "additionalProperties": False}
        config = {"format": {"type": "json_schema", "schema": schema}}
        message = server.post(PATH, body(output_config=config))[1]
        self.assertIn(json.loads(said(message))["n"], [1, 2])
        self.assertEqual(message["stop_reason"], "end_turn")


class Streamed(unittest.TestCase):
    def test_says_the_documented_events(self):
        events = server.events(PATH, body(max_tokens=5))
        for name, data in events:
            self.assertEqual(name, data["type"])
        names = [name for name, _ in events if name != "ping"]
        deltas = names.count("content_block_delta")
        self.assertGreater(deltas, 1)
        self.assertEqual(
            names,
            ["message_start", "content_block_start", *["content_block_delta"] * deltas,
             "content_block_stop", "message_delta", "message_stop"],
        )
        said_of = dict(events)
        begun = said_of["message_start"]["message"]
        self.assertEqual((begun["content"], begun["stop_reason"]), ([], None))
        self.assertGreater(
            begun["usage"]["input_tokens"] + begun["usage"]["cache_read_input_tokens"], 5
        )
        self.assertEqual(
            said_of["content_block_start"],
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        )
        self.assertEqual(said_of["content_block_stop"], {"type": "content_block_stop", "index": 0})
        ended = said_of["message_delta"]
        self.assertEqual(ended["delta"], {"stop_reason": "max_tokens", "stop_sequence": None})
        self.assertEqual(ended["usage"]["output_tokens"], 5)
        self.assertEqual(said_of["message_stop"], {"type": "message_stop"})

    def test_says_what_the_whole_message_says(self):
        text = "".join(
            data["delta"]["text"]
            for name, data in server.events(PATH, body())
            if name == "content_block_delta"
        )
        self.assertEqual(text, said(server.post(PATH, body())[1]))

    def test_signs_what_it_thought(self):
        events = server.events(PATH, body(thinking={"type": "enabled", "budget_tokens": 1024}))
        deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
        if deltas[0]["type"] != "thinking_delta":
            self.skipTest("the model's template does not think")
        self.assertEqual({delta["type"] for delta in deltas[:-1]}, {"thinking_delta"})
        self.assertEqual(deltas[-1]["type"], "signature_delta")


class Tools(unittest.TestCase):
    def call(self, **fields):
        asked = body(tools=[TOOL], max_tokens=200, tool_choice={"type": "any"})
        status, message = server.post(PATH, {**asked, **fields})
        self.assertEqual(status, 200, message)
        return message

    def check_input(self, given):
        self.assertEqual(set(given), {"place", "days"})
        self.assertIn(given["place"], ["Oslo", "Rome"])
        self.assertIn(given["days"], [1, 2, 3])

    def test_calls_with_a_parsed_input(self):
        alone = {"type": "any", "disable_parallel_tool_use": True}
        message = self.call(tool_choice=alone)
        self.assertEqual(message["stop_reason"], "tool_use")
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        self.assertEqual(len(calls), 1)
        self.assertEqual(set(calls[0]), {"type", "id", "name", "input"})
        self.assertEqual(calls[0]["name"], "get_weather")
        self.check_input(calls[0]["input"])

    def test_calls_the_named_tool(self):
        other = {**TOOL, "name": "get_tide"}
        choice = {"type": "tool", "name": "get_tide"}
        message = self.call(tools=[TOOL, other], tool_choice=choice)
        self.assertEqual(message["content"][-1]["name"], "get_tide")

    def test_streams_the_input_as_json(self):
        choice = {"type": "tool", "name": "get_weather"}
        events = server.events(PATH, body(tools=[TOOL], max_tokens=200, tool_choice=choice))
        begun = [data for name, data in events if name == "content_block_start"][-1]
        self.assertEqual(begun["content_block"]["type"], "tool_use")
        self.assertEqual(begun["content_block"]["input"], {})
        text = "".join(
            data["delta"]["partial_json"]
            for name, data in events
            if name == "content_block_delta" and data["delta"]["type"] == "input_json_delta"
        )
        self.check_input(json.loads(text))
        ended = [data for name, data in events if name == "message_delta"][0]
        self.assertEqual(ended["delta"]["stop_reason"], "tool_use")

    def test_reads_calls_and_results(self):
        used = self.call()["content"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "Rain."}
            for block in used if block["type"] == "tool_use"
        ]
        turns = [*QUESTION, {"role": "assistant", "content": used},
                 {"role": "user", "content": [*results, {"type": "text", "text": "And then?"}]}]
        status, message = server.post(PATH, body(messages=turns, tools=[TOOL]))
        self.assertEqual(status, 200, message)
        first = server.post(f"{PATH}/count_tokens", {"messages": turns})[1]["input_tokens"]
        results[0]["content"] = [{"type": "text", "text": "Rain. " * 50}]
        longer = server.post(f"{PATH}/count_tokens", {"messages": turns})[1]["input_tokens"]
        self.assertGreater(longer, first + 50)

    def test_calls_none_where_none_is_wanted(self):
        message = self.call(tool_choice={"type": "none"}, max_tokens=24)
        self.assertEqual({block["type"] for block in message["content"]}, {"text"})


class Counted(unittest.TestCase):
    def test_counts_what_a_message_takes(self):
        for fields in ({}, {"system": "Be brief."}, {"tools": [TOOL]}):
            asked = {"model": "m", "messages": QUESTION, **fields}
            status, counted = server.post(f"{PATH}/count_tokens", asked)
            self.assertEqual(status, 200)
            usage = server.post(PATH, body(max_tokens=1, **fields))[1]["usage"]
            self.assertEqual(list(counted), ["input_tokens"])
            self.assertEqual(
                counted["input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"]
            )


class Refused(unittest.TestCase):
    def check(self, asked, *words, status=400, kind="invalid_request_error", path=PATH):
        got, headers, text = server.ask("POST", path, asked, {"anthropic-version": "2023-06-01"})
        said = json.loads(text)
        self.assertEqual(got, status, said)
        self.assertEqual(set(said), {"type", "error", "request_id"})
        self.assertEqual((said["type"], said["error"]["type"]), ("error", kind))
        self.assertEqual(said["request_id"], headers["request-id"])
        for word in words:
            self.assertIn(word, said["error"]["message"])

    def test_what_the_model_cannot_read(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": "AAAA"}}
        turns = [{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}]
        self.check(body(messages=turns), "messages[0].content[1]", "'image'")
        result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
        turns = [{"role": "user", "content": [result]}]
        self.check(body(messages=turns), "messages[0].content[0].content[0]", "'image'")

    def test_tools_that_it_would_have_to_run(self):
        search = {"type": "web_search_20250305", "name": "web_search"}
        self.check(body(tools=[search]), "tools[0]", "web_search_20250305")

    def test_fields_of_another_kind(self):
        asked = body()
        del asked["max_tokens"]
        self.check(asked, "'max_tokens' is null")
        for field, value in {
            "max_tokens": "many", "temperature": "hot", "top_p": 7, "top_k": -5,
            "stop_sequences": "x", "messages": [], "system": 3, "tools": {}, "stream": "yes",
            "tool_choice": {"type": "any"}, "thinking": {"type": "deep"}, "metadata": [],
            "output_config": {"format": {"type": "xml"}},
        }.items():
            self.check(body(**{field: value}), field)
        self.check(body(stop_sequences=[""]), "'stop_sequences'")
        self.check(body(tool_choice={"type": "auto", "name": {}}), "tool_choice.name")
        self.check(body(messages=[{"role": "robot", "content": "hi"}]), "messages[0].role", "robot")
        self.check(body(messages=[{"role": "user"}]), "messages[0].content")
        self.check(body(messages=["hi"]), "messages[0]")
        self.check(body(messages=[{"role": "assistant", "content": "Hi."}]), "messages")
        broken = {"type": "tool_use", "id": "a", "name": "b", "input": "c"}
        turns = [*QUESTION, {"role": "assistant", "content": [broken]}]
        self.check(body(messages=turns), "messages[1].content[0].input")
        broken["input"] = {}
        self.check(body(messages=turns), "messages[1]", "tool_result")
        self.check(body(tools=[{"name": "x"}]), "tools[0].input_schema")

    def test_hostile_bodies(self):
        for text in (
            b"", b"[]", b"null", b"{", b'{"messages":', b"\xff\xfe", b'{"a":"\xc3"}',
            b'{"a":1,"a":2}', b'{"a":' + b"[" * 200000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
            b'{"messages":"\\ud800"}', b'{"max_tokens":1e999}',
        ):
            for path in (PATH, f"{PATH}/count_tokens"):
                self.check(text, path=path)
        self.check(body(max_tokens=10**30), "max_tokens")
        self.check(body(messages=[{"role": "user", "content": "word " * 20000}]))
        self.assertEqual(server.post(PATH, body())[0], 200)


class Keys(unittest.TestCase):
    def test_come_in_either_header(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder) / "keys"
            keys.write_text("a-secret-of-one\n")
            with agent_server("--api-key-file", str(keys)) as guarded:
                status, said = guarded.post(PATH, body())
                self.assertEqual((status, said["type"]), (401, "error"))
                self.assertEqual(said["error"]["type"], "authentication_error")
                self.assertEqual(guarded.post(PATH, body(), {"x-api-key": "another"})[0], 401)
                for header in ({"x-api-key": "a-secret-of-one"},
                               {"Authorization": "Bearer a-secret-of-one"}):
                    self.assertEqual(guarded.post(PATH, body(), header)[0], 200)


class Late(unittest.TestCase):
    def test_is_told_by_an_error_event(self):
        *before, (name, data) = late_events(PATH, body(max_tokens=1500, ignore_eos=True))
        self.assertEqual(before[0][0], "message_start")
        self.assertNotIn("message_stop", dict(before))
        self.assertEqual((name, data["type"]), ("error", "error"))
        self.assertEqual(data["error"]["type"], "timeout_error")
        self.assertTrue(data["request_id"])


if __name__ == "__main__":
    unittest.main()
