// SPDX-License-Identifier: Apache-2.0
// route_ids MODEL KERNELS: reads ids from standard input; prints the routes of each position and
// layer as JSON: [[{"router", "experts", "weights", "scores", "keys"} by layer] by position].
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "vitrine/engine.h"

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: route_ids MODEL KERNELS\n", stderr), 2;
  std::vector<int32_t> ids;
  for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
  vitrine::EngineOptions options;
  options.kernels = std::string_view(argv[2]) == "reference" ? vitrine::KernelPath::kReference
                                                             : vitrine::KernelPath::kFused;
  options.threads = 1;
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
    for (const vitrine::LayerRecord& from : record.layers) {
      nlohmann::json layer = {{"router", vitrine::router_kind_name(from.router)}};
      for (const char* key : {"experts", "weights", "scores", "keys"}) {
        layer[key] = nlohmann::json::array();
      }
      for (const vitrine::RouteRecord& route : from.routes) {
        layer["experts"].push_back(route.expert);
        layer["weights"].push_back(route.weight);
      }
      for (const vitrine::SelectionRecord& of : from.selection) {
        layer["scores"].push_back(of.score);
        layer["keys"].push_back(of.key);
      }
      layers.push_back(layer);
    }
    all.push_back(layers);
  }
  std::cout << all << '\n';
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "route_ids: %s\n", error.what()), 1;
}
