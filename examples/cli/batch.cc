// SPDX-License-Identifier: Apache-2.0
// vitrine batch: a file of requests in OpenAI's batch form, answered into another file.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "common.h"
#include "json_lines.h"
#include "vitrine/openai.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

struct BatchArguments {
  std::string model, requests, out, policy = "hrrn", drafter, prefix_store;
  int streams = 16, context = 0;
  bool quiet = false;
  DeviceOptions device;
};

/// A line of the file.
struct BatchLine {
  std::string custom_id, body;  // the body as JSON
  bool wants_logprobs = false;
  vitrine::OpenAiRoute route = vitrine::OpenAiRoute::kChatCompletions;
};

BatchLine read_line(const nlohmann::ordered_json& json, const std::string& path, size_t number) {
  BatchLine line;
  if (!json.contains("custom_id") || !json["custom_id"].is_string()) {
    refuse_line(path, number, "has no 'custom_id'; expected a text that no other line has");
  }
  line.custom_id = json["custom_id"];
  const auto found = json.find("url");
  const std::string url =
      found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  if (url == "/v1/completions") {
    line.route = vitrine::OpenAiRoute::kCompletions;
  } else if (url != "/v1/chat/completions") {
    refuse_line(
        path, number,
        fmt::format("'url' is '{}'; expected /v1/chat/completions or /v1/completions", url));
  }
  if (!json.contains("body") || !json["body"].is_object()) {
    refuse_line(path, number, "has no 'body'; expected the request's");
  }
  const nlohmann::ordered_json& body = json["body"];
  line.body = body.dump();
  const auto logprobs = body.find("logprobs");
  line.wants_logprobs = logprobs != body.end() && !logprobs->is_null() && *logprobs != false;
  return line;
}

std::vector<BatchLine> read_lines(const std::string& path) {
  std::vector<BatchLine> lines;
  std::set<std::string> ids;
  read_json_lines(path, path + ": cannot be read; expected a file with a request a line",
                  [&](const nlohmann::ordered_json& json, size_t number) {
                    lines.push_back(read_line(json, path, number));
                    if (ids.insert(lines.back().custom_id).second) return;
                    refuse_line(
                        path, number,
                        fmt::format("has the 'custom_id' of another line, '{}'; expected each once",
                                    lines.back().custom_id));
                  });
  return lines;
}

/// Returns the ids that an earlier run has answered. A line that it did not finish is cut off.
std::set<std::string> take_answered(const std::string& path) {
  std::set<std::string> answered;
  std::ifstream file(path, std::ios::binary);
  if (!file) return answered;
  uint64_t whole = 0;
  for (std::string text; std::getline(file, text);) {
    if (file.eof()) break;  // without its newline
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("custom_id") || !json["custom_id"].is_string()) {
      throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                           path +
                               ": is there already and has a line that is no answer of a "
                               "batch; expected a new file, or one that an earlier run began");
    }
    answered.insert(json["custom_id"].get<std::string>());
    whole += text.size() + 1;
  }
  file.close();
  if (whole < std::filesystem::file_size(path)) std::filesystem::resize_file(path, whole);
  return answered;
}

class BatchRun {
 public:
  BatchRun(const BatchArguments& arguments, const std::vector<BatchLine>& lines,
           vitrine::Server& server)
      : arguments_(arguments), lines_(lines), server_(server), file_(arguments.out, std::ios::app) {
    if (!file_) {
      throw vitrine::Error(vitrine::ErrorKind::kIo, arguments.out + ": cannot be written");
    }
  }

  /// Answers all of them; false after a signal.
  bool run(const std::set<std::string>& answered) {
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (!answered.contains(lines_[i].custom_id)) left_.push_back(i);
    }
    // Twice as many as run: so somebody always waits.
    const size_t count = std::min(left_.size(), static_cast<size_t>(2 * arguments_.streams));
    std::vector<std::thread> workers;
    for (size_t i = 0; i < count; ++i) {
      workers.emplace_back([this] { work(); });
    }
    for (std::thread& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
    return interrupt_signal() == 0;
  }
  size_t num_answered() const { return answered_; }
  size_t num_failed() const { return failed_; }
  size_t num_left() const { return left_.size(); }

 private:
  void work() {
    try {
      for (size_t next = next_++; next < left_.size(); next = next_++) {
        if (interrupt_signal() != 0 || is_broken_) return;
        answer(lines_[left_[next]]);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      is_broken_ = true;
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void answer(const BatchLine& line) {
    const std::string id = "batch-" + line.custom_id;
    int status = 200;
    std::string body;
    try {
      const vitrine::OpenAiRequest request = vitrine::read_openai_request(line.route, line.body);
      const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
      vitrine::OpenAiResponse response(request, server_.model().tokenizer(),
                                       request.model.empty() ? model_name_ : request.model, id,
                                       now);
      std::vector<vitrine::ServedRequest> served;
      for (const vitrine::ServeRequest& one : request.requests) {
        std::optional<vitrine::ServedRequest> taken = submit(one);
        if (!taken) return;  // a signal
        served.push_back(std::move(*taken));
      }
      for (size_t i = 0; i < served.size(); ++i) {
        while (std::optional<vitrine::ServeEvent> event = next(served[i])) response.add(i, *event);
        if (!served[i].is_finished()) return;  // a signal
      }
      if (response.error() != nullptr) throw vitrine::Error(*response.error());
      body = response.body();
    } catch (const vitrine::Error& error) {
      status = vitrine::openai_status(error);
      body = vitrine::openai_error_body(error);
    }
    write(line, id, status, body);
  }

  /// The next event; nothing behind the last one, and after a signal.
  static std::optional<vitrine::ServeEvent> next(vitrine::ServedRequest& request) {
    while (interrupt_signal() == 0) {
      auto event = request.next_until(Clock::now() + std::chrono::milliseconds(200));
      if (event || request.is_finished()) return event;
    }
    return std::nullopt;
  }

  /// Waits where the line is full; nothing after a signal.
  std::optional<vitrine::ServedRequest> submit(const vitrine::ServeRequest& request) {
    while (interrupt_signal() == 0) {
      try {
        return server_.submit(request);
      } catch (const vitrine::Error& error) {
        if (error.kind() != vitrine::ErrorKind::kOutOfMemory) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    return std::nullopt;
  }

  void write(const BatchLine& line, const std::string& id, int status, const std::string& body) {
    nlohmann::ordered_json json = {{"id", id},
                                   {"custom_id", line.custom_id},
                                   {"response",
                                    {{"status_code", status},
                                     {"request_id", id},
                                     {"body", nlohmann::ordered_json::parse(body)}}},
                                   {"error", nullptr}};
    const std::lock_guard lock(mutex_);
    file_ << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n"
          << std::flush;
    if (!file_) {
      throw vitrine::Error(vitrine::ErrorKind::kIo,
                           arguments_.out +
                               ": cannot be written further (disk full?); what it "
                               "has stays, and the same command goes on there");
    }
    ++answered_;
    failed_ += status == 200 ? 0 : 1;
  }

  const BatchArguments& arguments_;
  const std::string model_name_ = std::filesystem::path(arguments_.model).filename().string();
  const std::vector<BatchLine>& lines_;
  vitrine::Server& server_;
  std::ofstream file_;
  std::vector<size_t> left_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> is_broken_ = false;
  std::mutex mutex_;
  size_t answered_ = 0, failed_ = 0;
  std::exception_ptr failure_;
};

int run_batch(const BatchArguments& arguments) {
  const std::vector<BatchLine> lines = read_lines(arguments.requests);
  const std::set<std::string> answered = take_answered(arguments.out);
  vitrine::ModelOptions options;
  options.engine = arguments.device.engine_options();
  options.engine.max_context = arguments.context;
  options.engine.audit_mode = vitrine::AuditMode::kNone;
  for (const BatchLine& line : lines) {
    options.engine.keep_logits = options.engine.keep_logits || line.wants_logprobs;
  }
  prepare_for_serving(options, arguments.streams);
  vitrine::ServerOptions serving;
  serving.policy = arguments.policy;
  serving.drafter = arguments.drafter;
  serving.prefix_store.folder = arguments.prefix_store;
  serving.max_unread_events = 1 << 20;  // a line's answers are read one after another
  vitrine::Server server(vitrine::Model::open(arguments.model, options), serving);
  catch_interrupts();
  const auto begin = Clock::now();
  BatchRun run(arguments, lines, server);
  const bool is_whole = run.run(answered);
  if (!arguments.quiet) {
    const vitrine::ServerTelemetry told = server.telemetry();
    write_note(fmt::format(
        "{} of {} requests answered ({} with an error){}, {} tokens in {:.1f} s; {:.0f} % of the "
        "prompts' tokens from the cache",
        run.num_answered(), run.num_left(), run.num_failed(),
        answered.empty() ? "" : fmt::format(", {} were before", answered.size()), told.new_tokens,
        seconds_since(begin),
        100.0 * static_cast<double>(told.cached_tokens) /
            static_cast<double>(std::max<uint64_t>(told.prompt_tokens, 1))));
  }
  if (is_whole) return 0;
  write_note("stopped by a signal; the same command goes on where this one ended");
  return 128 + interrupt_signal();
}

}  // namespace

void add_batch(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<BatchArguments>();
  CLI::App* batch = app.add_subcommand(
      "batch", "Answers a file of requests, in OpenAI's batch form, many at once");
  add_model(*batch, arguments->model)->required();
  batch
      ->add_option("requests", arguments->requests,
                   "a JSON object a line: custom_id, url (/v1/chat/completions or "
                   "/v1/completions), body")
      ->required();
  batch
      ->add_option("--out", arguments->out,
                   "answers, a JSON object a line, in the order in which they end; those that "
                   "are there already are not made again")
      ->required()
      ->check(not_empty());
  batch->add_option("--streams", arguments->streams, "requests that are answered at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  batch
      ->add_option("--context", arguments->context,
                   "positions of a prompt and its answer (default: the model's own limit, at most "
                   "4096)")
      ->check(CLI::Range(1, 1 << 24));
  batch->add_option("--policy", arguments->policy, "who goes next of those that wait")
      ->check(CLI::IsMember(vitrine::serve_policy_names()))
      ->capture_default_str();
  batch->add_option("--speculate", arguments->drafter, "who guesses ahead")
      ->check(CLI::IsMember(vitrine::drafter_names()));
  batch
      ->add_option("--prefix-store", arguments->prefix_store,
                   "a folder in which beginnings of prompts are kept for the next run; it holds "
                   "what the prompts say, unencrypted")
      ->check(not_empty());
  batch->add_flag("-q,--quiet", arguments->quiet, "nothing on standard error");
  arguments->device.add_to(*batch);
  batch->callback(
      [arguments, &command] { command = [arguments] { return run_batch(*arguments); }; });
}

}  // namespace cli
