# SPDX-License-Identifier: Apache-2.0
"""generate --messages and --prompts, and files that are pipes."""

import json
import os
import pathlib
import shlex
import shutil
import signal
import struct
import subprocess

from chat_cases import ChatCase
from tool import MODEL, PROMPT, TIMEOUT, VITRINE, CliTest

FEDERATION = pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters" / "federation.json"
TEXTS = ["Once upon a time", "The king said", "A long time ago in a land far away there was", "Hello",
         "x y z", "Two"]
SCHEMA = '{"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"],' \
         '"additionalProperties":false}'


class PromptFiles(ChatCase):
    def setUp(self):
        super().setUp()
        self.given = [TEXTS[0], {"prompt": TEXTS[1], "id": "k"}, {"id": 7, "prompt": TEXTS[2]},
                      *TEXTS[3:]]
        self.write("p.jsonl", "\n\n".join(map(json.dumps, self.given)) + "\n")

    def write(self, name, content):
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return name

    def answers(self, *more, name="p.jsonl", model=MODEL, **options):
        result = self.succeed("generate", model, "--prompts", name, "-s", 3, *more, **options)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_each_answer_is_that_of_its_prompt_alone(self):
        lines = self.answers("-n", 20)
        self.assertEqual([line["index"] for line in lines], list(range(len(TEXTS))))
        self.assertEqual([line.get("id") for line in lines], [None, "k", 7, None, None, None])
        for line, text in zip(lines, TEXTS):
            alone = self.succeed_json("generate", MODEL, "-p", text, "-s", 3, "-n", 20, "--json")
            for key in ("text", "tokens", "reason", "prompt_tokens", "seed"):
                self.assertEqual(line[key], alone[key])

    def test_the_same_however_many_at_once(self):
        run = ("generate", MODEL, "--prompts", "p.jsonl", "-s", 3, "-n", 40)
        first = self.succeed(*run, "--parallel", 1)
        self.assertIn(b"up to 1 at once", first.stderr)
        piped = (self.folder / "p.jsonl").read_bytes()
        for more in (["--parallel", 6], ["-np", 3], ["-t", 2], ["--speculate", "suffix"],
                     ["--step-tokens", 2], ["--speculate", "ngram", "--draft-tree", "4x2"]):
            self.assertEqual(self.succeed(*run, *more).stdout, first.stdout, more)
        self.assertEqual(self.succeed("generate", MODEL, "--prompts", "-", *run[4:], stdin=piped).stdout,
                         first.stdout)
        # A pool that holds two: the others wait.
        small = self.succeed(*run, "--parallel", 6, "--kv-bytes", "600KiB")
        self.assertEqual(small.stdout, first.stdout)
        self.assertIn(b"up to 2 at once", small.stderr)

    def test_constrained(self):
        lines = self.answers("-n", 40, "-j", SCHEMA, "--logprobs", 2)
        for line, text in zip(lines, TEXTS):
            self.assertIn(json.loads(line["text"])["a"], ("x", "y"))
            self.assertTrue(line["is_complete"])
            alone = self.succeed_json("generate", MODEL, "-p", text, "-s", 3, "-n", 40, "-j", SCHEMA,
                                      "--logprobs", 2, "--json")
            self.assertEqual((line["text"], line["logprobs"]), (alone["text"], alone["logprobs"]))
        result = self.run_tool("generate", MODEL, "--prompts", "p.jsonl", "-j", SCHEMA, "-n", 40, "-q",
                               "--validate-with", "grep -q y", "--max-retries", 1, "-s", 3)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        failed = [line for line in lines if "failure" in line]
        self.assertTrue(0 < len(failed) < len(lines), lines)
        self.assertEqual({line["text"] for line in lines if "failure" not in line}, {'{"a": "y"}'})
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr, f"{len(failed)} of {len(lines)} answers")

    def test_an_answer_that_fails_leaves_the_others(self):
        """A token whose embedding is no number: what is asked with it fails alone."""
        bad = self.succeed_json("tokenize", MODEL, "-p", "Two", "--json")["ids"][-1]
        model = self.folder / "broken"
        shutil.copytree(MODEL, model)
        with open(model / "model.safetensors", "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            table = json.loads(file.read(size))["model.embed_tokens.weight"]
            width = table["shape"][1] * 2
            file.seek(8 + size + table["data_offsets"][0] + bad * width)
            file.write(b"\xff" * width)
        whole = self.answers("-n", 10, "--temperature", 0)
        result = self.run_tool("generate", model, "--prompts", "p.jsonl", "-s", 3, "-n", 10,
                               "--temperature", 0, "-q")
        self.assertEqual(result.returncode, 1, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([line["index"] for line in lines], list(range(len(TEXTS))))
        self.assertEqual(lines[:-1], whole[:-1])
        self.assertEqual((lines[-1]["reason"], lines[-1]["tokens"]), ("failed", []))
        self.assertIn("are not numbers", lines[-1]["failure"])
        self.assert_one_line(result.stderr, f"1 of {len(TEXTS)} answers failed")

    def test_stop_strings(self):
        for line, text in zip(self.answers("-n", 30, "--stop", "e"), TEXTS):
            alone = self.succeed_json("generate", MODEL, "-p", text, "-s", 3, "-n", 30, "--stop", "e",
                                      "--json")
            self.assertEqual((line["text"], line["reason"], line["tokens"]),
                             (alone["text"], alone["reason"], alone["tokens"]))

    def test_log(self):
        self.answers("-n", 12, "--audit", "run.vtr", "--speculate", "suffix")
        self.assertIn(b" 6 sequences\n", self.succeed("audit", "verify", "run.vtr").stdout)
        self.assertIn("equal: ", self.replay("run.vtr"))

    def test_of_a_federation(self):
        federation = FEDERATION
        lines = [json.loads(line) for line in self.succeed(
            "federate", federation, "--prompts", "p.jsonl", "-n", 8, "-s", 3).stdout.splitlines()]
        for line, text in list(zip(lines, TEXTS))[:2]:
            alone = self.succeed_json("federate", federation, "-p", text, "-n", 8, "-s", 3, "--json")
            self.assertEqual(line["tokens"], alone["tokens"])

    def test_conversations(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        self.write("m.json", messages)
        run = ("generate", self.model, "-n", 24, "--temperature", 0, "--json")
        ours = self.succeed_json(*run, "--chat", "-p", "Hi", "--system", "Be brief.")
        self.assertEqual(ours["prompt"], "[system] Be brief.\n[user] Hi\n[assistant] Once upon a time")
        self.write("o.json", {"messages": messages})
        self.write("u.json", messages[1:])
        self.write("parts.json", [messages[0], {"role": "user", "content": [
            {"type": "text", "text": "Hi"}]}])
        for more in (["--messages", "m.json"], ["--messages", "o.json"], ["--messages", "parts.json"],
                     ["--messages", "u.json", "--system", "Be brief."]):
            theirs = self.succeed_json(*run, *more)
            for key in ("prompt", "text", "tokens", "reason"):
                self.assertEqual(theirs[key], ours[key], more)
        turns = [*messages, {"role": "assistant", "content": " there"}, {"role": "user", "content": "Go\non"}]
        out = self.succeed_json(*run, "--messages", "-", stdin=json.dumps(turns, indent=1).encode())
        self.assertEqual(out["prompt"], "[system] Be brief.\n[user] Hi\n[assistant] Once upon a time there"
                         "<|endoftext|>\n[user] Go\non\n[assistant] Once upon a time")

    def test_several_conversations(self):
        turns = [[{"role": "user", "content": text}] for text in TEXTS]
        self.write("lines.jsonl", "\n".join(map(json.dumps, turns)))
        self.write("list.json", [{"messages": one} for one in turns])
        self.write("texts.json", TEXTS)
        run = ("generate", self.model, "-n", 10, "-s", 3)
        out = self.succeed(*run, "--messages", "lines.jsonl").stdout
        for more in (["--prompts", "lines.jsonl"], ["--messages", "list.json"],
                     ["--prompts", "texts.json", "--chat"]):
            self.assertEqual(self.succeed(*run, *more).stdout, out, more)
        lines = [json.loads(line) for line in out.splitlines()]
        for line, text in list(zip(lines, TEXTS))[:2]:
            alone = self.succeed_json(*run, "--chat", "-p", text, "--json")
            self.assertEqual((line["tokens"], line["text"]), (alone["tokens"], alone["text"]))
        # One conversation of --prompts is a line, too.
        self.write("one.json", turns[0])
        self.assertEqual(self.succeed(*run, "--prompts", "one.json").stdout, out.splitlines(True)[0])

    def test_tools_and_fields(self):
        self.write("t.jinja", "{% for t in tools or [] %}<{{ t.name }}>{% endfor %}"
                   "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.name }}"
                   "{{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}")
        calls = [{"function": {"name": "f", "arguments": "{}"}}]
        told = [{"function": {"name": "f", "arguments": {}}}]  # as templates expect them
        self.write("c.json", {"tools": [{"name": "f"}, {"name": "g"}], "messages": [
            {"role": "user", "content": "a", "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "b"}]})
        run = ("generate", self.model, "-n", 1, "--chat-template", "t.jinja", "--json")
        out = self.succeed_json(*run, "--messages", "c.json")
        self.assertEqual(out["prompt"], "<f><g>user:aAnn;assistant:" + json.dumps(told) + ";tool:b;")
        self.fail_with(2, ["c.json: ", "tools"], *run, "--messages", "c.json", "--chat-variables",
                       '{"tools": []}')

    def test_keys_that_are_not_used(self):
        self.write("p.jsonl", '{"prompt": "Hi", "max_tokens": 3, "seed": 9}')
        result = self.succeed("generate", MODEL, "--prompts", "p.jsonl", "-n", 1, "-q")
        self.assert_one_line(result.stderr, "max_tokens, seed")

    def test_refusals(self):
        run = ("generate", self.model, "-n", 1)
        bad = [("--messages", '"Hi"', ["bad.json: ", "string", '"role": "user"']),
               ("--messages", '{"role": "user", "content": "Hi"}', ["outside an array"]),
               ("--messages", '[]', ["no message"]), ("--messages", "", ["is empty"]),
               ("--messages", '[{"content": "Hi"}]', ["bad.json"]),
               ("--messages", '[{"role": "user"}]', ["messages[0].content is not there"]),
               ("--messages", '[{"role": "user", "content": "a"}, 7]', ["messages[1] is number"]),
               ("--messages", '[{"role": "user", "content": "a"}, {"role": 7}]', ["messages[1].role"]),
               ("--messages", '[{"role": "user", "content": [{"type": "image_url"}]}]',
                ["messages[0].content[0]", "pictures"]),
               ("--messages", '{"messages": 7}', ["no array"]),
               ("--messages", '{"messages": [{"role": "user", "content": "a"}], "tools": 7}', ["tools"]),
               ("--messages", "[" * 99, ["nested too deep"]),
               ("--prompts", '"a"\n{"text": "b"}', ["line 2", '"prompt"']),
               ("--prompts", '"a"\n"b', ["line 2", "not valid JSON"]),
               ("--prompts", '"a"\n""', ["line 2", "empty"]),
               ("--prompts", '"a"\n{"prompt": 7}', ["line 2", "number"]),
               ("--prompts", '"a"\n[{"role": "user", "content": "a"}]', ["line 2", "--chat"]),
               ("--prompts", '"a"\n' + json.dumps("word " * 9000), ["line 2", "tokens", "context"])]
        for option, content, words in bad:
            self.write("bad.json", content)
            self.fail_with(2, words, *run, option, "bad.json")
        for more in (["--json"], ["--json-lines"], ["--summary"], ["--n-best", 2], ["--prompt-logprobs"],
                     ["--audit", "a.vtr", "--redact", "prompt"]):
            self.fail_with(2, [more[-2] if "--redact" in more or 2 in more else more[0]], *run, "--prompts",
                           "p.jsonl", *more)
        self.fail_with(2, ["--prompts and --prompt"], *run, "--prompts", "p.jsonl", "-p", "a")
        self.fail_with(2, ["--messages and --file"], *run, "--messages", "p.jsonl", "-f", "a")
        self.fail_with(2, ["expected --chat"], *run, "--prompts", "p.jsonl", "--system", "a")
        self.fail_with(2, ["'gone.json'"], *run, "--messages", "gone.json")
        self.write("m.json", [{"role": "system", "content": "a"}, {"role": "user", "content": "a"}])
        self.fail_with(2, ["--system is another"], *run, "--messages", "m.json", "--system", "b")

    def test_interrupt(self):
        process = subprocess.Popen(
            [VITRINE, "generate", MODEL, "--prompts", "p.jsonl", "-n", "-1", "--ignore-end-of-text",
             "--parallel", "2", "--audit", "run.vtr", "--step-tokens", "1", "-t", "1", "-s", "3"],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (self.folder / "run.vtr").exists():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, err)
        reasons = [json.loads(line)["reason"] for line in out.splitlines()]
        self.assertTrue(set(reasons[-2:]) <= {"cancelled"} and len(reasons) <= len(TEXTS), reasons)
        self.succeed("audit", "verify", "run.vtr")


class Pipes(CliTest):
    """Files that are read once may be pipes, or standard input."""

    def shell(self, line, stdin=b""):
        """Runs a line of bash, where $V is the tool."""
        result = subprocess.run(["bash", "-c", line], input=stdin, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, cwd=self.folder, timeout=TIMEOUT, check=False,
                                env={**os.environ, "V": VITRINE, "M": MODEL})
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def three_ways(self, command, content, *others):
        """A command with FILE in it prints the same of a file, a pipe and standard input."""
        (self.folder / "given").write_text(content)
        of_file = self.shell(command.replace("FILE", "given"))
        self.assertTrue(of_file)
        for form in ("<(cat given)", "-", "/dev/stdin", *others):
            given = b"" if form.startswith("<") else content.encode()
            if form == "/dev/stdin":
                out = self.shell("cat given | " + command.replace("FILE", form))
            else:
                out = self.shell(command.replace("FILE", form), given)
            self.assertEqual(out, of_file, (command, form))

    def test_generate(self):
        run = f"$V generate $M -n 30 -s 3 --temperature 0 -q -p {shlex.quote(PROMPT)}"
        self.three_ways("$V generate $M -n 8 -s 3 -q -f FILE", PROMPT)
        self.three_ways(run + " --json-schema FILE", SCHEMA)
        self.three_ways(run + " --grammar FILE", 'root ::= "yes" | "no"')
        self.three_ways(run + " --tags FILE", json.dumps({"tags": [
            {"begin": "<a>", "schema": json.loads(SCHEMA), "end": "</a>"}], "triggers": ["<a>"]}))
        self.three_ways(run + " --chat --chat-template FILE", "Hi {{ messages[0].content }}")
        self.three_ways("$V generate $M -n 8 -s 3 -q --prompts FILE", '"Hi"\n"You"')

    def test_others(self):
        self.three_ways("$V tokenize $M -f FILE", PROMPT)
        self.three_ways("$V tokenize $M --ids FILE", "[1, 2, 3]")
        self.three_ways("$V score $M --tokens FILE --out s.json && cat s.json", "[1, 2, 3]")
        # The messages name their files.
        self.three_ways("$V constrain check FILE | tail -n +2", SCHEMA)
        (self.folder / "schema").write_text(SCHEMA)
        self.three_ways("$V constrain check schema --instance FILE | wc -l", '{"a":"x"}')

    def test_a_log_names_what_the_pipe_held(self):
        self.shell(f"$V generate $M -p x -n 30 -q --json-schema <(echo {shlex.quote(SCHEMA)}) --audit a.json")
        (self.folder / "s.json").write_text(SCHEMA + "\n")
        self.shell("$V generate $M -p x -n 30 -q --json-schema s.json --audit b.json")
        hashes = {json.loads((self.folder / name).read_text())["constraint"]["sha256"]
                  for name in ("a.json", "b.json")}
        self.assertEqual(len(hashes), 1)

    def test_one_input_for_one_option(self):
        for more in (["-f", "-", "-j", "-"], ["-p", "-", "--tags", "/dev/stdin"],
                     ["--prompts", "-", "--chat", "--chat-template", "-"]):
            self.fail_with(2, ["both read standard input"], "generate", MODEL, *more)
        self.fail_with(2, ["both read standard input"], "chat", MODEL, "-j", "-")
        self.fail_with(2, ["is not a file"], "generate", MODEL, "-f", self.folder)
