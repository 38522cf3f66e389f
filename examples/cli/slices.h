// SPDX-License-Identifier: Apache-2.0
// Short runs of greedy decoding that can be compared with each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "vitrine/engine.h"

namespace cli {

/// Positions behind the prefix that a context should have, for short runs to walk through.
inline constexpr int kTextTokens = 96;

/// Decodes on and on, with the recorder in one mode or another. Before each run one token is
/// sampled, so that runs, short ones too, walk through a text: what was computed for a token just
/// before would make the next run of the same token cheaper. End of text is ignored. Where the
/// context is full, the sequence starts over from the prefix.
class SliceRunner {
 public:
  /// `context` is the number of positions that a sequence of `engine` may have, more than
  /// `prefix.size()`; the prefix holds at least one id.
  SliceRunner(vitrine::Stepper& engine, std::vector<int32_t> prefix, int64_t context);
  ~SliceRunner();
  SliceRunner(const SliceRunner&) = delete;
  SliceRunner& operator=(const SliceRunner&) = delete;

  /// How long to rest before each run: what an earlier one left to other threads is done then.
  void set_settle_time(std::chrono::milliseconds time) { settle_time_ = time; }

  /// Wall-clock seconds for `tokens` greedy tokens. Switching the mode, one sampled step in it and
  /// making room for the run happen before the clock starts.
  double run(vitrine::AuditMode mode, int tokens);

  /// Runs none, mode, mode, none (ABBA) and adds the two paired overheads, as fractions of the
  /// speed without the recorder.
  void run_pairs(vitrine::AuditMode mode, int tokens, std::vector<double>& overheads);

 private:
  void rewind();
  void step(vitrine::SamplerPipeline* sampler = nullptr, bool goes_on = false);

  vitrine::Stepper& engine_;
  std::vector<int32_t> prefix_;
  int64_t context_;
  vitrine::SequenceId sequence_;
  int32_t next_ = 0;
  vitrine::SamplerPipeline sampler_ = vitrine::SamplerPipeline::from_options({.temperature = 1.0F});
  uint64_t seed_ = 0;  // of the sampled steps, one after the other
  std::chrono::milliseconds settle_time_{0};
};

}  // namespace cli
