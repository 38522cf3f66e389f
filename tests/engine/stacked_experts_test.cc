// SPDX-License-Identifier: Apache-2.0
// Quantized experts that stand in one tensor a layer: the bits of the same experts one by one, in
// memory, mapped and from a cache.
#include "tests/checkpoint/stacked_folder.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

constexpr StackStyle kStyles[] = {{false, false}, {true, false}, {false, true}, {true, true}};

std::vector<ModelVariant> stacked_variants() {
  std::vector<ModelVariant> all;
  for (const QuantMethod& method : quant_methods()) {
    if (method.activations == ActivationUse::kStatic) continue;  // needs texts
    all.push_back({"qwen3_moe", method.name, 32});
  }
  return all;
}

class StackedExperts : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(StackedExperts, GiveTheBitsOfExpertsOneByOne) {
  const VariantFolder folder(GetParam());
  const Checkpoint one_by_one = Checkpoint::open(folder.path());
  auto plain = Engine::load(folder.path(), test_options());
  EngineOptions mapped_options = test_options(2);
  mapped_options.mmap_weights = true;
  EngineOptions cached_options = test_options(2);
  cached_options.expert_cache_bytes = uint64_t{1} << 22;
  const uint64_t mapped_bytes = Engine::load(folder.path(), mapped_options)->summary().mapped_bytes;
  const std::vector<int32_t> ids = prompt_ids(40, plain->summary().vocab_size);
  const Rows expected = score(*plain, ids);
  for (const StackStyle style : kStyles) {
    SCOPED_TRACE(std::to_string(style.is_nested) + std::to_string(style.joins_columns));
    const TemporaryFolder copy;
    write_stacked(folder.path(), copy.path(), style);
    const Checkpoint stacked = Checkpoint::open(copy.path());
    size_t num_modules = 0;
    for (const TensorInfo& info : one_by_one.tensors()) {
      const std::string module = info.name.substr(0, info.name.rfind('.'));
      const auto tensors = one_by_one.find_quantized_tensors(module);
      if (!tensors || tensors->numbers != &info) continue;
      const auto found = stacked.find_quantized_tensors(module);
      ASSERT_TRUE(found) << module;
      ++num_modules;
      EXPECT_EQ(found->runs_as(), tensors->runs_as()) << module;
      EXPECT_EQ(found->format, tensors->format) << module;
      EXPECT_EQ(stacked.read_quantized_floats(*found, 1, found->rows),
                one_by_one.read_quantized_floats(*tensors, 1, tensors->rows))
          << module;
    }
    // MXFP4 has its blocks once a folder is open, and no modules.
    EXPECT_EQ(num_modules > 0, GetParam().scheme.find("mxfp4") == std::string::npos);

    auto engine = Engine::load(copy.path(), test_options());
    EXPECT_EQ(engine->summary().num_parameters, plain->summary().num_parameters);
    EXPECT_EQ(engine->summary().weight_bytes, plain->summary().weight_bytes);
    EXPECT_TRUE(same_bits(expected, score(*engine, ids), ids.size()));
    auto mapped = Engine::load(copy.path(), mapped_options);
    EXPECT_TRUE(same_bits(expected, score(*mapped, ids), ids.size()));
    if (!style.joins_columns) {
      EXPECT_EQ(mapped->summary().mapped_bytes, mapped_bytes);
    }
    auto cached = Engine::load(copy.path(), cached_options);
    EXPECT_GT(cached->expert_cache().slots, 0);
    EXPECT_TRUE(same_bits(expected, score(*cached, ids, 1), ids.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, StackedExperts, ::testing::ValuesIn(stacked_variants()),
                         variant_name);

}  // namespace
}  // namespace vitrine::testing
