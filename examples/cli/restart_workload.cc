// SPDX-License-Identifier: Apache-2.0
// The workload of `bench serve` about a restart: a server's first prompt, with and without what an
// earlier one left in files.
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>

#include "serve_load.h"
#include "serve_workloads.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSystem = 1000, kOwn = 24, kAnswer = 16, kOthers = 4;

/// One server from its start to its end.
struct ServedOnce {
  std::vector<LoadOutcome> outcomes;  // of the first prompt, then of others
  uint64_t store_bytes = 0;
  double end_seconds = 0;  // that the server's end took
};

/// Asks for `count` answers, one after another. Without a folder nothing is taken from memory.
ServedOnce serve_once(const BenchServeArguments& arguments, const std::string& folder,
                      int64_t number, int count) {
  vitrine::ModelOptions model;
  model.engine = arguments.device.engine_options();
  model.engine.max_context = kSystem + kOwn + kAnswer;
  model.engine.keep_logits = true;
  model.engine.audit_mode = vitrine::AuditMode::kNone;
  prepare_for_serving(model, 1);
  vitrine::ServerOptions options = server_options(arguments);
  options.prefix_store.folder = folder;
  vitrine::Server server(vitrine::Model::open(arguments.model, model), options);
  const int64_t vocab = server.model().summary().vocab_size;
  ServedOnce once;
  for (int i = 0; i < count; ++i) {
    stop_if_interrupted("bench serve: cancelled before the end");
    vitrine::ServeRequest request = token_request(vocab, 7, kSystem, number + i, kOwn, kAnswer);
    request.logprobs = 0;
    request.use_cache = !folder.empty();
    auto outcomes = run_load(server, {{request}});
    require_answers(outcomes);
    once.outcomes.push_back(std::move(outcomes.front()));
  }
  const Clock::time_point end = Clock::now();
  server.store_prefixes();
  once.end_seconds = std::chrono::duration<double>(Clock::now() - end).count();
  once.store_bytes = server.telemetry().store_bytes;
  return once;
}

/// Counts bits of log-probabilities; another token counts as all of its own.
double differing_bits(const LoadOutcome& one, const LoadOutcome& other) {
  double bits = 0;
  for (size_t i = 0; i < one.logprobs.size(); ++i) {
    const bool is_there = i < other.logprobs.size() && one.tokens[i] == other.tokens[i];
    const uint64_t different = std::bit_cast<uint64_t>(one.logprobs[i]) ^
                               (is_there ? std::bit_cast<uint64_t>(other.logprobs[i]) : 0);
    bits += is_there ? std::popcount(different) : 64;
  }
  return bits;
}

}  // namespace

std::vector<ServeFigure> run_restart(const BenchServeArguments& arguments) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("vitrine-restart-{}", ::getpid());
  std::vector<double> cold, stored, sooner, cached, written, bytes;
  double bits = 0;
  for (int round = 0; round < arguments.repeat; ++round) {
    const int64_t number = int64_t{10} * round;
    const ServedOnce without = serve_once(arguments, "", number, 1 + kOthers);
    const ServedOnce first = serve_once(arguments, folder, number + 9, 1);
    const ServedOnce restarted = serve_once(arguments, folder, number, 1 + kOthers);
    std::filesystem::remove_all(folder);
    cold.push_back(without.outcomes[0].first_token());
    stored.push_back(restarted.outcomes[0].first_token());
    sooner.push_back(cold.back() / stored.back());
    cached.push_back(static_cast<double>(restarted.outcomes[0].counts.cached_tokens));
    written.push_back(first.end_seconds);
    bytes.push_back(static_cast<double>(first.store_bytes) / 1e6);
    for (size_t i = 0; i < without.outcomes.size(); ++i) {
      bits += differing_bits(without.outcomes[i], restarted.outcomes[i]);
    }
  }
  return {middle_of(fmt::format("first token of {} + {} tokens without a store, s", kSystem, kOwn),
                    cold),
          middle_of("of a server that was restarted with one, s", stored),
          middle_of("times sooner", sooner),
          middle_of("prompt tokens from files", cached),
          middle_of("files, MB", bytes),
          middle_of("seconds to write them", written),
          {fmt::format("bits that differ in {} answers", arguments.repeat * (1 + kOthers)), bits,
           "goal 0"}};
}

}  // namespace cli
