// SPDX-License-Identifier: Apache-2.0
// Workloads of `bench serve --url`: a server at an address under a load, beside another one.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "http_load.h"
#include "serve_workloads.h"
#include "statistics.h"
#include "vitrine/quality.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

/// A server, and what its loads took.
struct Remote {
  HttpPlace place;
  std::string name;
  int64_t vocab_size = 0;
};

Remote find_remote(const std::string& url, const BenchServeArguments& arguments) {
  Remote remote{read_place(url, arguments.api_key), url, 0};
  const auto models = nlohmann::json::parse(http_get(remote.place, "/v1/models"), nullptr, false);
  if (models.is_object() && models.contains("data") && models["data"].is_array() &&
      !models["data"].empty()) {
    const auto& meta = models["data"][0].value("meta", nlohmann::json::object());
    if (meta.is_object()) remote.vocab_size = meta.value("n_vocab", int64_t{0});
  }
  if (remote.vocab_size < 2) {
    throw vitrine::Error(vitrine::ErrorKind::kUnavailable,
                         url +
                             "/v1/models does not tell 'meta.n_vocab'; expected a server of "
                             "this project's or llama-server");
  }
  return remote;
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Holds what a load says of a server: named numbers.
using Numbers = std::vector<std::pair<std::string, double>>;

double total_of(const std::vector<LoadOutcome>& outcomes, int64_t vitrine::ServeCounts::*count) {
  double total = 0;
  for (const LoadOutcome& each : outcomes) total += static_cast<double>(each.counts.*count);
  return total;
}

/// Holds what readers get who read at once: tokens/s of all, the median of first tokens in seconds,
/// and the 99th percentile of gaps in milliseconds.
struct ReaderFigures {
  double tokens_a_second = 0, first_token = 0, gap = 0;
};

/// Measures `count` readers side by side: prompts of `own` ids, and answers of `answer`.
ReaderFigures measure_readers(const Remote& remote, int count, int64_t number, int64_t own,
                              int answer) {
  std::vector<LoadedRequest> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back({token_request(remote.vocab_size, 0, 0, number + i, own, answer)});
  }
  const Clock::time_point begin = Clock::now();
  const auto outcomes = run_http_load(remote.place, requests);
  const double seconds = seconds_since(begin);
  require_answers(outcomes);
  return {total_of(outcomes, &vitrine::ServeCounts::new_tokens) / seconds,
          median(first_tokens(outcomes)), 1000 * vitrine::quantile(gaps_of(outcomes), 0.99)};
}

Numbers run_streams(const Remote& remote, const BenchServeArguments& arguments, int round) {
  const ReaderFigures found =
      measure_readers(remote, arguments.streams, int64_t{round} * 1000, 128, 64);
  return {{"tokens/s", found.tokens_a_second},
          {"first token, median, s", found.first_token},
          {"gap, p99, ms", found.gap}};
}

Numbers run_burst(const Remote& remote, const BenchServeArguments& arguments, int round) {
  const auto burst = [&](int number) {
    std::vector<LoadedRequest> requests;
    for (int i = 0; i < arguments.streams; ++i) {
      requests.push_back({token_request(remote.vocab_size, 100 + 2000 * round, 1024,
                                        int64_t{round} * 1000 + number + i, 64, 32)});
    }
    auto outcomes = run_http_load(remote.place, requests);
    require_answers(outcomes);
    return outcomes;
  };
  const auto first = burst(0), second = burst(500);
  const auto computed = [](const std::vector<LoadOutcome>& outcomes) {
    return total_of(outcomes, &vitrine::ServeCounts::prompt_tokens) -
           total_of(outcomes, &vitrine::ServeCounts::cached_tokens);
  };
  return {{"first burst: first token, median, s", median(first_tokens(first))},
          {"first burst: prompt tokens that were computed", computed(first)},
          {"second burst: first token, median, s", median(first_tokens(second))},
          {"second burst: prompt tokens that were computed", computed(second)}};
}

// Clients ask by turns, each behind all that it has asked before and 64 ids in place of each
// answer, so that every server is asked the same.
Numbers run_conversations(const Remote& remote, const BenchServeArguments& arguments, int round) {
  constexpr int kRounds = 5, kAsked = 256, kAnswer = 64;
  std::vector<std::vector<int32_t>> said(static_cast<size_t>(arguments.streams));
  std::mt19937 random(static_cast<uint32_t>(round) + 1);
  double prompts = 0, cached = 0;
  std::vector<double> firsts;
  const Clock::time_point begin = Clock::now();
  for (int turn = 0; turn < kRounds; ++turn) {
    std::vector<size_t> order(said.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    std::vector<LoadedRequest> requests;
    for (const size_t client : order) {
      const int64_t number = int64_t{round} * 100000 + static_cast<int64_t>(client) * 100 + turn;
      vitrine::ServeRequest request =
          token_request(remote.vocab_size, 0, 0, number, kAsked, kAnswer);
      std::vector<int32_t>& all = said[client];
      all.insert(all.end(), request.tokens.begin(), request.tokens.end());
      request.tokens = all;
      const auto answer = token_request(remote.vocab_size, 0, 0, number + 50, kAnswer, 1).tokens;
      all.insert(all.end(), answer.begin(), answer.end());
      requests.push_back({std::move(request)});
    }
    const auto outcomes = run_http_load(remote.place, requests);
    require_answers(outcomes);
    prompts += total_of(outcomes, &vitrine::ServeCounts::prompt_tokens);
    cached += total_of(outcomes, &vitrine::ServeCounts::cached_tokens);
    for (const double each : first_tokens(outcomes)) firsts.push_back(each);
  }
  return {{"seconds for all rounds", seconds_since(begin)},
          {"first token, median, s", median(firsts)},
          {"prompt tokens that were computed", prompts - cached}};
}

/// Raises a flag at the end of a scope.
struct RaisedAtEnd {
  std::atomic<bool>& flag;
  ~RaisedAtEnd() { flag = true; }
};

// Slow readers ask for more than may wait for them. They go once the fast ones have their answers.
Numbers run_beside_slow(const Remote& remote, const BenchServeArguments& arguments, int round) {
  constexpr int kBytesASecond = 1000;
  const int64_t seed = int64_t{round} * 20000;
  const auto measure_fast = [&](int64_t number) {
    return measure_readers(remote, /*count=*/8, number, 64, 256);
  };
  const ReaderFigures alone = measure_fast(seed);
  std::vector<LoadedRequest> slow;
  for (int i = 0; i < arguments.streams; ++i) {
    slow.push_back({token_request(remote.vocab_size, 0, 0, seed + 5000 + i, 16, 1500)});
  }
  std::atomic<bool> ends = false;
  std::atomic<int64_t> num_begun = 0;
  // get() throws here what a signal makes the readers' thread throw.
  auto readers = std::async(std::launch::async, [&] {
    return run_http_load(
        remote.place, slow,
        {.most_bytes_a_second = kBytesASecond, .ends = &ends, .num_begun = &num_begun});
  });
  const RaisedAtEnd raised{ends};  // the future waits for the readers, whatever is thrown
  const Clock::time_point begin = Clock::now();
  while (num_begun < arguments.streams && seconds_since(begin) < arguments.seconds) {
    if (readers.wait_for(std::chrono::milliseconds(20)) == std::future_status::ready) break;
  }
  const auto had_begun = static_cast<double>(num_begun);
  const double waited = seconds_since(begin);
  const ReaderFigures beside = measure_fast(seed + 2000);
  ends = true;
  readers.get();
  return {{"slow readers that had begun to get an answer", had_begun},
          {"seconds until then", waited},
          {"8 fast readers alone: tokens/s", alone.tokens_a_second},
          {"the same beside slow ones", beside.tokens_a_second},
          {"alone: first token, median, s", alone.first_token},
          {"beside slow ones", beside.first_token},
          {"alone: gap, p99, ms", alone.gap},
          {"beside slow ones", beside.gap}};
}

/// A number of /metrics; -1 where it is not there.
double metric(const Remote& remote, const std::string& name) {
  const std::string text = http_get(remote.place, "/metrics");
  const size_t at = text.find("\n" + name + "{");
  if (at == std::string::npos) return -1;
  return std::atof(text.c_str() + text.find("} ", at) + 2);
}

Numbers run_storm(const Remote& remote, const BenchServeArguments& arguments, int round) {
  std::vector<LoadedRequest> requests;
  for (int i = 0; i < arguments.streams; ++i) {
    requests.push_back(
        {token_request(remote.vocab_size, 0, 0, int64_t{round} * 1000 + i, 64, 1000)});
  }
  run_http_load(remote.place, requests, {.close_after = 4});
  const double steps = metric(remote, "vitrine_steps_total");
  if (steps < 0) {
    throw vitrine::Error(vitrine::ErrorKind::kUnavailable,
                         remote.name +
                             "/metrics is not there; expected a server that was started "
                             "with --metrics");
  }
  const Clock::time_point begin = Clock::now();
  while (metric(remote, "vitrine_requests_running") > 0 && seconds_since(begin) < 30) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {{"seconds until nothing runs", seconds_since(begin)},
          {"steps until then", metric(remote, "vitrine_steps_total") - steps}};
}

Numbers run_trace(const Remote& remote, const BenchServeArguments& arguments, int /*round*/) {
  const auto requests = read_trace(arguments.workload, remote.vocab_size);
  const Clock::time_point begin = Clock::now();
  const auto outcomes = run_http_load(remote.place, requests);
  const double seconds = seconds_since(begin);
  double failed = 0;
  for (const LoadOutcome& each : outcomes) failed += each.problem.empty() ? 0 : 1;
  const std::vector<double> firsts = first_tokens(outcomes), gaps = gaps_of(outcomes);
  return {
      {"requests", static_cast<double>(requests.size())},
      {"of these, failed", failed},
      {"tokens/s", total_of(outcomes, &vitrine::ServeCounts::new_tokens) / seconds},
      {"first token, median, s", median(firsts)},
      {"first token, p99, s", vitrine::quantile(firsts, 0.99)},
      {"gap, median, ms", 1000 * median(gaps)},
      {"gap, p99, ms", 1000 * vitrine::quantile(gaps, 0.99)},
      {"prompt tokens from the cache", total_of(outcomes, &vitrine::ServeCounts::cached_tokens)}};
}

using Workload = Numbers (*)(const Remote&, const BenchServeArguments&, int);

Workload find_workload(const std::string& name) {
  static const std::map<std::string, Workload> all = {{"s1", run_streams},
                                                      {"s3", run_burst},
                                                      {"s4", run_conversations},
                                                      {"s7", run_beside_slow},
                                                      {"s10", run_storm}};
  const auto found = all.find(name);
  return found == all.end() ? run_trace : found->second;
}

/// The figures of one server, with a ratio to another one's where there is one.
void add_figures(const std::vector<Numbers>& own, const std::vector<Numbers>& other,
                 std::vector<ServeFigure>& figures) {
  for (size_t i = 0; i < own.front().size(); ++i) {
    std::vector<double> values, others, ratios;
    for (size_t round = 0; round < own.size(); ++round) {
      values.push_back(own[round][i].second);
      if (other.empty()) continue;
      others.push_back(other[round][i].second);
      if (others.back() != 0) ratios.push_back(values.back() / others.back());
    }
    ServeFigure figure = middle_of(own.front()[i].first, values);
    if (!ratios.empty()) {
      figure.range +=
          fmt::format("; the other {:.4g}, ratio {:.3f}", median(others), median(ratios));
    }
    figures.push_back(std::move(figure));
  }
}

}  // namespace

std::vector<ServeFigure> run_remote(const BenchServeArguments& arguments) {
  const Workload workload = find_workload(arguments.workload);
  const Remote remote = find_remote(arguments.url, arguments);
  std::optional<Remote> against;
  if (!arguments.against.empty()) against = find_remote(arguments.against, arguments);
  std::vector<Numbers> own, other;
  const Clock::time_point begin = Clock::now();
  const double processor = processor_seconds();
  for (int round = 0; round <= arguments.repeat; ++round) {
    Numbers first, second;
    if (round % 2 == 0) first = workload(remote, arguments, round);
    if (against) second = workload(*against, arguments, round);
    if (round % 2 == 1) first = workload(remote, arguments, round);
    if (round == 0) continue;  // all memory is touched
    own.push_back(std::move(first));
    if (against) other.push_back(std::move(second));
  }
  std::vector<ServeFigure> figures;
  add_figures(own, other, figures);
  figures.push_back({"processor time of this client, % of one core",
                     100 * (processor_seconds() - processor) / seconds_since(begin), ""});
  return figures;
}

}  // namespace cli
