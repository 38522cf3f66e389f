// SPDX-License-Identifier: Apache-2.0
// The commands under `vitrine bench`.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"

namespace cli {

void add_bench_audit(CLI::App& bench, Command& command);
void add_bench_generate(CLI::App& bench, Command& command);
void add_bench_serve(CLI::App& bench, Command& command);
void add_bench_constraint(CLI::App& bench, Command& command);
void add_bench_federation(CLI::App& bench, Command& command);
void add_bench_speculate(CLI::App& bench, Command& command);

/// `count` ids spread over the vocabulary, from the one of number `first` on: speed depends on no
/// text, but in a mixture of experts on how many of them a text needs.
std::vector<int32_t> spread_ids(int64_t vocab_size, int64_t first, int64_t count);

}  // namespace cli
