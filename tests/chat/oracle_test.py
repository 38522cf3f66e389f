# SPDX-License-Identifier: Apache-2.0
"""Chat templates against PyPI's `jinja2`, in the environment that transformers gives it.

    oracle_test.py RENDER_LINES [unittest arguments]

RENDER_LINES is the program built from render_lines.cc. The templates of templates/ were written for
these tests and use what published ones use. Published ones are rendered too where they are at hand:
SmolLM2's from the GGUF file of tests/model, and every *.jinja under $VITRINE_CHAT_TEMPLATES (default:
what bench/peers unpacked of llama.cpp). Ends with 77 (skipped) where the oracle is not installed.
"""

import copy
import datetime
import json
import os
import pathlib
import subprocess
import sys
import unicodedata
import unittest
import warnings

os.environ["TZ"] = "UTC"

try:
    import jinja2
    from transformers.utils import chat_template_utils
    from transformers.utils.chat_template_utils import _compile_jinja_template
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from conversations import CONVERSATIONS, TOOLS
from generator import Generator
from python_cases import SHOWN, character_cases, random_formats

HERE = pathlib.Path(__file__).resolve().parent
RENDER_LINES = os.path.abspath(sys.argv[1])
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"
NOW = 1732233600  # 22 November 2024
NUM_GENERATED = int(os.environ.get("VITRINE_GENERATED") or 3000)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


chat_template_utils.datetime = FixedTime
warnings.simplefilter("ignore", SyntaxWarning)  # of what random templates compile to


def render_ours(cases):
    lines = "".join(json.dumps({**case, "now": NOW}) + "\n" for case in cases)
    result = subprocess.run([RENDER_LINES], input=lines.encode(), capture_output=True, check=True)
    # Not splitlines(): a line may hold other breaks.
    found = [json.loads(line) for line in result.stdout.decode().split("\n") if line]
    assert len(found) == len(cases), (len(found), len(cases))
    return found


def render_theirs(template, variables, add_generation_prompt=False):
    """The text, or None with the reason."""
    given = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt, **copy.deepcopy(variables)}
    try:
        return _compile_jinja_template(template).render(**given), None
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError,
            ArithmeticError, RecursionError, AssertionError) as error:
        return None, f"{type(error).__name__}: {error}"


def published_folders():
    given = os.environ.get("VITRINE_CHAT_TEMPLATES")
    if given:
        return [pathlib.Path(given)]
    return sorted(CACHE.glob("peers/llama_cpp_python-*/vendor/llama.cpp/models/templates"))


class TemplateTest(unittest.TestCase):
    def compare(self, templates, allowed=()):
        """Every template with every conversation. `allowed`: words of what only ours refuses."""
        cases = []
        for name, template in templates:
            for title, variables in CONVERSATIONS:
                for prompt in (False, True):
                    cases.append((f"{name}, {title}, {prompt}",
                                  {"template": template, "variables": variables,
                                   "add_generation_prompt": prompt}))
        rendered = refused = 0
        for (place, case), found in zip(cases, render_ours([case for _, case in cases])):
            text, reason = render_theirs(case["template"], case["variables"],
                                         case["add_generation_prompt"])
            with self.subTest(place):
                if text is None:
                    self.assertIn("error", found, f"theirs: {reason}")
                    refused += 1
                else:
                    if any(word in found.get("error", "") for word in allowed):
                        continue
                    self.assertEqual(found.get("text"), text, found.get("error"))
                    rendered += 1
        return rendered, refused

    def test_written_for_this(self):
        templates = [(path.stem, path.read_text()) for path in sorted(HERE.glob("templates/*.jinja"))]
        self.assertGreaterEqual(len(templates), 5)
        rendered, refused = self.compare(templates)
        self.assertGreater(rendered, len(templates) * 10)
        self.assertGreater(refused, 10)

    def test_published(self):
        templates = [(str(path.relative_to(folder)), path.read_text())
                     for folder in published_folders() for path in sorted(folder.rglob("*.jinja"))]
        if not templates:
            self.skipTest("no published templates at hand")
        rendered, refused = self.compare(templates)
        print(f"{len(templates)} published templates: {rendered} prompts alike, {refused} refused by both")
        self.assertGreater(rendered, len(templates))

    def test_each_family(self):
        """Families with experts: system message, turns, tools, reasoning and calls of tools are rendered."""
        templates = {path.stem: path.read_text() for folder in published_folders() for path in folder.rglob("*.jinja")}
        if not templates:
            self.skipTest("no published templates at hand")
        always = {"system", "several turns", "without a system message, several turns", "tools", "reasoning"}
        calls = {"a call and its result", "two calls at once", "reasoning before a call",
                 "reasoning and calls of several turns"}  # some templates want an empty text beside a call, some none
        conversations = [(title, variables) for title, variables in CONVERSATIONS if title in always | calls]
        self.assertEqual(len(conversations), len(always | calls))
        for name in ("openai-gpt-oss-120b", "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2", "GLM-4.6",
                     "GLM-4.7-Flash", "moonshotai-Kimi-K2", "Qwen3-Coder", "Qwen3.5-4B", "google-gemma-4-31B-it",
                     "MiniMax-M2", "LFM2-8B-A1B", "HuggingFaceTB-SmolLM3-3B", "Mistral-Small-3.2-24B-Instruct-2506"):
            found = render_ours([{"template": templates[name], "variables": variables, "add_generation_prompt": True}
                                 for _, variables in conversations])
            rendered = {title for (title, _), entry in zip(conversations, found)
                        if "What's the weather in Zürich?" in entry.get("text", "")}
            with self.subTest(name):
                self.assertLessEqual(always, rendered)
                self.assertTrue(calls & rendered)
            for (title, variables), entry in zip(conversations, found):
                with self.subTest(f"{name}, {title}"):
                    self.assertEqual(entry.get("text"), render_theirs(templates[name], variables, True)[0])

    def test_smollm2(self):
        path = pathlib.Path(os.environ.get("VITRINE_MODELS") or CACHE / "models").expanduser()
        path = path / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if not path.exists():
            self.skipTest(f"{path.name} is not there (tests/model/smollm2_test.py fetches it)")
        import gguf
        part = gguf.GGUFReader(path).get_field("tokenizer.chat_template")
        self.compare([("smollm2", bytes(part.parts[part.data[0]]).decode())])

    def test_reference_names_are_seen(self):
        """Through transformers' own function, in case it gives templates more than these tests do."""
        template = (HERE / "templates" / "tools.jinja").read_text()
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        theirs, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=TOOLS, chat_template=template, add_generation_prompt=True)
        found = render_ours([{"template": template, "add_generation_prompt": True,
                              "variables": {"messages": messages, "tools": TOOLS}}])
        self.assertEqual(found[0]["text"], theirs[0])

    def test_tokenizer_config(self):
        """Named templates, special tokens as text or object."""
        variables = {"messages": [{"role": "user", "content": "x"}]}
        named = [{"name": "default", "template": "d {{ bos_token }}"},
                 {"name": "tool_use", "template": "t {{ eos_token }}"}]
        tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
        cases = [
            ({"chat_template": "one {{ bos_token }}{{ eos_token }}", **tokens}, variables, "one <s></s>"),
            ({"chat_template": named, **tokens}, variables, "d <s>"),
            ({"chat_template": named, **tokens}, {**variables, "tools": TOOLS}, "t </s>"),
            ({"chat_template": named[:1], **tokens}, {**variables, "tools": TOOLS}, "d <s>"),
            ({**tokens}, variables, None),
            ({"chat_template": None}, variables, None),
        ]
        found = render_ours([{"config": config, "variables": given} for config, given, _ in cases])
        self.assertEqual([entry.get("text", entry) for entry in found], [text for *_, text in cases])
        refused = render_ours([{"config": {"chat_template": named[1:]}, "variables": variables},
                               {"config": {"chat_template": 7}, "variables": variables},
                               {"config": {"chat_template": [{"name": "x"}]}, "variables": variables}])
        for entry, words in zip(refused, ("'default'", "expected text", "without name")):
            self.assertIn(words, entry["error"])


class PythonTest(unittest.TestCase):
    """What values do in Python, detail by detail."""

    def compare(self, templates):
        variables = {"messages": []}
        cases = [{"template": template, "variables": variables} for template in templates]
        alike = 0
        for case, found in zip(cases, render_ours(cases)):
            text, reason = render_theirs(case["template"], variables)
            if any(words in found.get("error", "") for words in ("64 bits", "beyond float64")):
                continue  # what has no end in Python
            with self.subTest(case["template"]):
                if text is None:
                    self.assertIn("error", found, f"theirs: {reason}")
                else:
                    self.assertEqual(found.get("text"), text, found.get("error"))
                    alike += 1
        return alike

    def test_expressions(self):
        for topic, templates in SHOWN.items():
            with self.subTest(topic):
                self.assertGreater(self.compare(templates), len(templates) // 4)

    def test_formats(self):
        self.assertGreater(self.compare(random_formats(1, 1500)), 600)

    def test_characters(self):
        """Every character that Python knows, if ours knows it too."""
        if tuple(map(int, unicodedata.unidata_version.split("."))) > (15, 0, 0):
            self.skipTest(f"Python's Unicode {unicodedata.unidata_version} is newer than what is compared")
        cases = list(character_cases())
        found = render_ours([{"template": template, "variables": variables} for template, variables, _ in cases])
        for (_, variables, text), entry in zip(cases, found):
            with self.subTest(f"from {ord(variables['s'][0]):#x}"):
                self.assertIn("text", entry, entry)
                for character, theirs, ours in zip(variables["s"], text.split(","), entry["text"].split(",")):
                    if character != ",":
                        self.assertEqual(ours, theirs, f"{ord(character):#x}")


class GeneratedTest(unittest.TestCase):
    def test_generated(self):
        """Random templates: the same text, or refused by both."""
        rendered = refused = 0
        for seed in range(2):
            generator = Generator(seed)
            cases = [{"template": generator.template(), "variables": generator.variables}
                     for _ in range(NUM_GENERATED // 2)]
            for case, found in zip(cases, render_ours(cases)):
                text, reason = render_theirs(case["template"], case["variables"])
                if generator.is_unfit(case["template"], text, reason, found):
                    continue
                with self.subTest(case["template"]):
                    if text is None:
                        self.assertIn("error", found, f"theirs: {reason}")
                        refused += 1
                    else:
                        self.assertEqual(found.get("text"), text, found.get("error"))
                        rendered += 1
        print(f"{rendered} generated templates alike, {refused} refused by both")
        self.assertGreater(rendered, NUM_GENERATED // 3)
        self.assertGreater(refused, NUM_GENERATED // 50)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
