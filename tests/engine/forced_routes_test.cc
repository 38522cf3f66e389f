// SPDX-License-Identifier: Apache-2.0
// Routes given in place of the router's: what was chosen gives the same bits, anything else another
// result, on both paths.
#include <cmath>
#include <limits>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

std::unique_ptr<Engine> load(const std::string& path, KernelPath kernels, int threads = 2) {
  EngineOptions options = test_options(kernels == KernelPath::kFused ? threads : 1, 16);
  options.kernels = kernels;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  return Engine::load(path, options);
}

struct Scored {
  Rows rows;
  std::vector<TokenRecord> records;
};

/// A whole prompt, `chunk` tokens a step (0: all), each token with its part of `routes`.
Scored run(Engine& engine, std::span<const int32_t> ids, std::span<const ForcedRoute> routes = {},
           size_t chunk = 0) {
  VectorSink sink;
  engine.set_audit_sink(&sink);
  const SequenceId sequence = engine.create_sequence();
  if (chunk == 0) chunk = ids.size();
  Scored result;
  for (size_t first = 0; first < ids.size(); first += chunk) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = ids.subspan(first, std::min(chunk, ids.size() - first));
    input.rows = StepInput::Rows::kAll;
    std::vector<ForcedRoute> own;
    for (ForcedRoute route : routes) {
      route.token -= static_cast<int32_t>(first);
      if (route.token >= 0 && route.token < static_cast<int32_t>(input.tokens.size())) {
        own.push_back(route);
      }
    }
    input.routes = own;
    keep_rows(engine.step({&input, 1}), sequence, result.rows);
  }
  engine.release(sequence);
  engine.set_audit_sink(nullptr);
  result.records = sink.take();
  return result;
}

/// What was recorded, as routes to force.
std::vector<ForcedRoute> routes_of(std::span<const TokenRecord> records, bool with_weights) {
  std::vector<ForcedRoute> routes;
  for (size_t token = 0; token < records.size(); ++token) {
    for (const LayerRecord& layer : records[token].layers) {
      for (const RouteRecord& route : layer.routes) {
        ForcedRoute forced{static_cast<int32_t>(token), layer.layer, route.expert};
        if (with_weights) forced.weight = route.weight;
        routes.push_back(forced);
      }
    }
  }
  return routes;
}

/// Each slot's expert becomes the next one that the token does not have in that layer.
std::vector<ForcedRoute> other_routes(std::vector<ForcedRoute> routes, int num_experts) {
  const std::vector<ForcedRoute> chosen = routes;
  for (ForcedRoute& route : routes) {
    auto is_taken = [&](int32_t expert) {
      auto same = [&](const ForcedRoute& other) {
        return other.token == route.token && other.layer == route.layer && other.expert == expert;
      };
      return std::ranges::any_of(chosen, same) || std::ranges::count_if(routes, same) > 0;
    };
    int32_t expert = route.expert;
    for (int i = 0; i < num_experts && is_taken(expert); ++i) expert = (expert + 1) % num_experts;
    route.expert = expert;
  }
  return routes;
}

float largest_difference(const Rows& one, const Rows& other) {
  float largest = 0;
  for (const auto& [position, row] : one) {
    for (size_t i = 0; i < row.size(); ++i) {
      largest = std::max(largest, std::abs(row[i] - other.at(position)[i]));
    }
  }
  return largest;
}

class ForcedRoutes : public ::testing::TestWithParam<ModelVariant> {
 protected:
  ForcedRoutes() : folder_(GetParam()) {}
  // Both paths quantize activations alike, but not to the last bit.
  static bool is_float() { return GetParam().scheme.empty() && GetParam().name != "shipped"; }
  VariantFolder folder_;
};

TEST_P(ForcedRoutes, TheRoutersOwnGiveTheSameBits) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto engine = load(folder_.path(), path);
    const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size);
    const Scored free = run(*engine, ids);
    for (const bool with_weights : {false, true}) {
      const std::vector<ForcedRoute> routes = routes_of(free.records, with_weights);
      ASSERT_FALSE(routes.empty());
      const Scored forced = run(*engine, ids, routes);
      EXPECT_TRUE(same_bits(free.rows, forced.rows, ids.size()));
      for (size_t i = 0; i < ids.size(); ++i) {
        for (size_t l = 0; l < free.records[i].layers.size(); ++l) {
          const LayerRecord &a = free.records[i].layers[l], &b = forced.records[i].layers[l];
          ASSERT_EQ(a.residual_norm, b.residual_norm);
          ASSERT_EQ(a.router_probs, b.router_probs);
          for (size_t slot = 0; slot < a.routes.size(); ++slot) {
            ASSERT_EQ(a.routes[slot].expert, b.routes[slot].expert);
            ASSERT_EQ(a.routes[slot].weight, b.routes[slot].weight);
          }
        }
      }
      if (path != KernelPath::kFused) continue;
      EXPECT_TRUE(same_bits(free.rows, run(*engine, ids, routes, 1).rows, ids.size()));
      EXPECT_TRUE(same_bits(free.rows, run(*engine, ids, routes, 7).rows, ids.size()));
      auto alone = load(folder_.path(), path, 1);
      EXPECT_TRUE(same_bits(free.rows, run(*alone, ids, routes).rows, ids.size()));
    }
    EXPECT_TRUE(same_bits(free.rows, run(*engine, ids).rows, ids.size()));  // nothing stays forced
  }
}

TEST_P(ForcedRoutes, OthersChangeTheResultOnBothPathsAlike) {
  auto fused = load(folder_.path(), KernelPath::kFused);
  auto reference = load(folder_.path(), KernelPath::kReference);
  const std::vector<int32_t> ids = prompt_ids(24, fused->summary().vocab_size, 3);
  const Scored free = run(*fused, ids);
  const std::vector<ForcedRoute> routes =
      other_routes(routes_of(free.records, false), fused->summary().num_experts);
  const Scored one = run(*fused, ids, routes), other = run(*reference, ids, routes);
  EXPECT_GT(largest_difference(free.rows, one.rows), 1e-3F);
  EXPECT_LT(largest_difference(one.rows, other.rows),
            is_float() ? 1e-3F : 0.05F * largest_difference(free.rows, one.rows));
  size_t next = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t l = 0; l < one.records[i].layers.size(); ++l) {
      const auto &a = one.records[i].layers[l].routes, &b = other.records[i].layers[l].routes;
      for (size_t slot = 0; slot < a.size(); ++slot) {
        EXPECT_EQ(a[slot].expert, routes.at(next).expert);
        EXPECT_EQ(b[slot].expert, routes.at(next++).expert);
        EXPECT_NEAR(a[slot].weight, b[slot].weight, is_float() ? 1e-4 : 1e-2);
      }
    }
  }
  EXPECT_EQ(next, routes.size());
  EXPECT_TRUE(same_bits(one.rows, run(*fused, ids, routes, 5).rows, ids.size()));
}

// With weight 0 it does not matter which expert ran; the other weights stay as they were.
TEST_P(ForcedRoutes, WeightZeroIsCombineWithoutTheExpert) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto engine = load(folder_.path(), path);
    const std::vector<int32_t> ids = prompt_ids(10, engine->summary().vocab_size, 2);
    const Scored free = run(*engine, ids);
    const auto token = static_cast<int32_t>(ids.size()) - 1;
    for (const LayerRecord& layer : free.records.back().layers) {
      if (layer.routes.empty()) continue;
      std::vector<ForcedRoute> routes, others;
      for (size_t slot = 0; slot < layer.routes.size(); ++slot) {
        const float weight = slot == 0 ? 0.0F : layer.routes[slot].weight;
        routes.push_back({token, layer.layer, layer.routes[slot].expert, weight});
      }
      others = routes;
      others[0].expert = other_routes(routes, engine->summary().num_experts)[0].expert;
      ASSERT_NE(routes[0].expert, others[0].expert);
      const Scored one = run(*engine, ids, routes), other = run(*engine, ids, others);
      EXPECT_TRUE(same_bits(one.rows, other.rows, ids.size())) << "layer " << layer.layer;
      EXPECT_GT(largest_difference(free.rows, one.rows), 0) << "layer " << layer.layer;
      // The router's weights for the rest, where only this one is given.
      for (size_t slot = 1; slot < routes.size(); ++slot) {
        routes[slot].weight = ForcedRoute::kRouterWeight;
      }
      EXPECT_TRUE(same_bits(one.rows, run(*engine, ids, routes).rows, ids.size()));
      const auto& recorded = one.records.back().layers[static_cast<size_t>(layer.layer)].routes;
      EXPECT_EQ(recorded[0].weight, 0);
      for (size_t position = 0; position + 1 < ids.size(); ++position) {  // and no other token
        const auto at = static_cast<int64_t>(position);
        if (path == KernelPath::kFused) {
          EXPECT_EQ(free.rows.at(at), one.rows.at(at));
        }
      }
    }
  }
}

// All experts of the last layer out: the residual stream is what attention left, which a combine of
// zeros does not change.
TEST_P(ForcedRoutes, AllWeightsZeroLeaveTheStreamAsItWas) {
  EngineOptions options = test_options(2, 16);
  options.audit_mode = AuditMode::kDeferred;
  options.attribution = true;
  auto engine = Engine::load(folder_.path(), options);
  const std::vector<int32_t> ids = prompt_ids(10, engine->summary().vocab_size, 5);
  const Scored free = run(*engine, ids);
  std::vector<ForcedRoute> routes = routes_of(std::span(free.records), true);
  for (ForcedRoute& route : routes) route.weight = 0;
  const Scored none = run(*engine, ids, routes);
  for (const TokenRecord& record : none.records) {
    float experts = 0;
    double sum = 0, largest = 0;
    for (const TermRecord& term : record.prediction.attribution.terms) {
      if (term.kind == AuditLayout::Term::Kind::kExpert) experts += std::abs(term.value);
      sum += static_cast<double>(term.value);
      largest = std::max(largest, std::abs(static_cast<double>(term.value)));
    }
    EXPECT_EQ(experts, 0);
    EXPECT_NEAR(sum, record.prediction.attribution.logit,
                is_float() ? 1e-3 : 0.05 * std::max(1.0, largest));
  }
  EXPECT_GT(largest_difference(free.rows, none.rows), 1e-3F);
}

TEST_P(ForcedRoutes, OnlySomeTokensAndLayers) {
  auto engine = load(folder_.path(), KernelPath::kFused);
  const std::vector<int32_t> ids = prompt_ids(20, engine->summary().vocab_size, 6);
  const Scored free = run(*engine, ids);
  std::vector<ForcedRoute> routes = routes_of(free.records, false);
  std::erase_if(routes, [](const ForcedRoute& route) { return route.token % 3 != 1; });
  EXPECT_TRUE(same_bits(free.rows, run(*engine, ids, routes).rows, ids.size()));
  routes = other_routes(routes, engine->summary().num_experts);
  const Scored forced = run(*engine, ids, routes);
  EXPECT_EQ(free.rows.at(0), forced.rows.at(0));
  EXPECT_NE(free.rows.at(1), forced.rows.at(1));
}

// Two sequences in one step, one of them forced: the other does not notice.
TEST_P(ForcedRoutes, AnotherSequenceOfTheStepIsAsAlone) {
  auto engine = load(folder_.path(), KernelPath::kFused);
  const std::vector<int32_t> ids = prompt_ids(12, engine->summary().vocab_size, 7);
  const Scored free = run(*engine, ids);
  const std::vector<ForcedRoute> routes =
      other_routes(routes_of(free.records, false), engine->summary().num_experts);
  const Scored forced = run(*engine, ids, routes);
  StepInput inputs[2];
  for (StepInput& input : inputs) {
    input.sequence = engine->create_sequence();
    input.tokens = ids;
    input.rows = StepInput::Rows::kAll;
  }
  inputs[1].routes = routes;
  const auto outputs = engine->step(inputs);
  Rows first, second;
  keep_rows(outputs, inputs[0].sequence, first);
  keep_rows(outputs, inputs[1].sequence, second);
  EXPECT_TRUE(same_bits(free.rows, first, ids.size()));
  EXPECT_TRUE(same_bits(forced.rows, second, ids.size()));
}

INSTANTIATE_TEST_SUITE_P(
    Models, ForcedRoutes,
    ::testing::Values(ModelVariant{"qwen3_moe", "", 0}, ModelVariant{"qwen3_moe", "int4", 32},
                      ModelVariant{"qwen3_moe_sparse2", "", 0}, ModelVariant{"qwen2_moe", "", 0},
                      ModelVariant{"olmoe", "", 0}, ModelVariant{"mixtral", "", 0},
                      ModelVariant{"granitemoe", "", 0}, ModelVariant{"shipped", "", 0}),
    variant_name);

class ForcedRouteErrors : public ::testing::TestWithParam<KernelPath> {};

TEST_P(ForcedRouteErrors, AreRefusedWhole) {
  auto engine = load(oracle_folder("qwen3_moe_sparse2"), GetParam());
  const std::vector<int32_t> ids = prompt_ids(3, engine->summary().vocab_size);
  const Scored free = run(*engine, ids);
  const std::vector<ForcedRoute> good = routes_of(free.records, false);
  const AuditLayout& layout = engine->audit_layout();
  const auto sparse =
      std::ranges::find_if(layout.layers, [](const auto& l) { return l.top_k > 0; });
  const auto dense =
      std::ranges::find_if(layout.layers, [](const auto& l) { return l.top_k == 0; });
  ASSERT_NE(sparse, layout.layers.end());
  ASSERT_NE(dense, layout.layers.end());
  ASSERT_GE(sparse->top_k, 2);
  const int32_t layer = sparse->layer;
  const SequenceId sequence = engine->create_sequence();
  const uint64_t readbacks = engine->readback_count();

  auto refused = [&](auto edit, std::initializer_list<std::string_view> words) {
    std::vector<ForcedRoute> routes = good;
    edit(routes);
    StepInput input;
    input.sequence = sequence;
    input.tokens = ids;
    input.routes = routes;
    const Error error = error_of([&] { engine->step({&input, 1}); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_EQ(engine->length(sequence), 0);
    EXPECT_EQ(engine->readback_count(), readbacks);
  };
  using Routes = std::vector<ForcedRoute>;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  refused([](Routes& r) { r[0].token = -1; }, {"forced route 0", "token -1", "0 to 2"});
  refused([](Routes& r) { r.back().token = 3; }, {"token 3", "0 to 2"});
  refused([](Routes& r) { r[0].layer = -1; }, {"layer -1"});
  refused([](Routes& r) { r.back().layer = 99; }, {"layer 99"});
  refused([&](Routes& r) { r[0].layer = dense->layer; }, {"dense"});
  refused([](Routes& r) { r[1].expert = -1; }, {"forced route 1", "expert -1"});
  refused([&](Routes& r) { r[1].expert = sparse->num_experts; }, {"expert"});
  refused([](Routes& r) { r[1].expert = r[0].expert; }, {"twice"});
  refused([](Routes& r) { r.pop_back(); }, {"expected all"});
  refused([](Routes& r) { r.erase(r.begin()); }, {"expected all"});
  refused(
      [&](Routes& r) {
        r.insert(r.begin() + sparse->top_k, r[0]);
        int32_t expert = 0;
        while (std::any_of(r.begin(), r.begin() + sparse->top_k,
                           [&](const ForcedRoute& route) { return route.expert == expert; })) {
          ++expert;
        }
        r[static_cast<size_t>(sparse->top_k)].expert = expert;
      },
      {"expected all"});
  refused([&](Routes& r) { std::rotate(r.begin(), r.end() - sparse->top_k, r.end()); }, {"order"});
  refused([](Routes& r) { r[0].weight = kNan; }, {"weight", "nan"});
  refused([](Routes& r) { r[0].weight = kInfinity; }, {"weight", "inf"});
  refused([](Routes& r) { r[0].weight = -0.5F; }, {"weight -0.5"});
  EXPECT_GE(layer, 0);

  const Scored again = run(*engine, ids, good);
  EXPECT_TRUE(same_bits(free.rows, again.rows, ids.size()));
}

INSTANTIATE_TEST_SUITE_P(Paths, ForcedRouteErrors,
                         ::testing::Values(KernelPath::kFused, KernelPath::kReference));

}  // namespace
}  // namespace vitrine::testing
