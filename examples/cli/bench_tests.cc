// SPDX-License-Identifier: Apache-2.0
#include "bench_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>

#include "bench.h"

namespace cli {

namespace {

constexpr int kMaxTokens = 1 << 24;
constexpr size_t kBenchTestsRingBytes = size_t{4} << 20;
constexpr double kNanoseconds = 1e9;

/// A prompt, tokens that are decoded one by one, or both in turn.
struct BenchTest {
  int prompt = 0, generated = 0, depth = 0;

  int tokens() const { return prompt + generated; }
  /// "pp32+tg16 @ d128", as llama-bench names it.
  std::string name() const {
    std::string name;
    if (prompt > 0) name += fmt::format("pp{}", prompt);
    if (generated > 0) name += fmt::format("{}tg{}", name.empty() ? "" : "+", generated);
    return depth > 0 ? fmt::format("{} @ d{}", name, depth) : name;
  }
};

struct TestResult {
  BenchTest test;
  vitrine::ModelSummary model;
  std::vector<double> seconds;

  std::vector<double> speeds() const {
    std::vector<double> speeds;
    for (const double one : seconds) speeds.push_back(test.tokens() / one);
    return speeds;
  }
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Standard deviation of a sample; 0 for a single value.
double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double middle = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

std::vector<BenchTest> list_tests(const BenchTests& tests) {
  std::vector<BenchTest> list;
  for (const int depth : tests.depths) {
    for (const int prompt : tests.prompts) {
      if (prompt > 0) list.push_back({prompt, 0, depth});
    }
    for (const int generated : tests.generated) {
      if (generated > 0) list.push_back({0, generated, depth});
    }
    for (const std::string& pair : tests.pairs) {
      const std::vector<int64_t> numbers = parse_numbers(pair, ',');
      const bool is_pair = numbers.size() == 2 && std::ranges::all_of(numbers, [](int64_t number) {
                             return number > 0 && number <= kMaxTokens;
                           });
      if (!is_pair) {
        refuse(fmt::format(
            "--prompt-generation {}: expected tokens of a prompt and of what follows, as 64,16",
            pair));
      }
      list.push_back({static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), depth});
    }
  }
  if (list.empty()) refuse("-p 0 and -n 0 leave nothing to measure; expected one above 0");
  return list;
}

/// Runs tests on one engine, in one sequence.
class TestRunner {
 public:
  TestRunner(vitrine::Engine& engine, int64_t most_tokens)
      : engine_(engine),
        sequence_(engine.create_sequence()),
        ids_(spread_ids(engine.summary().vocab_size, 0, most_tokens)) {}
  ~TestRunner() { engine_.release(sequence_); }
  TestRunner(const TestRunner&) = delete;
  TestRunner& operator=(const TestRunner&) = delete;

  double seconds_of(const BenchTest& test) {
    const int64_t held = std::min<int64_t>(engine_.length(sequence_), test.depth);
    engine_.truncate(sequence_, held);
    feed(test.depth - static_cast<int>(held), engine_.options().max_step_tokens);
    const auto begin = std::chrono::steady_clock::now();
    feed(test.prompt, engine_.options().max_step_tokens);
    feed(test.generated, 1);
    return seconds_since(begin);
  }

 private:
  void feed(int count, int at_once) {
    for (int done = 0; done < count;) {
      if (interrupt_signal() != 0) {
        throw vitrine::Error(vitrine::ErrorKind::kCancelled,
                             "bench generate: cancelled before the end");
      }
      vitrine::StepInput input;
      input.sequence = sequence_;
      input.tokens = std::span<const int32_t>(ids_).subspan(
          static_cast<size_t>(engine_.length(sequence_)),
          static_cast<size_t>(std::min(at_once, count - done)));
      done += static_cast<int>(input.tokens.size());
      input.rows = done == count || at_once == 1 ? vitrine::StepInput::Rows::kLast
                                                 : vitrine::StepInput::Rows::kNone;
      engine_.step({&input, 1});
    }
  }

  vitrine::Engine& engine_;
  vitrine::SequenceId sequence_;
  std::vector<int32_t> ids_;
};

void measure_tests(const BenchTests& tests, const std::vector<BenchTest>& list,
                   vitrine::EngineOptions options, std::vector<TestResult>& results) {
  vitrine::SlabRing ring(kBenchTestsRingBytes, vitrine::SlabRing::WhenFull::kOverwrite);
  const auto engine = vitrine::Engine::load(tests.model, options);
  if (tests.records) engine->set_audit_sink(&ring);
  {
    TestRunner runner(*engine, options.max_context);
    for (const BenchTest& test : list) {
      TestResult& result = results.emplace_back();
      result.test = test;
      result.model = engine->summary();
      runner.seconds_of(test);  // touches all memory
      for (int i = 0; i < tests.repeat; ++i) result.seconds.push_back(runner.seconds_of(test));
    }
  }
  engine->set_audit_sink(nullptr);
}

nlohmann::ordered_json json_of_test(const TestResult& result) {
  std::vector<double> nanoseconds;
  for (const double one : result.seconds) nanoseconds.push_back(std::round(one * kNanoseconds));
  const std::vector<double> speeds = result.speeds();
  return {{"model_filename", result.model.path},
          {"model_type", result.model.architecture},
          {"model_size", result.model.weight_bytes + result.model.mapped_bytes},
          {"model_n_params", result.model.num_parameters},
          {"device", result.model.device},
          {"kernels", result.model.kernels},
          {"isa", result.model.isa},
          {"kv_type", result.model.kv_codec},
          {"n_threads", result.model.threads},
          {"n_prompt", result.test.prompt},
          {"n_gen", result.test.generated},
          {"n_depth", result.test.depth},
          {"avg_ns", mean(nanoseconds)},
          {"stddev_ns", deviation(nanoseconds)},
          {"avg_ts", mean(speeds)},
          {"stddev_ts", deviation(speeds)},
          {"samples_ns", nanoseconds},
          {"samples_ts", speeds}};
}

std::string markdown_of(const std::vector<TestResult>& results) {
  std::string text =
      "| model | size | params | device | threads | test | t/s |\n"
      "| --- | ---: | ---: | --- | ---: | ---: | ---: |\n";
  for (const TestResult& result : results) {
    const vitrine::ModelSummary& model = result.model;
    const std::vector<double> speeds = result.speeds();
    text += fmt::format("| {} | {} | {:.2f} B | {}, {} | {} | {} | {:.2f} ± {:.2f} |\n",
                        model.architecture, format_bytes(model.weight_bytes + model.mapped_bytes),
                        static_cast<double>(model.num_parameters) / 1e9, model.device, model.isa,
                        model.threads, result.test.name(), mean(speeds), deviation(speeds));
  }
  return text;
}

}  // namespace

void BenchTests::add_to(CLI::App& command) {
  const auto add_list = [&command](const char* name, std::vector<int>& values, const char* help,
                                   int least) {
    command.add_option(name, values, help)
        ->check(CLI::Range(least, kMaxTokens))
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str();
  };
  add_list("-p,--prompt-tokens", prompts,
           "tokens of the prompt; several, with commas: a table of tests, as llama-bench's", 0);
  add_list("-n,--max-new-tokens", generated, "tokens decoded one by one; several likewise", 0);
  add_list("--depth", depths,
           "tokens in the context before the prompt, and before what is decoded; several likewise",
           0);
  command
      .add_option("--prompt-generation", pairs,
                  "P,N: also a test of a prompt and the tokens behind it, timed together; "
                  "repeatable")
      ->allow_extra_args(false);
  command
      .add_option("--thread-counts", thread_counts,
                  "all tests with each of these numbers of threads, with commas")
      ->check(CLI::Range(1, 256))
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("-o,--output", form, "the table of tests: md, json or jsonl (default: md)")
      ->check(CLI::IsMember({"md", "json", "jsonl"}));
}

bool BenchTests::is_single() const {
  return prompts.size() == 1 && prompts[0] > 0 && generated.size() == 1 && generated[0] > 0 &&
         depths.size() == 1 && thread_counts.empty() && pairs.empty() && form.empty();
}

void BenchTests::refuse_beside(std::initializer_list<std::pair<bool, const char*>> options) const {
  for (const auto& [is_given, name] : options) {
    if (!is_given) continue;
    refuse(
        fmt::format("{} is for one prompt length and one number of tokens; a table of tests has "
                    "-o md, json or jsonl",
                    name));
  }
}

int run_bench_tests(const BenchTests& tests, const DeviceOptions& device) {
  const std::vector<BenchTest> list = list_tests(tests);
  vitrine::EngineOptions options = device.engine_options();
  int64_t context = 0;
  for (const BenchTest& test : list) {
    context = std::max(context, int64_t{test.depth} + test.tokens());
  }
  const vitrine::ModelFacts config = vitrine::read_model_facts(open_model(tests.model));
  if (context > config.max_position_embeddings) {
    refuse(
        fmt::format("bench generate asks for {} positions and the context of {} holds {}; "
                    "expected a shorter prompt (-p), fewer tokens (-n) or less --depth",
                    context, tests.model, config.max_position_embeddings));
  }
  options.max_context = static_cast<int>(context);
  if (tests.step_tokens > 0) options.max_step_tokens = tests.step_tokens;
  options.audit_mode = tests.records ? vitrine::AuditMode::kDeferred : vitrine::AuditMode::kNone;
  catch_interrupts();
  std::vector<int> counts = tests.thread_counts;
  if (counts.empty()) counts.push_back(device.threads);
  std::vector<TestResult> results;
  for (const int threads : counts) {
    options.threads = threads;
    measure_tests(tests, list, options, results);
  }
  if (tests.form != "json" && tests.form != "jsonl") {
    write_out(markdown_of(results));
    return 0;
  }
  auto all = nlohmann::ordered_json::array();
  for (const TestResult& result : results) {
    all.push_back(json_of_test(result));
    if (tests.form == "jsonl") write_json(all.back());
  }
  if (tests.form == "json") write_json(all);
  return 0;
}

}  // namespace cli
