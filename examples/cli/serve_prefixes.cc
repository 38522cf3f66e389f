// SPDX-License-Identifier: Apache-2.0
// Workloads of `bench serve` about what is kept and given up: prefixes, small pools, bits.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "serve_load.h"
#include "serve_workloads.h"
#include "statistics.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<LoadedRequest> burst(int64_t vocab_size, int count, int64_t beginning, int64_t number) {
  std::vector<LoadedRequest> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back({token_request(vocab_size, beginning, 1024, number + i, 64, 32)});
  }
  return requests;
}

/// Bytes of keys and values that so many positions take, by what the model was opened with.
uint64_t kv_bytes_of(const vitrine::Model& model, double share) {
  return static_cast<uint64_t>(share * static_cast<double>(model.options().kv_bytes));
}

}  // namespace

std::vector<ServeFigure> run_common_beginning(const BenchServeArguments& arguments) {
  constexpr int kCount = 16;
  const int positions = 1024 + 64 + 32;
  std::vector<double> cold, warm, again, computed;
  BenchServeArguments without = arguments;
  without.no_cache = true;
  vitrine::Server plain(open_for_serving(arguments, kCount, positions), server_options(without));
  const int64_t vocab = plain.model().summary().vocab_size;
  vitrine::Server server(open_for_serving(arguments, kCount, positions), server_options(arguments));
  for (int round = 0; round <= arguments.repeat; ++round) {
    stop_if_interrupted("bench serve: cancelled before the end");
    const int64_t beginning = 100 + 2000 * round, number = 100 * round;
    const auto uncached = run_load(plain, burst(vocab, kCount, beginning, number));
    server.clear_cache();
    const vitrine::ServerTelemetry before = server.telemetry();
    const auto first = run_load(server, burst(vocab, kCount, beginning, number));
    const vitrine::ServerTelemetry after = server.telemetry();
    const auto second = run_load(server, burst(vocab, kCount, beginning, number + 50));
    for (const auto* each : {&uncached, &first, &second}) require_answers(*each);
    if (round == 0) continue;
    cold.push_back(median(first_tokens(uncached)));
    warm.push_back(median(first_tokens(first)));
    again.push_back(median(first_tokens(second)));
    computed.push_back(static_cast<double>(after.prompt_tokens - before.prompt_tokens -
                                           (after.cached_tokens - before.cached_tokens)));
  }
  std::vector<double> sooner, later;
  for (size_t i = 0; i < cold.size(); ++i) {
    sooner.push_back(cold[i] / warm[i]);
    later.push_back(cold[i] / again[i]);
  }
  ServeFigure first = middle_of("first tokens of the burst, times sooner", sooner);
  ServeFigure second = middle_of("of a second burst, times sooner", later);
  first.range += ", goal 4.5";
  second.range += ", goal 12";
  return {middle_of("median first token without a cache, s", cold), middle_of("with it, s", warm),
          first, second,
          middle_of(fmt::format("prompt tokens computed, of {}", kCount * 1088), computed)};
}

std::vector<ServeFigure> run_rounds(const BenchServeArguments& arguments) {
  constexpr int kClients = 16, kRounds = 5, kIn = 256, kOut = 64;
  constexpr int kPositions = kRounds * (kIn + kOut);
  std::vector<ServeFigure> figures;
  for (const double share : {1.0, 0.4}) {
    const vitrine::Model sizes = open_for_serving(arguments, kClients, kPositions);
    vitrine::Server server(open_for_serving(arguments, kClients, kPositions,
                                            share < 1 ? kv_bytes_of(sizes, share) : 0),
                           server_options(arguments));
    const int64_t vocab = server.model().summary().vocab_size;
    std::vector<std::vector<int32_t>> texts(kClients);
    std::mt19937 order(1);
    double possible = 0, hits = 0;
    const Clock::time_point begin = Clock::now();
    for (int round = 0; round < kRounds; ++round) {
      std::vector<size_t> clients(kClients);
      for (size_t i = 0; i < clients.size(); ++i) clients[i] = i;
      std::shuffle(clients.begin(), clients.end(), order);
      std::vector<LoadedRequest> requests;
      for (const size_t client : clients) {
        vitrine::ServeRequest request =
            token_request(vocab, 0, 0, static_cast<int64_t>(client) * kRounds + round, kIn, kOut);
        // The last token that was generated is not computed yet.
        if (!texts[client].empty()) possible += static_cast<double>(texts[client].size()) - 1;
        texts[client].insert(texts[client].end(), request.tokens.begin(), request.tokens.end());
        request.tokens = texts[client];
        requests.push_back({request});
      }
      const auto outcomes = run_load(server, requests);
      require_answers(outcomes);
      for (size_t i = 0; i < clients.size(); ++i) {
        std::vector<int32_t>& text = texts[clients[i]];
        text.insert(text.end(), outcomes[i].tokens.begin(), outcomes[i].tokens.end());
        hits += static_cast<double>(outcomes[i].counts.cached_tokens);
      }
    }
    const double seconds = seconds_since(begin);
    const vitrine::ServerTelemetry told = server.telemetry();
    const std::string with = fmt::format("{:.0f} % of the memory: ", 100 * share);
    figures.push_back({with + "hits of those possible, %", 100 * hits / possible,
                       share == 1 ? "goal 96 (models with states 90)" : ""});
    figures.push_back({with + "seconds", seconds, ""});
    figures.push_back(
        {with + "seconds over those of the steps", seconds / told.engine_seconds, "goal 1.1"});
    figures.push_back({with + "preemptions", static_cast<double>(told.preemptions), ""});
    figures.push_back({with + "prefixes evicted", static_cast<double>(told.evicted_prefixes), ""});
  }
  return figures;
}

std::vector<ServeFigure> run_small_pool(const BenchServeArguments& arguments) {
  constexpr int kStreams = 8, kIn = 384, kOut = 128;
  std::vector<LoadedRequest> requests;
  vitrine::Server wide(open_for_serving(arguments, kStreams, kIn + kOut),
                       server_options(arguments));
  const int64_t vocab = wide.model().summary().vocab_size;
  for (int i = 0; i < kStreams; ++i) requests.push_back({token_request(vocab, 0, 0, i, kIn, kOut)});
  std::vector<std::vector<int32_t>> alone;
  for (const LoadedRequest& one : requests) alone.push_back(run_load(wide, {one})[0].tokens);
  // The memory of two sequences and a bit, where nine would have room.
  vitrine::Server small(open_for_serving(arguments, kStreams, kIn + kOut,
                                         kv_bytes_of(wide.model(), 2.2 / (kStreams + 1))),
                        server_options(arguments));
  const auto outcomes = run_load(small, requests);
  double finished = 0, same = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    finished += outcomes[i].problem.empty() ? 1 : 0;
    same += outcomes[i].tokens == alone[i] ? 1 : 0;
  }
  const vitrine::ServerTelemetry told = small.telemetry();
  return {{"streams that finish, of 8", finished, ""},
          {"of these, with the tokens that they have alone", same, ""},
          {"preemptions", static_cast<double>(told.preemptions), ""},
          {"prefixes evicted", static_cast<double>(told.evicted_prefixes), ""}};
}

std::vector<ServeFigure> run_same_bits(const BenchServeArguments& arguments) {
  constexpr int kPrompts = 200, kTokens = 12, kRunning = 12, kPositions = 640;
  const auto open = [&](uint64_t kv_bytes) {
    vitrine::ModelOptions options;
    options.engine = arguments.device.engine_options();
    options.engine.max_context = kPositions;
    options.engine.kv_bytes = kv_bytes;
    options.engine.keep_logits = true;
    options.engine.audit_mode = vitrine::AuditMode::kNone;
    prepare_for_serving(options, kRunning);
    return vitrine::Model::open(arguments.model, options);
  };
  std::mt19937 random(3);
  std::vector<LoadedRequest> requests;
  vitrine::ServerOptions cold_options = server_options(arguments);
  cold_options.cache_prefixes = false;
  cold_options.max_running = 1;
  vitrine::Server cold(open(0), cold_options);
  const int64_t vocab = cold.model().summary().vocab_size;
  for (int i = 0; i < kPrompts; ++i) {
    const auto shared = static_cast<int64_t>(random() % 4 == 0 ? 0 : 64 + random() % 350);
    auto request = token_request(vocab, 100 * static_cast<int64_t>(random() % 3), shared, i,
                                 1 + static_cast<int64_t>(random() % 150), kTokens);
    request.logprobs = 0;
    if (i % 2 == 1) request.sampler.temperature = 0.8F;
    request.sampler.seed = static_cast<uint64_t>(i);
    requests.push_back({request});
  }
  const auto expected = run_load(cold, requests);
  require_answers(expected);
  const auto differing = [&](const std::vector<LoadOutcome>& found) {
    double count = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const bool is_same = found[i].problem.empty() && found[i].tokens == expected[i].tokens &&
                           found[i].logprobs == expected[i].logprobs;
      count += is_same ? 0 : 1;
    }
    return count;
  };
  std::vector<ServeFigure> figures;
  {
    vitrine::Server server(open(0), server_options(arguments));
    figures.push_back({"together: answers that differ", differing(run_load(server, requests)), ""});
    figures.push_back({"warm: answers that differ", differing(run_load(server, requests)), ""});
  }
  {
    vitrine::Server server(open(kv_bytes_of(cold.model(), 2.5 / (kRunning + 1))),
                           server_options(arguments));
    figures.push_back(
        {"preempted: answers that differ", differing(run_load(server, requests)), ""});
    const vitrine::ServerTelemetry told = server.telemetry();
    figures.push_back({"preemptions there", static_cast<double>(told.preemptions), ""});
  }
  vitrine::ServerOptions guessed = server_options(arguments);
  guessed.drafter = "ngram";
  vitrine::Server server(open(0), guessed);
  figures.push_back({"guessed: answers that differ", differing(run_load(server, requests)), ""});
  return figures;
}

std::vector<ServeFigure> run_soak(const BenchServeArguments& arguments) {
  const int rounds = 10, in_round = 100 * arguments.repeat;
  vitrine::Server server(open_for_serving(arguments, arguments.streams, 192),
                         server_options(arguments));
  const int64_t vocab = server.model().summary().vocab_size;
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    long pages = 0, now = 0;
    file >> pages >> now;
    return static_cast<double>(now) * 4096 / 1e6;
  };
  std::mt19937 random(9);
  double first = 0, most = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<vitrine::ServedRequest> open;
    for (int i = 0; i < in_round; ++i) {
      open.push_back(server.submit(token_request(vocab, static_cast<int64_t>(random() % 5) * 300,
                                                 64, int64_t{round} * in_round + i,
                                                 1 + static_cast<int64_t>(random() % 40), 8)));
      if (random() % 5 == 0) open[random() % open.size()].cancel();
    }
    for (vitrine::ServedRequest& request : open) {
      for (const vitrine::ServeEvent& event : request) {
        if (event.error) throw vitrine::Error(*event.error);
      }
    }
    if (round == 1) first = resident();
    most = std::max(most, resident());
  }
  const vitrine::ServerTelemetry told = server.telemetry();
  return {{"requests", static_cast<double>(told.submitted), ""},
          {"of these, cancelled", static_cast<double>(told.cancelled), ""},
          {"of these, answered", static_cast<double>(told.finished), ""},
          {"resident memory after a fifth of them, MB", first, ""},
          {"at most, MB", most, ""}};
}

}  // namespace cli
