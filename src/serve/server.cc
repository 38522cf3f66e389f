// SPDX-License-Identifier: Apache-2.0
#include "vitrine/serve.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "serve/host_error.h"
#include "serve/request_state.h"
#include "serve/served_model.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace serve {

namespace {

constexpr auto kStoreTick = std::chrono::milliseconds(100);  // somebody waits for the store alone

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
  ServerLoop(std::vector<NamedModel> models, const ServerOptions& options) {
    check_models(models, options);
    for (NamedModel& each : models) {
      models_.push_back(std::make_unique<ServedModel>(std::move(each), options, steady_seconds));
      if (!options.prefix_store.folder.empty()) keep_prefixes(*models_.back(), models.size());
    }
    prepares_ = std::thread([this] { prepare_all(); });
    steps_ = std::thread([this] { step_all(); });
  }

  ~ServerLoop() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    prepares_.join();
    steps_.join();
    for (const auto& state : submitted_) state->finish(JobEnd::cancelled());
    for (auto& [model, job] : ready_) job->on_end(JobEnd::cancelled());
  }
  ServerLoop(const ServerLoop&) = delete;
  ServerLoop& operator=(const ServerLoop&) = delete;

  std::shared_ptr<RequestState> submit(ServeRequest request) {
    check(request);
    const std::lock_guard lock(mutex_);
    // One that nobody has is the first's, until its last event says so.
    ServedModel* const named = find_named(request.model);
    ServedModel& model = named != nullptr ? *named : *models_.front();
    if (num_waiting_ >= options().max_waiting) {
      ++model.requests.refused;
      throw Error(ErrorKind::kOutOfMemory,
                  std::to_string(num_waiting_) +
                      " requests wait already (server option 'max_waiting'); expected this one "
                      "later");
    }
    ++model.requests.submitted;
    ++model.requests.waiting;
    ++num_waiting_;
    auto state = std::make_shared<RequestState>(++last_id_, std::move(request),
                                                static_cast<size_t>(options().max_unread_events));
    state->counted_by = &model;
    connect(*state);
    submitted_.push_back(state);
    changed_.notify_all();
    return state;
  }

  const Model& model(std::string_view name) const { return find(name).model; }
  size_t num_models() const { return models_.size(); }
  std::vector<std::string> model_names() const {
    std::vector<std::string> names;
    for (const auto& each : models_) names.push_back(each->name);
    for (const auto& each : models_) {
      names.insert(names.end(), each->adapters.begin(), each->adapters.end());
    }
    return names;
  }
  const ServerOptions& options() const { return models_.front()->scheduler.options(); }

  std::vector<int32_t> encode(const ServeRequest& request) const {
    check(request);
    return find(request.model).preparer.encode(request);
  }

  ServerTelemetry telemetry() const {
    const std::lock_guard lock(mutex_);
    ServerTelemetry now;
    for (const auto& each : models_) add_counts(now, each->telemetry());
    return now;
  }
  ServerTelemetry telemetry(std::string_view name) const {
    const ServedModel& model = find(name);
    const std::lock_guard lock(mutex_);
    return model.telemetry();
  }

  std::vector<std::string> store_notes() const {
    std::vector<std::string> all;
    for (const auto& each : models_) {
      for (std::string& line : each->scheduler.store_notes()) all.push_back(std::move(line));
    }
    return all;
  }

  void use_model(const std::function<void(Model&)>& work, std::string_view name) {
    ServedModel& used = find(name);
    std::packaged_task<void()> task([&] { work(used.model); });
    std::future<void> done = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(&task);
    }
    changed_.notify_all();
    done.get();
  }

  void store_prefixes() {
    std::unique_lock lock(mutex_);
    stores_prefixes_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !stores_prefixes_ || is_ending_; });
  }

  void clear_cache() {
    std::unique_lock lock(mutex_);
    clears_cache_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !clears_cache_ || is_ending_; });
  }

 private:
  static void check_models(const std::vector<NamedModel>& models, const ServerOptions& options) {
    if (models.empty()) {
      throw Error(ErrorKind::kInvalidArgument, "a server has no model; expected one at least");
    }
    for (size_t i = 1; i < models.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (models[i].name != models[j].name) continue;
        throw Error(
            ErrorKind::kInvalidArgument,
            "two models of a server are called '" + models[i].name + "'; expected a name for each");
      }
    }
    if (models.size() > 1 && options.audit != nullptr) {
      throw Error(ErrorKind::kInvalidArgument,
                  "server option 'audit' is set beside several models, whose records have other "
                  "layouts; expected a sink for each request (ServeRequest::audit)");
    }
  }

  // Each model has a folder of its own, since what one may use the others refuse.
  void keep_prefixes(ServedModel& served, size_t num_models) {
    Engine* const engine = served.model.engine();
    if (engine == nullptr || !engine::has_prefix_images(*engine)) {
      throw Error(ErrorKind::kUnsupported,
                  "server option 'prefix_store' is set, and " + served.model.path() + " runs " +
                      (engine == nullptr ? "as several engines"
                                         : "where keys and values cannot be read out") +
                      "; expected one model on the CPU's fused kernels");
    }
    if (!served.scheduler.options().cache_prefixes) return;
    PrefixStoreOptions options = served.scheduler.options().prefix_store;
    if (!served.name.empty()) options.folder += "/" + sha256_of_text(served.name).substr(0, 16);
    options.max_bytes /= num_models;
    served.scheduler.keep_in(
        *engine, std::make_unique<PrefixStore>(std::move(options),
                                               StoreFit(*engine, served.scheduler.keeps_words()),
                                               [bell = bell_] { bell->ring(); }));
  }

  // Null where there is none.
  ServedModel* find_named(std::string_view name) const {
    if (name.empty()) return models_.front().get();
    const auto found =
        std::ranges::find_if(models_, [name](const auto& each) { return each->answers(name); });
    return found == models_.end() ? nullptr : found->get();
  }

  ServedModel& find(std::string_view name) const {
    if (ServedModel* const found = find_named(name)) return *found;
    std::string known;
    for (const auto& each : models_) {
      for (const std::string& own : each->adapters) known += (known.empty() ? "" : ", ") + own;
      if (!each->name.empty()) known += (known.empty() ? "" : ", ") + each->name;
    }
    throw Error(ErrorKind::kInvalidArgument,
                "request field 'model' is '" + std::string(name) + "'; expected " +
                    (known.empty() ? "none, since the server's model has no name" : known));
  }

  void connect(RequestState& state) {
    state.wake = [bell = bell_] { bell->ring(); };
    ServerTelemetry& counts = state.counted_by->requests;
    state.on_first = [this, &counts](double seconds) {
      const std::lock_guard lock(mutex_);
      counts.first_token_seconds.add(seconds);
    };
    state.on_gap = [this, &counts](double seconds) {
      const std::lock_guard lock(mutex_);
      counts.gap_seconds.add(seconds);
    };
    state.on_finish = [this, &counts](const ServeEvent& last) {
      const std::lock_guard lock(mutex_);
      ++(last.error                              ? counts.failed
         : last.reason == StopReason::kCancelled ? counts.cancelled
                                                 : counts.finished);
    };
  }

  // It waits no longer: it has a place, or has ended.
  void leave_line(RequestState& state) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(state.is_in_line, false)) return;
    --num_waiting_;
    --state.counted_by->requests.waiting;
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
        return state->finish(JobEnd::cancelled());
      }
      ServedModel& model = find(state->request.model);
      std::unique_ptr<Job> job = model.preparer.prepare(*state);
      state->ready = RequestState::Clock::now();
      state->counts.prepare_seconds =
          std::chrono::duration<double>(state->ready - state->submitted).count();
      job->ready = steady_seconds();
      follow(*job, state);
      const std::lock_guard lock(mutex_);
      ready_.emplace_back(&model, std::move(job));
      bell_->has_news = true;
    } catch (...) {
      leave_line(*state);
      state->finish(JobEnd::failed(host_error()));
    }
    changed_.notify_all();
  }

  // The job tells the state what becomes of it.
  void follow(Job& job, const std::shared_ptr<RequestState>& state) {
    job.is_paused = [state = state.get()] { return state->is_reader_behind(); };
    job.on_token = [state = state.get()](const TokenEvent& event) { return state->take(event); };
    job.on_begin = [this, state = state.get()](int64_t cached) {
      state->counts.queue_seconds =
          std::chrono::duration<double>(RequestState::Clock::now() - state->ready).count();
      state->counts.cached_tokens = cached;
      leave_line(*state);
      const std::lock_guard lock(mutex_);
      state->counted_by->requests.queue_seconds.add(state->counts.queue_seconds);
    };
    job.on_end = [this, state](JobEnd end) {
      state->counts.preemptions = end.preemptions;
      state->prefix_break = std::move(end.prefix_break);
      leave_line(*state);
      {  // who reads the last event finds its tokens counted
        const std::lock_guard lock(mutex_);
        count_steps();
      }
      state->finish(std::move(end));
    };
  }

  // What goes wrong between steps (no memory) ends the answers, not the process.
  static bool step(Scheduler& scheduler) {
    try {
      return scheduler.step();
    } catch (...) {
      scheduler.fail_all(host_error());
      return true;
    }
  }

  void count_steps() {
    if (is_ending_) return;  // some schedulers may be gone
    for (const auto& each : models_) {
      each->steps = each->scheduler.telemetry();
      each->steps.waiting = 0;  // the server counts those
    }
  }

  void step_all() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (is_ending_) break;
        for (auto& [model, job] : ready_) model->scheduler.add(std::move(job));
        ready_.clear();
        bell_->has_news = false;
        if (std::exchange(clears_cache_, false)) {
          for (auto& each : models_) each->scheduler.clear_cache();
          count_steps();
          changed_.notify_all();
        }
      }
      do_work();
      if (stores_prefixes_) store_all();
      bool has_stepped = false;
      for (auto& each : models_) has_stepped = step(each->scheduler) || has_stepped;
      std::unique_lock lock(mutex_);
      count_steps();
      if (has_stepped) continue;
      const auto has_news = [this] {
        return is_ending_ || bell_->has_news || clears_cache_ || stores_prefixes_ ||
               !work_.empty() || !ready_.empty();
      };
      const bool awaits_store = std::ranges::any_of(
          models_, [](const auto& each) { return each->scheduler.awaits_store(); });
      if (awaits_store) {
        changed_.wait_for(lock, kStoreTick, has_news);
      } else {
        changed_.wait(lock, has_news);
      }
    }
    store_all();
  }

  // What hosts do with a model between steps.
  void do_work() {
    std::deque<std::packaged_task<void()>*> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(work_);
    }
    for (std::packaged_task<void()>* task : work) (*task)();
  }

  void store_all() {
    for (auto& each : models_) each->scheduler.store_prefixes();
    const std::lock_guard lock(mutex_);
    stores_prefixes_ = false;
    if (!is_ending_) count_steps();
    changed_.notify_all();
  }

  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::mutex& mutex_ = bell_->mutex;
  std::condition_variable& changed_ = bell_->changed;
  int64_t num_waiting_ = 0;  // requests without a place
  uint64_t last_id_ = 0;
  bool is_ending_ = false, clears_cache_ = false;
  std::atomic<bool> stores_prefixes_ = false;  // written under the lock
  std::vector<std::unique_ptr<ServedModel>> models_;
  std::deque<std::shared_ptr<RequestState>> submitted_;
  std::deque<std::packaged_task<void()>*> work_;  // of use_model(), which waits for it
  std::vector<std::pair<ServedModel*, std::unique_ptr<Job>>> ready_;
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

ServeHistogram& ServeHistogram::operator+=(const ServeHistogram& other) {
  for (size_t i = 0; i < std::size(counts); ++i) counts[i] += other.counts[i];
  count += other.count;
  sum += other.sum;
  largest = std::max(largest, other.largest);
  return *this;
}

void prepare_for_serving(ModelOptions& options, int max_running) {
  EngineOptions& engine = options.engine;
  engine.max_sequences = std::max(engine.max_sequences, max_running + 1);
  // Guesses are checked a row each.
  if (engine.max_logit_rows == 0) engine.max_logit_rows = max_running + 64;
}

namespace {

std::vector<NamedModel> only(Model model) {
  std::vector<NamedModel> models;
  models.push_back({"", std::move(model)});
  return models;
}

}  // namespace

Server::Server(Model model, const ServerOptions& options)
    : Server(only(std::move(model)), options) {}
Server::Server(std::vector<NamedModel> models, const ServerOptions& options)
    : loop_(std::make_unique<serve::ServerLoop>(std::move(models), options)) {}
Server::~Server() = default;

ServedRequest Server::submit(ServeRequest request) {
  return ServedRequest(loop_->submit(std::move(request)));
}
size_t Server::num_models() const { return loop_->num_models(); }
const Model& Server::model(std::string_view name) const { return loop_->model(name); }
std::vector<std::string> Server::model_names() const { return loop_->model_names(); }
const ServerOptions& Server::options() const { return loop_->options(); }
std::vector<int32_t> Server::encode(const ServeRequest& request) const {
  return loop_->encode(request);
}
ServerTelemetry Server::telemetry() const { return loop_->telemetry(); }
ServerTelemetry Server::telemetry(std::string_view model) const { return loop_->telemetry(model); }
void Server::clear_cache() { loop_->clear_cache(); }
void Server::use_model(const std::function<void(Model&)>& work, std::string_view name) {
  loop_->use_model(work, name);
}
void Server::store_prefixes() { loop_->store_prefixes(); }
std::vector<std::string> Server::store_notes() const { return loop_->store_notes(); }

}  // namespace vitrine
