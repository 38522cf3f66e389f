// SPDX-License-Identifier: Apache-2.0
// The table that `generate --summary` ends with.
#pragma once

#include <string>
#include <vector>

#include "vitrine/audit.h"
#include "vitrine/federation_engine.h"

namespace cli {

/// Collects from audit records what the table shows.
class Summary {
 public:
  void add(const vitrine::TokenRecord& record);
  /// Notes that records were lost, so that the table says so.
  void set_overwritten(uint64_t records) { overwritten_ = records; }
  /// Each layer's experts with a bar each, then the most surprising tokens.
  std::string text(const vitrine::ModelSummary& model, const vitrine::Tokenizer& tokenizer) const;

 private:
  struct Surprise {
    int64_t position = 0;
    int32_t token = 0;
    float logprob = 0;
    std::vector<vitrine::LayerRecord> layers;
  };
  std::string expert_use(const vitrine::ModelSummary& model) const;

  std::vector<std::vector<int64_t>> uses_;  // [layer][expert]; empty for a dense layer
  int64_t tokens_ = 0;
  uint64_t overwritten_ = 0;
  std::vector<Surprise> surprises_;  // least probable first, at most kSurprises
};

/// Measures for at most about two seconds what the recorder costs in this mode, and says how.
/// `context` as for SliceRunner.
std::string measure_overhead(vitrine::Stepper& engine, vitrine::AuditMode mode,
                             const std::vector<int32_t>& prompt, int64_t context);

}  // namespace cli
