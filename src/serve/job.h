// SPDX-License-Identifier: Apache-2.0
// A request as the scheduler has it: ids, options, and who is told.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vitrine/generate.h"

namespace vitrine::serve {

/// Where a prompt parts from a kept text and goes on alike behind.
struct PrefixBreak {
  int64_t position = 0;       ///< of the first token that is another one
  std::vector<int32_t> kept;  ///< the kept text's tokens until they go on alike
  int64_t changed = 0;        ///< the prompt's own in their place
  int64_t lost = 0;           ///< tokens alike behind them; 0: there is no break
};

/// How a job ended.
struct JobEnd {
  GenerateResult result;       ///< what was made until then
  std::optional<Error> error;  ///< why it failed
  int64_t preemptions = 0;     ///< how often it gave up its keys and values
  PrefixBreak prefix_break;    ///< where its prompt parts from what was kept

  /// Returns the end of a job that nothing was made of, since its host gave it up.
  static JobEnd cancelled() {
    JobEnd end;
    end.result.reason = StopReason::kCancelled;
    return end;
  }
  /// Returns the end of a job that nothing was made of, since it failed.
  static JobEnd failed(Error error) {
    JobEnd end;
    end.result.reason = StopReason::kFailed;
    end.error = std::move(error);
    return end;
  }
};

/// Everything that one answer needs, owned by it but for the sink.
struct Job {
  std::vector<int32_t> prompt;             ///< at least one id
  GenerateOptions options = {};            ///< its pointers point into this job
  std::unique_ptr<Constraint> constraint;  ///< null: none
  std::unique_ptr<Drafter> drafter;        ///< null: nobody guesses
  int adapter = -1;                        ///< -1: none
  int priority = 0;                        ///< ServeRequest::priority
  std::string tenant;                      ///< ServeRequest::tenant
  std::string cache_scope;                 ///< whom it shares prefixes with
  bool use_cache = true;                   ///< it may begin with a kept prefix, and leave some
  AuditSink* audit = nullptr;              ///< who gets its records alone
  double ready = 0;                        ///< when it began to wait, by the scheduler's clock
  bool pins_prompt = false;                ///< ServeRequest::pins_prompt
  int64_t preemptions = 0;                 ///< so far
  PrefixBreak prefix_break = {};           ///< where it parts from what the tree has
  int64_t cached_tokens = 0;               ///< of its prompt, that it began with
  const std::atomic<bool>* cancelled = nullptr;  ///< raised by the host; null: never
  std::function<bool()> is_paused = {};          ///< its reader is behind; empty: never
  bool has_begun = false;                        ///< it had a place before
  bool knows_store = false;  ///< the store has nothing for it, or nothing any more
  std::function<void(int64_t cached)> on_begin = {};     ///< it has a place, the first time
  std::function<bool(const TokenEvent&)> on_token = {};  ///< false ends it
  std::function<void(JobEnd)> on_end = {};  ///< called once, when nothing else of it is left

  bool is_cancelled() const { return cancelled != nullptr && cancelled->load(); }
};

}  // namespace vitrine::serve
