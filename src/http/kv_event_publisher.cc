// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "http/kv_event_outlet.h"
#include "http/kv_event_payload.h"

namespace vitrine {

namespace {

constexpr size_t kMostQueuedIds = size_t{4} << 20;
constexpr long kReplayMilliseconds = 20;  // until a client that takes nothing is tried again

KvEventOptions checked_events(KvEventOptions options, size_t num_models) {
  const auto check = [](const char* name, int value) {
    if (value > 0) return;
    throw Error(ErrorKind::kInvalidArgument, "kv event option '" + std::string(name) + "' is " +
                                                 std::to_string(value) + "; expected 1 or more");
  };
  check("buffer_steps", options.buffer_steps);
  check("hwm", options.hwm);
  check("max_queue_size", options.max_queue_size);
  if (num_models == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "events about blocks are published of no model; expected the server's");
  }
  return options;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A file descriptor by which another thread is woken.
class WakeUp {
 public:
  WakeUp() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_ < 0) {
      throw Error(ErrorKind::kUnavailable,
                  "no file descriptor is left for events about blocks; expected a higher limit");
    }
  }
  ~WakeUp() { ::close(descriptor_); }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  void ring() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof one);
  }
  void silence() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t read = ::read(descriptor_, &count, sizeof count);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

/// The queue that steps fill, and the thread that empties it into the sockets.
struct KvEventPublisher::State {
  /// What was told between two steps.
  struct Batch {
    size_t model = 0;
    uint64_t sequence = 0;
    double seconds = 0;
    std::vector<KvBlockEvent> events;
    size_t ids() const {
      size_t all = 0;
      for (const KvBlockEvent& event : events) all += event.tokens.size() + event.blocks.size();
      return all;
    }
  };
  /// What is known of a model's messages; under the lock.
  struct Numbers {
    uint64_t next = 0;      ///< the next one's
    bool has_lost = false;  ///< since what was sent last
    bool has_any = false;   ///< of blocks
  };

  State(KvEventOptions given, std::vector<std::string> names)
      : options(checked_events(std::move(given), names.size())),
        models(std::move(names)),
        numbers(models.size()) {
    if (context == nullptr) {
      throw Error(ErrorKind::kUnavailable, "ZeroMQ cannot be started; expected more memory");
    }
    for (size_t i = 0; i < models.size(); ++i) {
      outlets.push_back(
          std::make_unique<http::KvEventOutlet>(context.get(), options, i, models[i]));
      endpoints.push_back(outlets.back()->endpoint());
      if (!options.replay_endpoint.empty()) {
        replay_endpoints.push_back(outlets.back()->replay_endpoint());
      }
    }
    thread = std::thread([this] { run(); });
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      is_ending = true;
    }
    wake_up.ring();
    thread.join();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  size_t index_of(const std::string& model) const {
    const auto found = std::ranges::find(models, model);
    return found == models.end() ? 0 : static_cast<size_t>(found - models.begin());
  }

  // False where it is lost: its number stays free, so that subscribers see the gap.
  bool add(const std::string& model, std::vector<KvBlockEvent> events) {
    Batch batch{index_of(model), 0, seconds_since_1970(), std::move(events)};
    const size_t ids = batch.ids();
    const std::lock_guard lock(mutex);
    wake_up.ring();
    Numbers& own = numbers[batch.model];
    batch.sequence = own.next++;
    own.has_any = true;
    own.has_lost = true;  // unless it is queued
    const bool is_full = queue.size() >= static_cast<size_t>(options.max_queue_size) ||
                         (queued_ids + ids > kMostQueuedIds && !queue.empty());
    if (is_full) return false;
    queue.push_back(std::move(batch));
    queued_ids += ids;
    own.has_lost = false;
    return true;
  }

  std::optional<Batch> take() {
    const std::lock_guard lock(mutex);
    if (queue.empty()) return std::nullopt;
    Batch batch = std::move(queue.front());
    queue.pop_front();
    queued_ids -= batch.ids();
    return batch;
  }

  // Where something was lost, or at the end, nothing is known to be there any more.
  std::vector<Batch> clearings(bool at_end) {
    std::vector<Batch> all;
    const std::lock_guard lock(mutex);
    if (!queue.empty()) return all;  // which has lower numbers
    for (size_t i = 0; i < numbers.size(); ++i) {
      Numbers& own = numbers[i];
      if (!own.has_lost && !(at_end && own.has_any)) continue;
      own.has_lost = own.has_any = false;
      Batch& batch = all.emplace_back();
      batch.model = i;
      batch.sequence = own.next++;
      batch.seconds = seconds_since_1970();
      batch.events.push_back({.kind = KvBlockEvent::Kind::kCleared});
    }
    return all;
  }

  void publish(const Batch& batch) {
    outlets[batch.model]->publish(
        batch.sequence, http::kv_event_payload(batch.seconds, batch.events, options.as_arrays));
  }

  void replay() {
    for (size_t i = 0; i < outlets.size(); ++i) {
      uint64_t next = 0;
      {
        const std::lock_guard lock(mutex);
        next = numbers[i].next;
      }
      outlets[i]->replay(next);
    }
  }

  void wait(bool is_over) {
    std::vector<zmq_pollitem_t> items = {{nullptr, wake_up.descriptor(), ZMQ_POLLIN, 0}};
    bool is_replaying = false;
    for (const auto& outlet : outlets) {
      if (outlet->replay_socket() != nullptr) {
        items.push_back({outlet->replay_socket(), 0, ZMQ_POLLIN, 0});
      }
      is_replaying = is_replaying || outlet->is_replaying();
    }
    const long milliseconds = is_over ? 0 : is_replaying ? kReplayMilliseconds : -1;
    zmq_poll(items.data(), static_cast<int>(items.size()), milliseconds);
    wake_up.silence();
  }

  bool ends() {
    const std::lock_guard lock(mutex);
    return is_ending;
  }

  // Returns whether it goes on.
  bool turn() {
    wait(ends());
    const bool is_last = ends();
    while (std::optional<Batch> batch = take()) publish(*batch);
    for (const Batch& batch : clearings(is_last)) publish(batch);
    if (!is_last) replay();
    return !is_last;
  }

  // A signal is for the host's other threads.
  void run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (bool goes_on = true; goes_on;) {
      try {
        goes_on = turn();
      } catch (const std::exception& error) {  // no memory: the gap is seen
        log_message(LogLevel::kWarning,
                    std::string("events about blocks were not sent: ") + error.what());
      }
    }
  }

  const KvEventOptions options;
  const std::vector<std::string> models;
  std::unique_ptr<void, int (*)(void*)> context{zmq_ctx_new(), zmq_ctx_term};
  std::vector<std::unique_ptr<http::KvEventOutlet>> outlets;  // the thread's, once it runs
  std::vector<std::string> endpoints, replay_endpoints;
  const WakeUp wake_up;
  std::mutex mutex;
  std::vector<Numbers> numbers;  // by model
  std::deque<Batch> queue;
  size_t queued_ids = 0;
  bool is_ending = false;
  std::thread thread;
};

KvEventPublisher::KvEventPublisher(KvEventOptions options, std::vector<std::string> models)
    : state_(std::make_unique<State>(std::move(options), std::move(models))) {}
KvEventPublisher::~KvEventPublisher() = default;

bool KvEventPublisher::on_blocks(const std::string& model,
                                 std::vector<KvBlockEvent> events) noexcept {
  try {
    return state_->add(model, std::move(events));
  } catch (...) {  // no memory
    return false;
  }
}

const std::vector<std::string>& KvEventPublisher::endpoints() const { return state_->endpoints; }
const std::vector<std::string>& KvEventPublisher::replay_endpoints() const {
  return state_->replay_endpoints;
}

}  // namespace vitrine
