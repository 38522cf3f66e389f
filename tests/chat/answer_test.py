# SPDX-License-Identifier: Apache-2.0
"""Answers taken apart, against those who write and read them.

    answer_test.py ANSWER_LINES RENDER_LINES [unittest arguments]

The programs are built from answer_lines.cc and render_lines.cc. Harmony (gpt-oss) is compared with PyPI's
`openai-harmony`. Of published chat templates (llama.cpp's source package, where bench/peers has
unpacked it, or $VITRINE_CHAT_TEMPLATES) an assistant's turn is rendered by jinja2 as transformers
does it, and taken apart again: reasoning, content and calls must come back. Random texts of marks
and words are cut anywhere: the parts stay the same, and no word is lost. Ends with 77 (skipped)
where the oracle is not installed.
"""

import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ANSWER_LINES, RENDER_LINES = map(os.path.abspath, sys.argv[1:3])
sys.path.insert(0, str(HERE.parent / "tokenizer"))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"
MODELS = pathlib.Path(os.environ.get("VITRINE_MODELS") or "~/.cache/vitrine/models").expanduser()
os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(MODELS)

try:
    import openai_harmony as harmony
    from transformers.utils.chat_template_utils import _compile_jinja_template
    import jinja2
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from conversations import TOKENS

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City"}, "days": {"type": "integer", "description": "n"},
        "zip": {"type": "string", "description": "code"}, "exact": {"type": "boolean", "description": "b"},
        "tags": {"type": "array", "description": "t", "items": {"type": "string"}},
        "more": {"type": "object", "description": "m", "properties": {"x": {"type": "number", "description": "x"}}}},
        "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {
            "zone": {"type": "string", "description": "z"}}}}}]
USER = {"role": "user", "content": "How is the weather?"}
ARGUMENTS = [
    {"place": "Zürich", "days": 2},
    {"place": "a \"quoted\" & <b>name</b>\n\twith \\ lines", "zip": "08001", "exact": True},
    {"place": "x </tool_call> y", "tags": ["a", "b, c"], "more": {"x": -1.5}},
    {"place": "true", "days": 0, "exact": False, "tags": []},
]
END_TEXTS = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>",
             "<eos>", "<turn|>", "<｜end▁of▁sentence｜>", "[e~[", "<|user|>", "<|observation|>", "<|end_of_sentence|>",
             "<|tool_response>", "<seed:eos>", "<end_of_msg>", "<|role_end|>", "</assistant>", "<sep>", "<SPECIAL_12>", "<|end|>", "[|endofturn|]"]
# Templates that ask for a form of call that no format here reads, or write another than they ask for.
OTHER_CALLS = {"MiniMax-M3", "NVIDIA-Nemotron-Nano-v2", "openbmb-MiniCPM5-1B"}
PYTHON_VALUES = {"ByteDance-Seed-OSS"}  # lists and objects as Python shows them, which JSON is not
PARTS = ("content", "reasoning", "tool_calls")


def take_apart(cases):
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    result = subprocess.run([ANSWER_LINES], input=lines.encode(), capture_output=True, check=True)
    found = [json.loads(line) for line in result.stdout.decode().split("\n") if line]
    assert len(found) == len(cases), (len(found), len(cases))
    return found


def cuts_of(text, rng):
    size = len(text.encode())
    return sorted(rng.sample(range(size + 1), min(size, rng.choice([1, 2, 5, 20]))))


def published_templates():
    given = os.environ.get("VITRINE_CHAT_TEMPLATES")
    folders = [pathlib.Path(given)] if given else sorted(
        CACHE.glob("peers/llama_cpp_python-*/vendor/llama.cpp/models/templates"))
    return [(path.stem, path.read_text()) for folder in folders for path in sorted(folder.rglob("*.jinja"))]


def render(template, messages, prompt, **more):
    given = {**TOKENS, "documents": None, "tools": TOOLS, "add_generation_prompt": prompt,
             "messages": copy.deepcopy(messages), **more}
    try:
        return _compile_jinja_template(template).render(**given)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return None


def assistant_messages():
    """(title, message) with the fields' names that templates know."""
    for index, arguments in enumerate(ARGUMENTS):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        second = {"id": "bbcdefghi", "type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}
        for calls in ([call], [call, second]):
            for content in ("", "I look it up."):
                for reasoning in ("", "Let me see.\n\nThe user asks."):
                    message = {"role": "assistant", "content": content, "tool_calls": calls}
                    if reasoning:
                        message.update(reasoning_content=reasoning, reasoning=reasoning, thinking=reasoning)
                    yield f"call {index}, {len(calls)} calls, {bool(content)}, {bool(reasoning)}", message
    for reasoning in ("", "Let me see."):
        message = {"role": "assistant", "content": "It is fine.\n\nTwo lines, 1 < 2 & {\"a\": 1}."}
        if reasoning:
            message.update(reasoning_content=reasoning, reasoning=reasoning, thinking=reasoning)
        yield f"no call, {bool(reasoning)}", message


def turn_of(template, message, **more):
    """What the model of a template would have written, with the prompt; None where it can't be told."""
    prompt = render(template, [USER], True, **more)
    whole = render(template, [USER, message], False, **more)
    if prompt is None or whole is None:
        return None
    # An assistant's turn without reasoning may lack what the prompt for one begins with.
    while not whole.startswith(prompt):
        shorter = next((prompt.rstrip()[:-len(end)] for end in ("<think>", "</think>", "[THINK]")
                        if prompt.rstrip().endswith(end)), None)
        if shorter is None:
            return None
        prompt = shorter
    text = whole[len(prompt):]
    if "<|channel|>" not in template:
        ends = [text.find(end) for end in END_TEXTS if end in text]
        text = text[:min(ends)] if ends else text
    return prompt, text


class TemplateTest(unittest.TestCase):
    def test_round_trip(self):
        """Every turn that shows its parts comes back from templates whose format is known."""
        templates = published_templates()
        if not templates:
            self.skipTest("no published templates at hand")
        formats = take_apart([{"template": text} for _, text in templates])
        cases, wanted = [], []
        turns, samples = {}, {}
        for (name, template), found in zip(templates, formats):
            for title, message in assistant_messages():
                for more in ({}, {"enable_thinking": True, "thinking": True}):
                    turn = turn_of(template, message, **more)
                    if turn is None:
                        continue
                    prompt, text = turn
                    if name in OTHER_CALLS or name in PYTHON_VALUES and "{'" in text + text.replace("[", "{"):
                        continue
                    if found["format"] == "plain" or "get_weather" not in text and "tool_calls" in message:
                        continue  # it writes no calls, or in another form than it asks for
                    cases.append({"format": found["format"], "prompt": prompt, "text": text, "tools": TOOLS})
                    wanted.append((name, title, message))
                    turns.setdefault(found["format"], set()).add(name)
        bad = {}
        for case, (name, title, message), found in zip(cases, wanted, take_apart(cases)):
            self.assertNotIn("error", found)
            problems = self.differences(case, message, found)
            if problems:
                bad.setdefault((found["format"], name), []).append((title, problems, case["text"]))
            samples.setdefault(found["format"], []).append(case)
        if os.environ.get("VITRINE_VERBOSE"):
            for key, list_ in bad.items():
                print(key, len(list_), *list_[:2], sep="\n    ")
        for format_, names in sorted(turns.items()):
            print(f"{format_}: {len(names)} templates: {', '.join(sorted(names))}")
        print(f"{len(cases)} turns of {sum(map(len, turns.values()))} templates, {sum(map(len, bad.values()))} differ")
        self.assertEqual({key: list_[0] for key, list_ in bad.items()}, {})

    def differences(self, case, message, found):
        """Names of the parts that don't come back, of those that the turn shows."""
        problems = []
        content, reasoning = message["content"], message.get("reasoning", "")
        if found["format"] == "harmony" and "tool_calls" in message:  # its template takes it for analysis
            content, reasoning = "", content or reasoning
        if found["content"].strip() != content and content in case["text"]:
            problems.append(("content", found["content"]))
        if found["reasoning"] != reasoning and reasoning.strip() in case["text"]:
            problems.append(("reasoning", found["reasoning"]))
        try:
            calls = [(call["name"], json.loads(call["arguments"])) for call in found["tool_calls"]]
        except ValueError:
            calls = found["tool_calls"]
        expected = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        if calls != expected and not (case["text"].count("get_weather") and "now" not in case["text"] and
                                      calls == expected[:1]):
            problems.append(("tool_calls", calls))
        return problems


class HarmonyTest(unittest.TestCase):
    def setUp(self):
        import published_test
        published_test.find_o200k()
        self.encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)

    def messages(self, rng):
        texts = ["Hm.", "It's 7 °C, I think.\n\nIndeed.", "{\"place\": \"Zürich\", \"days\": [1, 2]}", "a < b", "日本 🙂"]
        made = []
        for _ in range(rng.randint(1, 4)):
            text = rng.choice(texts)
            message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text)
            kind = rng.randrange(4)
            if kind == 0:
                message = message.with_channel("analysis")
            elif kind == 1:
                message = message.with_channel("final")
            elif kind == 2:
                message = message.with_channel("commentary")
            else:
                message = message.with_channel("commentary").with_recipient(
                    rng.choice(["functions.get_weather", "functions.now", "python"])).with_content_type("<|constrain|>json")
            made.append(message)
        return made

    def test_alike(self):
        """What openai-harmony writes, as openai-harmony reads it."""
        rng = random.Random(5)
        cases, wanted = [], []
        for _ in range(1500):
            tokens = [token for message in self.messages(rng) for token in self.encoding.render(message)]
            opening = self.encoding.encode("<|start|>assistant", allowed_special="all")
            self.assertEqual(tokens[:len(opening)], opening)
            text = self.encoding.decode_utf8(tokens)[len("<|start|>assistant"):]
            if not text.startswith("<|channel|>"):
                text = self.encoding.decode_utf8(tokens[len(opening):])
            parsed = self.encoding.parse_messages_from_completion_tokens(tokens[len(opening):], harmony.Role.ASSISTANT)
            parts = {"content": [], "reasoning": [], "tool_calls": []}
            for message in parsed:
                body = message.content[0].text
                if message.recipient:
                    parts["tool_calls"].append((message.recipient.removeprefix("functions."), body))
                else:
                    parts["reasoning" if message.channel == "analysis" else "content"].append(body)
            wanted.append(parts)
            cases.append({"format": "harmony", "prompt": "<|start|>assistant", "text": text, "cuts": cuts_of(text, rng)})
        for case, parts, found in zip(cases, wanted, take_apart(cases)):
            with self.subTest(case["text"]):
                self.assertEqual(found["content"], "\n".join(parts["content"]))
                self.assertEqual(found["reasoning"], "\n".join(parts["reasoning"]))
                self.assertEqual([(call["name"], call["arguments"]) for call in found["tool_calls"]],
                                 parts["tool_calls"])
        print(f"{len(cases)} answers alike with openai-harmony")

    def test_prompt(self):
        """gpt-oss's prompts, as openai-harmony writes them."""
        template = dict(published_templates()).get("openai-gpt-oss-120b")
        if template is None:
            self.skipTest("no published templates at hand")
        day, flat = 86400 * 20000, copy.deepcopy(TOOLS)
        del flat[0]["function"]["parameters"]["properties"]["more"]  # objects within: the two differ in blanks
        call = {"role": "assistant", "content": "", "thinking": "Let me see.", "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2}}}]}
        result, final = {"role": "tool", "content": "7 °C"}, {"role": "assistant", "content": "Cold.", "thinking": "x"}
        cases, wanted = [], []
        for effort in harmony.ReasoningEffort:
            for tools in (None, flat):
                for developer in ((), ({"role": "developer", "content": "Rhyme."},)):
                    for turns in ((USER,), (USER, final, USER), (USER, call, result), (USER, call, result, final, USER)):
                        if bool(tools) != bool(developer) or tools is None and call in turns:
                            continue
                        variables = {"messages": [*developer, *turns], "tools": tools,
                                     "reasoning_effort": effort.value.lower()}
                        cases.append({"template": template, "variables": variables, "add_generation_prompt": True,
                                      "now": day})
                        wanted.append(self.prompt_of(effort, tools, developer, turns))
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        result = subprocess.run([RENDER_LINES], input=lines.encode(), capture_output=True, check=True,
                                env={**os.environ, "TZ": "UTC"})
        for line, text in zip(result.stdout.decode().split("\n"), wanted):
            self.assertEqual(json.loads(line).get("text"), text)
        print(f"{len(cases)} prompts alike with openai-harmony")

    def prompt_of(self, effort, tools, developer, turns):
        role, message = harmony.Role, harmony.Message.from_role_and_content
        system = harmony.SystemContent.new().with_conversation_start_date("2024-10-04").with_reasoning_effort(effort)
        messages = [message(role.SYSTEM, system)]
        if developer:
            content = harmony.DeveloperContent.new().with_instructions(developer[0]["content"])
            if tools:
                content = content.with_function_tools([
                    harmony.ToolDescription.new(tool["function"]["name"], tool["function"]["description"],
                                                parameters=tool["function"]["parameters"]) for tool in tools])
            messages.append(message(role.DEVELOPER, content))
        for turn in turns:
            if turn["role"] == "user":
                messages.append(message(role.USER, turn["content"]))
            elif turn["role"] == "tool":
                author = harmony.Author.new(role.TOOL, "functions.get_weather")
                messages.append(harmony.Message.from_author_and_content(
                    author, json.dumps(turn["content"], ensure_ascii=False)).with_channel("commentary")
                    .with_recipient("assistant"))
            else:
                messages.append(message(role.ASSISTANT, turn["thinking"]).with_channel("analysis"))
                for called in turn.get("tool_calls", []):
                    arguments = json.dumps(called["function"]["arguments"], ensure_ascii=False)
                    messages.append(message(role.ASSISTANT, arguments).with_channel("commentary")
                                    .with_recipient("functions.get_weather").with_content_type("json"))
                if "tool_calls" not in turn:
                    messages.append(message(role.ASSISTANT, turn["content"]).with_channel("final"))
        tokens = self.encoding.render_conversation_for_completion(
            harmony.Conversation.from_messages(messages), role.ASSISTANT)
        return self.encoding.decode_utf8(tokens)

    def test_conversation(self):
        """gpt-oss's template writes a call of a found answer as openai-harmony does."""
        template = dict(published_templates()).get("openai-gpt-oss-120b")
        if template is None:
            self.skipTest("no published templates at hand")
        text = ("<|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant<|channel|>commentary "
                "to=functions.get_weather <|constrain|>json<|message|>{\"place\": \"Zürich\"}<|call|>")
        found = take_apart([{"template": template, "prompt": "<|start|>assistant", "text": text, "tools": TOOLS}])[0]
        self.assertEqual(found["format"], "harmony")
        self.assertEqual((found["reasoning"], found["content"]), ("I need the weather.", ""))
        result = {"role": "tool", "content": "7 degrees"}
        prompt = render(template, [USER, found["message"], result], True)
        self.assertIn("<|channel|>analysis<|message|>I need the weather.<|end|>", prompt)
        self.assertIn("<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
                      "{\"place\": \"Zürich\"}<|call|>", prompt)
        answer = {"role": "assistant", "content": "It is cold.", "thinking": "They want to know."}
        prompt = render(template, [USER, found["message"], result, answer, USER], True)
        self.assertNotIn("analysis<|message|>", prompt)  # past analysis is dropped
        self.assertIn("<|channel|>final<|message|>It is cold.<|end|>", prompt)


MARKS = {
    "harmony": ["<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.f", "<|message|>",
                "<|constrain|>json", "<|end|>", "<|return|>", "<|call|>", "{\"a\": 1}",
                "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>",
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":"],
    "hermes": ["<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
               "{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}", "<tool_call>[{\"name\":", "\n", "\\"],
    "qwen3-coder": ["<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>",
                    "</parameter>", "\n", "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"],
    "glm": ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "\n",
            "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"],
    "minimax-m2": ["<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=\"f\">", "</invoke>",
                   "<parameter name=\"a\">", "</parameter>", "\n",
                   "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">", "</parameter></invoke></minimax:tool_call>"],
    "gemma4": ["<|channel>thought\n", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "call:f{", "a:", "<|\"|>", "}",
               "[", "]", ",", "1", "<|tool_call>call:f{a:<|\"|>", "<|\"|>}<tool_call|>"],
    "kimi-k2": ["<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "functions.f:0", "<|tool_call_argument_begin|>", "{\"a\": 1}", "<|tool_call_end|>"],
    "mistral": ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f", "{\"a\": 1}",
                "[{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}]"],
    "deepseek": ["<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "f", "function",
                 "<｜tool▁sep｜>", "\n```json\n", "\n```", "{\"a\": 1}", "<｜tool▁call▁end｜>"],
    "lfm2": ["<think>", "</think>", "<|tool_call_start|>", "<|tool_call_end|>", "[", "f(", "a=", "'", ")", "]", ", ", "{", "}", ":",
             "<|tool_call_start|>[f(a='", "')]<|tool_call_end|>", "True", "\\"],
    "dsml": ["<think>", "</think>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"f\">", "</｜DSML｜invoke>",
             "<｜DSML｜parameter name=\"a\" string=\"true\">", "</｜DSML｜parameter>", "\n"],
    "think": ["<think>", "</think>", "\n", "<"],
    "plain": ["<think>", "\n", "<|x|>"],
}


class HostileTest(unittest.TestCase):
    def texts(self, seed, count):
        rng = random.Random(seed)
        for format_, marks in MARKS.items():
            for _ in range(count):
                parts = []
                for index in range(rng.randint(1, 14)):
                    mark = rng.choice(marks)
                    if rng.random() < 0.1:
                        mark = mark[:rng.randint(0, len(mark))]
                    word = f"W{index}é{rng.randrange(10)}Q" if rng.random() < 0.7 else ""
                    space = lambda: rng.choice(["", "", " ", "\n"])
                    parts.append(mark + space() + word + space())
                yield {"format": format_, "text": "".join(parts),
                       "prompt": rng.choice(["", "<think>\n", "<|start|>assistant", "[THINK]", "x<|channel>thought\n",
                                             "<|start|>assistant<|channel|>final<|message|>"])}

    def test_cut_anywhere(self):
        rng = random.Random(9)
        cases = list(self.texts(1, 250))
        found = take_apart(cases)
        cut = []
        for case in cases:
            size = len(case["text"].encode())
            cut += [{**case, "cuts": list(range(size))}] + [{**case, "cuts": cuts_of(case["text"], rng)} for _ in range(3)]
        for index, other in enumerate(take_apart(cut)):
            one = found[index // 4]
            self.assertNotIn("error", other, cut[index])
            for part in PARTS:
                self.assertEqual(other[part], one[part], (cut[index], part))
        print(f"{len(cut)} cuts of {len(cases)} texts make no difference")

    def test_no_word_is_lost(self):
        import re
        cases = list(self.texts(2, 1500))
        for case, found in zip(cases, take_apart(cases)):
            self.assertNotIn("error", found, case)
            # Exactly as it is in the message, where no JSON escapes stand in a word.
            shown = json.dumps([found[part] for part in PARTS], ensure_ascii=False)
            for word in re.findall(r"W\d+é\dQ", case["text"]):
                self.assertIn(word, shown, case)

    def test_long_texts(self):
        """Bounded work: these take no time to speak of."""
        cases = [{"format": format_, "text": mark * (200_000 // len(mark))}
                 for format_, marks in MARKS.items() for mark in marks]
        cases += [{"format": "hermes", "text": "<tool_call>" + "{\"name\": \"f\", \"arguments\": " + "[" * 300_000},
                  {"format": "hermes", "text": "<tool_call>" + "{\"function\": " * 50_000},
                  {"format": "hermes", "text": "<tool_call>{\"name\": \"" + "</tool_call>" * 50_000},
                  {"format": "hermes", "text": "<tool_call>" + "<think></think>" * 50_000},
                  {"format": "gemma4", "text": "<|tool_call>call:f{a:" + "{a:" * 100_000},
                  {"format": "harmony", "text": "<|channel|>" * 50_000}]
        for found in take_apart(cases):
            self.assertNotIn("error", found)

    def test_unknown(self):
        found = take_apart([{"format": "morse", "text": ""}, {"format": "hermes", "text": "", "tools": {"a": 1}}])
        self.assertIn("'morse'; expected one of deepseek, dsml, gemma4, glm", found[0]["error"])
        self.assertIn("no JSON array", found[1]["error"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
