# SPDX-License-Identifier: Apache-2.0
"""How the command line is read: llama.cpp's names, the environment, misspelt words, pages, pipes.

usage: flags_test.py VITRINE MODEL [unittest arguments]
"""

import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import unittest

from chat_cases import ChatCase
from gguf_cases import EXPERTS
from tool import MODEL, PROMPT, SMALL, TIMEOUT, VITRINE, AuditCase, CliTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ("generate", MODEL, "-p", PROMPT, "-s", 3, "--ignore-end-of-text")
NAMES = '{"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"],' \
        '"additionalProperties":false}'


class LlamaFlags(ChatCase):
    def tokens(self, *arguments, notes=1, **options):
        result = self.succeed(*arguments, "--json", **options)
        self.assertEqual(result.stderr.decode().count("\n"), notes, result.stderr)
        return json.loads(result.stdout)["tokens"]

    def test_other_names_mean_the_same(self):
        ours = self.tokens("generate", MODEL, "-p", PROMPT, "--max-new-tokens", 12, "--context", 256,
                           "--temperature", 0.7, "--repetition-penalty", 1.3, "--penalty-window", 7,
                           "--threads", 1, "--seed", 3, "--ignore-end-of-text", "--kv-type", "f16",
                           "--typical-p", 0.9)
        self.assertEqual(len(ours), 12)
        theirs = self.tokens("generate", "-m", MODEL, "--prompt", PROMPT, "--n-predict", 12,
                             "--ctx-size", 256, "--temp", 0.7, "--repeat-penalty=1.3",
                             "--repeat-last-n", 7, "-t", 1, "-s", 3, "--ignore-eos", "-ctk", "f16",
                             "-ctv", "f16", "--typical", 0.9, "-b", 2048, "-ub", 4, "--no-mmap",
                             "-no-cnv", "--no-display-prompt")
        self.assertEqual(theirs, ours)
        self.assertEqual(self.tokens(*RUN, "--predict", 3), self.tokens(*RUN, "-n", 3))
        self.assertNotEqual(self.tokens(*RUN, "--temp", 0, "-n", 12),
                            self.tokens(*RUN, "--temp", 5, "-n", 12))

    def test_what_there_is_not(self):
        self.fail_with(2, ["-ctv f32", "f16", "one type"], *RUN, "-ctk", "f16", "-ctv", "f32")
        self.fail_with(2, ["q8_0"], *RUN, "-ctk", "q8_0")
        self.fail_with(2, ["-ub x"], *RUN, "-ub", "x")
        self.fail_with(2, ["--repeat-last-n 0"], *RUN, "--repeat-last-n", 0)
        self.fail_with(2, ["'-hf'", "-m"], *RUN, "-hf", "org/model")
        self.fail_with(2, ["--temp needs a value"], *RUN, "--temp")

    def test_flags_of_a_gpu_on_a_cpu(self):
        plain = self.tokens(*RUN, "-n", 8)
        for more in (["-ngl", 99], ["-fa"], ["-fa", "on"], ["--mlock"],
                     ["-ngl", 99, "-fa", "auto", "--mlock", "--n-gpu-layers", 3]):
            result = self.succeed(*RUN, "-n", 8, *more, "--json")
            first, _ = result.stderr.decode().splitlines()
            self.assertTrue(first.startswith("vitrine: warning: "), first)
            for flag in more[::2][:1]:
                self.assertIn(flag, first)
            self.assertEqual(json.loads(result.stdout)["tokens"], plain)
        # No layer on a GPU is what happens.
        self.assertEqual(self.tokens(*RUN, "-n", 8, "-ngl", 0), plain)

    def test_a_random_seed(self):
        seeds = {self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 1, "--json", *more)["seed"]
                 for more in (["-s", -1], ["--seed=-1"], ["-s", -1])}
        self.assertEqual(len(seeds), 3)

    def test_values_are_no_flags(self):
        ids = self.succeed_json("tokenize", MODEL, "-p", "-sys", "--json")["ids"]
        out = self.succeed_json("generate", MODEL, "-p", "-sys", "-n", 1, "--json")
        self.assertEqual(out["prompt_tokens"], len(ids))

    def test_until_the_context_is_full(self):
        prompt = self.prompt_tokens()
        for more in (["-c", 40], ["--ctx-size", 40]):
            out = self.succeed_json(*RUN, "-n", -1, *more, "--json")
            self.assertEqual((out["reason"], len(out["tokens"])), ("context full", 41 - prompt))
        limit = self.succeed_json("inspect", MODEL, "--json")["max_position_embeddings"]
        for more in (["-c", 0], []):
            out = self.succeed_json(*RUN, "-n", -1, *more, "--json")
            self.assertEqual(len(out["tokens"]), limit + 1 - prompt, more)
        self.assertEqual(self.tokens(*RUN, "-n", 8, "-c", 0), self.tokens(*RUN, "-n", 8))
        ended = self.succeed_json(*RUN[:-1], "-n", -1, "--json")
        self.assertIn(ended["reason"], ("end of text", "context full"))
        for value in ("0", "-2", "many", "99999999999"):
            self.fail_with(2, ["--max-new-tokens", "-1"], *RUN, "-n", value)
        self.fail_with(2, ["--context"], *RUN, "-c", -1)

    def prompt_tokens(self):
        return len(self.succeed_json("tokenize", MODEL, "-p", PROMPT, "--json")["ids"])

    def test_prompt_from_a_file(self):
        (self.folder / "prompt.txt").write_text(PROMPT + "\n")
        generate = ("generate", MODEL, "-n", 8, "-s", 3, "--ignore-end-of-text")
        ours = self.tokens(*generate, "-p", PROMPT)
        for flag in ("-f", "--file"):
            self.assertEqual(self.tokens(*generate, flag, "prompt.txt"), ours)
        self.fail_with(2, ["--file", "--prompt"], *generate, "-p", "x", "-f", "prompt.txt")
        self.fail_with(2, ["'gone.txt'"], *generate, "-f", "gone.txt")
        (self.folder / "empty.txt").write_text("\n")
        self.fail_with(2, ["prompt is empty"], *generate, "-f", "empty.txt")

    def test_a_schema_as_text(self):
        (self.folder / "schema.json").write_text(NAMES)
        out = [self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 40, "-s", 3, flag, given,
                                 "--json")["text"]
               for flag, given in (("-j", NAMES), ("--json-schema", NAMES), ("-j", " \n" + NAMES),
                                   ("-jf", "schema.json"), ("--json-schema", "schema.json"))]
        self.assertEqual(len(set(out)), 1, out)
        self.assertIn(json.loads(out[0])["a"], ("x", "y"))
        self.fail_with(2, ["--json-schema: "], *RUN, "-j", '{"type": 7}')
        self.fail_with(2, ["'none.json'"], *RUN, "-j", "none.json")
        # A log keeps the text, or no more than its hash.
        self.succeed(*RUN[:-1], "-n", 40, "-j", NAMES, "--audit", "run.json")
        log = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(log["constraint"]["text"], NAMES)

    def test_a_grammar_as_text(self):
        for grammar in ('root ::= "yes" | "no"', 'start: "yes" | "no"', '\nroot ::= a\na ::= "yes"'):
            out = self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 40, "--grammar", grammar,
                                    "--json")
            self.assertIn(out["text"], ("yes", "no"))
        self.fail_with(2, ["'root.gbnf'"], *RUN, "--grammar", "root.gbnf")
        self.fail_with(2, ["--grammar: "], *RUN, "--grammar", "root ::= (")

    def test_a_message_of_the_system_makes_a_conversation(self):
        ours = self.succeed_json("generate", self.model, "-p", "Hi", "-n", 4, "--chat", "--system",
                                 "Be brief.", "--json")
        for flags in (("-sys", "Be brief."), ("--system-prompt", "Be brief.", "-cnv"),
                      ("--chat", "-sys", "Be brief.")):
            theirs = self.succeed_json("generate", self.model, "-p", "Hi", "-n", 4, *flags, "--json")
            self.assertEqual(theirs["prompt"], ours["prompt"])
        self.fail_with(2, ["prompt is empty"], "generate", self.model, "-p", "", "--chat")


class Environment(CliTest):
    def tokens(self, *arguments, **variables):
        return self.succeed_json("generate", MODEL, "-p", PROMPT, "-s", 3, "--ignore-end-of-text",
                                 "--json", *arguments, env={**os.environ, **variables})["tokens"]

    def test_twins(self):
        self.assertEqual(len(self.tokens(VITRINE_MAX_NEW_TOKENS="5")), 5)
        for given in (["-n", 3], ["-n3"], ["--max-new-tokens=3"], ["--n-predict", 3]):
            self.assertEqual(len(self.tokens(*given, VITRINE_MAX_NEW_TOKENS="5")), 3, given)
        self.assertEqual(len(self.tokens("-n", 3, VITRINE_MAX_NEW_TOKENS="")), 3)
        self.assertEqual(self.tokens("-n", 9, VITRINE_TEMPERATURE="0"),
                         self.tokens("-n", 9, "--temp", 0))
        # MODEL is an argument with a flag.
        result = self.run_tool("generate", "-p", PROMPT, "-n", 2,
                               env={**os.environ, "VITRINE_MODEL": MODEL})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_bad_value_names_its_variable(self):
        for variable, value in (("VITRINE_MAX_NEW_TOKENS", "x"), ("VITRINE_THREADS", "0"),
                                ("VITRINE_TEMPERATURE", "hot"), ("VITRINE_TEMPERATURE", "-1"),
                                ("VITRINE_KERNELS", "warp"), ("VITRINE_MMAP", "maybe"),
                                ("VITRINE_DEVICE", "abacus"), ("VITRINE_SEED", "-7"),
                                ("VITRINE_JSON_SCHEMA", "gone.json")):
            arguments = ["generate", MODEL, "-p", PROMPT]
            self.fail_with(2, [f"{variable}={value}"], *arguments,
                           env={**os.environ, variable: value})
            flag = "--" + variable[8:].lower().replace("_", "-")
            if flag == "--mmap":
                continue
            result = self.fail_with(2, [], *arguments, flag, value, env={**os.environ, variable: "1"})
            self.assertNotIn(variable.encode(), result.stderr)

    def test_a_variable_that_contradicts_the_command_line(self):
        self.tokens("-n", 2, "--expert-cache", "4MiB", VITRINE_MMAP="1")
        self.tokens("-n", 2, VITRINE_MMAP="0", VITRINE_EXPERT_CACHE="4MiB")
        self.assertIn(b"--mmap", self.fail_with(
            2, ["--expert-cache"], *RUN, "--mmap", "--expert-cache", "4MiB").stderr)
        self.tokens("-n", 2, "--no-mmap", "--expert-cache", "4MiB", VITRINE_MMAP="1")
        ids = self.write_ids([1, 2])
        self.succeed("tokenize", MODEL, "--ids", ids, env={**os.environ, "VITRINE_PROMPT": "x"})

    def test_what_a_log_says_counts(self):
        self.succeed(*RUN, "-n", 4, "--audit", "run.vtr")
        env = {**os.environ, "VITRINE_MODEL": SMALL, "VITRINE_KERNELS": "reference"}
        self.succeed("audit", "replay", "run.vtr", env=env)

    def test_no_option_has_a_taken_name(self):
        """No option's twin is a variable that means something else."""
        page = self.succeed("--markdown").stdout.decode()
        twins = {"VITRINE_" + name.upper().replace("-", "_")
                 for name in re.findall(r"^\| `[^`]*--([a-z0-9-]+)", page, re.MULTILINE)}
        self.assertIn("VITRINE_MAX_NEW_TOKENS", twins)
        self.assertFalse(twins & {"VITRINE_CPU_ISA", "VITRINE_VENV", "VITRINE_BUILD", "VITRINE_MODELS",
                                  "VITRINE_TEST_DATA", "VITRINE_TEST_MODEL", "VITRINE_TORCH_DIR",
                                  "VITRINE_PYTHON", "VITRINE_FUZZ_SECONDS", "VITRINE_TORCH",
                                  "VITRINE_CUDA", "VITRINE_LONG"})


class Suggestions(CliTest):
    def test_commands(self):
        for typed, meant in (("genrate", "generate"), ("gen", "generate"), ("chatt", "chat"),
                             ("tokenise", "tokenize"), ("adit", "audit")):
            self.fail_with(2, [f"'{typed}'", f"did you mean 'vitrine {meant}'?"], typed, "x")
        self.fail_with(2, ["'shwo'", "did you mean 'vitrine audit show'?"], "audit", "shwo", "run.vtr")
        self.fail_with(2, ["'conjure'", "generate, chat"], "conjure")
        self.fail_with(2, ["vitrine generate -m", "comes first"], "-m", MODEL, "-p", "x")
        self.fail_with(2, [f"vitrine generate {MODEL} -p"], MODEL)
        self.fail_with(2, [], "audit")
        self.fail_with(2, [])

    def test_options(self):
        for typed, meant in (("--temprature", "--temperature"), ("--seeed", "--seed"),
                             ("--max-new-token", "--max-new-tokens"), ("--top-kk=3", "--top-k"),
                             ("--temper", "--temperature")):
            self.fail_with(2, [f"'{typed}'", f"did you mean '{meant}'?"], *RUN, typed, 1)
        result = self.fail_with(2, ["'--frobnicate' is unknown"], *RUN, "--frobnicate", 1)
        self.assertNotIn(b"did you mean", result.stderr)
        # What is missing may be what was misspelt.
        self.fail_with(2, ["--prompt", "'--promt'"], "generate", MODEL, "--promt", "x")

    def test_long_lists_run_forwards(self):
        result = self.fail_with(2, [], *RUN, "--aaaa", "--bbbb", "--cccc", "--dddd", "--eeee", "--ffff")
        self.assertIn("'--aaaa', '--bbbb', '--cccc', '--dddd' and 2 more", result.stderr.decode())
        self.fail_with(2, ["'upon', 'a', 'time'"], "generate", MODEL, "-p", "Once", "upon", "a", "time")


class Pages(CliTest):
    def test_markdown_is_the_document(self):
        page = self.succeed("--markdown").stdout.decode()
        self.assertEqual(page, (ROOT / "docs" / "command-line.md").read_text())
        # What commands share is explained once.
        for name in ("--top-k", "--threads", "--json-schema", "--audit-level"):
            self.assertEqual(len(re.findall(rf"^\| `[^`]*{name}[ `]", page, re.MULTILINE)), 1, name)

    def options(self, *command):
        text = self.succeed(*command, "--help").stdout.decode()
        return set(re.findall(r"(?:^ +|,)(--[a-z0-9-]+)", text, re.MULTILINE)) - {"--help"}

    def test_man_page(self):
        page = self.succeed("--man").stdout.decode().replace("\\-", "-")
        for command in (("generate",), ("chat",), ("audit", "show"), ("ledger", "show"), ()):
            options = self.options(*command)
            self.assertTrue(options)
            for option in options:
                self.assertRegex(page, rf"(?m)^\.B .*{option}\b")
        if shutil.which("man") and shutil.which("groff"):
            (self.folder / "vitrine.1").write_bytes(self.succeed("--man").stdout)
            shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "vitrine.1"],
                                   cwd=self.folder, capture_output=True, check=True,
                                   env={**os.environ, "MANWIDTH": "90", "LC_ALL": "C.UTF-8"})
            self.assertEqual(shown.stderr, b"")
            self.assertIn("--max-new-tokens", shown.stdout.decode())

    def complete(self, *words):
        script = self.succeed("--completion", "bash").stdout.decode()
        line = " ".join(f"'{word}'" for word in ("vitrine", *words))
        script += (f"\nCOMP_WORDS=({line}) COMP_CWORD={len(words)}\n_vitrine\n"
                   'printf "%s\\n" "${COMPREPLY[@]}"\n')
        run = subprocess.run(["bash", "-u", "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(run.stderr, "")
        return run.stdout.split()

    def test_bash_completion(self):
        self.assertEqual(self.complete("gen"), ["generate"])
        self.assertIn("show", self.complete("audit", ""))
        self.assertEqual(self.complete("generate", MODEL, "--kernels", ""), ["fused", "reference"])
        self.assertEqual(self.complete("generate", "--max-n"), ["--max-new-tokens"])
        self.assertEqual(self.complete("generate", MODEL, "x"), [])  # the shell offers files
        for command in (("generate",), ("audit", "export"), ("federate", "fit"), ()):
            self.assertEqual(set(self.complete(*command, "--")) - {"--help"}, self.options(*command))

    @unittest.skipUnless(shutil.which("zsh"), "needs zsh")
    def test_zsh_completion(self):
        script = self.succeed("--completion", "zsh").stdout.decode()
        stubs = ('compdef() { :; }\n_arguments() { print -rl -- "$@"; }\n'
                 '_describe() { print -rl -- "${commands[@]}"; }\n')

        def complete(*words):
            line = " ".join(f"'{word}'" for word in ("vitrine", *words))
            run = subprocess.run(["zsh", "-f", "-c", f"{stubs}{script}\nwords=({line}) "
                                  f"CURRENT={len(words) + 1}\n_vitrine"],
                                 capture_output=True, text=True, check=True)
            self.assertEqual(run.stderr, "")
            return run.stdout

        self.assertIn("generate:Generates text from a prompt\n", complete("gen"))
        self.assertIn("show:", complete("audit", ""))
        shown = complete("generate", MODEL, "--")
        self.assertIn("(--kernels)--kernels[fused or reference", shown)
        self.assertIn(":value:(fused reference)", shown)
        for option in self.options("generate"):
            self.assertIn(f"{option}[", shown)

    def test_version(self):
        lines = dict(line.split(maxsplit=1)
                     for line in self.succeed("--version").stdout.decode().splitlines())
        self.assertEqual(list(lines), ["vitrine", "commit", "compiler", "kernels", "libtorch", "CUDA"])
        self.assertRegex(lines["vitrine"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(lines["commit"], r"^([0-9a-f]{12}(-dirty)?|unknown)$")
        self.assertRegex(lines["compiler"], r"^(GCC|Clang) \d+\.\d+.*, \w+$")
        self.assertRegex(lines["libtorch"], r"^2\.\d+\.\d+$")
        portable = self.succeed("--version", env={**os.environ, "VITRINE_CPU_ISA": "portable"})
        self.assertRegex(portable.stdout, rb"kernels   portable(;[^\n]*)?\n")

    def test_shells_and_twins_in_the_help(self):
        self.fail_with(2, ["fish"], "--completion", "fish")
        self.assertIn(b"VITRINE_MAX_NEW_TOKENS", self.succeed("--help").stdout)
        self.assertIn(b"Sampling:", self.succeed("generate", "--help").stdout)


class Output(AuditCase):
    def test_a_reader_that_has_enough(self):
        """As `| head`: quietly, with a whole log."""
        for more in ([], ["--json-lines"], ["--logprobs", "2"]):
            process = self.start_endless("--audit", "log.json", *more)
            process.stdout.close()
            err = process.stderr.read()
            self.assertEqual((process.wait(TIMEOUT), err), (141, b""), more)
            self.assertEqual(os.listdir(self.folder), ["log.json"])
            log = json.loads((self.folder / "log.json").read_text())
            self.assertEqual(log["stop_reason"], "cancelled")
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            result = self.run_tool("--help", stdout=closed)
        self.assertEqual((result.returncode, result.stderr), (141, b""))

    def test_quiet(self):
        loud, quiet = (self.succeed(*RUN, "-n", 4, *more) for more in ([], ["-q"]))
        self.assertEqual((loud.stdout, quiet.stderr), (quiet.stdout, b""))
        self.assert_one_line(loud.stderr, "4 tokens at")
        self.assert_one_line(self.succeed(*RUN, "-n", 4, "--quiet", "-fa").stderr, "warning")
        self.fail_with(2, ["gone"], "generate", "gone", "-p", "x", "-q")

    def test_one_token_has_no_speed(self):
        err = self.succeed(*RUN, "-n", 1).stderr
        self.assert_one_line(err, "length: 1 token after a prompt")
        self.assertNotIn(b"tokens/s", err)

    def events(self, *more, code=0):
        result = self.run_tool(*RUN, "--json-lines", *more)
        self.assertEqual(result.returncode, code, result.stderr)
        return [json.loads(line) for line in result.stdout.decode().splitlines()]

    def test_json_lines(self):
        whole = self.succeed_json(*RUN, "-n", 12, "--json")
        start, *tokens, end = self.events("-n", 12)
        self.assertEqual(start, {"event": "start", "answer": 0, "model": MODEL, "seed": 3,
                                 "prompt_tokens": whole["prompt_tokens"], "reused_tokens": 0})
        self.assertEqual([event["token"] for event in tokens if "token" in event], whole["tokens"])
        self.assertEqual("".join(event["text"] for event in tokens), whole["text"])
        self.assertEqual((end["event"], end["text"], end["reason"], end["tokens"], end["is_complete"]),
                         ("end", whole["text"], "length", 12, True))
        self.assertNotIn("failure", end)

    def test_json_lines_with_logprobs_and_several(self):
        whole = self.succeed_json(*RUN, "-n", 5, "--logprobs", 2, "--n-best", 3, "--json")
        events = self.events("-n", 5, "--logprobs", 2, "--n-best", 3)
        self.assertEqual([event["answer"] for event in events if event["event"] == "start"], [0, 1, 2])
        for number, candidate in enumerate(whole["candidates"]):
            tokens = [event for event in events
                      if event["event"] == "token" and event["answer"] == number]
            self.assertEqual([event["token"] for event in tokens if "token" in event],
                             candidate["tokens"])
            for event, entry in zip(tokens, candidate["logprobs"]):
                self.assertEqual((event["logprob"], event["best"]), (entry["logprob"], entry["best"]))
        one = self.events("-n", 5, "--logprobs", 1)
        self.assertTrue(all("logprob" in event for event in one if "token" in event))

    def test_json_lines_of_answers_that_do_not_stand(self):
        events = self.events("-n", 20, "--regex", "[a-z]{3}", "--validate-with", "false",
                             "--max-retries", 2, code=1)
        self.assertEqual([event["attempt"] for event in events if event["event"] == "restart"], [1, 2])
        self.assertIn("rejected", events[-1]["failure"])
        self.assertFalse(events[-1]["text"] == "")
        forced = self.events("-n", 20, "--regex", "once upon a time", "--logprobs", 1)
        text = "".join(event["text"] for event in forced if event["event"] == "token")
        self.assertEqual(text, "once upon a time")
        self.assertTrue(all("logprob" in event for event in forced if "token" in event))
        self.fail_with(2, ["--json-lines", "--json"], *RUN, "--json", "--json-lines")

    def test_logprobs_stream(self):
        process = self.start_endless("--logprobs", "2")
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], TIMEOUT)
            self.assertTrue(ready, "nothing came")
            byte = process.stdout.read(1)
            self.assertTrue(byte, "nothing came before the end")
            line += byte
        self.assertIsNone(process.poll())
        self.assertEqual(line.count(b"\t"), 4, line)  # behind the first byte, read at the start
        process.terminate()
        process.communicate(timeout=TIMEOUT)
        whole = self.succeed_json(*RUN, "-n", 6, "--logprobs", 2, "--json")
        table, text = self.succeed(*RUN, "-n", 6, "--logprobs", 2).stdout.decode().split("\n\n", 1)
        self.assertEqual(text, whole["text"] + "\n")
        self.assertEqual([int(line.split("\t")[0]) for line in table.splitlines()], list(range(6)))

    def test_bytes_that_are_no_text(self):
        bad = b"Once \xff upon"
        for more, stdin in ((["-p", "-"], bad), (["-f", "bad.txt"], b"")):
            (self.folder / "bad.txt").write_bytes(bad)
            result = self.succeed("generate", MODEL, *more, "-n", 1, "-q", stdin=stdin)
            self.assert_one_line(result.stderr, "warning", "byte 5 is 0xFF", "U+FFFD")
        result = self.succeed("tokenize", MODEL, "-p", "-", stdin=bad)
        self.assert_one_line(result.stderr, "warning", "byte 5")
        result = self.succeed("generate", MODEL, "-p", "-", "-n", 1, "-q", stdin="Öwl 🙂".encode())
        self.assertEqual(result.stderr, b"")

    def test_pieces_of_a_character(self):
        text = self.succeed("tokenize", MODEL, "-p", "a 🙂").stdout.decode()
        self.assertNotIn("\ufffd", text)
        shown = [line.split("\t")[1] for line in text.splitlines()]
        parts = "".join(shown[1:])
        self.assertEqual(re.findall(r"<0x([0-9A-F]{2})>", parts), ["F0", "9F", "99", "82"], shown)


class Quantize(CliTest):
    def test_a_result_that_is_larger(self):
        result = self.succeed("quantize", EXPERTS, "out", "--scheme", "int8")
        self.assert_one_line(result.stderr, "warning: out takes", "what grew: ",
                             "quantized already")
        grown = re.search(r"what grew: (\S+) \((?:new, )?[\d.]+ k?B", result.stderr.decode())
        self.assertTrue(grown, result.stderr)
        self.assertEqual(self.succeed("quantize", SMALL, "less", "--scheme", "int8").stderr, b"")

    def test_a_file_in_a_folders_place(self):
        for out in ("out.gguf", "out.safetensors"):
            self.fail_with(2, [out, "folder"], "quantize", SMALL, out, "--scheme", "int8")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
