# SPDX-License-Identifier: Apache-2.0
"""--tools and --tool-choice of generate and chat."""

import json

from chat_cases import END, ChatCase

TOOLS = [{"type": "function", "function": {
            "name": "get_weather", "description": "The weather of a city.",
            "parameters": {"type": "object", "additionalProperties": False, "required": ["city"],
                           "properties": {"city": {"type": "string", "maxLength": 12},
                                          "unit": {"enum": ["celsius", "fahrenheit"]}}}}},
         {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}]
TEMPLATE = ("{% for t in tools or [] %}<tool>{{ t.function.name }}</tool>{% endfor %}"
            "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
            "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
            "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}")
RANDOM = ("--temperature", 5, "--top-k", 0, "--top-p", 1)


class Tools(ChatCase):
    def setUp(self):
        super().setUp()
        (self.folder / "t.json").write_text(json.dumps(TOOLS))
        (self.folder / "t.jinja").write_text(TEMPLATE)
        self.told = ("--chat-template", "t.jinja", "--tools", "t.json")

    def run_answer(self, *more, seed=1, n=60):
        return self.succeed_json("generate", self.model, "-p", "Hi", "--chat", "--json", "-n", n, "-s", seed,
                                 *RANDOM, *more)

    def check_calls(self, calls):
        for number, call in enumerate(calls):
            self.assertEqual(set(call), {"id", "type", "function"})
            self.assertEqual(call["type"], "function")
            self.assertRegex(call["id"], rf"^call_{number}_[0-9a-f]{{16}}$")
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "now":
                self.assertEqual(arguments, {})
            else:
                self.assertEqual(call["function"]["name"], "get_weather")
                self.assertLessEqual(set(arguments), {"city", "unit"})
                self.assertLessEqual(len(arguments["city"]), 12)
                self.assertIn(arguments.get("unit", "celsius"), ["celsius", "fahrenheit"])

    def test_required_calls_are_whole(self):
        for seed in range(4):
            out = self.run_answer(*self.told, "--tool-choice", "required", seed=seed)
            self.assertEqual(out["text"], "")
            self.assertTrue(out["constraint"]["is_complete"])
            self.assertGreater(len(out["tool_calls"]), 0)
            self.check_calls(out["tool_calls"])
        self.assertIn("<tool>get_weather</tool><tool>now</tool>[user] Hi", out["prompt"])
        choice = json.dumps({"type": "function", "function": {"name": "now"}})
        for named in ("now", choice):
            out = self.run_answer(*self.told, "--tool-choice", named)
            self.assertEqual({call["function"]["name"] for call in out["tool_calls"]}, {"now"})

    def test_auto_is_free_or_whole(self):
        # Something writes the mark now and then.
        mark = self.succeed_json("tokenize", self.model, "-p", "<", "--json")["ids"][-1]
        for seed in range(3):
            out = self.run_answer(*self.told, "--logit-bias", f"{mark}=9", seed=seed)
            self.assertNotIn("<tool_call>", out["text"])
            self.check_calls(out.get("tool_calls", []))
            self.assertTrue(out["constraint"]["is_complete"])
        none = self.run_answer(*self.told, "--tool-choice", "none", "--logit-bias", f"{mark}=9")
        self.assertNotIn("tool_calls", none)

    def test_they_are_shown(self):
        run = ("generate", self.model, "-p", "Hi", "--chat", "-n", 40, *self.told, "--tool-choice", "now")
        result = self.run_tool(*run)
        self.assertEqual(result.returncode, 0, result.stderr)
        for line in result.stdout.decode().splitlines():
            self.assertEqual(line, "now({})")
        self.assertNotIn(b"does not write tools", result.stderr)

    def test_a_template_that_ignores_them_is_told(self):
        result = self.run_tool("generate", self.model, "-p", "Hi", "--chat", "-n", 40, "--tools", "t.json",
                               "--tool-choice", "now")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("now({})\n", result.stdout.decode())
        self.assertRegex(result.stderr.decode(), "warning: the chat template of .*model does not write tools")

    def test_harmony_where_its_marks_are_special_tokens(self):
        model = self.folder / "gpt"
        self.make_model(model)
        file = json.loads((model / "tokenizer.json").read_text())
        marks = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
        for token, mark in zip([token for token in file["added_tokens"] if token["content"] != END], marks):
            if token["content"] in file["model"]["vocab"]:
                file["model"]["vocab"][mark] = file["model"]["vocab"].pop(token["content"])
            token["content"], token["special"] = mark, True
        (model / "tokenizer.json").unlink()
        (model / "tokenizer.json").write_text(json.dumps(file))
        (self.folder / "h.jinja").write_text(
            "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[-1].content }}<|start|>assistant")
        form = ("--chat-template", "h.jinja", "--tools", "t.json", "--answer-format", "harmony")
        self.model = model
        for seed in range(3):
            out = self.run_answer(*form, "--tool-choice", "required", seed=seed, n=70)
            self.assertEqual(len(out["tool_calls"]), 1)
            self.check_calls(out["tool_calls"])
            out = self.run_answer(*form, seed=seed, n=50)
            self.assertNotIn("<|", out["text"])
            self.check_calls(out.get("tool_calls", []))

    def test_messages_bring_calls_and_results(self):
        messages = [{"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "", "tool_calls": [
                        {"id": "c", "type": "function",
                         "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
                    {"role": "tool", "tool_call_id": "c", "content": "rain"}]
        (self.folder / "c.json").write_text(json.dumps(messages))
        run = ("generate", self.model, "--messages", "c.json", "-n", 20, "--temperature", 0)
        out = self.succeed_json(*run, "--json", *self.told, "--tool-choice", "none")
        # Templates want an object where OpenAI writes its text.
        self.assertIn('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', out["prompt"])
        self.assertIn("[tool] rain\n", out["prompt"])
        self.assertNotIn("tool_calls", out)
        (self.folder / "c.json").write_text(json.dumps({"messages": messages, "tools": TOOLS}))
        self.fail_with(2, ["c.json: ", "tools", "--tools"], *run, *self.told)

    def test_refusals(self):
        run = ("generate", self.model, "-p", "Hi", "-n", 40)
        self.fail_with(2, ["--tools", "--chat"], *run, "--tools", "t.json")
        self.fail_with(2, ["--tool-choice", "--tools FILE"], *run, "--chat", "--tool-choice", "auto")
        self.fail_with(2, ["'get_time'", "get_weather, now"], *run, "--chat", *self.told, "--tool-choice",
                       "get_time")
        self.fail_with(2, ["--tools", "--regex"], *run, "--chat", *self.told, "--regex", "a")
        self.fail_with(2, ["--n-best"], *run, "--chat", *self.told, "--n-best", 2)
        self.fail_with(2, ["'glm'", "hermes"], *run, "--chat", *self.told, "--answer-format", "glm")
        self.fail_with(2, ["twice"], *run, "--chat", *self.told, "--chat-variables", '{"tools": []}')
        (self.folder / "bad.json").write_text('[{"name": "f", "parameters": {"type": "string"}}]')
        self.fail_with(2, ["bad.json: '#/0/parameters/type'", "\"object\""], *run, "--chat", "--tools", "bad.json")
        (self.folder / "bad.json").write_text('[{"name": "f", "parameters": {"minProperties": "x"}}]')
        self.fail_with(2, ["bad.json: the parameters of 'f' at '#/minProperties'"], *run, "--chat",
                       "--chat-template", "t.jinja", "--tools", "bad.json")

    def test_chat_takes_results(self):
        form = (*self.told, "--tool-choice", "now", "--json-lines")
        out, _ = self.chat("Hi\n/tool twelve o'clock\n/save s.json\n", *form, n=40)
        events = [json.loads(line) for line in out.splitlines()]
        ends = [event for event in events if event["event"] == "end"]
        calls = len(ends[0]["tool_calls"])
        if calls == 1:
            self.assertEqual(len(ends), 2)
        session = json.loads((self.folder / "s.json").read_text())
        roles = [message["role"] for message in session["messages"]]
        self.assertEqual(roles[:3], ["user", "assistant", "tool"])
        self.assertEqual(session["messages"][2]["content"], "twelve o'clock")
        self.assertEqual(json.loads(session["messages"][2]["fields"])["name"], "now")
        # The results go with what they answer; a session that has some goes on.
        out, _ = self.chat("/load s.json\n/undo\n/save u.json\n/tool one\n/tool two\n", *form, n=40)
        undone = json.loads((self.folder / "u.json").read_text())["messages"]
        self.assertEqual([message["role"] for message in undone], ["user", "assistant"])
        _, err = self.chat("/tool 1\n", *self.told, code=2)
        self.assertIn("no call waits for a result", err)
