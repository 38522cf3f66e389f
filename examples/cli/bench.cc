// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

namespace cli {

std::vector<int32_t> spread_ids(int64_t vocab_size, int64_t first, int64_t count) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int64_t index = first; index < first + count; ++index) {
    ids.push_back(static_cast<int32_t>((1 + index * 7919) % vocab_size));
  }
  return ids;
}

void add_bench(CLI::App& app, Command& command) {
  CLI::App* bench = app.add_subcommand("bench", "Measures");
  bench->require_subcommand(1);
  add_bench_audit(*bench, command);
  add_bench_generate(*bench, command);
  add_bench_serve(*bench, command);
  add_bench_constraint(*bench, command);
  add_bench_federation(*bench, command);
  add_bench_speculate(*bench, command);
}

}  // namespace cli
