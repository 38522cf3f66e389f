// SPDX-License-Identifier: Apache-2.0
// vitrine bench serve: a server in this process under a load.
#include <fmt/format.h>

#include <algorithm>

#include "bench.h"
#include "serve_load.h"
#include "serve_workloads.h"
#include "statistics.h"

namespace cli {

std::span<const ServeWorkload> serve_workloads() {
  static const ServeWorkload all[] = {
      {"accounts", "a sealed log for each request against none", run_accounts},
      {"restart", "a server's first prompt, with and without an earlier one's prefix store",
       run_restart},
      {"s1", "streams side by side against the engine's own batch", run_streams},
      {"s2", "every request a miss: what scheduler and prefix tree take", run_misses},
      {"s3", "a burst with a common beginning: first tokens", run_common_beginning},
      {"s4", "conversations in rounds: hits, with all the memory and with 40 %", run_rounds},
      {"s5", "streams beside long prompts: gaps between tokens", run_long_prompts},
      {"s6", "memory for two of eight streams", run_small_pool},
      {"s9", "answers cold, warm, together, preempted and guessed: bits that differ",
       run_same_bits},
      {"soak", "requests with cancellations: memory and answers", run_soak}};
  return all;
}

vitrine::Model open_for_serving(const BenchServeArguments& arguments, int running, int positions,
                                uint64_t kv_bytes) {
  vitrine::ModelOptions options;
  options.engine = arguments.device.engine_options();
  options.engine.max_context = positions;
  if (kv_bytes > 0) options.engine.kv_bytes = kv_bytes;
  options.engine.audit_mode = vitrine::AuditMode::kNone;
  prepare_for_serving(options, running);
  return vitrine::Model::open(arguments.model, options);
}

vitrine::ServerOptions server_options(const BenchServeArguments& arguments) {
  vitrine::ServerOptions options;
  options.policy = arguments.policy;
  options.step_seconds = arguments.step_seconds;
  options.cache_prefixes = !arguments.no_cache;
  options.drafter = arguments.drafter;
  options.max_unread_events = options.max_waiting = 1 << 20;
  return options;
}

ServeFigure middle_of(std::string name, std::vector<double> values) {
  const auto [least, most] = std::ranges::minmax(values);
  return {std::move(name), median(values), fmt::format("{:.4g} to {:.4g}", least, most)};
}

namespace {

const ServeWorkload* find_workload(const std::string& name) {
  const auto all = serve_workloads();
  const auto found = std::ranges::find(
      all, name, [](const ServeWorkload& each) { return std::string_view(each.name); });
  return found == all.end() ? nullptr : &*found;
}

int run_bench_serve(const BenchServeArguments& arguments) {
  catch_interrupts();
  if (arguments.model.empty() == arguments.url.empty()) {
    refuse("bench serve takes a model or --url; expected exactly one of them");
  }
  const ServeWorkload* workload = find_workload(arguments.workload);
  const std::vector<ServeFigure> figures = !arguments.url.empty() ? run_remote(arguments)
                                           : workload != nullptr  ? workload->run(arguments)
                                                                  : run_trace(arguments);
  if (arguments.json) {
    nlohmann::ordered_json json = {
        {"model", arguments.model.empty() ? arguments.url : arguments.model},
        {"workload", arguments.workload}};
    for (const ServeFigure& figure : figures) {
      json["figures"].push_back(
          {{"name", figure.name}, {"value", figure.value}, {"range", figure.range}});
    }
    write_json(json);
    return 0;
  }
  std::string text =
      fmt::format("{}: {}\n\n", arguments.model.empty() ? arguments.url : arguments.model,
                  workload != nullptr ? workload->about : arguments.workload);
  for (const ServeFigure& figure : figures) {
    text += fmt::format("{:<58}{:>12.4g}{}{}\n", figure.name, figure.value,
                        figure.range.empty() ? "" : "  ", figure.range);
  }
  write_out(text);
  return 0;
}

}  // namespace

void add_bench_serve(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchServeArguments>();
  std::string names;
  for (const ServeWorkload& each : serve_workloads()) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", each.name, each.about);
  }
  CLI::App* serve =
      bench.add_subcommand("serve", "A server in this process, or at an address, under a load");
  add_model(*serve, arguments->model)->required(false);
  serve->add_option(
      "--url", arguments->url,
      "a server at an address, http://HOST:PORT, in place of MODEL: workloads s1, s3, "
      "s4, s7 (so many slow readers beside 8 fast ones), s10 (so many clients that go) "
      "and traces");
  serve->add_option("--against", arguments->against,
                    "another server, which has the same load by turns");
  serve->add_option("--api-key", arguments->api_key, "key that is sent to both");
  serve
      ->add_option("--workload", arguments->workload,
                   names + "; or a file with a JSON object a request")
      ->capture_default_str();
  serve->add_option("--repeat", arguments->repeat, "how often each side is measured")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  serve->add_option("--streams", arguments->streams, "requests side by side")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  serve
      ->add_option("--seconds", arguments->seconds,
                   "how long s5 runs, and how long s7 waits for its slow readers' first tokens")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  serve->add_option("--policy", arguments->policy, "who goes next of those that wait")
      ->check(CLI::IsMember(vitrine::serve_policy_names()))
      ->capture_default_str();
  double* const step = &arguments->step_seconds;
  serve
      ->add_option_function<double>(
          "--step-ms", [step](double milliseconds) { *step = milliseconds / 1000; },
          "the gap between two tokens that prompts of others may cause (default: twice a step "
          "without them)")
      ->check(CLI::Range(0.1, 60000.0));
  serve->add_option("--speculate", arguments->drafter, "who guesses ahead")
      ->check(CLI::IsMember(vitrine::drafter_names()));
  serve->add_flag("--no-cache", arguments->no_cache, "prefixes are not kept");
  serve->add_flag("--json", arguments->json, "one JSON object instead of text");
  arguments->device.add_to(*serve);
  serve->callback(
      [arguments, &command] { command = [arguments] { return run_bench_serve(*arguments); }; });
}

}  // namespace cli
