// SPDX-License-Identifier: Apache-2.0
// Two federations under test: one of separate checkpoints, one of a base and its adapters.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "tests/engine/adapter_fixture.h"
#include "vitrine/federation_engine.h"

namespace vitrine::testing {

inline double exact_log_sum_exp(std::span<const float> logits) {
  double most = -1e300, sum = 0;
  for (const float logit : logits) most = std::max(most, double{logit});
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum);
}

class FederationTest : public ::testing::Test {
 protected:
  FederationTest() : prompt_(prompt_ids(50, 256)) {
    separate_.path = folder_ / "separate.json";
    separate_.specialists = {{"moe", oracle_folder("qwen3_moe"), ""},
                             {"dense", oracle_folder("llama"), ""}};
    separate_.combiner.weights = {0.4, 0.6};
    const ModelConfig config = parse_model_config(Checkpoint::open(oracle_folder("qwen3_moe")));
    adapted_.path = folder_ / "adapted.json";
    adapted_.base = oracle_folder("qwen3_moe");
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = "adapter" + std::to_string(i);
      write_adapter(folder_ / name, adapter_config(4, 8),
                    adapter_tensors(attention_modules(config), 4, 10 + i));
      adapted_.specialists.push_back({name, adapted_.base, folder_ / name});
    }
    adapted_.specialists.push_back({"base", adapted_.base, ""});
    adapted_.combiner.weights = {0.5, 0.3, 0.2};
  }

  Rows feed_all(Federation& federation, size_t chunk) const {
    Rows rows;
    const SequenceId sequence = federation.create_sequence();
    for (size_t first = 0; first < prompt_.size(); first += chunk) {
      StepInput input;
      input.sequence = sequence;
      input.tokens =
          std::span<const int32_t>(prompt_).subspan(first, std::min(chunk, prompt_.size() - first));
      input.rows = StepInput::Rows::kAll;
      keep_rows(federation.step({&input, 1}), sequence, rows);
    }
    EXPECT_EQ(federation.length(sequence), static_cast<int64_t>(prompt_.size()));
    federation.release(sequence);
    return rows;
  }

  TemporaryFolder folder_;
  FederationSpec separate_, adapted_;
  std::vector<int32_t> prompt_;
};

}  // namespace vitrine::testing
