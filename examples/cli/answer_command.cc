// SPDX-License-Identifier: Apache-2.0
#include "answer_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "vitrine/core.h"

extern char** environ;

namespace cli {

namespace {

constexpr int kCannotRun = 126;  // the shell's codes for what cannot be run: 126 and 127

[[noreturn]] void fail(const std::string& command, const std::string& what) {
  throw vitrine::Error(vitrine::ErrorKind::kUnavailable,
                       "--validate-with: '" + command + "' " + what +
                           "; expected a command that reads an answer from standard input and "
                           "exits with 0 where it is accepted, 1 where it is not");
}

/// Without SIGPIPE: a command may judge an answer by its beginning and leave the rest.
void write_all(int descriptor, std::string_view text) {
  struct sigaction ignored {
  }, before{};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignored, &before);
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    text.remove_prefix(static_cast<size_t>(written));
  }
  sigaction(SIGPIPE, &before, nullptr);
}

}  // namespace

bool is_accepted_by(const std::string& command, std::string_view text) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail(command, std::string("got no pipe (") + std::strerror(errno) + ")");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::string shell = "/bin/sh", option = "-c", line = command;
  const std::array<char*, 4> arguments = {shell.data(), option.data(), line.data(), nullptr};
  pid_t child = 0;
  const int error =
      posix_spawn(&child, shell.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[0]);
  if (error == 0) write_all(ends[1], text);
  ::close(ends[1]);
  if (error != 0) fail(command, std::string("did not start (") + std::strerror(error) + ")");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(command, std::string("was lost (") + std::strerror(errno) + ")");
  }
  if (!WIFEXITED(status)) fail(command, "was ended by a signal");
  if (WEXITSTATUS(status) >= kCannotRun) {
    fail(command, "cannot be run (exit code " + std::to_string(WEXITSTATUS(status)) + ")");
  }
  return WEXITSTATUS(status) == 0;
}

}  // namespace cli
