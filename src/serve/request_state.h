// SPDX-License-Identifier: Apache-2.0
// A request between its host's thread and the server's: events one way, a flag the other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "serve/answer_reader.h"
#include "serve/job.h"
#include "vitrine/serve.h"

namespace vitrine::serve {

struct ServedModel;

/// Thread-safe where it says so; the rest is for the server's threads, one after another.
struct RequestState {
  using Clock = std::chrono::steady_clock;

  RequestState(uint64_t id, ServeRequest request, size_t most_unread)
      : id(id), request(std::move(request)), most_unread(most_unread) {}

  /// The host's side; thread-safe.
  std::optional<ServeEvent> next(std::optional<Clock::time_point> deadline);
  void cancel();
  bool is_finished() const;

  /// The server's side; thread-safe.
  void push(ServeEvent event);
  bool is_reader_behind() const;

  /// Called for each token on the step's thread; false where a text ended the answer.
  bool take(const TokenEvent& event);
  /// The last event. `seconds` are of the counts.
  void finish(JobEnd end);

  const uint64_t id;
  ServeRequest request;
  const size_t most_unread;
  ServedModel* counted_by = nullptr;  ///< whose counts it is among
  std::atomic<bool> cancelled = false;
  bool is_in_line = true;      ///< it has no place yet; under the server's lock
  std::function<void()> wake;  ///< tells the server that something has changed here
  std::function<void(const ServeEvent&)> on_finish;  ///< the server counts
  std::function<void(double)> on_gap, on_first;      ///< the same

  const Tokenizer* tokenizer = nullptr;
  AnswerForm form;
  std::vector<int32_t> prompt;        ///< ids that are computed
  std::vector<int32_t> given_prompt;  ///< ids before lines were moved; empty: none were
  PrefixBreak prefix_break;
  std::optional<AnswerReader> reader;
  ServeCounts counts;
  int32_t attempt = 0;
  std::deque<ServeEvent> unscored;  ///< tokens whose log-probabilities are not known yet
  size_t num_scored = 0;
  Clock::time_point submitted = Clock::now(), ready = submitted, last_token = submitted;

 private:
  PromptBreak told_break() const;
  std::string section_at(const std::string& before) const;
  void show(std::span<const TokenLogprobs> logprobs, bool is_all);
  void tell_prompt(std::span<const TokenLogprobs> logprobs);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ServeEvent> events_;
  bool is_behind_ = false;  // most_unread events have waited, and more than half of them still do
  bool is_prompt_told_ = false;
  bool is_ended_ = false;  // its last event was pushed
  bool is_read_ = false;   // and read
};

}  // namespace vitrine::serve
