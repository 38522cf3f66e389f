// SPDX-License-Identifier: Apache-2.0
// `bench generate` with lists, as llama-bench has them: a test for each number, a table of all.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "common.h"

namespace cli {

struct BenchTests {
  std::vector<int> prompts{256}, generated{64};  ///< 0: no such test
  std::vector<int> depths{0};
  std::vector<int> thread_counts;  ///< empty: as --threads has it
  std::vector<std::string> pairs;  ///< "P,N": a prompt, then tokens, timed together
  std::string form;                ///< "md", "json", "jsonl"; empty: none asked for
  std::string model;
  int repeat = 5, step_tokens = 0;
  bool records = true;

  /// -p, -n, --depth, --prompt-generation, --thread-counts and -o.
  void add_to(CLI::App& command);
  /// One prompt, one number of tokens, and nothing that asks for a table of tests.
  bool is_single() const;
  /// Refuses the options that are given, which the table of tests has no place for.
  void refuse_beside(std::initializer_list<std::pair<bool, const char*>> options) const;
};

/// Measures each test `repeat` times and prints the table. Returns the exit code.
int run_bench_tests(const BenchTests& tests, const DeviceOptions& device);

}  // namespace cli
