# SPDX-License-Identifier: Apache-2.0
"""Families of chat models: how their answers are written, and plain readers of whole texts.

The readers work on a text that is all there, with regular expressions, `json` and Python's own
parser (`ast`): nothing of them knows pieces or what may follow.
"""

import ast
import json
import re

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {
    "text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"},
    "exact": {"type": "boolean"}, "tags": {"type": "array"}, "more": {"type": "object"},
    "note": {"type": ["string", "null"]}, "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
PROPERTIES = TOOLS[0]["function"]["parameters"]["properties"]


def compact(value):
    return json.dumps(value, ensure_ascii=False)


def bare(value):
    """As templates write a value into XML: texts as they are."""
    return value if isinstance(value, str) else compact(value)


def read_bare(name, text):
    """What a bare text means by the schema of an argument of `search`."""
    if PROPERTIES.get(name) == {"type": "string"}:
        return text
    try:
        value = json.loads({"None": "null"}.get(text.strip(), text.strip()))
    except ValueError:
        return text
    if name == "note" and value is not None or name == "either" and not type(value) is int:
        return text
    return text if isinstance(value, str) else value


def gemma(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return compact(value)


def read_gemma(text):
    """As JSON: texts quoted, then names quoted outside of them. Arguments that end within a text
    are none, even where that text ends with a bracket."""
    parts = text.split('<|"|>')
    if len(parts) % 2 == 0:
        raise ValueError(text)
    names = lambda part: re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:", r'\1"\2":', part)
    made = [names(part) if i % 2 == 0 else compact(part) for i, part in enumerate(parts)]
    return json.loads("".join(made))


def read_python(text):
    calls = []
    for call in ast.parse(text.strip(), mode="eval").body.elts:
        if call.args:
            raise ValueError(text)
        calls.append((call.func.id, {part.arg: ast.literal_eval(part.value) for part in call.keywords}))
    return calls


def read_tagged(text, call, argument):
    """Calls and arguments by two regular expressions; what they leave makes it no call."""
    calls = []
    if not re.fullmatch(rf"\s*(?:{call}\s*)+", text, re.S):
        return None
    for found in re.finditer(call, text, re.S):
        name, body = found["name"], found["body"]
        pairs = [(part["key"], part["value"]) for part in re.finditer(argument, body, re.S)]
        if re.sub(argument, "", body, flags=re.S).strip():
            return None
        calls.append((name, {key: read_bare(key, value) for key, value in pairs}))
    return calls


def read_json(text):
    found = json.loads(text)
    found = found if isinstance(found, list) else [found]
    return [(call["name"], call["arguments"]) for call in found]


def read_deepseek(text):
    found = re.fullmatch(r"\s*function<｜tool▁sep｜>(\S+)\s*```json\n(.*)\n```\s*", text, re.S)
    return [(found[1], json.loads(found[2]))] if found else None


def dsml(name, arguments):
    return f'\n<｜DSML｜invoke name="{name}">\n' + "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{bare(value)}</｜DSML｜parameter>\n'
        for key, value in arguments.items()) + "</｜DSML｜invoke>\n"


def read_dsml(text):
    """Which arguments are texts the form itself says."""
    calls = []
    invoke = r'<｜DSML｜invoke name="([^"]*)">(.*?)</｜DSML｜invoke>'
    argument = r'<｜DSML｜parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜parameter>'
    if not re.fullmatch(rf"\s*(?:{invoke}\s*)+", text, re.S):
        return None
    for name, body in re.findall(invoke, text, re.S):
        if re.sub(argument, "", body, flags=re.S).strip():
            return None
        calls.append((name, {key: value if is_text == "true" else json.loads(value)
                             for key, is_text, value in re.findall(argument, body, re.S)}))
    return calls


GLM_CALL = r"(?P<name>[^\s<{]+)\s*(?P<body>(?:<arg_key>.*</arg_value>)?)"
GLM_ARGUMENT = r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
INVOKE = r'<invoke name="(?P<name>[^"]*)">(?P<body>.*?)</invoke>'
INVOKE_ARGUMENT = r'<parameter name="(?P<key>[^"]*)">(?P<value>.*?)</parameter>'
FUNCTION = r"<function=(?P<name>[^>]*)>(?P<body>.*?)</function>"
FUNCTION_ARGUMENT = r"<parameter=(?P<key>[^>]*)>\n?(?P<value>.*?)\n?</parameter>"

# Each: marks of reasoning; marks around calls; marks of one call; how one is written; how the text
# between its marks is read, or what parts its head from arguments that are told as they come.
FAMILIES = {
    "glm": dict(call=("<tool_call>", "</tool_call>"),
                write=lambda name, arguments: name + "\n" + "".join(
                    f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in arguments.items()),
                read=lambda text: read_tagged(text, GLM_CALL, GLM_ARGUMENT)),
    "minimax-m2": dict(call=("<minimax:tool_call>", "</minimax:tool_call>"),
                       write=lambda name, arguments: f'\n<invoke name="{name}">\n' + "".join(
                           f'<parameter name="{key}">{bare(value)}</parameter>\n' for key, value in arguments.items())
                       + "</invoke>\n",
                       read=lambda text: read_tagged(text, INVOKE, INVOKE_ARGUMENT)),
    "qwen3-coder": dict(call=("<tool_call>", "</tool_call>"),
                        write=lambda name, arguments: f"\n<function={name}>\n" + "".join(
                            f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
                        + "</function>\n",
                        read=lambda text: read_tagged(text, FUNCTION, FUNCTION_ARGUMENT)),
    "gemma4": dict(think=("<|channel>thought", "<channel|>"), call=("<|tool_call>", "<tool_call|>"), ends_thinking=True,
                   write=lambda name, arguments: f"call:{name}{gemma(arguments)}",
                   read=lambda text: (lambda found: [(found[1], read_gemma(found[2]))] if found else None)(
                       re.fullmatch(r"\s*call:(\w+)(\{.*\})\s*", text, re.S))),
    "lfm2": dict(call=("<|tool_call_start|>", "<|tool_call_end|>"), ends_thinking=True,
                 write=lambda name, arguments: "[" + name + "(" + ", ".join(
                     f"{key}={value!r}" for key, value in arguments.items()) + ")]",
                 read=read_python),
    "lfm2 in JSON": dict(format="lfm2", call=("<|tool_call_start|>", "<|tool_call_end|>"), ends_thinking=True,
                         write=lambda name, arguments: compact([{"name": name, "arguments": arguments}]), read=read_json),
    "hermes": dict(call=("<tool_call>", "</tool_call>"),
                   write=lambda name, arguments: "\n" + compact({"name": name, "arguments": arguments}) + "\n", read=read_json),
    "kimi-k2": dict(section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), ends_thinking=True,
                    call=("<|tool_call_begin|>", "<|tool_call_end|>"), separator="<|tool_call_argument_begin|>",
                    write=lambda name, arguments, place: f"functions.{name}:{place}<|tool_call_argument_begin|>{compact(arguments)}",
                    head=r"(?:functions\.)?(?P<name>[^\s<]+?)(?::\d*)?"),
    "deepseek": dict(section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), ends_thinking=True,
                     call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"), separator="<｜tool▁sep｜>",
                     write=lambda name, arguments: f"{name}<｜tool▁sep｜>{compact(arguments)}",
                     head=r"(?!function\b)(?P<name>[^\s<]+)"),
    "deepseek of R1": dict(format="deepseek", section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), ends_thinking=True,
                           call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
                           write=lambda name, arguments: f"function<｜tool▁sep｜>{name}\n```json\n{compact(arguments)}\n```",
                           read=read_deepseek),
    "dsml": dict(call=("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"), ends_thinking=True, write=dsml,
                 read=read_dsml),
    "mistral": dict(think=("[THINK]", "[/THINK]"), call=("[TOOL_CALLS]", ""), ends_thinking=True, separator="[ARGS]",
                    write=lambda name, arguments: f"{name}[ARGS]{compact(arguments)}", head=r"(?P<name>[^\s\[]+)"),
    "think": dict(call=None),
}


def try_read(read, text):
    try:
        return read(text)
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError):
        return None


def find_call(family, text, at):
    """Calls whose mark begins at `at`, as (name, arguments) and whether these are a text that may
    have been cut; and where they end. None where it is no call."""
    opened, closed = family["call"]
    begin = at + len(opened)
    if "separator" not in family:
        ends = [found.start() for found in re.finditer(re.escape(closed), text[begin:])]
        for end in ends:
            calls = try_read(family["read"], text[begin:begin + end])
            if calls:
                return [(*call, False) for call in calls], begin + end + len(closed)
        calls = try_read(family["read"], text[begin:])
        return ([(*call, False) for call in calls], len(text)) if calls else None
    head = re.compile(r"\s*" + family["head"] + r"\s*" + re.escape(family["separator"])).match(text, begin)
    if not head:
        return None
    marks = [mark for mark in (closed, opened, *family.get("section", ())) if mark]
    ends = [found for found in (text.find(mark, head.end()) for mark in marks) if found >= 0]
    end = min(ends, default=len(text))
    return [(head["name"], text[head.end():end].strip(), True)], end + (len(closed) if text.startswith(closed, end) else 0)


def read_plainly(family, text, in_reasoning):
    """(content, reasoning, [(name, arguments, whether they are a text)]) of a whole text."""
    parts = {"content": [""], "reasoning": [""]}
    calls = []
    opened, closed = family.get("think", ("<think>", "</think>"))
    sections = family.get("section", ())
    at, is_first = 0, not in_reasoning
    kind = "reasoning" if in_reasoning else "content"
    while at < len(text):
        call_mark = family["call"] and family["call"][0]
        if kind == "reasoning":
            marks = [closed] + ([call_mark, *sections] if family.get("ends_thinking") else [])
        else:
            # An end of reasoning counts where nothing but blanks stand before it.
            ends = is_first and text[at:].lstrip(" \t\r\n").startswith(closed)
            marks = [opened, *sections, *([call_mark] if call_mark else []), *([closed] if ends else [])]
        found = min(((place, mark) for mark in marks if (place := text.find(mark, at)) >= 0), default=(len(text), ""))
        before = text[at:found[0]]
        parts[kind][-1] += before
        is_first = is_first and not before.strip()
        at = found[0] + len(found[1])
        if not found[1]:
            break
        if kind == "reasoning" and found[1] != closed:
            kind, at = "content", found[0]
            parts["content"].append("")
        elif found[1] == call_mark:
            call = find_call(family, text, found[0])
            if call is None:
                parts["content"][-1] += call_mark
                is_first = False
            else:
                calls += call[0]
                at = call[1]
                parts["content"].append("")
        else:
            kind = "reasoning" if found[1] == opened else "content"
            if found[1] == opened:
                is_first = False
            parts["reasoning"].append("")
            parts["content"].append("")
    joined = {part: "\n".join(filter(None, (piece.strip(" \t\r\n") for piece in pieces))) for part, pieces in parts.items()}
    return joined["content"], joined["reasoning"], calls
