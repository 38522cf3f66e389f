// SPDX-License-Identifier: Apache-2.0
// vitrine serve: a model behind OpenAI's interface.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "common.h"
#include "lora_options.h"
#include "option_section.h"
#include "vitrine/http.h"
#include "vitrine/serve.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

struct ServeArguments {
  std::string model, policy = "hrrn", drafter, key_file, alias;
  std::vector<std::string> api_keys;
  int streams = 16, context = 0;
  double step_ms = 0, drain_seconds = 10;
  bool no_cache = false, no_logprobs = false, quiet = false;
  vitrine::HttpOptions http;
  DeviceOptions device;
};

/// Raises a flag when a signal comes while the model is loaded; afterwards signals end the server,
/// and steps go on until it has ended.
class LoadingWatch {
 public:
  LoadingWatch() : thread_([this](const std::stop_token& stop) { watch(stop); }) {}
  const std::atomic<bool>& flag() const { return flag_; }

 private:
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (interrupt_signal() != 0) flag_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::atomic<bool>& flag_ = loading_flag();
  static std::atomic<bool>& loading_flag() {
    static std::atomic<bool> flag{false};
    return flag;
  }
  std::jthread thread_;
};

vitrine::ModelOptions model_options(const ServeArguments& arguments,
                                    const std::atomic<bool>& cancelled) {
  vitrine::ModelOptions options;
  options.engine = arguments.device.engine_options();
  options.engine.cancelled = &cancelled;
  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  options.engine.max_context =
      context_limit(arguments.context, read_model_facts(checkpoint), arguments.model, 8192);
  options.engine.audit_mode = vitrine::AuditMode::kNone;
  options.engine.keep_logits = !arguments.no_logprobs;
  prepare_for_serving(options, arguments.streams);
  return options;
}

vitrine::ServerOptions server_options(const ServeArguments& arguments) {
  vitrine::ServerOptions options;
  options.policy = arguments.policy;
  options.drafter = arguments.drafter;
  options.max_running = arguments.streams;
  options.step_seconds = arguments.step_ms / 1e3;
  options.cache_prefixes = !arguments.no_cache;
  options.max_unread_events = 512;  // what a client that does not read may hold here
  return options;
}

vitrine::HttpOptions http_options(const ServeArguments& arguments) {
  vitrine::HttpOptions options = arguments.http;
  if (!arguments.key_file.empty()) {
    options.keys = vitrine::read_api_keys(arguments.key_file);
  }
  for (const std::string& key : arguments.api_keys) options.keys.push_back({.key = key});
  options.model_name = arguments.alias;
  if (options.model_name.empty()) {
    const std::filesystem::path path = std::filesystem::path(arguments.model).lexically_normal();
    options.model_name = (path.has_filename() ? path : path.parent_path()).filename().string();
  }
  return options;
}

int run_serve(const ServeArguments& arguments) {
  catch_interrupts();
  vitrine::HttpServer http(http_options(arguments));
  http.start();
  const std::string host = arguments.http.host.find(':') == std::string::npos
                               ? arguments.http.host
                               : "[" + arguments.http.host + "]";
  const std::string url = fmt::format(
      "{}://{}:{}", arguments.http.tls_cert.empty() ? "http" : "https", host, http.port());
  if (!arguments.quiet) write_note(fmt::format("{}: loading {}", url, arguments.model));
  std::optional<LoadingWatch> loading(std::in_place);
  vitrine::Server server(
      vitrine::Model::open(arguments.model, model_options(arguments, loading->flag())),
      server_options(arguments));
  loading.reset();
  http.serve(server);
  if (!arguments.quiet) write_note(url + "/v1 answers; Ctrl-C ends it");
  while (interrupt_signal() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  http.stop(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(arguments.drain_seconds)));
  if (!arguments.quiet) {
    const vitrine::ServerTelemetry told = server.telemetry();
    write_note(
        fmt::format("ended by a signal: {} requests finished, {} failed, {} cancelled; {} "
                    "tokens",
                    told.finished, told.failed, told.cancelled, told.new_tokens));
  }
  return 0;
}

void add_limits(CLI::App& serve, vitrine::HttpLimits& limits) {
  const OptionSection section(serve, "Limits of one client");
  serve.add_option("--max-body", limits.body_bytes, "bytes of a request's body")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("32MB");
  serve.add_option("--max-answers", limits.answers, "answers to one body: prompts times n")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  serve
      .add_option("--max-answer-tokens", limits.max_tokens,
                  "tokens of one answer; more is cut down to it (0: what the context holds)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  serve.add_option("--max-connections", limits.connections, "connections that are open at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  serve
      .add_option("--request-seconds", limits.request_seconds,
                  "an answer that is not whole by then is cancelled (0: none is)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  serve
      .add_option("--stall-seconds", limits.stall_seconds,
                  "a client that reads nothing for so long is cut off")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
}

void add_network(CLI::App& serve, ServeArguments& arguments) {
  const OptionSection section(serve, "Network");
  vitrine::HttpOptions& http = arguments.http;
  serve.add_option("--host", http.host, "address to listen on")->capture_default_str();
  serve.add_option("--port", http.port, "port; 0: one that is free")->capture_default_str();
  serve.add_option("--api-key-file", arguments.key_file,
                   "file of keys, a line each: KEY, TENANT KEY, or auditor KEY");
  serve.add_option("--api-key", arguments.api_keys,
                   "a key; others on this machine can see it (may be given again)");
  serve.add_option("--allowed-host", http.hosts,
                   "a name that clients may call this machine by (without keys others are refused; "
                   "may be given again)");
  serve.add_option("--cors-origin", http.cors_origins,
                   "an origin whose pages may ask; *: any (may be given again)");
  serve.add_option("--tls-cert", http.tls_cert, "certificate chain, PEM");
  serve.add_option("--tls-key", http.tls_key, "its key, PEM");
  serve.add_flag("--metrics", http.has_metrics, "answer GET /metrics (Prometheus)");
  serve.add_flag("--slots", http.has_slots, "answer GET /slots");
}

}  // namespace

void add_serve(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* serve =
      app.add_subcommand("serve", "Answers HTTP requests as OpenAI's interface has them");
  add_model(*serve, arguments->model)->required();
  serve->add_option("--streams", arguments->streams, "requests that are answered at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  serve
      ->add_option("-c,--context", arguments->context,
                   "positions of a prompt and its answer (default: the model's own limit, at most "
                   "8192)")
      ->check(CLI::Range(1, 1 << 24));
  serve->add_option("--alias", arguments->alias,
                    "what the model is called (default: its file's or folder's name)");
  serve->add_flag("--strict-model", arguments->http.strict_model,
                  "refuse requests for a model of another name");
  serve->add_option("--policy", arguments->policy, "who goes next of those that wait")
      ->check(CLI::IsMember(vitrine::serve_policy_names()))
      ->capture_default_str();
  serve
      ->add_option("--step-ms", arguments->step_ms,
                   "gap between two tokens that prompts of others may cause (default: twice a "
                   "step without prompts, or 20 ms)")
      ->check(CLI::Range(0.0, 1e6));
  serve->add_option("--speculate", arguments->drafter, "who guesses ahead")
      ->check(CLI::IsMember(vitrine::drafter_names()));
  serve->add_flag("--no-cache", arguments->no_cache, "keep no prefixes");
  serve->add_flag("--no-logprobs", arguments->no_logprobs,
                  "refuse requests for log-probabilities; steps copy no logits then");
  serve
      ->add_option("--drain-seconds", arguments->drain_seconds,
                   "how long answers under way may go on after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  serve->add_flag("-q,--quiet", arguments->quiet, "nothing on standard error");
  add_network(*serve, *arguments);
  add_limits(*serve, arguments->http.limits);
  arguments->device.add_to(*serve);
  serve->callback(
      [arguments, &command] { command = [arguments] { return run_serve(*arguments); }; });
}

}  // namespace cli
