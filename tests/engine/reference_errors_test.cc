// SPDX-License-Identifier: Apache-2.0
// What libtorch throws leaves the reference path as an Error, whatever the engine calls.
#include "backend_torch/torch_errors.h"
#include "engine/run/loaded_model.h"
#include "tests/engine/edited_model.h"
#include "tests/ops/planted_architecture.h"

namespace vitrine::testing {
namespace {

EngineOptions reference_options() {
  EngineOptions options = test_options();
  options.kernels = KernelPath::kReference;
  return options;
}

// No pool hands out such a slot: a copy to it is one that libtorch refuses.
constexpr int32_t kNoSlot = 1'000'000;

TEST(ReferenceErrors, ACopyThatFails) {
  for (const char* name : {"qwen3_moe", "qwen3_next", "lfm2_moe"}) {
    SCOPED_TRACE(name);
    engine::LoadedModel model(oracle_folder(name), reference_options(), {});
    engine::Executor& executor = *model.executor;
    executor.copy_block(0, 1);
    for (const auto& slots : {std::pair{0, kNoSlot}, {kNoSlot, 0}}) {
      const Error error = error_of([&] { executor.copy_block(slots.first, slots.second); });
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_TRUE(is_one_line_with(error, {"copying a block of keys and values", "reference path"}))
          << error.what();
    }
    if (name == std::string("qwen3_moe")) continue;
    executor.copy_state(0, 1);
    executor.copy_state(-1, 1);
    for (const auto& slots : {std::pair{0, kNoSlot}, {kNoSlot, 0}, {-1, kNoSlot}}) {
      const Error error = error_of([&] { executor.copy_state(slots.first, slots.second); });
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_TRUE(is_one_line_with(error, {"copying a sequence's state", "reference path"}))
          << error.what();
    }
  }
}

constexpr char kTooLarge[] = "planted_too_large";
constexpr char kWrongShapes[] = "planted_wrong_shapes";

Error load_planted(const char* name) {
  const EditedModel model("llama", [&](nlohmann::json& config) { config["model_type"] = name; });
  return error_of([&] { Engine::load(model.path(), reference_options()); });
}

using backend_torch::ReferenceStep;

// The CPU's allocator throws what has no type of its own.
TEST(ReferenceErrors, APassWithoutMemory) {
  testing_support::plant<kTooLarge>([](ReferenceStep& step, const ops::OpNode&) {
    static_cast<void>(at::empty({int64_t{1} << 58}, step.rope_cos.options()));
  });
  const Error error = load_planted(kTooLarge);
  EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(is_one_line_with(error, {"a pass of 1 tokens", "ran out of memory", "max_context"}))
      << error.what();
}

TEST(ReferenceErrors, APassThatFails) {
  testing_support::plant<kWrongShapes>([](ReferenceStep& step, const ops::OpNode&) {
    static_cast<void>(at::matmul(at::zeros({2, 3}, step.rope_cos.options()),
                                 at::zeros({2, 3}, step.rope_cos.options())));
  });
  const Error error = load_planted(kWrongShapes);
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  EXPECT_TRUE(is_one_line_with(error, {"a pass of 1 tokens", "failed: "})) << error.what();
}

TEST(ReferenceErrors, KnowsWhatADeviceSaysWithoutMemory) {
  const auto kind_of = [](const auto& thrown) {
    return error_of([&] {
             backend_torch::with_own_errors([] { return "a test"; }, [&] { throw thrown; });
           })
        .kind();
  };
  EXPECT_EQ(kind_of(c10::OutOfMemoryError("CUDA has no more", nullptr)), ErrorKind::kOutOfMemory);
  for (const char* text : {"MPS backend out of memory (MPS allocated: 9 GB)",
                           "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"}) {
    EXPECT_EQ(kind_of(c10::Error(text, nullptr)), ErrorKind::kOutOfMemory) << text;
  }
  EXPECT_EQ(kind_of(c10::Error("CUDA error: unknown error", nullptr)), ErrorKind::kInternal);
  EXPECT_EQ(kind_of(Error(ErrorKind::kCancelled, "by its host")), ErrorKind::kCancelled);
}

}  // namespace
}  // namespace vitrine::testing
