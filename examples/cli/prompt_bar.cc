// SPDX-License-Identifier: Apache-2.0
#include "prompt_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "closing_note.h"

namespace cli {

namespace {

constexpr std::chrono::milliseconds kShownAfter(1000), kDrawnEvery(200);
constexpr int kBarColumns = 24;

int terminal_columns() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// What cannot be written is not missed.
void write_to_terminal(const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string prompt_bar_line(int64_t done, int64_t total, double seconds, int columns) {
  const int full = static_cast<int>(kBarColumns * done / std::max<int64_t>(total, 1));
  std::string line = fmt::format("prompt [{:.<{}}] {} of {} tokens", std::string(full, '#'),
                                 kBarColumns, done, total);
  if (done > 0 && done < total) {
    const double left = seconds * static_cast<double>(total - done) / static_cast<double>(done);
    line += fmt::format(", {:.0f} s to go", std::ceil(left));
  }
  // A line that is broken could only lose its last part again.
  if (std::ssize(line) >= columns) line.resize(static_cast<size_t>(std::max(columns - 1, 0)));
  return line;
}

PromptBar::PromptBar(int64_t total) : total_(total) {
  if (is_quiet() || ::isatty(STDERR_FILENO) == 0) return;
  // Signals are for the thread that may wait for input.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PromptBar::~PromptBar() { end(); }

void PromptBar::set(const vitrine::PromptProgress& progress) {
  {
    const std::scoped_lock lock(mutex_);
    step_ = progress.done - done_;
    done_ = progress.done;
    done_at_ = Clock::now();
  }
  if (progress.done >= total_) end();
}

void PromptBar::end() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (is_shown_) write_to_terminal("\r\033[K");
}

void PromptBar::run() {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return is_over_; };
  if (changed_.wait_until(lock, begin_ + kShownAfter, is_over)) return;
  do draw();
  while (!changed_.wait_for(lock, kDrawnEvery, is_over));
}

// A step's tokens are done all at once; until the next ones are, they count as time goes.
void PromptBar::draw() {
  const std::chrono::duration<double> taken = done_at_ - begin_, since = Clock::now() - done_at_;
  int64_t done = done_;
  if (done_ > 0) {
    const double speed = static_cast<double>(done_) / taken.count();
    const auto more = static_cast<int64_t>(speed * since.count());
    done = std::min({done_ + std::min(more, step_), total_ - 1});
  }
  is_shown_ = true;
  write_to_terminal("\r\033[K" +
                    prompt_bar_line(done, total_, (taken + since).count(), terminal_columns()));
}

}  // namespace cli
