// SPDX-License-Identifier: Apache-2.0
// What is left of killed processes goes with the next log in that folder, and nothing else does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>

#include "json_log_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;

class TemporaryFilesTest : public JsonLogTest {
 protected:
  /// A process that was there and is no more.
  static pid_t dead_process() {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    return child;
  }
  static std::string name(pid_t process, const std::string& rest) {
    return ".vitrine-" + std::to_string(process) + rest;
  }
  void leave(const std::string& name, time_t age = 3600) {
    write(at(name), "half a log");
    const timeval time{std::time(nullptr) - age, 0};
    const timeval times[2] = {time, time};
    ASSERT_EQ(::utimes(at(name).c_str(), times), 0);
  }
  /// Names behind a log that is written to the folder.
  std::vector<std::string> names_behind_a_log() {
    JsonLog(at("log.json"), some_header(), {}, true).finish("length");
    return names();
  }
};

TEST_F(TemporaryFilesTest, WhatAKilledProcessLeftGoes) {
  const pid_t dead = dead_process();
  leave(name(dead, "-0.tmp"));
  leave(name(dead, "-17.tmp"));
  EXPECT_EQ(names_behind_a_log(), std::vector<std::string>{"log.json"});
}

TEST_F(TemporaryFilesTest, WhatMayBeInUseStays) {
  const pid_t dead = dead_process();
  std::vector<std::string> expected = {name(::getpid(), "-99.tmp"), name(::getppid(), "-0.tmp"),
                                       name(dead, "-1.tmp")};
  for (const std::string& one : expected) leave(one);
  leave(name(dead, "-2.tmp"), 30);  // too young
  expected.push_back(name(dead, "-2.tmp"));
  // This one belongs to a process that is not seen from here, as in another container.
  const int locked = ::open(at(expected[2]).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(locked, LOCK_EX), 0);
  expected.emplace_back("log.json");
  std::ranges::sort(expected);
  EXPECT_EQ(names_behind_a_log(), expected);
  ::close(locked);
  std::erase(expected, name(dead, "-1.tmp"));
  EXPECT_EQ(names_behind_a_log(), expected);
}

TEST_F(TemporaryFilesTest, OtherNamesAndOtherKindsStay) {
  const pid_t dead = dead_process();
  const std::string number = std::to_string(dead);
  std::vector<std::string> expected = {
      ".vitrine-" + number + ".tmp",    ".vitrine-" + number + "-.tmp",
      ".vitrine-" + number + "-0",      ".vitrine-" + number + "-0.tmp~",
      ".vitrine-0" + number + "-0.tmp", ".vitrine-" + number + "-00.tmp",
      ".vitrine--" + number + "-0.tmp", ".vitrine-" + number + "-0x1.tmp",
      "vitrine-" + number + "-0.tmp",   ".vitrine-" + number + "-99999999999.tmp",
      ".vitrine-99999999999999-0.tmp"};
  for (const std::string& one : expected) leave(one);
  const std::string link = name(dead, "-3.tmp"), folder = name(dead, "-4.tmp");
  ASSERT_EQ(::symlink(at(expected[0]).c_str(), at(link).c_str()), 0);
  ASSERT_EQ(::mkdir(at(folder).c_str(), 0700), 0);
  expected.insert(expected.end(), {link, folder, "log.json"});
  std::ranges::sort(expected);
  EXPECT_EQ(names_behind_a_log(), expected);
}

TEST_F(TemporaryFilesTest, ALogThatIsWrittenIsLocked) {
  JsonLog log(at("log.json"), some_header(), {}, true);
  const std::vector<std::string> found = names();
  ASSERT_EQ(found.size(), 1u);
  const int file = ::open(at(found[0]).c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_NE(::flock(file, LOCK_EX | LOCK_NB), 0);
  log.finish("length");
  EXPECT_EQ(::flock(file, LOCK_EX | LOCK_NB), 0);
  ::close(file);
}

}  // namespace
}  // namespace vitrine
