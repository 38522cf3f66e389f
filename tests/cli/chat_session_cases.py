# SPDX-License-Identifier: Apache-2.0
"""vitrine chat: sessions, /undo, /regen, /system, --json-lines."""

import json
import os
import stat

from chat_cases import END, ChatCase
from tool import TRACE, file_size_limit

SAMPLED = ("--temperature", 1, "-s", 7)


class SessionCase(ChatCase):
    def talk(self, text, *more, code=0, n=12):
        """Sampled, so that another branch or seed shows."""
        result = self.run_tool("chat", self.model, "-n", n, *(more or SAMPLED), stdin=text.encode())
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode(), result.stderr.decode()

    def session(self, name="s.json"):
        return json.loads((self.folder / name).read_text())

    def events(self, text, *more, **options):
        out, _ = self.talk(text, *(more or SAMPLED), "--json-lines", **options)
        return [json.loads(line) for line in out.splitlines()]

    def answers(self, text, *more):
        return [event["text"] for event in self.events(text, *more) if event["event"] == "end"]


class ChatSessions(SessionCase):
    def test_a_loaded_conversation_goes_on_as_it_would_have(self):
        whole = self.answers("Hi there\nAnd you?\n")
        first = self.answers("Hi there\n/save s.json\n")
        self.assertEqual(first, whole[:1])
        # Its options and seed come with it, whichever way it is loaded.
        self.assertEqual(self.answers("/load s.json\nAnd you?\n", "-s", 1), whole[1:])
        self.assertEqual(self.answers("And you?\n", "--load", "s.json"), whole[1:])
        # Those of the command line count where they are given.
        self.assertNotEqual(self.answers("And you?\n", "--load", "s.json", "-s", 8), whole[1:])
        turns = "[user] Hi there\n[assistant] Once upon a time" + whole[0] + END + "\n[user] And you?\n"
        greedy = self.generate(turns + "[assistant] Once upon a time", n=12)["text"]
        self.assertEqual(self.answers("And you?\n", "--load", "s.json", "--temperature", 0), [greedy])

    def test_keys_and_values_are_computed_anew(self):
        self.talk("Hi there\n/save s.json\n")
        held = len(self.session()["tokens"])
        start = self.events("And you?\n", "--load", "s.json")[1]
        self.assertEqual(start["event"], "start")
        self.assertGreaterEqual(start["reused_tokens"], held - 12)  # but for the answer, cut otherwise

    def test_the_file(self):
        self.talk("Hi\n/system Be brief.\n/save s.json\n", *SAMPLED, "--audit", "run.vtr", "--trace-id", TRACE)
        session = self.session()
        self.assertEqual(stat.S_IMODE((self.folder / "s.json").stat().st_mode), 0o600)
        self.assertEqual([message["role"] for message in session["messages"]], ["system", "user", "assistant"])
        self.assertEqual((session["seed"], session["trace_id"]), (7, TRACE))
        # The trace is that of the next log, too.
        self.talk("Go on\n/save t.json\n", "--load", "s.json", "--audit", "next.vtr")
        self.assertEqual(self.session("t.json")["trace_id"], TRACE)
        self.succeed("audit", "replay", "next.vtr")

    def test_other_settings_are_told(self):
        self.talk("Hi\n/save s.json\n")
        _, err = self.talk("", "--load", "s.json", "--stop", "x", "--kv-type", "f32")
        self.assertIn("other settings (kv_type, stop)", err)

    def test_a_log_keeps_its_head(self):
        """A session with another seed cannot come into a log whose head tells this one."""
        self.talk("Hi\n/save s.json\n")
        _, err = self.talk("/load s.json\n", "-s", 8, "--audit", "run.vtr", code=2)
        self.assertIn("begin with --load s.json", err)

    def test_another_model(self):
        self.talk("Hi\n/save s.json\n")
        session = self.session()
        session["model"]["model.safetensors"] = "0" * 64
        (self.folder / "other.json").write_text(json.dumps(session))
        self.fail_with(2, ["other.json", "another model", "SHA-256"], "chat", self.model, "--load", "other.json")

    def test_what_is_there_is_not_lost(self):
        (self.folder / "notes.txt").write_text("mine")
        out, err = self.talk("Hi\n/save notes.txt\n/save model/config.json\n/save no/s.json\n/save\nAnd?\n", code=2)
        self.assertEqual((self.folder / "notes.txt").read_text(), "mine")
        self.assertIn("notes.txt: is there and no session", err)
        self.assertIn("model/config.json: is there and no session", err)
        self.assertIn("there is no folder no", err)
        self.assertIn("/save: names no file", err)
        self.assertGreaterEqual(out.count("\n"), 2)  # the conversation went on

    def test_a_failed_write_leaves_the_old_file(self):
        self.talk("Hi\n/save s.json\n")
        before = (self.folder / "s.json").read_bytes()
        result = self.run_tool("chat", self.model, "-n", 12, *SAMPLED, **file_size_limit(len(before) // 2),
                               stdin=b"Hi there\n/save s.json\nAnd you?\n")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(b"s.json: can't be written", result.stderr)
        self.assertEqual((self.folder / "s.json").read_bytes(), before)
        self.assertEqual([name for name in os.listdir(self.folder) if "s.json" in name], ["s.json"])

    def test_hostile_files(self):
        self.talk("Hi\n/save s.json\n")
        good = self.session()
        vocab = self.succeed_json("inspect", self.model, "--json")["vocab_size"]
        message = good["messages"]
        cases = [("model", {}, "model is {}; expected the SHA-256"), ("model", {"a": 1}, "model.a is 1"),
                 ("sampler", {"temperature": "hot"}, 'sampler.temperature is "hot"'),
                 ("sampler", {"nothing": "1"}, "sampler.nothing"), ("sampler", {"seed": "1"}, "sampler.seed"),
                 ("sampler", {"ban": "99999999"}, "sampler"), ("seed", -1, "seed is -1"), ("seed", 1.5, "seed is 1.5"),
                 ("branch", 1000, "branch is 1000; expected a number from 0 to 999"),
                 ("trace_id", "x", "trace_id"), ("settings", {"stop": []}, "settings.stop is []"),
                 ("messages", {}, "messages is {}"), ("messages", [1], "messages[0] is 1"),
                 ("messages", [{"role": "user"}], "messages[0].content is nothing"),
                 ("messages", [{"role": "tool", "content": ""}], 'messages[0].role is "tool"'),
                 ("messages", message[:1], "expected the assistant's answer"),
                 ("messages", message + message[1:], 'messages[2].role is "assistant"; expected "user"'),
                 ("tokens", [vocab], f"tokens[0] is {vocab}; expected an id from 0 to {vocab - 1}"),
                 ("tokens", [-1], "tokens[0] is -1"), ("tokens", "1", 'tokens is "1"'),
                 ("tokens", [1] * 5000, "tokens are 5000 and the context holds"),
                 ("vitrine_session", 2, "vitrine_session is 2; expected version 1")]
        for field, value, words in cases:
            with self.subTest(field=field, value=str(value)[:40]):
                (self.folder / "bad.json").write_text(json.dumps({**good, field: value}))
                self.fail_with(2, ["bad.json", words], "chat", self.model, "--load", "bad.json")
        for field in good:
            rest = {name: value for name, value in good.items() if name != field}
            (self.folder / "bad.json").write_text(json.dumps(rest))
            self.fail_with(2, ["bad.json", field], "chat", self.model, "--load", "bad.json")
        for text, words in (("", "not valid JSON"), ("[" * 100000, "nested too deep"), ("[]", "vitrine_session"),
                            (json.dumps(good)[:-9], "not valid JSON"), ("x" * (33 << 20), "expected at most")):
            (self.folder / "bad.json").write_text(text)
            self.fail_with(2, ["bad.json", words], "chat", self.model, "--load", "bad.json")
        self.fail_with(2, ["gone.json", "not there"], "chat", self.model, "--load", "gone.json")
        # In a conversation: it goes on as it was.
        whole = self.answers("Hi\nAnd you?\n")
        events = self.events("Hi\n/load bad.json\nAnd you?\n", code=2)
        self.assertEqual([event["text"] for event in events if event["event"] == "end"], whole)
        self.assertIn("bad.json", next(event for event in events if event["event"] == "refused")["text"])


class ChatTurns(SessionCase):
    def test_undo(self):
        """What is undone has no part in what comes."""
        answers = self.answers("Hi\nAnd you?\n/undo\nAnd they?\n/undo\n/undo\nHi\n")
        self.assertEqual(answers[2:], self.answers("Hi\nAnd they?\n")[1:] + answers[:1])
        _, err = self.talk("/undo\nHi\n/undo\n/undo\n", code=2)
        self.assertEqual(err.count("no message to forget"), 2)

    def test_regen(self):
        answers = self.answers("Hi\n/regen\n/regen\nAnd you?\n")
        self.assertEqual(len(set(answers[:3])), 3, answers)
        self.talk("Hi\n/regen\n/save s.json\n")
        self.assertEqual(self.session()["messages"][-1]["content"], answers[1])
        # The session knows which random numbers come next.
        self.assertEqual(self.answers("/regen\n/save t.json\nAnd you?\n", "--load", "s.json"), answers[2:])
        self.assertIn("there is no answer", self.talk("/regen\n", code=2)[1])
        self.assertIn("the same answer comes again", self.talk("Hi\n/regen\n", "--temperature", 0)[1])

    def test_logs_keep_what_was_generated(self):
        """An answer that is undone or made again stays in the log, which verifies and replays: the model's
        values and the sampler's choices."""
        text = "Hi there\nAnd you?\n/regen\n/regen\n/undo\nAnd they?\n/save s.json\n/reset\nHi\n/regen\n"
        plain = self.answers(text)
        for log in ("run.vtr", "run.json"):
            self.assertEqual(self.answers(text, *SAMPLED, "--audit", log, "--audit-level", "full"), plain)
            if log.endswith(".vtr"):
                self.succeed("audit", "verify", log)
            out = self.succeed("audit", "replay", log).stdout.decode()
            self.assertRegex(out, r"the log's sampler and seed choose the same \d+ tokens again")
        records = self.succeed_json("audit", "export", "run.vtr", "--json")["records"]
        generated = sum((record["prediction"] or {}).get("generated", False) for record in records)
        events = self.events(text)
        self.assertEqual(generated, sum(event["tokens"] for event in events if event["event"] == "end"))
        # So does a conversation that goes on behind answers that were made again.
        self.talk("And we?\n/regen\n", "--load", "s.json", "--audit", "next.vtr")
        out = self.succeed("audit", "replay", "next.vtr").stdout.decode()
        self.assertIn("choose the same", out)

    def test_system(self):
        answers = self.answers("/system Be brief.\nHi\n/system\n/reset\nHi\n")
        self.assertEqual(answers, self.answers("Hi\n", *SAMPLED, "--system", "Be brief.") + self.answers("Hi\n"))
        events = self.events("Hi\n/system Be brief.\n/system refuse\nAnd you?\n/save s.json\n", code=2)
        self.assertIn("no such system", next(event for event in events if event["event"] == "refused")["text"])
        self.assertEqual(self.session()["messages"][0], {"role": "system", "content": "Be brief."})

    def test_context_is_full(self):
        """An answer is made again where there is no room for a copy of what was said."""
        _, err = self.talk("Hi\n/regen\n", *SAMPLED, "-c", 32, "--audit", "run.vtr", n=100)
        self.assertEqual(err.count("the context of 32 tokens is full"), 2)
        self.succeed("audit", "replay", "run.vtr")


class ChatEvents(SessionCase):
    def test_events(self):
        events = self.events("Hi\n/reset\n/no\n/audit\n/help\nAgain\n", *SAMPLED, "--quiet")
        kinds = [event["event"] for event in events if event["event"] != "token"]
        self.assertEqual(kinds, ["start", "end", "note", "refused", "note", "note", "start", "end"])
        plain, err = self.talk("Hi\n/reset\n/no\nAgain\n", *SAMPLED, "--quiet")
        self.assertEqual(err.count("vitrine:"), 1)  # what is no command
        for number in (0, 1):
            tokens = [event for event in events if event["event"] == "token" and event["answer"] == number]
            end = next(event for event in events if event["event"] == "end" and event["answer"] == number)
            self.assertEqual("".join(event["text"] for event in tokens), end["text"])
            self.assertEqual(sum("token" in event for event in tokens), end["tokens"])
            self.assertIn(end["text"] + "\n", plain)

    def test_a_message_that_does_not_fit(self):
        events = self.events("word " * 80 + "\nHi\n", *SAMPLED, "-c", 40, n=2, code=2)
        self.assertEqual([event["event"] for event in events if event["event"] != "token"],
                         ["refused", "start", "end"])
        self.assertIn("the context holds 40", events[0]["text"])

    def test_lengths(self):
        end = self.events("Hi\n", *SAMPLED, "-c", 64, n=-1)[-1]
        self.assertIn(end["reason"], ("context full", "end of text"))
