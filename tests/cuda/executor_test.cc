// SPDX-License-Identifier: Apache-2.0
// The executor of the CUDA kernels: what a step computes, against the CPU's fused path.
#include <cmath>
#include <filesystem>

#include "backend_cuda/cuda_op.h"
#include "checkpoint/model_config.h"
#include "ops/decoder_ops.h"
#include "tests/cuda/executor_fixture.h"

namespace vitrine::testing {
namespace {

using kernels::cuda::emulator::Traffic;

std::vector<ModelVariant> variants() {
  return {
      {"qwen3_moe", "", 0},      {"qwen3_moe", "int4", 32}, {"qwen3_moe", "int4-asymmetric", 64},
      {"qwen3_moe", "int3", 32}, {"qwen3_moe", "fp8", 32},  {"granitemoe", "", 0},
      {"llama", "", 0},          {"mixtral", "", 0},        {"qwen2_moe", "", 0},
      {"qwen2_moe", "int8", 64}, {"qwen3", "", 0},          {"qwen3_moe_sparse2", "", 0},
      {"olmoe", "", 0},          {"olmoe", "int4", 32},     {"gpt_oss", "int8", 64},
      {"glm4_moe", "int4", 32},  {"blocks", "Q2_K", 32},    {"blocks", "Q4_K", 32},
      {"blocks", "Q3_K", 32},    {"blocks", "Q6_K", 32},    {"blocks", "MXFP4", 32}};
}

class CudaExecutor : public ::testing::TestWithParam<ModelVariant> {
 protected:
  CudaExecutor() : folder_(GetParam()) {}
  VariantFolder folder_;
};

TEST_P(CudaExecutor, HasTheBitsOfTheCpu) {
  EngineOptions options;
  options.audit_level = AuditLevel::kFull;
  const ModelUnderTest model(folder_.path(), options);
  Traffic traffic;
  const auto cpu = engine::make_fused_executor(model.inputs());
  const auto device = make_on_device(model, traffic);
  StepDriver expected(model, *cpu), found(model, *device);
  // A prompt, then tokens of two sequences beside the prompt of a third.
  const std::vector<std::vector<Part>> steps = {
      {{0, {3, 1, 4, 1, 5}}}, {{0, {9}}, {2, {2, 6, 5}}}, {{2, {3}}, {0, {5}}, {1, {8, 9}}}};
  for (const std::vector<Part>& parts : steps) {
    expect_same(model.layout, expected.step(parts), found.step(parts));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaExecutor, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.label(); });

TEST(CudaExecutorShipped, HasTheBitsOfTheCpu) {
  if (!std::filesystem::exists(shipped_model())) GTEST_SKIP() << "a bundle without the model";
  const ModelUnderTest model(shipped_model());
  Traffic traffic;
  const auto cpu = engine::make_fused_executor(model.inputs());
  const auto device = make_on_device(model, traffic);
  StepDriver expected(model, *cpu), found(model, *device);
  for (const std::vector<Part>& parts :
       std::vector<std::vector<Part>>{{{1, {17, 230}}}, {{1, {4095}}}}) {
    expect_same(model.layout, expected.step(parts), found.step(parts));
  }
}

// Integers and their scales, over the border of a block, in chunks, in decode and beside others.
TEST(CudaExecutorIntegers, HaveTheBitsOfTheCpu) {
  for (const char* name :
       {"qwen3_moe", "olmoe", "granitemoe", "qwen3_moe_sparse2", "llama", "gpt_oss", "glm4_moe"}) {
    EngineOptions options;
    options.kv_codecs = {"i16"};
    const ModelUnderTest model(oracle_folder(name), options);
    Traffic traffic;
    const auto cpu = engine::make_fused_executor(model.inputs());
    const auto device = make_on_device(model, traffic);
    StepDriver expected(model, *cpu), found(model, *device);
    std::vector<std::vector<Part>> steps;
    for (int32_t first = 0; first < 72; first += 18) {
      Part part{0, {}};
      for (int32_t i = first; i < first + 18; ++i) part.tokens.push_back((7 * i + 3) % 200);
      steps.push_back({part});
    }
    steps.push_back({{0, {9}}, {2, {2, 6, 5}}});
    steps.push_back({{2, {3}}, {0, {5}}, {1, {8, 9}}});
    for (const std::vector<Part>& parts : steps) {
      expect_same(model.layout, expected.step(parts), found.step(parts));
    }
    const auto& plan = device->plan();
    EXPECT_TRUE(std::ranges::any_of(plan, [](const PlanEntry& entry) {
      return entry.kernel.find("attention_i16") != std::string::npos;
    })) << name;
  }
}

// Weights are packed by all threads: which of them takes which rows changes nothing.
TEST(CudaExecutorUpload, ThreadsPackTheSameWeights) {
  for (const ModelVariant& variant :
       {ModelVariant{"qwen3_moe", "int4", 32}, {"qwen3_moe", "fp8", 32}, {"blocks", "Q6_K", 32}}) {
    const VariantFolder folder(variant);
    EngineOptions options;
    const ModelUnderTest one(folder.path(), options);
    options.threads = 3;
    const ModelUnderTest three(folder.path(), options);
    Traffic traffic;
    const auto alone = make_on_device(one, traffic), together = make_on_device(three, traffic);
    const std::vector<Part> parts = {{0, {3, 1, 4, 1, 5}}};
    EXPECT_TRUE(same_floats(StepDriver(one, *alone).step(parts).logits,
                            StepDriver(three, *together).step(parts).logits));
  }
}

// Behind position 1,023 attention adds ranges, in another order than the CPU, and every context has
// one order of its own: a token in front does not see that another needs two ranges.
TEST(CudaExecutorLong, RangesAreCloseToTheCpuAndSeenByNobodyElse) {
  EngineOptions options;
  options.max_context = 1100;
  for (const char* name : {"qwen3_moe", "gpt_oss"}) {
    const ModelUnderTest model(oracle_folder(name), options);
    Traffic traffic;
    const auto cpu = engine::make_fused_executor(model.inputs());
    const auto device = make_on_device(model, traffic);
    StepDriver expected(model, *cpu), found(model, *device);
    for (StepDriver* driver : {&expected, &found}) {  // what was never written is 0 on both sides
      driver->skip(0, 1022);
      driver->skip(1, 700);
    }
    expect_same(model.layout, expected.step({{0, {5, 6}}}), found.step({{0, {5, 6}}}));
    const std::vector<Part> parts = {{0, {7}}, {1, {8}}};
    const StepResult cpu_rows = expected.step(parts), device_rows = found.step(parts);
    EXPECT_TRUE(same_floats(cpu_rows.logits_of(1), device_rows.logits_of(1)));
    const std::vector<float> a = cpu_rows.logits_of(0), b = device_rows.logits_of(0);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5F);
  }
}

TEST(CudaExecutorContract, ChunksWithoutRowsLeaveTheirKeysAndValues) {
  const ModelUnderTest model(oracle_folder("llama"));
  Traffic traffic;
  const auto cpu = engine::make_fused_executor(model.inputs());
  const auto device = make_on_device(model, traffic);
  StepDriver expected(model, *cpu), found(model, *device);
  const std::vector<Part> prompt = {{0, {3, 1, 4}, false}};
  EXPECT_EQ(expected.step(prompt).rows, 0U);
  EXPECT_EQ(found.step(prompt).rows, 0U);
  expect_same(model.layout, expected.step({{0, {1}}}), found.step({{0, {1}}}));
}

TEST(CudaExecutorContract, OneTokenOneResult) {
  VariantFolder folder({"qwen3_moe", "int4", 32});
  const ModelUnderTest model(folder.path());
  Traffic traffic;
  const std::vector<int32_t> ids = {7, 1, 12, 30, 2, 5, 9, 11, 4, 6, 3, 8, 10};
  const auto whole = make_on_device(model, traffic);
  const StepResult expected = StepDriver(model, *whole).step({{0, ids}});

  // In chunks, with nothing recorded, between tokens of other sequences.
  const auto chunked = make_on_device(model, traffic);
  StepDriver driver(model, *chunked);
  size_t row = 0;
  for (const size_t count : {4, 1, 7, 1}) {
    const std::vector<int32_t> chunk(ids.begin() + static_cast<ptrdiff_t>(row),
                                     ids.begin() + static_cast<ptrdiff_t>(row + count));
    const StepResult part =
        driver.step({{3, {static_cast<int32_t>(40 + row)}}, {0, chunk}, {1, {5, 6}}},
                    row % 2 == 0 ? AuditMode::kNone : AuditMode::kDeferred);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(same_floats(expected.logits_of(row + i), part.logits_of(1 + i)))
          << "token " << row + i;
    }
    row += count;
  }
}

TEST(CudaExecutorContract, AStepIsOneCopyOneGraphOneCopy) {
  const ModelUnderTest model(oracle_folder("qwen3_moe"));
  Traffic traffic;
  backend_cuda::FusedModel* fused = nullptr;
  const auto device = make_on_device(model, traffic, &fused);
  StepDriver driver(model, *device);
  driver.step({{0, {3, 1, 4}}}, AuditMode::kNone, false);
  const int64_t kernels = fused->kernels_per_step();
  const Traffic before = traffic;
  const int64_t launched = kernels::cuda::emulator::launch_count();
  const uint64_t readbacks = device->readback().count();
  driver.step({{0, {3, 1, 4}}}, AuditMode::kDeferred, false);
  EXPECT_EQ(fused->kernels_per_step(), kernels);
  EXPECT_EQ(kernels::cuda::emulator::launch_count() - launched, kernels);
  EXPECT_EQ(traffic.to_device - before.to_device, 1);
  EXPECT_EQ(traffic.to_host - before.to_host, 1);
  EXPECT_EQ(traffic.graph_launches - before.graph_launches, 1);
  EXPECT_EQ(traffic.captures, before.captures) << "the same shape is recorded once";
  EXPECT_EQ(traffic.allocated, before.allocated);
  EXPECT_EQ(device->readback().count() - readbacks, 1U);
  driver.step({{1, {3, 1, 4, 1}}}, AuditMode::kDeferred, false);
  EXPECT_EQ(fused->num_graphs(), 1U) << "3 tokens are filled up to 4";
  driver.step({{1, {3, 1, 4, 1, 5}}}, AuditMode::kDeferred, false);
  EXPECT_EQ(fused->num_graphs(), 2U);
}

TEST(CudaExecutorContract, ShapesAreFewAndNeverTooSmall) {
  EngineOptions options;
  options.max_context = 5000;
  ModelUnderTest model(oracle_folder("llama"), options);
  model.options.max_step_tokens = 500;
  Traffic traffic;
  kernels::cuda::emulator::TestRuntime runtime(kPlentyOfMemory, traffic);
  const backend_cuda::StepBuffers buffers(runtime, model.graph, model.layout, model.options,
                                          DType::kF32);
  const std::map<int64_t, int32_t> sizes = {{1, 1},   {3, 4},     {33, 64},   {65, 80},
                                            {80, 80}, {129, 160}, {300, 320}, {500, 500}};
  for (const auto& [tokens, size] : sizes) {
    EXPECT_EQ(buffers.shape_of(tokens, 0, 0).tokens, size) << tokens;
  }
  EXPECT_EQ(buffers.shape_of(1, 0, 0).rows, 0);
  EXPECT_EQ(buffers.shape_of(20, 17, 0).rows, 20) << "the engine's limit";
  EXPECT_EQ(buffers.shape_of(1, 1, 1023).ranges, 1);
  EXPECT_EQ(buffers.shape_of(1, 1, 1024).ranges, 2);
  EXPECT_EQ(buffers.shape_of(1, 1, 4999).ranges, 5);
}

TEST(CudaExecutorContract, ThePlanNamesItsKernels) {
  VariantFolder folder({"qwen3_moe", "int4", 32});
  const ModelUnderTest model(folder.path());
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  ASSERT_EQ(device->plan().size(), model.graph.nodes.size());
  for (const PlanEntry& entry : device->plan()) EXPECT_EQ(entry.kernel.find("cuda."), 0U);
  EXPECT_NE(device->plan()[2].kernel.find("linear_int4g32"), std::string::npos)
      << device->plan()[2].kernel;
  ModelSummary summary;
  device->describe(summary);
  const auto cpu = engine::make_fused_executor(model.inputs());
  ModelSummary expected;
  cpu->describe(expected);
  EXPECT_EQ(summary.num_parameters, expected.num_parameters);
  EXPECT_EQ(summary.kernels, "fused");
  EXPECT_TRUE(summary.invariant);
}

TEST(CudaExecutorErrors, OutOfMemorySaysWhatWasAskedAndFree) {
  const ModelUnderTest model(oracle_folder("llama"));
  Traffic traffic;
  const auto failure = [&](size_t capacity) -> std::string {
    try {
      make_on_device(model, traffic, nullptr, capacity);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
      return error.what();
    }
    return "";
  };
  for (const size_t capacity : {size_t{1000}, size_t{300000}}) {
    const std::string message = failure(capacity);
    EXPECT_NE(message.find("cannot allocate"), std::string::npos) << message;
    EXPECT_NE(message.find("of the device's " + std::to_string(capacity) + " are free"),
              std::string::npos)
        << message;
    EXPECT_EQ(traffic.allocated, 0U) << "what was given went back";
  }
  const auto device = make_on_device(model, traffic);
  EXPECT_EQ(StepDriver(model, *device).step({{0, {1}}}).rows, 1U);
}

TEST(CudaExecutorErrors, ADeviceThatTheKernelsWereNotMadeForIsRefused) {
  const ModelUnderTest model(oracle_folder("llama"));
  for (const auto& [capability, bytes] : {std::pair{75, 64 * 1024}, std::pair{89, 99 * 1024}}) {
    Traffic traffic;
    traffic.compute_capability = capability;
    traffic.most_shared_bytes = bytes;
    try {
      make_on_device(model, traffic);
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      for (const std::string& part :
           {std::to_string(capability / 10) + "." + std::to_string(capability % 10) + " and " +
                std::to_string(bytes),
            std::string("166912"), std::string("--kernels reference")}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(traffic.allocated, 0U);
  }
}

TEST(CudaExecutorErrors, WhatHasNoKernelIsRefused) {
  Traffic traffic;
  const auto refused = [&](const std::string& oracle, EngineOptions options) -> std::string {
    const ModelUnderTest model(oracle_folder(oracle), options);
    try {
      make_on_device(model, traffic);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return error.what();
    }
    return "";
  };
  EngineOptions naive, blocks, cache;
  naive.audit_mode = AuditMode::kNaive;
  blocks.kv_block_size = 32;
  cache.expert_cache_bytes = 1 << 20;
  for (const std::string& message :
       {refused("qwen3_moe", naive), refused("qwen3_moe", blocks), refused("qwen3_moe", cache)}) {
    EXPECT_NE(message.find("--kernels reference"), std::string::npos) << message;
  }
  for (const char* oracle : {"deepseek_v2", "deepseek_v3", "glm4_moe_lite"}) {
    EXPECT_NE(refused(oracle, {}).find("layer 0 has latent attention"), std::string::npos);
  }
  for (const char* oracle : {"qwen3_next", "qwen3_5_moe_text", "lfm2_moe"}) {
    EXPECT_NE(refused(oracle, {}).find("layer 0 keeps a state"), std::string::npos);
  }
  const std::vector<std::pair<std::string, std::string>> others = {
      {"gemma4_text", "layer 0 norms what a block gives"},
      {"flex_olmo", "layer 0 norms what a block gives"},
      {"dots1", "layer 1 has attention with a window and no sinks"},
      {"minimax_m2", "layer 0 rotates a part of heads that are normed as one row"},
      {"ernie4_5_moe", "layer 0 rotates neighbours"},
      {"smollm3", "layer 3 does not rotate its heads"}};
  for (const auto& [oracle, has] : others) {
    EXPECT_NE(refused(oracle, {}).find(has), std::string::npos) << refused(oracle, {});
  }
}

// What no architecture of the tests has before something else that is refused.
TEST(CudaExecutorErrors, RoutersOfOtherFamiliesAreRefused) {
  Traffic traffic;
  const auto refused = [&](auto change) -> std::string {
    ModelUnderTest model(oracle_folder("glm4_moe"));
    for (ops::OpNode& node : model.graph.nodes) {
      if (node.type != "router") continue;
      auto parameters = node.as<ops::RouterParameters>();
      change(parameters);
      node.parameters = std::make_shared<const ops::RouterParameters>(parameters);
    }
    try {
      make_on_device(model, traffic);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return error.what();
    }
    return "";
  };
  using Router = ops::RouterParameters;
  EXPECT_EQ(refused([](Router&) {}), "");
  for (const std::string& message :
       {refused([](Router& router) { router.score = Router::Score::kSoftmax; }),
        refused([](Router& router) { router.least_sum = 1e-12; }),
        refused([](Router& router) { router.group_score_adds_two = false; }),
        refused([](Router& router) { router.expert_scale = router.correction; })}) {
    EXPECT_NE(message.find("layer 1 has a router with corrected probabilities"), std::string::npos)
        << message;
  }
}

TEST(CudaExecutorErrors, AnOpWithoutAKernelIsRefusedByName) {
  const ModelUnderTest model(oracle_folder("llama"));
  for (const ops::OpNode& node : model.graph.nodes) {
    EXPECT_NE(backend_cuda::find_cuda_op(node.type).plan, nullptr) << node.type;
  }
  try {
    backend_cuda::find_cuda_op("mamba");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("op 'mamba'"), std::string::npos);
  }
}

TEST(CudaExecutorErrors, AnOpWithTwoCudaFormsIsAnError) {
  const backend_cuda::CudaOp op{.type = "registered_twice"};
  EXPECT_TRUE(backend_cuda::register_cuda_op(op));
  EXPECT_EQ(backend_cuda::find_cuda_op(op.type).type, op.type);
  EXPECT_FALSE(backend_cuda::register_cuda_op(op));
  try {
    backend_cuda::find_cuda_op(op.type);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("op 'registered_twice'"), std::string::npos);
  }
}

TEST(CudaExecutorAdapters, AStepWithoutThemRunsTheKernelsOfAModelThatHasNone) {
  const std::string path = oracle_folder("qwen3_moe");
  const ModelConfig config = parse_model_config(Checkpoint::open(path));
  const TemporaryFolder folder;
  write_adapter(folder / "all", adapter_config(5, 8), adapter_tensors(all_modules(config), 5, 1));
  EngineOptions options;
  options.adapters = {folder / "all"};
  const ModelUnderTest plain(path), adapted(path, options);
  Traffic traffic;
  backend_cuda::FusedModel *base = nullptr, *fused = nullptr;
  const auto without = make_on_device(plain, traffic, &base);
  const auto cpu = engine::make_fused_executor(adapted.inputs());
  const auto device = make_on_device(adapted, traffic, &fused);
  StepDriver first(plain, *without), expected(adapted, *cpu), found(adapted, *device);
  first.step({{0, {3, 1, 4}}});
  expect_same(adapted.layout, expected.step({{0, {3, 1, 4}}}), found.step({{0, {3, 1, 4}}}));
  EXPECT_EQ(fused->kernels_per_step(), base->kernels_per_step());
  // The adapter's token is the first, by which the shape is filled up.
  const std::vector<Part> parts = {{1, {5, 9}, true, nullptr, {}, 0}, {0, {7}}};
  expect_same(adapted.layout, expected.step(parts), found.step(parts));
  const int64_t kernels = fused->kernels_per_step();
  EXPECT_GT(kernels, base->kernels_per_step());
  found.step(parts, AuditMode::kNone);
  EXPECT_EQ(fused->kernels_per_step(), kernels) << "the same with audit on and off";
  ModelSummary summary, of_cpu;
  device->describe(summary);
  cpu->describe(of_cpu);
  EXPECT_EQ(summary.num_parameters, of_cpu.num_parameters);
}

TEST(CudaExecutorAttribution, HasTheTermsAndHiddenStatesOfTheCpu) {
  for (const ModelVariant& variant : std::vector<ModelVariant>{{"qwen3_moe", "", 0},
                                                               {"qwen3_moe", "int4", 32},
                                                               {"qwen2_moe", "", 0},
                                                               {"granitemoe", "int8", 64},
                                                               {"llama", "", 0},
                                                               {"qwen3_moe_sparse2", "", 0},
                                                               {"gpt_oss", "int4", 32},
                                                               {"glm4_moe", "", 0},
                                                               {"glm4_moe", "int8", 64}}) {
    SCOPED_TRACE(variant.label());
    VariantFolder folder(variant);
    EngineOptions options;
    options.attribution = true;
    options.audit_level = AuditLevel::kFull;
    options.hidden_state_layers = {0, 1, 2};
    const ModelUnderTest model(folder.path(), options), plain(folder.path());
    ASSERT_FALSE(model.layout.terms.empty());
    Traffic traffic;
    backend_cuda::FusedModel* fused = nullptr;
    const auto cpu = engine::make_fused_executor(model.inputs());
    const auto device = make_on_device(model, traffic, &fused);
    const auto without = make_on_device(plain, traffic);
    StepDriver expected(model, *cpu), found(model, *device), bare(plain, *without);
    for (const std::vector<Part>& parts : std::vector<std::vector<Part>>{
             {{0, {3, 1, 4, 1, 5}}}, {{0, {9}}, {2, {2, 6, 5}}}, {{1, {8, 9}, false}}}) {
      const StepResult step = found.step(parts);
      expect_same(model.layout, expected.step(parts), step);
      EXPECT_TRUE(same_floats(bare.step(parts).logits, step.logits)) << "attribution changes bits";
    }
    found.step({{0, {9}}}, AuditMode::kNone);
    const int64_t kernels = fused->kernels_per_step();
    found.step({{0, {9}}});
    EXPECT_EQ(fused->kernels_per_step(), kernels) << "the same with audit on and off";
  }
}

TEST(CudaExecutorForcedRoutes, HaveTheBitsOfTheCpu) {
  for (const char* name : {"qwen3_moe", "granitemoe", "qwen3_moe_sparse2", "gpt_oss", "glm4_moe"}) {
    EngineOptions options;
    options.audit_level = AuditLevel::kFull;
    const ModelUnderTest model(oracle_folder(name), options);
    Traffic traffic;
    backend_cuda::FusedModel* fused = nullptr;
    const auto cpu = engine::make_fused_executor(model.inputs());
    const auto device = make_on_device(model, traffic, &fused);
    StepDriver expected(model, *cpu), found(model, *device);
    // All sparse layers of two tokens, the second of which is the step's first (which fills up)
    // once, with weights of their own, a weight of 0, and the router's.
    const auto routes_of = [&](int32_t first) {
      std::vector<ForcedRoute> routes;
      for (const AuditLayout::Layer& layer : model.layout.layers) {
        for (int32_t slot = 0; slot < layer.top_k; ++slot) {
          const float weight = slot == 0                     ? ForcedRoute::kRouterWeight
                               : slot == 1 && first % 2 == 0 ? 0.0F
                                                             : 0.37F;
          routes.push_back({0, layer.layer, (first + 3 * slot) % layer.num_experts, weight});
        }
      }
      return routes;
    };
    const std::vector<ForcedRoute> one = routes_of(1), two = routes_of(2);
    const std::vector<std::vector<Part>> steps = {{{0, {3, 1, 4}, true, nullptr, {{}, one, {}}}},
                                                  {{0, {9}, true, nullptr, {two}}, {2, {2, 6}}},
                                                  {{0, {5}}, {2, {2}}}};
    for (const std::vector<Part>& parts : steps) {
      expect_same(model.layout, expected.step(parts), found.step(parts));
    }
    const int64_t kernels = fused->kernels_per_step();
    found.step({{0, {9}, true, nullptr, {two}}, {2, {3}}}, AuditMode::kNone);
    EXPECT_EQ(fused->kernels_per_step(), kernels);
  }
}

TEST(CudaExecutorContract, CopiedBlocksContinueTheirSequence) {
  const ModelUnderTest model(oracle_folder("qwen3_moe"));
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  StepDriver driver(model, *device);
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5};
  driver.step({{0, ids}});
  driver.step({{1, {9, 9, 9, 9, 9}}});
  device->copy_block(3, 2);  // the first blocks of sequences 0 and 1 (StepDriver)
  const StepResult result = driver.step({{0, {7}}, {1, {7}}});
  EXPECT_TRUE(same_floats(result.logits_of(0), result.logits_of(1)));
}

}  // namespace
}  // namespace vitrine::testing
