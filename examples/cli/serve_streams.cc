// SPDX-License-Identifier: Apache-2.0
// Workloads of `bench serve` about streams side by side: speed, gaps, what scheduling takes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "serve_load.h"
#include "serve_workloads.h"
#include "statistics.h"
#include "vitrine/audit_log.h"
#include "vitrine/quality.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPrompt = 128, kTokens = 64;

std::vector<LoadedRequest> streams(int64_t vocab_size, int count, int round, int prompt = kPrompt,
                                   int tokens = kTokens) {
  std::vector<LoadedRequest> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back(
        {token_request(vocab_size, 0, 0, int64_t{round} * 1000 + i, prompt, tokens)});
  }
  return requests;
}

/// Seconds for the same requests without a server: each prompt by itself, then all of them a token
/// a step, as `bench generate --batch` has it.
double run_in_lockstep(vitrine::Model& model, const std::vector<LoadedRequest>& requests) {
  const int64_t most = model.options().max_step_tokens;
  std::vector<vitrine::StepInput> inputs(requests.size());
  std::vector<int32_t> chosen(requests.size());
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    inputs[i].sequence = model.create_sequence();
    std::span<const int32_t> rest = requests[i].request.tokens;
    while (!rest.empty()) {
      inputs[i].tokens = rest.first(std::min<size_t>(rest.size(), static_cast<size_t>(most)));
      rest = rest.subspan(inputs[i].tokens.size());
      inputs[i].rows =
          rest.empty() ? vitrine::StepInput::Rows::kLast : vitrine::StepInput::Rows::kNone;
      const auto outputs = model.step({&inputs[i], 1});
      if (rest.empty()) chosen[i] = outputs[0].token;
    }
    inputs[i].tokens = {&chosen[i], 1};
  }
  for (int token = 1; token < requests[0].request.max_new_tokens; ++token) {
    const auto outputs = model.step(inputs);
    for (size_t i = 0; i < inputs.size(); ++i) chosen[i] = outputs[i].token;
  }
  const double seconds = seconds_since(begin);
  for (const vitrine::StepInput& input : inputs) model.release(input.sequence);
  return seconds;
}

double run_served(vitrine::Server& server, const std::vector<LoadedRequest>& requests) {
  const Clock::time_point begin = Clock::now();
  require_answers(run_load(server, requests));
  return seconds_since(begin);
}

double percentile(std::vector<double> values, double part) {
  return values.empty() ? 0 : vitrine::quantile(values, part);
}

}  // namespace

std::vector<ServeFigure> run_streams(const BenchServeArguments& arguments) {
  const int count = arguments.streams;
  vitrine::Model bare = open_for_serving(arguments, count, kPrompt + kTokens);
  vitrine::Server server(open_for_serving(arguments, count, kPrompt + kTokens),
                         server_options(arguments));
  const int64_t vocab = bare.summary().vocab_size;
  std::vector<double> ratios, speeds, engine;
  for (int round = 0; round <= arguments.repeat; ++round) {
    stop_if_interrupted("bench serve: cancelled before the end");
    const auto requests = streams(vocab, count, round);
    double alone = 0, served = 0;
    if (round % 2 == 0) alone = run_in_lockstep(bare, requests);
    served = run_served(server, requests);
    if (round % 2 == 1) alone = run_in_lockstep(bare, requests);
    if (round == 0) continue;  // all memory is touched
    ratios.push_back(alone / served);
    speeds.push_back(count * kTokens / served);
    engine.push_back(count * kTokens / alone);
  }
  const Interval interval = bootstrap_median_interval(ratios);
  const vitrine::ServerTelemetry told = server.telemetry();
  return {middle_of(fmt::format("{} streams: tokens/s, prompts among the time", count), speeds),
          middle_of("the engine's own batch, tokens/s", engine),
          {"served over the engine's own, median of pairs", median(ratios),
           fmt::format("95 %: {:.4f} to {:.4f}, goal 0.98", interval.low, interval.high)},
          {"scheduler's and tree's processor time of the steps', %",
           100 * told.scheduler_seconds / told.engine_seconds, ""}};
}

std::vector<ServeFigure> run_misses(const BenchServeArguments& arguments) {
  const int count = arguments.streams;
  // Memory for those that run and about as much for what is kept, so that prefixes are evicted.
  vitrine::Server server(open_for_serving(arguments, 2 * count, kPrompt + kTokens),
                         server_options(arguments));
  const int64_t vocab = server.model().summary().vocab_size;
  std::vector<double> parts;
  vitrine::ServerTelemetry before = server.telemetry();
  for (int round = 0; round <= arguments.repeat; ++round) {
    run_served(server, streams(vocab, 4 * count, round));
    const vitrine::ServerTelemetry after = server.telemetry();
    if (round > 0) {
      parts.push_back(100 * (after.scheduler_seconds - before.scheduler_seconds) /
                      (after.engine_seconds - before.engine_seconds));
    }
    before = after;
  }
  ServeFigure part = middle_of("scheduler's and tree's processor time of the steps', %", parts);
  part.range += ", goal 0.3";
  return {part,
          {"tokens found in the cache", static_cast<double>(before.cached_tokens), ""},
          {"prefixes kept", static_cast<double>(before.kept_prefixes), ""},
          {"prefixes evicted", static_cast<double>(before.evicted_prefixes), ""}};
}

std::vector<ServeFigure> run_long_prompts(const BenchServeArguments& arguments) {
  constexpr int kStreams = 8, kLong = 2000;
  const int tokens = static_cast<int>(arguments.seconds * 400);  // more than come in the time
  const int positions = 6000;
  const auto measure = [&](bool has_prompts, double& first_token) {
    vitrine::Server server(open_for_serving(arguments, kStreams + 2, positions),
                           server_options(arguments));
    const int64_t vocab = server.model().summary().vocab_size;
    if (!has_prompts) {  // the prompt alone
      first_token =
          run_load(server, {{token_request(vocab, 0, 0, 9000, kLong, 4)}})[0].first_token();
    }
    std::vector<vitrine::ServedRequest> running;
    for (int i = 0; i < kStreams; ++i) {
      running.push_back(server.submit(
          token_request(vocab, 0, 0, i, kPrompt, std::min(tokens, positions - kPrompt - 1))));
    }
    std::vector<LoadedRequest> prompts;
    for (int i = 0; has_prompts && 2 + 10 * i < arguments.seconds; ++i) {
      prompts.push_back({token_request(vocab, 0, 0, 9000 + i, kLong, 4), 2.0 + 10.0 * i});
    }
    const Clock::time_point begin = Clock::now();
    const auto answered = run_load(server, prompts);
    require_answers(answered);
    std::vector<double> firsts;
    for (const LoadOutcome& outcome : answered) firsts.push_back(outcome.first_token());
    if (has_prompts) first_token = median(firsts);
    std::vector<double> gaps;
    const double left = arguments.seconds - seconds_since(begin);
    if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
    for (vitrine::ServedRequest& request : running) request.cancel();
    for (vitrine::ServedRequest& request : running) {
      double last = -1;
      for (const vitrine::ServeEvent& event : request) {
        if (event.kind != vitrine::ServeEvent::Kind::kToken) continue;
        if (last >= 0) gaps.push_back(event.seconds - last);
        last = event.seconds;
      }
    }
    return gaps;
  };
  double alone = 0, beside = 0;
  const std::vector<double> idle = measure(false, alone), busy = measure(true, beside);
  const auto ms = [](double seconds) { return 1000 * seconds; };
  return {{"idle gap, median, ms", ms(median(idle)), ""},
          {"idle gap, p99, ms", ms(percentile(idle, 0.99)), ""},
          {"gap beside prompts, median, ms", ms(median(busy)), ""},
          {"gap beside prompts, p99, ms", ms(percentile(busy, 0.99)),
           fmt::format("{:.2f} x the idle p99, {:.2f} x the idle median, goal 2",
                       percentile(busy, 0.99) / percentile(idle, 0.99),
                       percentile(busy, 0.99) / median(idle))},
          {"gap beside prompts, p99.9, ms", ms(percentile(busy, 0.999)), ""},
          {"a prompt's first token alone, s", alone, ""},
          {"a prompt's first token beside streams, s", beside,
           fmt::format("{:.2f} x alone, goal 2.5", beside / alone)}};
}

std::vector<ServeFigure> run_accounts(const BenchServeArguments& arguments) {
  const int count = arguments.streams;
  const std::string folder =
      std::filesystem::temp_directory_path() / fmt::format("vitrine-accounts-{}", ::getpid());
  std::filesystem::create_directories(folder);
  vitrine::ModelOptions options;
  options.engine = arguments.device.engine_options();
  options.engine.max_context = kPrompt + kTokens;
  prepare_for_serving(options, count);
  vitrine::Server server(vitrine::Model::open(arguments.model, options), server_options(arguments));
  const int64_t vocab = server.model().summary().vocab_size;
  uint64_t bytes = 0, tokens = 0;
  std::vector<double> ratios;
  for (int round = 0; round <= arguments.repeat; ++round) {
    auto requests = streams(vocab, count, 2 * round);
    const auto with_logs = [&] {
      auto logged = streams(vocab, count, 2 * round + 1);
      std::vector<std::unique_ptr<vitrine::VtrLog>> logs;
      for (size_t i = 0; i < logged.size(); ++i) {
        vitrine::VtrOptions log;
        log.overwrite = true;
        log.seal = vitrine::SealKey::generate();
        logs.push_back(std::make_unique<vitrine::VtrLog>(fmt::format("{}/{}.vtr", folder, i),
                                                         vitrine::LogHeader(), log));
        logged[i].request.audit = &logs.back()->sink();
      }
      const Clock::time_point begin = Clock::now();
      require_answers(run_load(server, logged));
      for (auto& log : logs) log->finish("length");
      const double seconds = seconds_since(begin);
      for (auto& log : logs) {
        bytes += log->bytes_written();
        tokens += log->counts().tokens;
      }
      return seconds;
    };
    double logged = 0, plain = 0;
    if (round % 2 == 0) logged = with_logs();
    plain = run_served(server, requests);
    if (round % 2 == 1) logged = with_logs();
    if (round > 0) ratios.push_back(plain / logged);
  }
  std::filesystem::remove_all(folder);
  const Interval interval = bootstrap_median_interval(ratios);
  return {{"speed with a sealed log for each request over none", median(ratios),
           fmt::format("95 %: {:.4f} to {:.4f}, goal 0.98", interval.low, interval.high)},
          {"bytes of logs a token", static_cast<double>(bytes) / static_cast<double>(tokens), ""}};
}

std::vector<ServeFigure> run_trace(const BenchServeArguments& arguments) {
  vitrine::Server server(open_for_serving(arguments, arguments.streams, 0),
                         server_options(arguments));
  const auto requests = read_trace(arguments.workload, server.model().summary().vocab_size);
  const Clock::time_point begin = Clock::now();
  const auto outcomes = run_load(server, requests);
  const double seconds = seconds_since(begin);
  std::vector<double> firsts, queues;
  double tokens = 0, failed = 0;
  for (const LoadOutcome& outcome : outcomes) {
    failed += outcome.problem.empty() ? 0 : 1;
    tokens += static_cast<double>(outcome.tokens.size());
    firsts.push_back(outcome.first_token());
    queues.push_back(outcome.counts.queue_seconds);
  }
  const std::vector<double> gaps = gaps_of(outcomes);
  const vitrine::ServerTelemetry told = server.telemetry();
  return {{"requests", static_cast<double>(requests.size()), ""},
          {"of these, failed", failed, ""},
          {"seconds", seconds, ""},
          {"tokens/s", tokens / seconds, ""},
          {"first token, median, s", median(firsts), ""},
          {"first token, p99, s", percentile(firsts, 0.99), ""},
          {"wait in line, p99, s", percentile(queues, 0.99), ""},
          {"gap, median, ms", 1000 * median(gaps), ""},
          {"gap, p99, ms", 1000 * percentile(gaps, 0.99), ""},
          {"prompt tokens from the cache, %",
           100.0 * static_cast<double>(told.cached_tokens) /
               static_cast<double>(std::max<uint64_t>(told.prompt_tokens, 1)),
           ""},
          {"preemptions", static_cast<double>(told.preemptions), ""}};
}

}  // namespace cli
