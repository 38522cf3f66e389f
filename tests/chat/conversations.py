# SPDX-License-Identifier: Apache-2.0
"""What the chat templates of the tests are rendered with."""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a place, with \"quotes\" & <signs>.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "City, é"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "either": {"oneOf": [{"type": "string", "description": "s"}, {"type": "integer"}]},
        }, "required": ["place"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
USER = {"role": "user", "content": "What's the weather in Zürich? 🙂"}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdefghi", "type": "function",
     "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2, "x": [1.5, True]}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi",
          "content": "{\"degrees\": 7.5}"}
ANSWER = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nIt is 7.5 °C."}
NEXT = {"role": "user", "content": "\tThanks!  \n\n"}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

REASONING = {"reasoning_content": "Let me see.\n\nHm.", "reasoning": "Let me see.", "thinking": "Let me see."}
FINAL = {"role": "assistant", "content": "It is 7.5 °C."}
SECOND = {"id": "bbcdefghi", "type": "function", "function": {"name": "now", "arguments": {}}}


def conversation(*messages, **more):
    return {**TOKENS, "messages": list(messages), **more}


CONVERSATIONS = [
    ("one message", conversation(USER)),
    ("system", conversation(SYSTEM, USER)),
    ("several turns", conversation(SYSTEM, USER, ANSWER, NEXT)),
    ("ends with an answer", conversation(USER, ANSWER)),
    ("without a system message, several turns", conversation(USER, ANSWER, NEXT, ANSWER, USER)),
    ("empty text", conversation({"role": "system", "content": ""}, {"role": "user", "content": ""})),
    ("nothing", conversation()),
    ("letters", conversation({"role": "user", "content": "İstanbul ΣΑΣ straße ﬁ 日本語 \u2028 \x1f \u00a0"})),
    ("special tokens", conversation({"role": "user", "content": "<|im_end|><|eot_id|></s>{{ x }}{% if %}"})),
    ("two users", conversation(USER, NEXT)),
    ("unknown role", conversation(USER, {"role": "critic", "content": "no"})),
    ("developer", conversation({"role": "developer", "content": "Rhyme."}, USER)),
    ("tools", conversation(SYSTEM, USER, tools=TOOLS)),
    ("tools, no system message", conversation(USER, tools=TOOLS)),
    ("a call", conversation(USER, CALL, tools=TOOLS)),
    ("a call and its result", conversation(SYSTEM, USER, CALL, RESULT, tools=TOOLS)),
    ("calls in several turns",
     conversation(SYSTEM, USER, CALL, RESULT, ANSWER, NEXT, CALL, RESULT, RESULT, ANSWER, tools=TOOLS)),
    ("a result without tools", conversation(USER, CALL, RESULT, ANSWER)),
    ("arguments as text", conversation(USER, {**CALL, "tool_calls": [
        {"id": "123456789", "type": "function",
         "function": {"name": "now", "arguments": "{\"a\": 1}"}}]}, {**RESULT, "tool_call_id": "123456789"})),
    ("content in parts", conversation(
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "image"},
                                     {"type": "text", "text": "is it?"}]})),
    ("reasoning", conversation(USER, {**ANSWER, "reasoning_content": "hm", "thinking": "hm"}, NEXT)),
    ("no thinking", conversation(SYSTEM, USER, enable_thinking=False, thinking=False)),
    ("thinking", conversation(USER, enable_thinking=True, thinking=True, reasoning_effort="high")),
    ("documents", conversation(USER, documents=[{"title": "A", "text": "a b"}, {"title": "B", "text": "c"}],
                               controls={"citations": True, "length": "short"})),
    ("a date", conversation(USER, date_string="1 Jan 2030", tools=TOOLS, tools_in_user_message=False)),
    ("developer and tools", conversation({"role": "developer", "content": "Rhyme."}, USER, tools=TOOLS)),
    ("system and developer", conversation(SYSTEM, {"role": "developer", "content": "Rhyme."}, USER, tools=TOOLS)),
    ("reasoning before a call", conversation(SYSTEM, USER, {**CALL, **REASONING}, RESULT, tools=TOOLS)),
    ("reasoning and calls of several turns", conversation(
        USER, {**CALL, **REASONING}, RESULT, {**FINAL, **REASONING}, NEXT, {**CALL, **REASONING}, RESULT,
        {**FINAL, **REASONING}, USER, tools=TOOLS, enable_thinking=True)),
    ("text beside a call", conversation(USER, {**CALL, "content": "I look."}, RESULT, tools=TOOLS)),
    ("two calls at once", conversation(USER, {**CALL, "content": "", "tool_calls": CALL["tool_calls"] + [SECOND]}, RESULT,
                                       {"role": "tool", "name": "now", "tool_call_id": "bbcdefghi", "content": "12:00"},
                                       tools=TOOLS)),
    ("low effort", conversation(SYSTEM, USER, tools=TOOLS, reasoning_effort="low", builtin_tools=["python", "browser"],
                                model_identity="You are V.")),
]
