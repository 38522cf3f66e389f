// SPDX-License-Identifier: Apache-2.0
// The workloads of `bench serve`: each a load and the figures that it is for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/serve.h"

namespace cli {

/// What `bench serve` was asked for.
struct BenchServeArguments {
  std::string model, workload = "s1", policy = "hrrn", drafter;
  std::string url, against, api_key;  // a server elsewhere; empty: one in this process
  int repeat = 3, streams = 16;
  double step_seconds = 0, seconds = 30;
  bool json = false, no_cache = false;
  DeviceOptions device;
};

/// One figure.
struct ServeFigure {
  std::string name;   ///< what it is, with its unit
  double value = 0;   ///< the median of the repetitions, or all of them together
  std::string range;  ///< how far it goes, or what it is held against; may be empty
};

/// A workload by its name.
struct ServeWorkload {
  const char* name;
  const char* about;
  std::vector<ServeFigure> (*run)(const BenchServeArguments& arguments);
};

/// All that there are, in the order of their names.
std::span<const ServeWorkload> serve_workloads();

// The runs, by what they are about.
std::vector<ServeFigure> run_streams(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_misses(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_common_beginning(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_rounds(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_long_prompts(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_small_pool(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_same_bits(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_accounts(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_restart(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_soak(const BenchServeArguments& arguments);
std::vector<ServeFigure> run_trace(const BenchServeArguments& arguments);
/// Runs a workload against BenchServeArguments::url.
std::vector<ServeFigure> run_remote(const BenchServeArguments& arguments);

/// A model for so many answers at once, of so many positions each.
vitrine::Model open_for_serving(const BenchServeArguments& arguments, int running, int positions,
                                uint64_t kv_bytes = 0);
vitrine::ServerOptions server_options(const BenchServeArguments& arguments);
/// The middle of values, and the smallest and largest as a text.
ServeFigure middle_of(std::string name, std::vector<double> values);

}  // namespace cli
