// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a rendering may use up, and where it stands for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vitrine::chat {

class Runtime {
 public:
  Runtime(std::string name, uint64_t max_work) : name_(std::move(name)), work_(max_work) {}

  int line = 1;

  /// Accounts for work, about a byte made or read each: a template can ask for any amount.
  void spend(uint64_t units) {
    if (units > work_) refuse_work();
    work_ -= units;
  }
  /// Throws kBadFile: "name: line N: message".
  [[noreturn]] void fail(const std::string& message) const;
  const std::string& name() const { return name_; }

  /// Counts nested evaluations; leaves again when it is destroyed.
  class Level {
   public:
    explicit Level(Runtime& runtime) : runtime_(runtime) {
      if (++runtime_.depth_ > kMaxDepth) {
        --runtime_.depth_;
        runtime_.refuse_depth();
      }
    }
    ~Level() { --runtime_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  static constexpr int kMaxDepth = 400;

  [[noreturn]] void refuse_work() const;
  [[noreturn]] void refuse_depth() const;

  std::string name_;
  uint64_t work_;
  int depth_ = 0;
};

/// How deep lists and dicts may stand in one another.
inline constexpr int kMaxValueDepth = 100;

}  // namespace vitrine::chat
