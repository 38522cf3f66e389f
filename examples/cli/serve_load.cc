// SPDX-License-Identifier: Apache-2.0
#include "serve_load.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "bench.h"
#include "json_lines.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

/// Reads the events of many requests on one thread, which each event wakes at most once.
class LoadReader : public std::enable_shared_from_this<LoadReader> {
 public:
  explicit LoadReader(size_t count) : requests_(count), outcomes_(count) {}

  /// Returns what a request calls for each event.
  std::function<void()> notice(size_t index) {
    return [self = shared_from_this(), index] { self->note(index); };
  }
  void note(size_t index) {
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(index);
      if (ready_.size() > 1) return;
    }
    changed_.notify_one();
  }
  void add(size_t index, vitrine::ServedRequest request) {
    {
      const std::lock_guard lock(mutex_);
      requests_[index] = std::move(request);
      ready_.push_back(index);  // what came before it was here
    }
    changed_.notify_one();
  }
  void fail(size_t index, const std::string& problem) {
    const std::lock_guard lock(mutex_);
    outcomes_[index].problem = problem;
    ++num_ended_;
    changed_.notify_one();
  }

  /// Reads until all have ended.
  std::vector<LoadOutcome> read() {
    std::vector<size_t> ready;
    std::unique_lock lock(mutex_);
    while (num_ended_ < requests_.size()) {
      changed_.wait(lock, [&] { return !ready_.empty() || num_ended_ == requests_.size(); });
      ready.swap(ready_);
      ready_.clear();
      for (const size_t index : ready) {
        if (!requests_[index]) continue;  // add() tells it again
        lock.unlock();
        const bool has_ended = read(*requests_[index], outcomes_[index]);
        lock.lock();
        num_ended_ += has_ended ? 1 : 0;
      }
      ready.clear();
    }
    return std::move(outcomes_);
  }

 private:
  // Reads what is there; true with the last event.
  static bool read(vitrine::ServedRequest& request, LoadOutcome& outcome) {
    while (const std::optional<vitrine::ServeEvent> event = request.next_until({})) {
      if (event->kind == vitrine::ServeEvent::Kind::kToken) {
        outcome.tokens.push_back(event->token);
        outcome.times.push_back(event->seconds);
        if (event->logprobs) outcome.logprobs.push_back(event->logprobs->logprob);
      }
      if (event->kind != vitrine::ServeEvent::Kind::kFinish) continue;
      outcome.counts = event->counts;
      if (event->error) outcome.problem = event->error->what();
      return true;
    }
    return false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> ready_;
  std::vector<std::optional<vitrine::ServedRequest>> requests_;
  std::vector<LoadOutcome> outcomes_;
  size_t num_ended_ = 0;
};

/// A whole number of a line; `standard` where it has none of that name.
int64_t number_of(const nlohmann::ordered_json& json, const char* field, int64_t least,
                  int64_t most, int64_t standard, const std::string& path, size_t line) {
  const auto found = json.find(field);
  if (found == json.end()) return standard;
  if (found->is_number_integer() && *found >= least && *found <= most) return *found;
  refuse_line(path, line,
              fmt::format("'{}' is {}; expected a whole number from {} to {}", field, found->dump(),
                          least, most));
}

LoadedRequest read_request(const nlohmann::ordered_json& json, int64_t vocab_size, int64_t& next_id,
                           const std::string& path, size_t line) {
  constexpr int64_t kMost = 1 << 24;
  LoadedRequest loaded;
  vitrine::ServeRequest& request = loaded.request;
  const auto time = json.find("time");
  if (time != json.end()) {
    if (!time->is_number() || !std::isfinite(time->get<double>()) || time->get<double>() < 0) {
      refuse_line(path, line,
                  fmt::format("'time' is {}; expected seconds, 0 or more", time->dump()));
    }
    loaded.at = *time;
  }
  const auto prompt = json.find("prompt"), ids = json.find("prompt_ids");
  if (prompt != json.end() && prompt->is_string()) {
    request.text = *prompt;
  } else if (ids != json.end() && ids->is_array()) {
    for (const nlohmann::ordered_json& id : *ids) {
      if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
        refuse_line(path, line,
                    fmt::format("'prompt_ids' has {}; expected ids from 0 to {}", id.dump(),
                                vocab_size - 1));
      }
      request.tokens.push_back(id);
    }
  } else {
    const int64_t count = number_of(json, "prompt_tokens", 1, kMost, 0, path, line);
    request.tokens = spread_ids(vocab_size, next_id, count);
    next_id += count | 1;
  }
  if (request.text.empty() && request.tokens.empty()) {
    refuse_line(path, line, "has no prompt; expected 'prompt', 'prompt_ids' or 'prompt_tokens'");
  }
  request.max_new_tokens =
      static_cast<int>(number_of(json, "max_tokens", 1, kMost, 64, path, line));
  request.priority =
      static_cast<int>(number_of(json, "priority", -1000000, 1000000, 0, path, line));
  request.ignore_end_of_text = true;
  request.sampler.temperature = 0;
  if (const auto tenant = json.find("tenant"); tenant != json.end()) {
    if (!tenant->is_string()) refuse_line(path, line, "'tenant' is no text; expected a name");
    request.tenant = *tenant;
  }
  return loaded;
}

}  // namespace

std::vector<LoadOutcome> run_load(vitrine::Server& server,
                                  const std::vector<LoadedRequest>& requests) {
  // A request's last call may come when its last event has been read.
  const auto reader = std::make_shared<LoadReader>(requests.size());
  std::vector<LoadOutcome> outcomes;
  std::thread thread([&] { outcomes = reader->read(); });
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(requests[i].at)));
    try {
      vitrine::ServeRequest request = requests[i].request;
      request.on_event = reader->notice(i);
      reader->add(i, server.submit(std::move(request)));
    } catch (const vitrine::Error& error) {
      reader->fail(i, error.what());
    }
  }
  thread.join();
  return outcomes;
}

std::vector<double> first_tokens(const std::vector<LoadOutcome>& outcomes) {
  std::vector<double> firsts;
  for (const LoadOutcome& outcome : outcomes) firsts.push_back(outcome.first_token());
  return firsts;
}

std::vector<double> gaps_of(const std::vector<LoadOutcome>& outcomes) {
  std::vector<double> gaps;
  for (const LoadOutcome& outcome : outcomes) {
    for (size_t i = 1; i < outcome.times.size(); ++i) {
      gaps.push_back(outcome.times[i] - outcome.times[i - 1]);
    }
  }
  return gaps;
}

void require_answers(const std::vector<LoadOutcome>& outcomes) {
  for (const LoadOutcome& outcome : outcomes) {
    if (!outcome.problem.empty()) {
      throw vitrine::Error(vitrine::ErrorKind::kInternal, "a request failed: " + outcome.problem);
    }
  }
}

vitrine::ServeRequest token_request(int64_t vocab_size, int64_t beginning, int64_t shared,
                                    int64_t number, int64_t own, int count) {
  vitrine::ServeRequest request;
  request.tokens = spread_ids(vocab_size, beginning, shared);
  // Far from any other text: an odd distance, since ids repeat after the vocabulary's size.
  const auto rest = spread_ids(vocab_size, 1000003 + number * ((own + 64) | 1), own);
  request.tokens.insert(request.tokens.end(), rest.begin(), rest.end());
  request.max_new_tokens = count;
  request.ignore_end_of_text = true;
  request.sampler.temperature = 0;
  return request;
}

std::vector<LoadedRequest> read_trace(const std::string& path, int64_t vocab_size) {
  std::vector<LoadedRequest> requests;
  int64_t next_id = 0;
  read_json_lines(path,
                  "--workload: '" + path +
                      "' is no workload and cannot be read; expected one of the names that --help "
                      "has, or a file with a JSON object a line",
                  [&](const nlohmann::ordered_json& json, size_t number) {
                    requests.push_back(read_request(json, vocab_size, next_id, path, number));
                  });
  std::ranges::stable_sort(requests, {}, &LoadedRequest::at);
  return requests;
}

}  // namespace cli
