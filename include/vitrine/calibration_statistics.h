// SPDX-License-Identifier: Apache-2.0
// The room `compress`: what texts make of a model. How often they ask for each expert, and which
// channels stand out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// How often the experts of a layer were asked for.
struct LayerRouting {
  int layer = 0;                  ///< counts from 0; layers without experts have none of these
  std::vector<int64_t> tokens;    ///< [experts] tokens that were routed to each
  std::vector<double> gate_mass;  ///< [experts] sums of their outputs' weights; empty: not known
};

/// A channel that is larger than the others.
struct OutlierChannel {
  int64_t channel = 0;   ///< its number
  double largest = 0.0;  ///< the largest |x| that it had
};

/// What leaves a norm, by channel, over all tokens.
struct ChannelStatistics {
  int layer = 0;         ///< counts from 0
  std::string reader;    ///< the op that reads the norm's output first: "qkv", "experts" …
  int64_t width = 0;     ///< channels
  double mean = 0.0;     ///< of |x|
  double median = 0.0;   ///< of the channels' largest |x|
  double largest = 0.0;  ///< |x|
  int64_t outliers = 0;  ///< channels above `outlier_ratio` times the median
  std::vector<OutlierChannel> worst;  ///< the largest 16 of these, in order of size
};

/// What the texts of a calibration make of a model.
struct CalibrationStatistics {
  int64_t tokens = 0;                       ///< that went through the model
  int64_t starved_below = 0;                ///< an expert with fewer tokens starves
  double outlier_ratio = 0.0;               ///< see ChannelStatistics::outliers
  std::vector<LayerRouting> routing;        ///< by layer, ascending
  std::vector<ChannelStatistics> channels;  ///< by layer, in the order of its norms
};

/// How statistics are measured.
struct StatisticsOptions {
  int threads = 0;               ///< 0: all. No number hangs on it
  bool lenient_weights = false;  ///< EngineOptions::lenient_weights
  /// Tokens below which an expert starves; 0: as many as its matrices have columns, with fewer of
  /// which the products of its inputs have less than full rank.
  int64_t starved_below = 0;
  double outlier_ratio = 10.0;  ///< see ChannelStatistics::outliers
  /// Called before each text (done, total). May throw.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Runs texts (token ids, each a context of its own) once through a model on the CPU's fused
/// kernels and counts. The same texts give the same numbers on any number of threads. Throws
/// kInvalidArgument for texts without tokens, and what Engine::load and its steps throw.
/// Thread-safe.
VITRINE_API CalibrationStatistics measure_statistics(const std::string& model,
                                                     const std::vector<std::vector<int32_t>>& texts,
                                                     const StatisticsOptions& options = {});

/// An expert that too few tokens reach.
struct StarvedExpert {
  int layer = 0;       ///< counts from 0
  int64_t expert = 0;  ///< its number in the layer
  int64_t tokens = 0;  ///< that reach it
};

/// Returns the experts with fewer tokens than `starved_below`, layer by layer. Thread-safe.
VITRINE_API std::vector<StarvedExpert> starved_experts(const CalibrationStatistics& statistics);

/// Returns statistics as a JSON object: "tokens", "starved_below", "outlier_ratio", "routing" and
/// "channels". Thread-safe.
VITRINE_API std::string statistics_json(const CalibrationStatistics& statistics);

/// Reads such an object; `file` names it in messages. Throws kBadFile (naming the field) for counts
/// that are none, an expert with more tokens than there were, layers out of order and lists whose
/// lengths differ. Thread-safe.
VITRINE_API CalibrationStatistics parse_statistics(std::string_view json, const std::string& file);

/// Returns the statistics of a file of `calibrate`, or of the calibration of a quantized folder, as
/// its manifest has them. Throws kIo, and kBadFile where there are none. Thread-safe.
VITRINE_API CalibrationStatistics read_statistics(const std::string& path);

/// Throws kBadFile, naming `file`, where statistics are of a model with other layers or experts.
/// Thread-safe.
VITRINE_API void require_statistics_of(const CalibrationStatistics& statistics,
                                       const std::string& model, const std::string& file);

}  // namespace vitrine
