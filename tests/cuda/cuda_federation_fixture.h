// SPDX-License-Identifier: Apache-2.0
// Federations under test that run on the emulated device.
#pragma once

#include "checkpoint/model_config.h"
#include "tests/cuda/engine_options_on.h"
#include "tests/engine/federation_fixture.h"
#include "tests/engine/recorded_answer.h"
#include "vitrine/audit_log.h"

namespace vitrine::testing {

class CudaFederation : public FederationTest {
 protected:
  CudaFederation() {
    const ModelConfig config = parse_model_config(Checkpoint::open(adapted_.base));
    write_adapter(folder_ / "blocks", adapter_config(4, 8),
                  adapter_tensors(all_modules(config), 4, 17));
    adapted_.specialists[1].adapter = folder_ / "blocks";
    product_ = separate_;
    product_.combiner.kind = CombinerSpec::Kind::kProduct;
    product_.combiner.weights = {0.7, 0.5};
    adapted_product_ = adapted_;
    adapted_product_.combiner.kind = CombinerSpec::Kind::kProduct;
    adapted_product_.combiner.weights = {0.9, -0.2, 0.6};
    gate_ = adapted_;
    gate_.specialists.pop_back();  // the base is a source of its own then, which the gate reads
    gate_.combiner = {};
    gate_.combiner.kind = CombinerSpec::Kind::kGate;
    gate_.combiner.hidden_size = config.hidden_size;
    gate_.combiner.gate = spread_values(2 * static_cast<size_t>(config.hidden_size), 5, 0.3F);
    gate_.combiner.bias = {0.0F, 0.1F};
    separate_gate_ = separate_;  // the first one's state is read
    separate_gate_.combiner = gate_.combiner;
    // Logits that are multiplied behind the head's product.
    scaled_.path = folder_ / "scaled.json";
    scaled_.base = oracle_folder("granitemoe");
    const ModelConfig scaled = parse_model_config(Checkpoint::open(scaled_.base));
    write_adapter(folder_ / "scaled", adapter_config(4, 8),
                  adapter_tensors(attention_modules(scaled), 4, 23));
    scaled_.specialists = {{"adapter", scaled_.base, folder_ / "scaled"},
                           {"base", scaled_.base, ""}};
    scaled_.combiner.weights = {0.25, 0.75};
  }

  std::vector<const FederationSpec*> all() const {
    return {&adapted_, &adapted_product_, &gate_, &scaled_, &separate_, &product_, &separate_gate_};
  }

  FederationSpec product_, adapted_product_, gate_, separate_gate_, scaled_;
};

inline void expect_same_shares(std::span<const SpecialistShare> cpu,
                               std::span<const SpecialistShare> cuda) {
  ASSERT_EQ(cpu.size(), cuda.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_EQ(cpu[i].logprob, cuda[i].logprob);
    EXPECT_EQ(cpu[i].weight, cuda[i].weight);
    EXPECT_EQ(cpu[i].share, cuda[i].share);
  }
}

}  // namespace vitrine::testing
