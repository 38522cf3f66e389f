// SPDX-License-Identifier: Apache-2.0
// How far a long prompt is, on a terminal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "vitrine/generate.h"

namespace cli {

/// "prompt  [######..............]  2,048 of 7,201 tokens, 18 s to go": the line that is shown, of
/// at most `columns`. `seconds`: that the tokens took; of none there is nothing to go by.
std::string prompt_bar_line(int64_t done, int64_t total, double seconds, int columns);

/// Stands in the last line of standard error where that is a terminal and notes are wanted, once
/// the prompt has taken a second, and goes with it. Between two steps it moves on by their speed.
class PromptBar {
 public:
  /// Begins to count.
  explicit PromptBar(int64_t total);
  ~PromptBar();
  PromptBar(const PromptBar&) = delete;
  PromptBar& operator=(const PromptBar&) = delete;

  /// GenerateOptions::on_progress; the bar must stay. Where the prompt is done the line goes.
  std::function<bool(const vitrine::PromptProgress&)> teller() {
    return [this](const vitrine::PromptProgress& progress) {
      set(progress);
      return true;
    };
  }
  /// Tokens of the prompt that are computed.
  int64_t done() const { return done_; }
  /// Takes the line away, and shows no other.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  void set(const vitrine::PromptProgress& progress);
  void draw();
  void run();

  const int64_t total_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t done_ = 0, step_ = 0;  // tokens; of the last step
  Clock::time_point done_at_ = begin_;
  bool is_over_ = false, is_shown_ = false;
  std::thread thread_;  // draws; none where nothing is shown
};

}  // namespace cli
