// SPDX-License-Identifier: Apache-2.0
#include "evaluation/program_runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "vitrine/core.h"

namespace vitrine::evaluation {

namespace {

using Clock = std::chrono::steady_clock;

/// Runs the answer and says so behind its end, by a word that the answer is not told.
constexpr const char* kHarness = R"(import os, sys
word = sys.stdin.readline()
with open(sys.argv[1], encoding="utf-8") as file:
    source = file.read()
try:
    exec(compile(source, "answer.py", "exec"), {"__name__": "__main__"})
except BaseException as error:
    os.write(1, ("\nraised " + type(error).__name__).encode())
    os._exit(1)
sys.stdout.flush()
os.write(1, ("\n" + word).encode())
os._exit(0)
)";

constexpr size_t kKeptBytes = 4096;  // the end of what a program writes

[[noreturn]] void throw_io(const std::string& what) {
  throw Error(ErrorKind::kIo, what + ": " + std::generic_category().message(errno));
}

/// The first Python of the system's own: one that a shell script stands in for cannot be run.
const char* find_python() {
  for (const char* path : {"/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3"}) {
    if (access(path, X_OK) == 0) return path;
  }
  throw Error(ErrorKind::kUnavailable,
              "answers that are programs cannot be run: there is no /usr/bin/python3 and no "
              "/usr/local/bin/python3; install Python 3");
}

/// A pipe whose ends are closed by exec and by this.
struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw_io("a pipe to a program");
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_read() {
    if (read >= 0) close(read);
    read = -1;
  }
  void close_write() {
    if (write >= 0) close(write);
    write = -1;
  }
};

/// A folder with the program, the harness and an empty folder, which goes away with this.
struct ProgramFolder {
  std::string path;
  explicit ProgramFolder(const std::string& program) {
    std::string pattern = (std::filesystem::temp_directory_path() / "vitrine-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw_io(pattern);
    path = pattern;
    // Nobody else's than the child, which may be another user, has a use for it.
    if (chmod(path.c_str(), 0755) != 0 || mkdir((path + "/own").c_str(), 0777) != 0 ||
        chmod((path + "/own").c_str(), 0777) != 0) {
      throw_io(path);
    }
    write_text("answer.py", program);
    write_text("harness.py", kHarness);
  }
  ~ProgramFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  ProgramFolder(const ProgramFolder&) = delete;
  ProgramFolder& operator=(const ProgramFolder&) = delete;

 private:
  void write_text(const char* name, const std::string& text) const {
    const std::string file = path + "/" + name;
    std::ofstream out(file, std::ios::binary);
    out << text;
    out.close();
    if (!out || chmod(file.c_str(), 0644) != 0) throw_io(file);
  }
};

/// A child that is killed and waited for where nobody did.
struct Child {
  pid_t id;
  int status = 0;
  bool has_ended = false;

  ~Child() { end(); }
  void end() {
    if (has_ended) return;
    kill(-id, SIGKILL);
    kill(id, SIGKILL);
    while (waitpid(id, &status, 0) < 0 && errno == EINTR) {
    }
    has_ended = true;
  }
  bool is_over() {
    has_ended = has_ended || waitpid(id, &status, WNOHANG) == id;
    return has_ended;
  }
};

std::string unguessable_word() {
  std::random_device device;
  std::string word = "vitrine-";
  for (int i = 0; i < 4; ++i) word += std::to_string(device()) + "-";
  return word;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

/// Waits for the child's end until the deadline; returns the end of what it wrote.
std::string wait_for_output(Child& child, Pipe& output, Clock::time_point deadline) {
  constexpr int kPauseMilliseconds = 5;
  std::string text;
  std::array<char, 4096> piece;
  bool is_open = true;
  while (is_open && milliseconds_until(deadline) > 0) {
    pollfd waiting = {output.read, POLLIN, 0};
    if (poll(&waiting, 1, milliseconds_until(deadline)) <= 0) continue;
    const ssize_t count = read(output.read, piece.data(), piece.size());
    is_open = count > 0 || (count < 0 && errno == EINTR);
    if (count > 0) text.append(piece.data(), static_cast<size_t>(count));
    if (text.size() > 2 * kKeptBytes) text.erase(0, text.size() - kKeptBytes);
  }
  while (!child.is_over() && milliseconds_until(deadline) > 0) {
    poll(nullptr, 0, kPauseMilliseconds);
  }
  return text;
}

void check_start(Pipe& status) {
  using Step = SandboxFailure::Step;
  SandboxFailure failure;
  ssize_t count = 0;
  while ((count = read(status.read, &failure, sizeof(failure))) < 0 && errno == EINTR) {
  }
  if (count != static_cast<ssize_t>(sizeof(failure))) return;
  const std::string why = std::generic_category().message(failure.error);
  const char* what = failure.step == Step::kUser ? "root could not be given up"
                     : failure.step == Step::kIsolation
                         ? "neither namespaces nor seccomp can be had, so the network stays open"
                     : failure.step == Step::kLimits ? "its limits could not be set"
                     : failure.step == Step::kExec   ? "Python could not be started"
                                                     : "no new privileges could not be set";
  throw Error(ErrorKind::kUnavailable,
              std::string("answers that are programs cannot be run here: ") + what + " (" + why +
                  "); run without code");
}

std::string ending_of(const Child& child, const std::string& output, const std::string& word) {
  if (output.ends_with("\n" + word) && WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0) {
    return "passed";
  }
  if (WIFSIGNALED(child.status)) {
    const int number = WTERMSIG(child.status);
    if (number == SIGXCPU) return "timed out";
    return "killed (signal " + std::to_string(number) + ")";
  }
  const size_t raised = output.rfind("\nraised ");
  if (raised != std::string::npos && output.size() - raised < 200) {
    return output.substr(raised + 8);
  }
  return "left before its end";
}

}  // namespace

ProgramResult run_program(const std::string& program, const ProgramLimits& limits) {
  const char* python = find_python();
  const ProgramFolder folder(program);
  const std::string harness = folder.path + "/harness.py";
  const std::string answer = folder.path + "/answer.py";
  const char* arguments[] = {python, "-S", "-s", "-B", harness.c_str(), answer.c_str(), nullptr};
  const char* environment[] = {"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/", "PYTHONHASHSEED=0",
                               nullptr};
  Pipe input, output, status;
  const std::string word = unguessable_word();
  if (write(input.write, word.data(), word.size()) != static_cast<ssize_t>(word.size())) {
    throw_io("a pipe to a program");
  }
  SandboxPlan plan;
  plan.limits = limits;
  plan.folder = folder.path + "/own";
  plan.arguments = arguments;
  plan.environment = environment;
  plan.input = input.read;
  plan.output = output.write;
  plan.status = status.write;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(2 * limits.seconds);
  Child child{fork()};
  if (child.id == 0) enter_sandbox(plan);
  if (child.id < 0) {
    child.has_ended = true;
    throw_io("a process for a program");
  }
  input.close_read();
  input.close_write();
  output.close_write();
  status.close_write();
  check_start(status);
  const std::string text = wait_for_output(child, output, deadline);
  const bool is_late = !child.is_over();
  child.end();
  ProgramResult result;
  result.ending = is_late ? "timed out" : ending_of(child, text, word);
  result.has_passed = result.ending == "passed";
  return result;
}

}  // namespace vitrine::evaluation
