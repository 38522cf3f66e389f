// SPDX-License-Identifier: Apache-2.0
#include "vitrine/serve.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "serve/prepare.h"
#include "serve/request_state.h"
#include "serve/scheduler.h"

namespace vitrine {

namespace serve {

namespace {

double steady_seconds() {
  return std::chrono::duration<double>(RequestState::Clock::now().time_since_epoch()).count();
}

void check(const ServeRequest& request) {
  const int prompts = static_cast<int>(!request.messages.empty()) +
                      static_cast<int>(!request.text.empty()) +
                      static_cast<int>(!request.tokens.empty());
  if (prompts == 1) return;
  throw Error(ErrorKind::kInvalidArgument,
              "a request has " + std::string(prompts == 0 ? "no prompt" : "several prompts") +
                  "; expected exactly one of 'messages', 'text' and 'tokens'");
}

}  // namespace

/// What wakes the server's threads; requests that outlive the server may still ring it.
struct Bell {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_news = false;

  void ring() {
    {
      const std::lock_guard lock(mutex);
      has_news = true;
    }
    changed.notify_all();
  }
};

/// Two threads and what they share: one prepares requests, one steps.
class ServerLoop {
 public:
  ServerLoop(Model model, const ServerOptions& options)
      : model_(std::move(model)),
        scheduler_(model_, options, steady_seconds),
        preparer_(model_, scheduler_.options()),
        prepares_([this] { prepare_all(); }),
        steps_([this] { step_all(); }) {}

  ~ServerLoop() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    prepares_.join();
    steps_.join();
    for (const auto& state : submitted_) end_cancelled(*state);
    for (auto& job : ready_) {
      JobEnd cancelled;
      cancelled.result.reason = StopReason::kCancelled;
      job->on_end(std::move(cancelled));
    }
  }
  ServerLoop(const ServerLoop&) = delete;
  ServerLoop& operator=(const ServerLoop&) = delete;

  std::shared_ptr<RequestState> submit(ServeRequest request) {
    check(request);
    const std::lock_guard lock(mutex_);
    if (num_waiting_ >= scheduler_.options().max_waiting) {
      ++telemetry_.refused;
      throw Error(ErrorKind::kOutOfMemory,
                  std::to_string(num_waiting_) +
                      " requests wait already (server option 'max_waiting'); expected this one "
                      "later");
    }
    ++telemetry_.submitted;
    ++num_waiting_;
    auto state =
        std::make_shared<RequestState>(++last_id_, std::move(request),
                                       static_cast<size_t>(scheduler_.options().max_unread_events));
    connect(*state);
    submitted_.push_back(state);
    changed_.notify_all();
    return state;
  }

  const Model& model() const { return model_; }
  const ServerOptions& options() const { return scheduler_.options(); }

  ServerTelemetry telemetry() const {
    const std::lock_guard lock(mutex_);
    ServerTelemetry now = stepped_;  // with what is counted here
    now.submitted = telemetry_.submitted;
    now.finished = telemetry_.finished;
    now.failed = telemetry_.failed;
    now.cancelled = telemetry_.cancelled;
    now.refused = telemetry_.refused;
    now.waiting = num_waiting_;
    now.first_token_seconds = telemetry_.first_token_seconds;
    now.gap_seconds = telemetry_.gap_seconds;
    now.queue_seconds = telemetry_.queue_seconds;
    return now;
  }

  void clear_cache() {
    std::unique_lock lock(mutex_);
    clears_cache_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !clears_cache_ || is_ending_; });
  }

 private:
  void connect(RequestState& state) {
    state.wake = [bell = bell_] { bell->ring(); };
    state.on_first = [this](double seconds) {
      const std::lock_guard lock(mutex_);
      telemetry_.first_token_seconds.add(seconds);
    };
    state.on_gap = [this](double seconds) {
      const std::lock_guard lock(mutex_);
      telemetry_.gap_seconds.add(seconds);
    };
    state.on_finish = [this](const ServeEvent& last) {
      const std::lock_guard lock(mutex_);
      ++(last.error                              ? telemetry_.failed
         : last.reason == StopReason::kCancelled ? telemetry_.cancelled
                                                 : telemetry_.finished);
    };
  }

  static void end_cancelled(RequestState& state) {
    JobEnd cancelled;
    cancelled.result.reason = StopReason::kCancelled;
    state.finish(std::move(cancelled));
  }

  // It waits no longer: it has a place, or has ended.
  void leave_line(RequestState& state) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(state.is_in_line, false)) --num_waiting_;
  }

  void prepare_all() {
    for (;;) {
      std::shared_ptr<RequestState> state;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !submitted_.empty() || is_ending_; });
        if (is_ending_) return;
        state = std::move(submitted_.front());
        submitted_.pop_front();
      }
      prepare(state);
    }
  }

  void prepare(const std::shared_ptr<RequestState>& state) {
    try {
      if (state->cancelled) {
        leave_line(*state);
        return end_cancelled(*state);
      }
      std::unique_ptr<Job> job = preparer_.prepare(*state);
      state->ready = RequestState::Clock::now();
      state->counts.prepare_seconds =
          std::chrono::duration<double>(state->ready - state->submitted).count();
      job->ready = steady_seconds();
      follow(*job, state);
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(job));
      bell_->has_news = true;
    } catch (const Error& error) {
      fail(*state, error);
    } catch (const std::exception& error) {
      fail(*state, Error(ErrorKind::kInternal,
                         std::string("a request could not be prepared: ") + error.what()));
    }
    changed_.notify_all();
  }

  void fail(RequestState& state, const Error& error) {
    leave_line(state);
    JobEnd failed;
    failed.result.reason = StopReason::kFailed;
    failed.error = error;
    state.finish(std::move(failed));
  }

  // The job tells the state what becomes of it.
  void follow(Job& job, const std::shared_ptr<RequestState>& state) {
    job.is_paused = [state = state.get()] { return state->is_reader_behind(); };
    job.on_token = [state = state.get()](const TokenEvent& event) { return state->take(event); };
    job.on_begin = [this, &job, state = state.get()] {
      state->counts.queue_seconds =
          std::chrono::duration<double>(RequestState::Clock::now() - state->ready).count();
      state->counts.cached_tokens = job.cached_tokens;
      leave_line(*state);
      const std::lock_guard lock(mutex_);
      telemetry_.queue_seconds.add(state->counts.queue_seconds);
    };
    job.on_end = [this, &job, state](JobEnd end) {
      state->counts.preemptions = job.preemptions;
      leave_line(*state);
      {  // who reads the last event finds its tokens counted
        const std::lock_guard lock(mutex_);
        stepped_ = scheduler_.telemetry();
      }
      state->finish(std::move(end));
    };
  }

  void step_all() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (is_ending_) return;
        for (auto& job : ready_) scheduler_.add(std::move(job));
        ready_.clear();
        bell_->has_news = false;
        if (std::exchange(clears_cache_, false)) {
          scheduler_.clear_cache();
          changed_.notify_all();
        }
      }
      const bool has_stepped = scheduler_.step();
      std::unique_lock lock(mutex_);
      stepped_ = scheduler_.telemetry();
      if (has_stepped) continue;
      changed_.wait(lock, [this] {
        return is_ending_ || bell_->has_news || clears_cache_ || !ready_.empty();
      });
    }
  }

  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::mutex& mutex_ = bell_->mutex;
  std::condition_variable& changed_ = bell_->changed;
  ServerTelemetry telemetry_, stepped_;
  int64_t num_waiting_ = 0;  // requests without a place
  uint64_t last_id_ = 0;
  bool is_ending_ = false, clears_cache_ = false;
  Model model_;
  Scheduler scheduler_;
  RequestPreparer preparer_;
  std::deque<std::shared_ptr<RequestState>> submitted_;
  std::vector<std::unique_ptr<Job>> ready_;
  std::thread prepares_, steps_;
};

}  // namespace serve

void ServeHistogram::add(double value) {
  const auto range = std::ranges::lower_bound(kLimits, value) - std::begin(kLimits);
  ++counts[range];
  ++count;
  sum += value;
  largest = std::max(largest, value);
}

void prepare_for_serving(ModelOptions& options, int max_running) {
  EngineOptions& engine = options.engine;
  engine.max_sequences = std::max(engine.max_sequences, max_running + 1);
  // Guesses are checked a row each.
  if (engine.max_logit_rows == 0) engine.max_logit_rows = max_running + 64;
}

Server::Server(Model model, const ServerOptions& options)
    : loop_(std::make_unique<serve::ServerLoop>(std::move(model), options)) {}
Server::~Server() = default;

ServedRequest Server::submit(ServeRequest request) {
  return ServedRequest(loop_->submit(std::move(request)));
}
const Model& Server::model() const { return loop_->model(); }
const ServerOptions& Server::options() const { return loop_->options(); }
ServerTelemetry Server::telemetry() const { return loop_->telemetry(); }
void Server::clear_cache() { loop_->clear_cache(); }

}  // namespace vitrine
