# SPDX-License-Identifier: Apache-2.0
"""vitrine generate --chat and vitrine chat."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

from tool import MODEL, SMALL, TIMEOUT, VITRINE, CliTest, file_size_limit

TEMPLATE = ("{% if messages[0].role == 'system' and messages[0].content == 'refuse' %}"
            "{{ raise_exception('no such\\nsystem') }}{% endif %}"
            "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' %}Once upon a time"
            "{{ m.content }}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}[assistant] Once upon a time{% endif %}{{ tail }}")
END = "<|endoftext|>"
SMOLLM2 = pathlib.Path(os.environ.get("VITRINE_MODELS") or "~/.cache/vitrine/models").expanduser()
SMOLLM2 = SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf"


class ChatCase(CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.make_model(self.model)

    def make_model(self, folder, **config):
        """The shipped model with a chat template."""
        folder.mkdir()
        for path in pathlib.Path(MODEL).iterdir():
            if path.is_file() and path.name != "tokenizer_config.json":
                (folder / path.name).symlink_to(path)
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"eos_token": END, "chat_template": TEMPLATE, **config}))

    def generate(self, prompt, *more, n=24):
        """Greedy, of the prompt as it is."""
        return self.succeed_json("generate", self.model, "-p", "-", "-n", n, "--temperature", 0, "--json",
                                 *more, stdin=prompt.encode())

    def chat(self, text, *more, n=24, code=0):
        result = self.run_tool("chat", self.model, "-n", n, "--temperature", 0, *more, stdin=text.encode())
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode(), result.stderr.decode()


class GenerateChat(ChatCase):
    def test_prompt(self):
        out = self.generate("Hi <|endoftext|>", "--chat", "--system", "Be brief.")
        prompt = "[system] Be brief.\n[user] Hi <|endoftext|>\n[assistant] Once upon a time"
        self.assertEqual(out["prompt"], prompt)
        plain = self.generate(prompt)
        self.assertEqual((out["text"], out["tokens"], out["prompt_tokens"]),
                         (plain["text"], plain["tokens"], plain["prompt_tokens"]))
        self.assertNotIn("prompt", plain)
        # What spells a special token is one, as in transformers.
        ids = self.succeed_json("tokenize", self.model, "-p", prompt, "--json")
        self.assertIn(END, ids["pieces"])

    def test_an_empty_system_message(self):
        """It takes the place of a template's own; no --system leaves that."""
        file = self.folder / "t.jinja"
        file.write_text("{% if messages[0].role != 'system' %}[system] I am X{% endif %}"
                        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        options = ("--chat", "--chat-template", file)
        self.assertEqual(self.generate("a", *options)["prompt"], "[system] I am X[user]a")
        self.assertEqual(self.generate("a", *options, "--system", "")["prompt"], "[system][user]a")

    def test_templates_of_other_places(self):
        file = self.folder / "t.jinja"
        file.write_text("T {{ messages[0].content }} {{ eos_token }}")
        self.assertEqual(self.generate("a", "--chat", "--chat-template", file)["prompt"], f"T a {END}")
        self.assertEqual(self.generate("a", "--chat", "--chat-variables", '{"tail": "!"}')["prompt"],
                         "[user] a\n[assistant] Once upon a time!")
        (self.model / "chat_template.jinja").write_text("J {{ messages[0].content }}")
        self.assertEqual(self.generate("a", "--chat")["prompt"], "J a")

    def test_stops_at_the_end_of_the_turn(self):
        """The eos_token of tokenizer_config.json ends a turn, whatever config.json says."""
        text = self.generate("x", "--chat", "--ignore-end-of-text")
        piece = text["tokens"][9]
        end = self.succeed_json("tokenize", self.model, "--ids", self.write_ids([piece]), "--json",
                                "--keep-special-tokens")["text"]
        vocab = json.loads((self.model / "tokenizer.json").read_text())["model"]["vocab"]
        self.make_model(self.folder / "other",
                        eos_token=next(name for name, id_ in vocab.items() if id_ == piece),
                        chat_template=TEMPLATE.replace("eos_token", "''"))
        out = self.succeed_json("generate", self.folder / "other", "-p", "x", "--chat", "-n", 24,
                                "--temperature", 0, "--json")
        first = text["tokens"].index(piece)
        self.assertEqual((out["tokens"], out["reason"]), (text["tokens"][:first + 1], "end of text"), end)

    def test_mistakes(self):
        generate = ("generate", self.model, "-p", "x", "-n", 2)
        self.fail_with(2, ["--system", "--chat"], *generate, "--system", "a")
        self.fail_with(2, ["--system", "--chat"], *generate, "--system", "")
        self.fail_with(2, ["line 1", "refuses these messages", "no such system"], *generate, "--chat",
                       "--system", "refuse")
        self.fail_with(2, ["JSON"], *generate, "--chat", "--chat-variables", "[1]")
        self.fail_with(2, ["variables", "byte"], *generate, "--chat", "--chat-variables", "{")
        self.fail_with(2, ["gone.jinja"], *generate, "--chat", "--chat-template", "gone.jinja")
        bad = self.folder / "bad.jinja"
        bad.write_text("\n\n{% if %}")
        self.fail_with(2, ["bad.jinja: line 3", "expected an expression"], *generate, "--chat",
                       "--chat-template", bad)
        bad.write_bytes(b"\xff")
        self.fail_with(2, ["bad.jinja", "UTF-8"], *generate, "--chat", "--chat-template", bad)
        for command in (("generate", MODEL, "-p", "x", "--chat"), ("chat", MODEL)):
            self.fail_with(2, ["has no chat template", "tokenizer_config.json", "--chat-template"], *command)
        gguf = pathlib.Path(SMALL).parents[1] / "gguf" / "dense.gguf"
        self.fail_with(2, ["has no chat template", "tokenizer.chat_template"], "generate", gguf, "-p", "x",
                       "--chat")

    def test_short_flags(self):
        one = self.succeed_json("generate", "-m", self.model, "-p", "Once", "-n", 8, "-t", 1, "-c", 64,
                                "-s", 7, "--json", "--ignore-end-of-text")
        long = self.succeed_json("generate", self.model, "--prompt", "Once", "--max-new-tokens", 8,
                                 "--threads", 1, "--context", 64, "--seed", 7, "--json",
                                 "--ignore-end-of-text")
        self.assertEqual((one["tokens"], one["seed"]), (long["tokens"], 7))
        full = self.succeed_json("generate", "-m", self.model, "-p", "Once", "-n", 50, "-c", 10, "--json",
                                 "--ignore-end-of-text")
        self.assertEqual(full["reason"], "context full")
        self.fail_with(2, ["-c 99999"], "generate", self.model, "-p", "x", "-c", 99999)
        self.fail_with(2, ["-c", "tokens"], "generate", self.model, "-p", "a b c d e f g h", "-c", 2)
        ids = self.succeed_json("tokenize", "-m", self.model, "-p", "Once", "--json")["ids"]
        self.succeed("score", "-m", self.model, "-t", 1, "--tokens", self.write_ids(ids), "--out", "o.json")
        self.assertEqual(self.succeed_json("inspect", "-m", self.model, "-t", 1, "--json")["threads"], 1)
        self.fail_with(2, ["model"], "generate", "-p", "x")


class Chat(ChatCase):
    def rendered(self, *turns):
        """The prompt of what was said, the last of it by the user."""
        begin = "[assistant] Once upon a time"
        return "".join(f"{begin}{content}{END}\n" if role == "assistant" else f"[{role}] {content}\n"
                       for role, content in turns) + begin

    def test_history(self):
        """Each answer is that of the whole conversation in one prompt, and most of it is not computed
        again."""
        out, err = self.chat("Hi there\n\nAnd you?\n", "--system", "Be brief.", "-s", 3)
        turns = [("system", "Be brief."), ("user", "Hi there")]
        before = self.generate(self.rendered(*turns))
        first = before["text"]
        turns += [("assistant", first), ("user", "And you?")]
        second = self.generate(self.rendered(*turns))
        self.assertEqual(out, first + "\n" + second["text"] + "\n")
        found = re.search(r"2 answers, \d+ tokens .* (\d+) prompt tokens computed, (\d+) reused; seed 3", err)
        self.assertTrue(found, err)
        # The answer's text may be cut into other tokens than it was made of; what stands before is the same.
        self.assertGreaterEqual(int(found[2]), before["prompt_tokens"] - 2)
        self.assertEqual(int(found[1]) + int(found[2]), before["prompt_tokens"] + second["prompt_tokens"])

    def test_reset_and_commands(self):
        out, err = self.chat("Hi there\n/reset\nHi there\n/nothing\n/exit\nnever read\n")
        lines = self.generate(self.rendered(("user", "Hi there")))["text"]
        self.assertEqual(out, 2 * (lines + "\n"))
        self.assertIn("'/nothing' is no command; expected /help, /save, ", err)
        self.assertIn("the conversation is forgotten", err)

    def test_message_of_several_lines(self):
        out, _ = self.chat("one\\\ntwo")  # and no line's end at the end
        answer = self.generate(self.rendered(("user", "one\ntwo")))["text"] + "\n"
        self.assertEqual(out, answer)
        out, _ = self.chat("one\\\ntwo\\\n")  # nothing comes behind the line that was to go on
        self.assertEqual(out, answer)

    def test_audit(self):
        """The experts of the last answer are those of the log."""
        out, _ = self.chat("Hi there\n/audit\n", "-t", "1", n=12)
        self.generate(self.rendered(("user", "Hi there")), "--audit", "run.json", n=12)
        log = json.loads((self.folder / "run.json").read_text())
        uses, tokens = {}, 0
        for record in log["records"]:
            if not (record["prediction"] or {}).get("generated"):
                continue
            tokens += 1
            for layer in record["layers"]:
                for expert, weight in zip(layer["experts"], layer["weights"]):
                    uses.setdefault((layer["layer"], expert), []).append(weight)
        table, layer = {}, None
        lines = out[out.index(f"{tokens} tokens, mean log-probability"):].splitlines()
        self.assertEqual(lines[1].split(), "layer expert tokens share mean gate weight".split())
        for line in lines[2:]:
            if line[:5].strip():
                layer = int(line[:5])
            expert, count, share, weight = line[5:].split()
            table[layer, int(expert)] = (int(count), share, weight)
        total = {number: sum(len(found) for (of, _), found in uses.items() if of == number)
                 for number, _ in uses}
        expected = {key: (len(weights), f"{100 * len(weights) / total[key[0]]:.1f}%",
                          f"{sum(weights) / len(weights):.3f}") for key, weights in uses.items()}
        self.assertEqual(table, expected)

    def test_audit_without_records(self):
        self.assertEqual(self.chat("/audit\n")[0], "no answer yet\n")
        self.assertEqual(self.chat("/audit\n", "--audit-mode", "none")[0],
                         "the recorder is off (--audit-mode none)\n")

    def test_log(self):
        """A conversation's log, truncations and all, verifies and replays to the bit."""
        self.chat("Hi there\nAnd you?\n/reset\nHi\n", "--audit", "run.vtr", "--audit-text", "-s", 1)
        self.succeed("audit", "verify", "run.vtr")
        self.succeed("audit", "replay", "run.vtr")
        _, err = self.chat("Hi there\n", "--audit", "run.json")
        self.assertIn("log run.json", err)

    def test_a_log_with_losses_says_so_first(self):
        """The disk has room for the first answer's page, not for that of the second one."""
        process = subprocess.Popen([VITRINE, "chat", self.model, "-n", "20", "--temperature", "0",
                                    "--audit", "run.vtr", "--audit-on-error", "degrade"],
                                   cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, **file_size_limit(10000))
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        log = self.folder / "run.vtr"
        deadline = time.monotonic() + TIMEOUT
        while not log.exists() or not json.loads(
                self.succeed("audit", "export", "run.vtr", "--json").stdout)["records"]:
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)  # a page is closed after a second
            time.sleep(0.2)
        _, err = process.communicate(b"word " * 700 + b"\n", timeout=TIMEOUT)
        self.assertIn(b"INCOMPLETE", err)
        out = self.run_tool("audit", "verify", "run.vtr").stdout
        self.assertTrue(out.startswith(b"INCOMPLETE: "), out)
        out = self.run_tool("audit", "replay", "run.vtr").stdout
        self.assertTrue(out.startswith(b"INCOMPLETE: "), out)
        self.assertTrue(self.succeed_json("audit", "replay", "run.vtr",
                                          "--json")["account"].startswith("INCOMPLETE: "))
        out = self.succeed("audit", "diff", "run.vtr", "run.vtr").stdout
        self.assertEqual(out.count(b"run.vtr: INCOMPLETE: "), 2, out)
        result = self.run_tool("audit", "export", "run.vtr", "--json")
        self.assert_one_line(result.stderr, "INCOMPLETE")
        counts = json.loads(result.stdout)["counts"]
        self.assertGreater(counts["lost"], 0)
        self.assertGreater(counts["tokens"], 20)
        (self.folder / "run.json").write_bytes(result.stdout)
        self.assertTrue(self.run_tool("audit", "show", "run.json").stdout.startswith(b"INCOMPLETE: "))
        self.assertEqual(self.run_tool("audit", "verify", "run.json").returncode, 1)
        for lost in (b"-1", b'"1"', b"1.5"):
            (self.folder / "bad.json").write_bytes(
                result.stdout.replace(b'"lost":%d' % counts["lost"], b'"lost":' + lost))
            self.fail_with(2, ["bad.json", "counts.lost"], "audit", "show", "bad.json")
        for form in ("--html", "--parquet"):
            result = self.run_tool("audit", "export", "run.vtr", form, "--out", "out" + form)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_one_line(result.stderr, "INCOMPLETE")
        result = self.run_tool("audit", "export", "run.json", "--json")
        self.assert_one_line(result.stderr, "INCOMPLETE")

    def test_does_not_fit(self):
        """A conversation that outgrew its context goes on after /reset."""
        long = "word " * 80
        out, err = self.chat(f"{long}\n/audit\n/reset\nHi\n", "-c", 48, n=4, code=2)
        self.assertIn("and the context holds 48; forget it with /reset", err)
        self.assertTrue(out.startswith("no answer yet\n"), out)
        self.assertIn("cut after 4 tokens", err)
        _, err = self.chat("Hi\n", "-c", 24, n=100)
        self.assertIn("the context of 24 tokens is full", err)

    def test_mistakes(self):
        chat = ("chat", self.model)
        self.fail_with(2, ["refuses these messages"], *chat, "--system", "refuse")
        self.fail_with(2, ["--audit-stream"], *chat, "--audit-stream", "x")
        self.fail_with(2, ["--redact prompt"], *chat, "--audit", "a.vtr", "--redact", "prompt")
        self.fail_with(2, ["-c 99999"], *chat, "-c", 99999)
        self.fail_with(2, ["top_p"], *chat, "--top-p", 2)

    def test_interrupt(self):
        process = subprocess.Popen([VITRINE, "chat", self.model, "-n", "100000", "--audit", "run.vtr",
                                    "--temperature", "0"], cwd=self.folder, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096,
                                   bufsize=0)
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, err)
        self.assert_one_line(err.splitlines(True)[-1], "cancelled")
        self.succeed("audit", "verify", "run.vtr")

    def test_smollm2(self):
        if not SMOLLM2.exists():
            self.skipTest(f"{SMOLLM2.name} is not there (tests/model/smollm2_test.py fetches it)")
        system = ("--system", "You answer in one sentence.")
        out = self.succeed_json("generate", "-m", SMOLLM2, "--chat", "-p", "What is the capital of France?",
                                *system, "--temperature", 0, "-n", 40, "--json")
        self.assertEqual((out["text"], out["reason"]), ("The capital of France is Paris.", "end of text"))
        self.assertEqual(out["prompt"], "<|im_start|>system\nYou answer in one sentence.<|im_end|>\n"
                         "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
        self.model = SMOLLM2
        text, err = self.chat("What is the capital of France?\n/audit\nAnd of Italy?\n", *system, n=40)
        self.assertIn("The capital of France is Paris.\n", text)
        self.assertIn("no experts: a dense model", text)
        self.assertIn("The capital of Italy is Rome.\n", text)
        computed, reused = map(int, re.search(r"(\d+) prompt tokens computed, (\d+) reused", err).groups())
        self.assertGreater(reused, 30)  # all of the first turn, the answer included
        self.assertLess(computed, 45)


class AnswerParts(ChatCase):
    """Reasoning beside content: --answer-format. What the small model writes is constrained."""
    TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.thinking }}|{{ m.content }}{% endfor %}"
                "{% if add_generation_prompt %}[assistant] <think>{% endif %}")
    WRITES = ("--regex", "Once upon a time</think>[a-z ]{5,9}")

    def setUp(self):
        super().setUp()
        (self.folder / "think.jinja").write_text(self.TEMPLATE)
        self.template = ("--chat-template", self.folder / "think.jinja")

    def test_generate(self):
        form = (*self.template, "--answer-format", "think", *self.WRITES)
        out = self.generate("Hi", "--chat", *form)
        self.assertEqual(out["reasoning"], "Once upon a time")
        self.assertRegex(out["text"], r"^[a-z ]{5,9}$")
        self.assertNotIn("tool_calls", out)
        result = self.run_tool("generate", self.model, "-p", "Hi", "-n", 24, "--temperature", 0, "--chat", *form)
        self.assertEqual(result.stdout.decode(), out["text"] + "\n")
        self.assertIn("vitrine: reasoning: Once upon a time\n", result.stderr.decode())
        quiet = self.run_tool("generate", self.model, "-p", "Hi", "-n", 24, "--temperature", 0, "--chat", "-q", *form)
        self.assertEqual(quiet.stderr, b"")
        # A constraint is asked of the whole text.
        whole = self.generate("Hi", "--chat", *self.template, *self.WRITES)
        self.assertEqual(whole["text"].split("</think>"), ["Once upon a time", " " + out["text"]])
        # Without one the template tells: the prompt opened the reasoning, and nothing closes it.
        found = self.generate("Hi", "--chat", *self.template, n=8)
        plain = self.generate("Hi", "--chat", *self.template, "--answer-format", "plain", n=8)
        self.assertEqual((found["text"], found["reasoning"].strip()), ("", plain["text"].strip()))
        self.assertNotIn("reasoning", plain)

    def test_calls(self):
        call = '<tool_call>{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>'
        form = ("--chat", "--answer-format", "hermes", "--choice", call)
        out = self.generate("Hi", *form, n=80)
        self.assertEqual(out["text"], "")
        [found] = out["tool_calls"]
        self.assertRegex(found.pop("id"), "^call_0_[0-9a-f]{16}$")
        self.assertEqual(found, {"type": "function",
                                 "function": {"name": "now", "arguments": '{"zone": "UTC"}'}})
        result = self.run_tool("generate", self.model, "-p", "Hi", "-n", 80, *form)
        self.assertIn('vitrine: the answer calls now with {"zone": "UTC"}\n', result.stderr.decode())

    def test_special_tokens_are_marks(self):
        """Where the marks of a format are special tokens, which a text is shown without."""
        model = self.folder / "marks"
        self.make_model(model)
        file = json.loads((model / "tokenizer.json").read_text())
        for id_, mark in ((1, "<think>"), (2, "</think>")):
            token = next(token for token in file["added_tokens"] if token["id"] == id_)
            self.assertTrue(token["special"])
            if token["content"] in file["model"]["vocab"]:
                file["model"]["vocab"][mark] = file["model"]["vocab"].pop(token["content"])
            token["content"] = mark
        (model / "tokenizer.json").unlink()
        (model / "tokenizer.json").write_text(json.dumps(file))
        run = lambda id_, *more: self.succeed_json(
            "generate", model, "-p", "Hi", "-n", 3, "--temperature", 0, "--logit-bias", f"{id_}=1000", "--json",
            "--chat", *self.template, *more)
        self.assertEqual(run(1)["text"], "")  # within what the prompt began, more of the same is text
        self.assertEqual(run(1)["reasoning"], "<think>" * 3)
        self.assertEqual(run(2)["text"], "</think>" * 2)
        for id_ in (1, 2, 3):  # 3: no mark
            self.assertEqual(run(id_, "--answer-format", "plain")["text"], "")
        self.assertNotIn("reasoning", run(3))

    def test_conversation(self):
        form = (*self.template, "--answer-format", "think", *self.WRITES, "--json-lines")
        out, _ = self.chat("Hi\n/save s.json\nAnd you?\n", *form, n=40)
        events = [json.loads(line) for line in out.splitlines()]
        ends = [event for event in events if event["event"] == "end"]
        self.assertEqual([end["reasoning"] for end in ends], ["Once upon a time"] * 2)
        for end in ends:
            mine = [event for event in events if event["event"] == "token" and event["answer"] == end["answer"]]
            self.assertEqual("".join(event["text"] for event in mine), end["text"])
            self.assertEqual("".join(event.get("reasoning", "") for event in mine), end["reasoning"])
        # The template gets both, and a session keeps both.
        prompt = f"[user]|Hi[assistant]Once upon a time|{ends[0]['text']}[user]|And you?[assistant] <think>"
        ids = self.succeed_json("tokenize", self.model, "-p", prompt, "--json")["ids"]
        starts = [event for event in events if event["event"] == "start"]
        self.assertEqual(starts[1]["prompt_tokens"], len(ids))
        session = json.loads((self.folder / "s.json").read_text())
        self.assertEqual(json.loads(session["messages"][-1]["fields"])["thinking"], "Once upon a time")
        out, _ = self.chat("And you?\n", "--load", self.folder / "s.json", *form, n=40)
        loaded = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([event["prompt_tokens"] for event in loaded if event["event"] == "start"], [len(ids)])
        for fields in (7, "[]", "{"):
            session["messages"][-1]["fields"] = fields
            (self.folder / "bad.json").write_text(json.dumps(session))
            _, error = self.chat("", "--load", self.folder / "bad.json", *form, code=2)
            self.assertIn("messages[1].fields", error)
            self.assertIn("expected the text of a JSON object", error)

    def test_refusals(self):
        for options, words in ((("--answer-format", "think"), "expected --chat"),
                               (("--chat", "--answer-format", "think", "--n-best", 2), "--n-best"),
                               (("--chat", "--answer-format", "morse"), "morse")):
            result = self.run_tool("generate", self.model, "-p", "Hi", *options)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr.decode())
