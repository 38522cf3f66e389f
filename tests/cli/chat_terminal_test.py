#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Types into `vitrine chat` in a pseudo terminal: what the model gets is what was typed.

usage: chat_terminal_test.py VITRINE MODEL [unittest arguments]
"""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
import unittest

from chat_cases import ChatCase
from tool import TIMEOUT, VITRINE

UP, DOWN, RIGHT, LEFT = b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D"
ENTER, ALT_ENTER, BACKSPACE = b"\r", b"\x1b\r", b"\x7f"
CTRL_C, CTRL_D, CTRL_R, CTRL_Z = b"\x03", b"\x04", b"\x12", b"\x1a"
PROMPT = b"> "
LONG = "Once upon a time there was a little girl who had a red ball. " * 2000  # some 30,000 tokens
BAR = rb"prompt \[[#.]+\] [1-9]\d* of \d+ tokens, \d+ s to go"


def paste(text):
    return b"\x1b[200~" + text + b"\x1b[201~"


class Terminal:
    """A process whose controlling terminal is the other end of `self.leader`."""

    def __init__(self, arguments, folder, stdout=None, environment=None, rows=24, columns=80):
        self.leader, self.follower = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.follower)
        self.output = b""

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            list(map(str, arguments)), cwd=folder, stdin=self.follower,
            stdout=stdout or self.follower, stderr=self.follower, preexec_fn=take_terminal,
            env={**variables, **(environment or {})})

    def resize(self, rows, columns):
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """Takes in what comes within so many seconds; False where nothing did."""
        if not select.select([self.leader], [], [], seconds)[0]:
            return False
        try:
            self.output += os.read(self.leader, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        return True

    def wait_for(self, pattern):
        """Takes the output up to where the pattern ends."""
        deadline = time.monotonic() + TIMEOUT
        while not (found := re.search(pattern, self.output, re.DOTALL)):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"{pattern!r} did not come; {self.output!r} did")
            self.read(0.2)
        taken, self.output = self.output[:found.end()], self.output[found.end():]
        return taken

    def type(self, keys):
        while keys:  # a terminal takes as much as its buffer holds
            self.read(0)
            if select.select([], [self.leader], [], 0.1)[1]:
                keys = keys[os.write(self.leader, keys[:1024]):]

    def say(self, keys):
        """Types a message or command and waits until the next one may come."""
        self.type(keys + ENTER)
        return self.wait_for(rb"\n.*" + PROMPT)

    def end(self):
        """The exit code; the terminal's settings must be as before."""
        deadline = time.monotonic() + TIMEOUT
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.1)
        code = self.process.wait(1)
        while self.read(0):
            pass
        after = termios.tcgetattr(self.follower)
        os.close(self.leader)
        os.close(self.follower)
        if after != self.before:
            raise AssertionError(f"the terminal was left as {after}, it was {self.before}")
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class TerminalCase(ChatCase):
    def start(self, *more, n=3, temperature=0, **options):
        terminal = Terminal([VITRINE, "chat", self.model, "-n", n, "--temperature", temperature, *more],
                            self.folder, **options)
        self.addCleanup(terminal.close)
        terminal.wait_for(PROMPT)
        return terminal

    def make_long_model(self):
        """The model with room for a prompt that takes long."""
        config = self.model / "config.json"
        long = {**json.loads(config.read_text()), "max_position_embeddings": 200000}
        config.unlink()
        config.write_text(json.dumps(long))

    def start_long(self, *more):
        """A conversation whose first message takes long to be read."""
        if (self.model / "config.json").is_symlink():
            self.make_long_model()
        return self.start("--system", LONG, "-c", 50000, *more)

    def saved(self, terminal):
        """The messages of the user, by way of a session file; ends the conversation."""
        terminal.say(b"/save s.json")
        terminal.type(CTRL_D)
        self.assertEqual(terminal.end(), 0)
        session = json.loads((self.folder / "s.json").read_text())
        return [message["content"] for message in session["messages"] if message["role"] == "user"]

    def heard(self, *messages, **options):
        """What the model gets where these keys are typed."""
        terminal = self.start(**options)
        for keys in messages:
            terminal.say(keys)
        return self.saved(terminal)


class Editing(TerminalCase):
    def test_arrow_keys(self):
        self.assertEqual(self.heard(b"Hi thre" + LEFT + LEFT + b"e" + RIGHT + RIGHT + b"!"), ["Hi there!"])

    def test_characters_of_several_bytes(self):
        text = "naïve 漢字 \N{WHITE SMILING FACE}".encode()
        self.assertEqual(self.heard(text + LEFT + LEFT + BACKSPACE + "語".encode()),
                         ["naïve 漢語 \N{WHITE SMILING FACE}"])

    def test_bytes_that_are_no_utf8(self):
        self.assertEqual(self.heard(b"a\xff\xfeb"), ["a\ufffd\ufffdb"])

    def test_a_paste_is_one_message(self):
        for line_end in (b"\n", b"\r", b"\r\n"):
            lines = line_end.join((b"one", b"\ttwo \\", b"three"))
            self.assertEqual(self.heard(b"Read: " + paste(lines) + b" ok?"), ["Read: one\n\ttwo \\\nthree ok?"])

    def test_a_paste_can_be_edited(self):
        self.assertEqual(self.heard(paste(b"one\ntwo\nthree") + UP + LEFT + BACKSPACE + DOWN + b"!"),
                         ["one\nto\nt!hree"])

    def test_messages_of_several_lines(self):
        self.assertEqual(self.heard(b"one" + ALT_ENTER + b"two" + ALT_ENTER + b"three", b"a\\" + ENTER + b"b"),
                         ["one\ntwo\nthree", "a\nb"])

    def test_a_long_line(self):
        """A terminal's own editing keeps 4,095 bytes and drops the rest."""
        line = "word " * 999 + "words"
        self.assertEqual(self.heard(line.encode() + LEFT + BACKSPACE), [line[:-2] + line[-1]])
        pasted = "\n".join(line[at:at + 50] for at in range(0, 5000, 50))
        self.assertEqual(self.heard(paste(pasted.encode())), [pasted])

    def test_a_window_that_changes(self):
        terminal = self.start(rows=10, columns=40)
        terminal.type(b"x" * 100)
        terminal.wait_for(rb"x+\S*$")
        terminal.resize(5, 20)
        terminal.type(b"y" * 100)
        terminal.say(b"")
        self.assertEqual(self.saved(terminal), ["x" * 100 + "y" * 100])

    def test_what_is_typed_during_an_answer(self):
        """It is there for the next message, whole, and not in the answer's text."""
        terminal = self.start(n=400)
        terminal.type(b"Hi" + ENTER)
        terminal.wait_for(b"\n")
        line = b"words and " * 300
        terminal.type(line + paste(b"one\ntwo") + ENTER)
        terminal.wait_for(rb"> words and.*two.*\n.*" + PROMPT)
        self.assertEqual(self.saved(terminal), ["Hi", line.decode() + "one\ntwo"])

    def test_answers_that_go_elsewhere(self):
        """Standard output has answers alone; the message is typed in the terminal."""
        with open(self.folder / "out.txt", "wb") as out:
            terminal = self.start(stdout=out)
            terminal.say(b"Hi thre" + LEFT + LEFT + b"e")
            self.assertEqual(self.saved(terminal), ["Hi there"])
        answer = self.generate("[user] Hi there\n[assistant] Once upon a time", n=3)["text"]
        self.assertEqual((self.folder / "out.txt").read_text(), answer + "\n")

    def test_a_terminal_that_cannot_be_drawn_on(self):
        terminal = self.start(environment={"TERM": "dumb"})
        output = terminal.say(b"Hi")
        self.assertNotIn(b"\x1b", output)
        terminal.type(b"/exit\n")
        self.assertEqual(terminal.end(), 0)


class Ending(TerminalCase):
    def test_ctrl_d(self):
        terminal = self.start()
        terminal.say(b"ab" + LEFT + CTRL_D)  # within a message it deletes
        self.assertEqual(self.saved(terminal), ["a"])

    def test_ctrl_c(self):
        """It ends an answer, or throws away what was typed; where there is neither, it ends all."""
        terminal = self.start(n=100000)
        terminal.type(b"Hi" + ENTER)
        terminal.wait_for(rb"\n[^\n]{20}")
        terminal.type(CTRL_C)
        terminal.wait_for(b"\n" + rb".*" + PROMPT)
        terminal.type(paste(b"thrown\naway"))
        terminal.wait_for(b"away")
        terminal.type(CTRL_C)
        terminal.wait_for(PROMPT)
        terminal.say(b"/save s.json")
        terminal.type(CTRL_C)
        self.assertEqual(terminal.end(), 130)
        messages = json.loads((self.folder / "s.json").read_text())["messages"]
        self.assertEqual([message["role"] for message in messages], ["user", "assistant"])
        self.assertEqual(messages[0]["content"], "Hi")
        whole = self.generate("[user] Hi\n[assistant] Once upon a time", n=500)["text"]
        answer = messages[1]["content"]  # on a busy machine it may go on for longer than `whole`
        self.assertTrue(whole.startswith(answer[:len(whole)]), messages)

    def test_ctrl_c_keeps_what_was_typed_during_the_answer(self):
        for rows, message in enumerate((b"and this", paste(b"this\ntoo"))):
            terminal = self.start(n=100000)
            terminal.type(b"Hi" + ENTER)
            terminal.wait_for(rb"\n[^\n]{20}")
            terminal.type(message + CTRL_C)
            terminal.wait_for(rb"> .*(this|too)")
            terminal.say(b"!")
            self.assertEqual(self.saved(terminal), ["Hi", ["and this!", "this\ntoo!"][rows]])

    def test_ctrl_c_in_a_prompt(self):
        """A message that is still read is forgotten; what was typed meanwhile is there."""
        terminal = self.start_long()
        terminal.type(b"Hi" + ENTER)
        terminal.wait_for(BAR)
        terminal.type(b"short" + CTRL_C)
        shown = terminal.wait_for(rb"forgotten.*> short")
        self.assertIn(b"\r\x1b[K", shown)  # the bar is gone
        terminal.type(CTRL_C)  # throws away what was typed
        terminal.wait_for(PROMPT)
        self.assertEqual(self.saved(terminal), [])

    def test_signals_in_a_prompt(self):
        for sent in (signal.SIGTERM, signal.SIGHUP):
            log = f"{sent.name}.vtr"
            terminal = self.start_long("--audit", log)
            terminal.type(b"Hi" + ENTER)
            terminal.wait_for(BAR)
            terminal.process.send_signal(sent)
            self.assertEqual(terminal.end(), 128 + sent)
            self.assertIn(b"cancelled: 0 answers", terminal.output)
            self.assertIn(b"complete", self.succeed("audit", "verify", log).stdout)

    def test_the_bar_is_for_who_wants_notes(self):
        self.make_long_model()
        (self.folder / "p.txt").write_bytes(LONG.encode())
        for more in (["--quiet"], []):
            terminal = Terminal([VITRINE, "generate", self.model, "-f", "p.txt", "-n", 1, *more], self.folder)
            self.addCleanup(terminal.close)
            if more:
                time.sleep(3)  # in which it would come
                while terminal.read(0):
                    pass
                self.assertNotIn(b"prompt", terminal.output)
            else:
                terminal.wait_for(BAR)
            terminal.type(CTRL_C)
            self.assertEqual(terminal.end(), 130)

    def test_stopped_and_continued(self):
        """Ctrl-Z gives the terminal back; behind fg what was typed is still there."""
        command = shlex.join([VITRINE, "chat", str(self.model), "-n", "3", "--temperature", "0"])
        terminal = Terminal(["bash", "-mc", f"{command}; stty -a; echo STOPPED; fg"], self.folder)
        self.addCleanup(terminal.close)
        terminal.wait_for(PROMPT)
        terminal.type(b"Hi ")
        terminal.wait_for(b"Hi ")
        terminal.type(CTRL_Z)
        settings = terminal.wait_for(b"STOPPED").split()
        self.assertIn(b"icanon", settings)
        self.assertIn(b"echo", settings)
        terminal.wait_for(b"> Hi ")
        terminal.say(b"there")
        self.assertEqual(self.saved(terminal), ["Hi there"])

    def test_a_terminal_that_goes_away(self):
        terminal = self.start("--audit", "run.vtr")
        terminal.say(b"Hi")
        terminal.process.send_signal(signal.SIGHUP)
        self.assertEqual(terminal.end(), 128 + signal.SIGHUP)
        self.succeed("audit", "verify", "run.vtr")


class History(TerminalCase):
    FILE = ".local/state/vitrine/chat_history"

    def test_in_a_conversation_and_in_the_next(self):
        self.assertEqual(self.heard(b"first", paste(b"sec\nond"), UP + UP + UP + b"!"), ["first", "sec\nond", "first!"])
        file = self.folder / self.FILE
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(file.parent.stat().st_mode), 0o700)
        # /save s.json is the last entry; within a message of several lines, up goes to the line above.
        self.assertEqual(self.heard(UP + UP, 6 * UP), ["first!", "first"])
        self.assertEqual(self.heard(CTRL_R + b"ond" + ENTER), ["sec\nond"])

    def test_a_long_message_comes_back(self):
        line = b"word " * 1000 + b"end"
        self.assertEqual(self.heard(line, UP + BACKSPACE), [line.decode(), line.decode()[:-1]])

    def test_its_place(self):
        self.assertEqual(self.heard(b"Hi", environment={"XDG_STATE_HOME": str(self.folder / "state")}), ["Hi"])
        self.assertIn("Hi\n", (self.folder / "state/vitrine/chat_history").read_text())
        self.assertFalse((self.folder / self.FILE).exists())

    def test_two_conversations(self):
        one, other = self.start(), self.start()
        for number in range(3):
            one.say(b"one %d" % number)
            other.say(b"other %d" % number)
        for terminal in (one, other):
            terminal.type(CTRL_D)
            self.assertEqual(terminal.end(), 0)
        entries = (self.folder / self.FILE).read_text().splitlines()[1:]
        self.assertEqual(sorted(entries),
                         sorted(f"{who}\\040{number}" for who in ("one", "other") for number in range(3)))

    def test_switched_off(self):
        self.succeed("audit", "keygen", "reader.key")
        for more in (["--no-history"], ["--audit", "a.vtr", "--encrypt-for", "reader.key.pub"],
                     ["--audit", "b.vtr", "--redact", "norms"]):
            terminal = self.start(*more)
            terminal.say(b"secret")
            terminal.say(UP)
            self.assertEqual(self.saved(terminal), ["secret", "secret"])
            self.assertFalse((self.folder / ".local").exists(), more)

    def test_a_file_that_is_none(self):
        file = self.folder / self.FILE
        file.parent.mkdir(parents=True)
        file.write_text("something else\n")
        terminal = Terminal([VITRINE, "chat", self.model, "-n", 3], self.folder)
        self.addCleanup(terminal.close)
        terminal.wait_for(rb"chat_history: is no history of libedit.*" + PROMPT)
        terminal.say(b"Hi")
        terminal.type(CTRL_D)
        self.assertEqual(terminal.end(), 0)
        self.assertEqual(file.read_text(), "something else\n")


class Commands(TerminalCase):
    def test_help_undo_and_regen(self):
        terminal = self.start("-s", 3, temperature=1.5, n=12)
        self.assertIn(b"/regen", terminal.say(b"/help"))
        terminal.say(b"first")
        terminal.say(b"second")
        self.assertIn(b"forgotten", terminal.say(b"/undo"))
        terminal.say(b"/regen")
        self.assertEqual(self.saved(terminal), ["first"])

    def test_quiet(self):
        terminal = self.start("--quiet")
        output = terminal.say(b"Hi")
        answer = self.generate("[user] Hi\n[assistant] Once upon a time", n=3)["text"]
        self.assertIn(answer.encode(), output)
        self.assertNotIn(b"vitrine:", output)
        self.assertIn(b"vitrine: '/no' is no command", terminal.say(b"/no"))
        terminal.type(CTRL_D)
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn(b"vitrine:", terminal.output)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
