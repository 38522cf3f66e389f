// SPDX-License-Identifier: Apache-2.0
// Act-order: matrices whose columns have an order of their own run as the integers that they are.
// Where the order is undone by hand, in the rows that make a matrix's input, a model answers as the
// ordinary one that it was made of, to the bit.
#include <cmath>

#include "checkpoint/model_config.h"
#include "tests/engine/adapter_fixture.h"
#include "tests/engine/ordered_folder.h"
#include "vitrine/tap.h"

namespace vitrine::testing {
namespace {

constexpr int kTokens = 41;

class ActOrder : public ::testing::TestWithParam<ModelVariant> {
 protected:
  ActOrder()
      : plain_(GetParam()),
        folder_(plain_.path()),
        config_(parse_model_config(folder_.source())),
        ids_(prompt_ids(kTokens, static_cast<int>(config_.vocab_size))) {
    undo_hidden_orders();
    undo_attended_orders();
    folder_.write(undone_);
  }

  /// Down projections, each undone in the rows of its gate and up.
  void undo_hidden_orders() {
    for (const auto& [module, matrix] : folder_.matrices()) {
      constexpr std::string_view kDown = "down_proj";
      if (!module.ends_with(kDown)) continue;
      const std::string prefix = module.substr(0, module.size() - kDown.size());
      const Order order = shuffled(matrix.cols, static_cast<uint32_t>(++seed_));
      folder_.move_columns(module, order);
      folder_.move_rows(prefix + "gate_proj", order);
      folder_.move_rows(prefix + "up_proj", order);
      hidden_orders_[prefix] = order;
    }
  }

  /// Output projections: key-value heads change their places, with the query heads that read them,
  /// and the elements of each value stand backwards.
  void undo_attended_orders() {
    const int64_t heads = config_.num_heads, kv_heads = config_.num_kv_heads;
    const int64_t size = config_.head_dim, group = heads / kv_heads;
    Order queries, keys, values, attended;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t to = (head + group) % heads;
      for (int64_t i = 0; i < size; ++i) {
        queries.push_back(static_cast<int32_t>(to * size + i));
        attended.push_back(static_cast<int32_t>(to * size + size - 1 - i));
      }
    }
    for (int64_t head = 0; head < kv_heads; ++head) {
      const int64_t to = (head + 1) % kv_heads;
      for (int64_t i = 0; i < size; ++i) {
        keys.push_back(static_cast<int32_t>(to * size + i));
        values.push_back(static_cast<int32_t>(to * size + size - 1 - i));
      }
    }
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
      folder_.move_rows(prefix + "q_proj", queries);
      folder_.move_rows(prefix + "k_proj", keys);
      folder_.move_rows(prefix + "v_proj", values);
      folder_.move_columns(prefix + "o_proj", attended);
    }
  }

  /// Inputs of queries, keys and values, of gates and ups in orders, too, which nothing undoes. The
  /// values' is another than the queries'.
  void order_inputs(const TemporaryFolder& folder) {
    OrderedFolder all = folder_;
    for (const auto& [module, matrix] : folder_.matrices()) {
      const std::string prefix = module.substr(0, module.rfind('.') + 1);
      if (module.ends_with("down_proj") || module.ends_with("o_proj")) continue;
      const auto seed = static_cast<uint32_t>(std::hash<std::string>()(prefix) % 1000);
      all.move_columns(module, shuffled(matrix.cols, seed + (module.ends_with("v_proj") ? 1 : 0)));
    }
    all.write(folder);
  }

  VariantFolder plain_;
  OrderedFolder folder_;
  ModelConfig config_;
  std::vector<int32_t> ids_;
  TemporaryFolder undone_;
  std::map<std::string, Order> hidden_orders_;  // by "model.layers.0.mlp."
  int seed_ = 0;
};

/// What adapters, too, add to gates and ups in the file's rows; of what they multiply before downs
/// one column a row counts, so that no sum has another order.
std::vector<AdapterTensor> tensors_in_order(const std::vector<AdapterModule>& modules,
                                            const std::map<std::string, Order>& orders) {
  constexpr int64_t kRank = 3;
  std::vector<AdapterTensor> tensors = adapter_tensors(modules, kRank, 5);
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& module = modules[i].module;
    const auto order = orders.find(module.substr(0, module.rfind('.') + 1));
    if (!module.ends_with("down_proj")) {
      std::vector<float>& b = tensors[2 * i + 1].values;
      if (order != orders.end()) b = moved(b, order->second, kRank);
      continue;
    }
    std::vector<float>& a = tensors[2 * i].values;
    std::vector<float> sparse(a.size());
    for (size_t row = 0; row < kRank; ++row) {
      const auto cols = static_cast<size_t>(modules[i].cols);
      const size_t col = (row * 11 + 5) % cols;
      const size_t to = order == orders.end() ? col : static_cast<size_t>(order->second[col]);
      sparse[row * cols + to] = a[row * cols + col];
    }
    a = sparse;
  }
  return tensors;
}

double divergence(const Rows& expected, const Rows& found) {
  double total = 0;
  for (const auto& [position, row] : expected) {
    const auto log_softmax = [](const std::vector<float>& logits) {
      const float most = *std::ranges::max_element(logits);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit - most));
      std::vector<double> result;
      for (const float logit : logits) result.push_back(logit - most - std::log(sum));
      return result;
    };
    const auto p = log_softmax(row), q = log_softmax(found.at(position));
    for (size_t i = 0; i < p.size(); ++i) total += std::exp(p[i]) * (p[i] - q[i]);
  }
  return total / static_cast<double>(expected.size());
}

TEST_P(ActOrder, UndoneByHandAnswersAsTheOrdinaryFolder) {
  const auto plain = Engine::load(plain_.path(), test_options());
  const Rows expected = score(*plain, ids_);
  for (const int threads : {1, 2}) {
    EngineOptions options = test_options(threads);
    options.strict = true;
    auto engine = Engine::load(undone_.path(), options);
    for (const int chunk : {1, 7, 64}) {
      EXPECT_TRUE(same_bits(expected, score(*engine, ids_, chunk), ids_.size()))
          << threads << " threads, chunks of " << chunk;
    }
    options.mmap_weights = true;
    engine = Engine::load(undone_.path(), options);
    EXPECT_TRUE(same_bits(expected, score(*engine, ids_), ids_.size()));
  }
  if (config_.num_experts == 0) return;
  EngineOptions cached = test_options(2);
  cached.expert_cache_bytes = uint64_t{1} << 24;
  const auto engine = Engine::load(undone_.path(), cached);
  EXPECT_TRUE(same_bits(expected, score(*engine, ids_), ids_.size()));
  EXPECT_TRUE(same_bits(expected, score(*engine, ids_, 1), ids_.size()));
}

TEST_P(ActOrder, TapsSeeTheRowsOfTheFile) {
  const bool is_sparse = config_.is_sparse_layer(0);
  EngineOptions options = test_options(2);
  options.taps = {{.layer = 0,
                   .op = is_sparse ? "experts" : "dense_ffn",
                   .value = is_sparse ? "expert_hidden" : "dense_hidden",
                   .side = Tap::Side::kOutput,
                   .squares = true,
                   .by_expert = is_sparse}};
  const auto plain = Engine::load(plain_.path(), options);
  const auto undone = Engine::load(undone_.path(), options);
  EXPECT_TRUE(same_bits(score(*plain, ids_), score(*undone, ids_), ids_.size()));
  const Order& order =
      hidden_orders_.at(is_sparse ? "model.layers.0.mlp.experts.1." : "model.layers.0.mlp.");
  const int expert = is_sparse ? 1 : 0;
  const TapSums expected = plain->tap_sums(0, expert), found = undone->tap_sums(0, expert);
  ASSERT_EQ(expected.squares.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(expected.squares[i], found.squares[static_cast<size_t>(order[i])]) << i;
  }
}

TEST_P(ActOrder, AdaptersChangeTheRowsOfTheFile) {
  std::vector<AdapterModule> modules;
  for (const AdapterModule& module : block_modules(config_)) {
    const std::string& name = module.module;
    if (name.ends_with("_proj")) modules.push_back(module);
  }
  const TemporaryFolder adapters;
  write_adapter(adapters / "plain", adapter_config(3, 4), tensors_in_order(modules, {}));
  write_adapter(adapters / "undone", adapter_config(3, 4),
                tensors_in_order(modules, hidden_orders_));
  const auto answer = [&](const std::string& folder, const std::string& adapter) {
    EngineOptions options = test_options(2);
    options.adapters = {adapters / adapter};
    const auto engine = Engine::load(folder, options);
    Rows rows;
    feed(*engine, engine->create_sequence(0), ids_, 0, ids_.size(), 0, rows);
    return rows;
  };
  const Rows expected = answer(plain_.path(), "plain");
  EXPECT_TRUE(same_bits(expected, answer(undone_.path(), "undone"), ids_.size()));
  EXPECT_FALSE(same_bits(expected, answer(undone_.path(), "plain"), ids_.size()));
}

/// The float model of the same weights has activations in float32, which parts the two by what int8
/// costs models as small as these.
TEST_P(ActOrder, FormedInputsAnswerAsTheFloatsThatTheyMean) {
  const TemporaryFolder ordered, floats;
  order_inputs(ordered);
  const Checkpoint checkpoint = Checkpoint::open(ordered.path());
  nlohmann::json config = nlohmann::json::parse(checkpoint.config_json());
  config.erase("quantization_config");
  write_bytes(floats / "config.json", config.dump());
  SafetensorsWriter writer(floats / "model.safetensors");
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    const auto found = checkpoint.find_quantized_tensors(module);
    const bool is_part = found && !info.name.ends_with(".bias");
    const std::string name = is_part ? module + ".weight" : info.name;
    if (tensors.contains(name)) continue;
    tensors[name] = is_part ? checkpoint.read_quantized_floats(*found, 0, found->rows)
                            : checkpoint.read_f32(info);
    writer.declare(name, DType::kF32, is_part ? std::vector{found->rows, found->cols} : info.shape);
  }
  writer.begin();
  for (const auto& [name, values] : tensors) writer.write(name, std::as_bytes(std::span(values)));
  writer.finish();
  const Rows expected = score(*Engine::load(floats.path(), test_options()), ids_);
  EngineOptions options = test_options();
  options.strict = true;  // no matrix is widened
  const Rows found = score(*Engine::load(ordered.path(), options), ids_);
  EXPECT_LE(divergence(expected, found), 2e-3);
  const Rows another = score(*Engine::load(undone_.path(), options), ids_);
  EXPECT_GT(divergence(expected, another), 0.05);  // the orders mean something

  int ran = 0;
  for (const char* isa : {"portable", "avx2", "avx2_vnni", "avx512", "avx512_amx"}) {
    const ScopedEnvironment forced("VITRINE_CPU_ISA", isa);
    try {
      const auto engine = Engine::load(ordered.path(), test_options(2));
      ++ran;
      for (const size_t chunk : {0, 1, 9}) {
        EXPECT_TRUE(same_bits(found, score(*engine, ids_, chunk), ids_.size())) << isa;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable) << error.what();
    }
  }
  EXPECT_GE(ran, 1);
  if (config_.num_experts == 0) return;
  EngineOptions cached = test_options(2);
  cached.expert_cache_bytes = uint64_t{1} << 24;
  EXPECT_TRUE(same_bits(found, score(*Engine::load(ordered.path(), cached), ids_), ids_.size()));
}

TEST_P(ActOrder, TakesTheMemoryOfIntegers) {
  const auto plain = Engine::load(plain_.path(), test_options());
  const auto undone = Engine::load(undone_.path(), test_options());
  const uint64_t before = plain->summary().weight_bytes, now = undone->summary().weight_bytes;
  EXPECT_LE(now, before + before / 4);
  bool is_named = false;
  for (const PlanEntry& entry : undone->plan()) {
    is_named = is_named || entry.kernel.find("+order") != entry.kernel.npos;
  }
  EXPECT_TRUE(is_named);
}

INSTANTIATE_TEST_SUITE_P(Models, ActOrder,
                         ::testing::Values(ModelVariant{"llama", "int4"},
                                           ModelVariant{"qwen3", "int4-asymmetric"},
                                           ModelVariant{"qwen2_moe", "int8"},
                                           ModelVariant{"qwen3_moe", "int3"}),
                         variant_name);

}  // namespace
}  // namespace vitrine::testing
