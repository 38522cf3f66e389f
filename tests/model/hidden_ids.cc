// SPDX-License-Identifier: Apache-2.0
// hidden_ids MODEL KERNELS: reads ids from standard input; prints the residual stream of each
// position, entering every layer and leaving the last, as JSON: [[[value, …] by layer] by
// position].
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: hidden_ids MODEL KERNELS\n", stderr), 2;
  std::vector<int32_t> ids;
  for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
  vitrine::EngineOptions options;
  options.kernels = std::string_view(argv[2]) == "reference" ? vitrine::KernelPath::kReference
                                                             : vitrine::KernelPath::kFused;
  options.threads = 1;
  options.audit_level = vitrine::AuditLevel::kFull;
  const auto config = vitrine::read_model_facts(vitrine::Checkpoint::open(argv[1]));
  for (int layer = 0; layer <= config.num_layers; ++layer) {
    options.hidden_state_layers.push_back(layer);
  }
  const auto engine = vitrine::Engine::load(argv[1], options);
  vitrine::SlabRing ring(1 << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  engine->set_audit_sink(&ring);
  vitrine::StepInput input;
  input.sequence = engine->create_sequence();
  input.tokens = ids;
  engine->step({&input, 1});
  nlohmann::json all = nlohmann::json::array();
  for (const vitrine::TokenRecord& record : ring.drain_records()) {
    nlohmann::json layers = nlohmann::json::array();
    for (const auto& state : record.hidden_states) layers.push_back(state.values);
    all.push_back(layers);
  }
  std::cout << all << '\n';
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "hidden_ids: %s\n", error.what()), 1;
}
