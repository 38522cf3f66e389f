# SPDX-License-Identifier: Apache-2.0
"""Counts how often a model calls a function of ten prompts, with its chat template alone, and with
--tools, which holds calls to the functions' schemas.

    tool_calls.py VITRINE MODEL [-n N] [--jsonl FILE]

A call counts where it is read as one, its function is known and its arguments are valid (PyPI's
`jsonschema`). An answer is broken where it holds a mark of calls that is read as no call.
"""

import argparse
import json
import subprocess

import jsonschema

TOOLS = [{"type": "function", "function": function} for function in [
    {"name": "get_weather", "description": "Gets the weather of a city for some days.",
     "parameters": {"type": "object", "required": ["city"], "properties": {
         "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
         "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}},
    {"name": "search_web", "description": "Searches the web.",
     "parameters": {"type": "object", "required": ["query"], "properties": {
         "query": {"type": "string"}, "limit": {"type": "integer"}}}},
    {"name": "create_event", "description": "Puts an event into the calendar.",
     "parameters": {"type": "object", "required": ["title", "start"], "properties": {
         "title": {"type": "string"}, "start": {"type": "string", "description": "ISO 8601"},
         "guests": {"type": "array", "items": {"type": "string"}}}}},
    {"name": "convert_currency", "description": "Converts an amount of money.",
     "parameters": {"type": "object", "required": ["amount", "from", "to"], "properties": {
         "amount": {"type": "number"}, "from": {"type": "string"}, "to": {"type": "string"}}}},
]]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
PROMPTS = [
    "What is the weather in Paris?",
    "Will it rain in Oslo within the next three days? Use celsius.",
    "Search the web for the newest release of CMake.",
    "Put a meeting with Ann and Bob into my calendar, tomorrow (2026-03-02) at ten.",
    "How much are 250 euros in Japanese yen?",
    "Find me five recipes of apple pie.",
    "I need the forecast for Nairobi for a week.",
    "Convert 99.95 US dollars to Swiss francs, please.",
    "Remind me of the dentist on 2026-04-17 at 8:30.",
    "Is it warm in Lisbon and in Rome today?",
]
MARKS = ["<tool_call", "</tool_call", "<|channel|>", "<|call|>"]


def is_valid(call):
    function = call["function"]
    try:
        jsonschema.Draft202012Validator(SCHEMAS[function["name"]]).validate(
            json.loads(function["arguments"]))
    except (KeyError, ValueError, jsonschema.ValidationError):
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vitrine")
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=160, help="tokens of an answer at most")
    parser.add_argument("--jsonl", help="a file that gets each answer")
    arguments = parser.parse_args()
    tools = json.dumps(TOOLS)
    ways = {
        "template alone": ["--chat-variables", json.dumps({"tools": TOOLS})],
        "--tools, auto": ["--tools", tools],
        "--tools, required": ["--tools", tools, "--tool-choice", "required"],
    }
    record = open(arguments.jsonl, "w", encoding="utf-8") if arguments.jsonl else None
    for way, options in ways.items():
        called = free = broken = 0
        for prompt in PROMPTS:
            result = subprocess.run(
                [arguments.vitrine, "generate", arguments.model, "--chat", "-p", prompt, "-n",
                 str(arguments.n), "--temp", "0", "--json", "-q", *options],
                check=True, stdout=subprocess.PIPE)
            answer = json.loads(result.stdout)
            calls = answer.get("tool_calls", [])
            is_broken = (any(mark in answer["text"] for mark in MARKS) or
                         not all(is_valid(call) for call in calls))
            broken += is_broken
            called += bool(calls) and not is_broken
            free += not calls and not is_broken
            if record:
                print(json.dumps({"way": way, "prompt": prompt, "text": answer["text"],
                                  "tool_calls": calls}), file=record, flush=True)
        print(f"{way}: {called} of {len(PROMPTS)} call a function, {free} answer freely, "
              f"{broken} broken", flush=True)


if __name__ == "__main__":
    main()
