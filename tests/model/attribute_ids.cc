// SPDX-License-Identifier: Apache-2.0
// attribute_ids MODEL KERNELS: reads ids from standard input; prints the terms of each position's
// best token as JSON: [{"token", "logit", "rounding", "terms": [[kind, layer, expert, value], …]},
// …].
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "vitrine/engine.h"

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: attribute_ids MODEL KERNELS\n", stderr), 2;
  std::vector<int32_t> ids;
  for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
  vitrine::EngineOptions options;
  options.kernels = std::string_view(argv[2]) == "reference" ? vitrine::KernelPath::kReference
                                                             : vitrine::KernelPath::kFused;
  options.threads = 1;
  options.attribution = true;
  const auto engine = vitrine::Engine::load(argv[1], options);
  vitrine::SlabRing ring(1 << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  engine->set_audit_sink(&ring);
  const vitrine::SequenceId sequence = engine->create_sequence();
  nlohmann::json all = nlohmann::json::array();
  for (const int32_t& id : ids) {
    vitrine::StepInput input;
    input.sequence = sequence;
    input.tokens = {&id, 1};
    engine->step({&input, 1});
    for (const vitrine::TokenRecord& record : ring.drain_records()) {
      const vitrine::AttributionRecord& attribution = record.prediction.attribution;
      nlohmann::json terms = nlohmann::json::array();
      for (const vitrine::TermRecord& term : attribution.terms) {
        terms.push_back(
            {static_cast<int>(term.kind), term.layer, term.expert, term.value, term.runner_up});
      }
      all.push_back({{"token", record.prediction.token},
                     {"logit", attribution.logit},
                     {"rounding", attribution.rounding},
                     {"runner_up", attribution.runner_up},
                     {"terms", terms}});
    }
  }
  std::cout << all << '\n';
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "attribute_ids: %s\n", error.what()), 1;
}
