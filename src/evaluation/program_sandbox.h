// SPDX-License-Identifier: Apache-2.0
// Private to the library: what a child process gives up before it runs a program that a model
// wrote.
#pragma once

#include <cstdint>
#include <string>

namespace vitrine::evaluation {

/// What a program may use up.
struct ProgramLimits {
  int seconds = 5;             // of processor time; twice as many pass before it is ended
  int64_t memory = 512;        // address space, MiB
  int64_t file_size = 16;      // of each file, and of its folder's file system, MiB
  bool has_namespaces = true;  // false: as where the system gives none, for tests
};

/// Everything a child needs, made before the fork: behind it nothing may be allocated.
struct SandboxPlan {
  ProgramLimits limits;
  std::string folder;  // where the program's own files may be: an empty folder
  const char* const* arguments = nullptr;
  const char* const* environment = nullptr;
  int input = -1, output = -1;  // become descriptors 0, and 1 and 2
  int status = -1;              // closed by exec; else gets a SandboxFailure
};

/// Which step failed, and why.
struct SandboxFailure {
  enum class Step : int32_t { kLimits = 1, kUser, kIsolation, kFilter, kExec };
  Step step = Step::kLimits;
  int32_t error = 0;  // errno
};

/// Called in the child right behind the fork; does not return. Limits processor time, memory, file
/// sizes and descriptors; becomes nobody where it was root; takes namespaces of its own for users,
/// mounts, networks and IPC where the system lets it (all that is mounted becomes read-only, but
/// for the folder, which is empty and in memory); installs a seccomp filter against sockets,
/// further processes, signals to others and tracing, and against every change of a file where it
/// has no mounts of its own; executes. Reports to `status` and exits where a step fails, so where
/// there is neither a network namespace nor seccomp.
[[noreturn]] void enter_sandbox(const SandboxPlan& plan);

}  // namespace vitrine::evaluation
