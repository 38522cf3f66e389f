// SPDX-License-Identifier: Apache-2.0
// Programs that a model wrote: those that are right pass, and hostile ones harm nothing.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "evaluation/program_runner.h"
#include "scoring.h"
#include "tests/checkpoint/folders.h"

namespace vitrine::evaluation {
namespace {

ProgramLimits short_limits() {
  ProgramLimits limits;
  limits.seconds = 2;
  limits.memory = 256;
  return limits;
}

std::string ending(const std::string& program) {
  return run_program(program, short_limits()).ending;
}

TEST(Program, PassesWhereItComesToItsEnd) {
  EXPECT_EQ(ending("import math, json, re, collections\nassert math.sqrt(4) == 2\n"), "passed");
  EXPECT_EQ(ending("assert 1 == 2"), "AssertionError");
  EXPECT_EQ(ending("def f(:"), "SyntaxError");
  EXPECT_EQ(ending("raise KeyboardInterrupt"), "KeyboardInterrupt");
}

TEST(Program, CannotPassByLeavingEarly) {
  EXPECT_EQ(ending("import sys; sys.exit(0)"), "SystemExit");
  EXPECT_EQ(ending("import os; os._exit(0)"), "left before its end");
  EXPECT_EQ(ending("print('passed'); import os; os._exit(0)"), "left before its end");
}

TEST(Program, IsEndedWhenItGoesOnAndOn) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ending("while True: pass"), "timed out");
  // Who ignores the signal is killed, by the next limit or by the clock.
  EXPECT_NE(ending("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
                   "while True: pass"),
            "passed");
  EXPECT_EQ(ending("import time\ntime.sleep(100)"), "timed out");
  EXPECT_EQ(ending("import os\nos.close(1); os.close(2)\nimport time\ntime.sleep(100)"),
            "timed out");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Program, CannotTakeAllMemory) {
  EXPECT_EQ(ending("x = bytearray(1 << 30)"), "MemoryError");
  EXPECT_EQ(ending("x = []\nwhile True: x.append(bytearray(1 << 24))"), "MemoryError");
}

TEST(Program, CannotStartOthers) {
  EXPECT_EQ(ending("import os\nos.fork()"), "PermissionError");
  EXPECT_EQ(ending("import os\nwhile True:\n  try: os.fork()\n  except OSError: break\n"),
            "passed");
  EXPECT_EQ(ending("import subprocess\nsubprocess.run(['/bin/true'])"), "PermissionError");
  EXPECT_EQ(ending("import os\nassert os.system('true') == 0"), "AssertionError");
  // Threads are no processes.
  EXPECT_EQ(ending("import threading\nt = threading.Thread(target=print); t.start(); t.join()"),
            "passed");
}

TEST(Program, CannotReachOthers) {
  EXPECT_EQ(ending("import os, signal\nos.kill(os.getppid(), signal.SIGTERM)"), "PermissionError");
  EXPECT_EQ(ending("import os\nos.kill(-1, 9)"), "PermissionError");
  EXPECT_EQ(ending("import os\nassert os.getuid() != 0\nassert os.geteuid() != 0"), "passed");
}

TEST(Program, HasNoNetwork) {
  EXPECT_EQ(ending("import socket\nsocket.socket()"), "PermissionError");
  EXPECT_EQ(ending("import socket\nsocket.socket(socket.AF_UNIX)"), "PermissionError");
  EXPECT_EQ(ending("import socket\nsocket.socketpair()"), "PermissionError");
  EXPECT_NE(ending("import urllib.request as r\nr.urlopen('http://127.0.0.1:1')"), "passed");
}

TEST(Program, ChangesNoFilesButItsOwn) {
  const std::string here = std::filesystem::temp_directory_path() / "vitrine-program-test";
  std::filesystem::remove(here);
  EXPECT_EQ(ending("open('" + here + "', 'w')"), "OSError");  // the file system is read-only
  EXPECT_FALSE(std::filesystem::exists(here));
  EXPECT_EQ(ending("open(__import__('sys').argv[1], 'w')"), "OSError");
  EXPECT_EQ(ending("import os\nos.remove(__import__('sys').argv[1])"), "OSError");
  EXPECT_EQ(ending("open('own', 'w').write('x')\nassert open('own').read() == 'x'"), "passed");
  EXPECT_EQ(ending("f = open('own', 'wb')\nwhile True: f.write(bytes(1 << 20))").substr(0, 4),
            "OSEr");
}

TEST(Program, ChangesNoFilesWithoutNamespacesEither) {
  ProgramLimits limits = short_limits();
  limits.has_namespaces = false;
  const auto ending_without = [&](const std::string& program) {
    return run_program(program, limits).ending;
  };
  EXPECT_EQ(ending_without("import json\nassert json.loads('[1]') == [1]"), "passed");
  const std::string here = std::filesystem::temp_directory_path() / "vitrine-program-test";
  std::filesystem::remove(here);
  for (const char* mode : {"w", "a", "x", "r+"}) {
    EXPECT_EQ(ending_without("open('" + here + "', '" + mode + "')"), "PermissionError") << mode;
  }
  EXPECT_EQ(ending_without("open('own', 'w')"), "PermissionError");
  EXPECT_EQ(ending_without("import os\nos.mkdir('" + here + "')"), "PermissionError");
  EXPECT_EQ(ending_without("import os\nos.remove(__import__('sys').argv[1])"), "PermissionError");
  EXPECT_EQ(ending_without("import os\nos.rename(__import__('sys').argv[1], '" + here + "')"),
            "PermissionError");
  EXPECT_EQ(ending_without("import os\nos.symlink('/', '" + here + "')"), "PermissionError");
  EXPECT_FALSE(std::filesystem::exists(here));
  EXPECT_EQ(ending_without("import socket\nsocket.socket()"), "PermissionError");
  EXPECT_EQ(ending_without("import os\nos.fork()"), "PermissionError");
}

// In a folder of its own, since other tests make temporary folders beside this one.
TEST(Program, LeavesNothingBehind) {
  const testing::TemporaryFolder folder;
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ASSERT_EQ(setenv("TMPDIR", folder.path().c_str(), 1), 0);
  ending("open('own', 'w').write('x')");
  EXPECT_EQ(ending("while True: pass"), "timed out");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  if (before == nullptr) {
    unsetenv("TMPDIR");
  } else {
    setenv("TMPDIR", kept.c_str(), 1);
  }
}

constexpr const char* kSquare =
    R"({"code": "import math\n\ndef square(x: int) -> int:\n    \"\"\"x times x.\"\"\"\n",
    "test": "def check(candidate):\n    assert candidate(3) == 9\n", "entry_point": "square"})";

TEST(CodeScorer, RunsFunctionsAndBodies) {
  const Scoring scoring("code", kSquare);
  EXPECT_TRUE(scoring.score("```python\ndef square(x):\n    return x * x\n```", true).is_right);
  EXPECT_TRUE(scoring.score("def square(x):\n    return x * x", true).is_right);
  EXPECT_TRUE(scoring.score("    return int(math.pow(x, 2))\n\nprint(1/0)", true).is_right);
  EXPECT_TRUE(scoring.score("Here:\n```python\ndef square(x):\n    return x * x\n```\nDone.", true)
                  .is_right);
  Score wrong = scoring.score("```python\ndef square(x):\n    return x + x\n```", true);
  EXPECT_FALSE(wrong.is_right);
  EXPECT_EQ(wrong.extracted, "AssertionError");
  Score broken = scoring.score("def square(x) return", true);
  EXPECT_FALSE(broken.is_parsed);
  EXPECT_FALSE(scoring.score("import os\ndef square(x):\n    os._exit(0)\n", true).is_right);
}

TEST(CodeScorer, RunsNothingUnlessAskedTo) {
  Score score = Scoring("code", kSquare).score("def square(x):\n    return x * x");
  EXPECT_FALSE(score.is_right);
  EXPECT_EQ(score.extracted, "not run");
  EXPECT_EQ(score.parts["ran"], 0);
}

}  // namespace
}  // namespace vitrine::evaluation
