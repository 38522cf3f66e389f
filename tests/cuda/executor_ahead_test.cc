// SPDX-License-Identifier: Apache-2.0
// Steps that are started before the last one's results are on the host, on the emulator (which
// copies these as late as it may) or on a GPU.
#include "kernels/cuda/sample/sample.h"
#include "tests/cuda/executor_fixture.h"

namespace vitrine::testing {
namespace {

using kernels::cuda::emulator::Traffic;

std::vector<Part> prompts() { return {{0, {1, 5, 2}}, {2, {7}}, {1, {4, 4, 9, 3, 8, 2, 6}}}; }

/// The last rows of parts that have one for each token, in a batch.
std::vector<int32_t> last_rows(const std::vector<Part>& parts) {
  std::vector<int32_t> rows;
  int32_t count = 0;
  for (const Part& part : parts) {
    count += static_cast<int32_t>(part.tokens.size());
    rows.push_back(count - 1);
  }
  return rows;
}

/// Feeds what was chosen, `steps` times, and returns all results. `is_ahead`: each step but the
/// last says what follows.
std::vector<StepResult> generate(StepDriver& driver, int steps, bool is_ahead,
                                 std::vector<DeviceSamplerSteps>* samplers = nullptr) {
  std::vector<StepResult> results;
  std::vector<Part> parts = prompts();
  const auto sampler = [&](int step) {
    return samplers == nullptr ? nullptr : &(*samplers)[static_cast<size_t>(step)];
  };
  for (Part& part : parts) part.steps = sampler(0);
  for (int step = 0; step < steps; ++step) {
    const std::vector<int32_t> rows = last_rows(parts);
    std::vector<Part> next;
    for (size_t i = 0; i < parts.size(); ++i) {
      next.push_back({parts[i].sequence, {-1 - rows[i]}, true, sampler(step + 1)});
    }
    const bool goes_on = is_ahead && step + 1 < steps;
    results.push_back(
        driver.step(parts, AuditMode::kDeferred, false, goes_on ? next : std::vector<Part>()));
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i] = {parts[i].sequence,
                  {results.back().words[static_cast<size_t>(rows[i])]},
                  true,
                  sampler(step + 1)};
    }
  }
  return results;
}

/// Without the words that the host fills in.
std::vector<int32_t> device_words(const ModelUnderTest& model, const StepResult& result) {
  const AuditLayout& layout = model.layout;
  std::vector<int32_t> words = result.words;
  if (words.size() == result.rows) return words;
  for (size_t row = 0; row < result.rows; ++row) {
    const auto record = words.begin() + static_cast<ptrdiff_t>(result.rows) +
                        static_cast<ptrdiff_t>(row) * layout.row_words;
    std::fill(record + layout.sampler_candidates,
              record + layout.constraint + kAuditConstraintWords, 0);
  }
  return words;
}

void expect_same(const ModelUnderTest& model, const StepResult& a, const StepResult& b) {
  EXPECT_EQ(device_words(model, a), device_words(model, b));
  EXPECT_TRUE(same_floats(a.choice_facts, b.choice_facts));
  EXPECT_TRUE(same_floats(a.logits, b.logits));
  EXPECT_TRUE(same_floats(a.hidden_states, b.hidden_states));
}

TEST(CudaExecutorAhead, StepsHaveTheSameResults) {
  constexpr int kSteps = 9;
  VariantFolder folder({"qwen3_moe", "int4", 32});
  const ModelUnderTest model(folder.path());
  SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 1.3F, .top_p = 0.9F});
  std::vector<DeviceSamplerSteps> samplers(kSteps + 1);
  for (size_t i = 0; i < samplers.size(); ++i) {
    DeviceForm::describe(pipeline, {11, static_cast<int64_t>(i), 0, {}}, model.config.vocab_size,
                         samplers[i]);
  }
  for (auto* of : {static_cast<std::vector<DeviceSamplerSteps>*>(nullptr), &samplers}) {
    Traffic one_by_one, traffic;
    backend_cuda::FusedModel* made = nullptr;
    const auto plain = make_on_device(model, one_by_one),
               ahead = make_on_device(model, traffic, &made);
    StepDriver expected(model, *plain), found(model, *ahead);
    const auto a = generate(expected, kSteps, false, of), b = generate(found, kSteps, true, of);
    for (size_t i = 0; i < a.size(); ++i) expect_same(model, a[i], b[i]);
    EXPECT_EQ(made->steps_ahead(), kSteps - 1);
    EXPECT_EQ(traffic.to_device, one_by_one.to_device) << "none was started twice";
    EXPECT_EQ(traffic.to_host, one_by_one.to_host);
    EXPECT_EQ(traffic.bytes_to_host, one_by_one.bytes_to_host);
    EXPECT_EQ(traffic.graph_launches, one_by_one.graph_launches);
    // Lane by lane: the prompts', one of single tokens each.
    EXPECT_EQ(made->num_graphs(), 3U);
    EXPECT_EQ(traffic.allocated, one_by_one.allocated) << "both are there before the first step";
  }
}

// What was started is looked at only where it is what is asked for, to the bit.
TEST(CudaExecutorAhead, AnotherStepThanExpectedIsRun) {
  const ModelUnderTest model(oracle_folder("qwen3_moe"));
  SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 1.3F});
  DeviceSamplerSteps one, other;
  DeviceForm::describe(pipeline, {1, 5, 0, {}}, model.config.vocab_size, one);
  DeviceForm::describe(pipeline, {2, 5, 0, {}}, model.config.vocab_size, other);
  Traffic traffic, expected_traffic;
  backend_cuda::FusedModel* made = nullptr;
  const auto device = make_on_device(model, traffic, &made),
             plain = make_on_device(model, expected_traffic);
  // By the id that the row of the first step chose.
  using Step = std::function<std::vector<Part>(int32_t id)>;
  const Part first{0, {3, 1, 4}};
  const std::vector<Part> next = {{0, {-3}, true, &one}};
  const std::vector<std::pair<const char*, Step>> asked = {
      {"the same",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id}, true, &one}};
       }},
      {"another id",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id ^ 1}, true, &one}};
       }},
      {"another seed",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id}, true, &other}};
       }},
      {"the head's choice",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id}}};
       }},
      {"no row",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id}, false}};
       }},
      {"two tokens",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id, 2}, true, &one}};
       }},
      {"another sequence",
       [&](int32_t id) {
         return std::vector<Part>{{1, {id}, true, &one}};
       }},
      {"one more",
       [&](int32_t id) {
         return std::vector<Part>{{0, {id}, true, &one}, {1, {7}}};
       }},
  };
  for (const auto& [what, step] : asked) {
    SCOPED_TRACE(what);
    const int64_t before = made->steps_ahead();
    StepDriver driver(model, *device), expected(model, *plain);
    const StepResult begun = driver.step({first}, AuditMode::kDeferred, false, next);
    expect_same(model, begun, expected.step({first}, AuditMode::kDeferred, false));
    const std::vector<Part> parts = step(begun.words[2]);
    // Something may go on after it, which is in vain.
    const std::vector<Part> after =
        parts[0].has_rows ? std::vector<Part>{{0, {-1}}} : std::vector<Part>();
    expect_same(model, driver.step(parts, AuditMode::kDeferred, false, after),
                expected.step(parts, AuditMode::kDeferred, false));
    EXPECT_EQ(made->steps_ahead() - before, std::string(what) == "the same" ? 1 : 0);
    expect_same(model, driver.step({{3, {1, 2}}}), expected.step({{3, {1, 2}}}));
  }
}

TEST(CudaExecutorAhead, OtherThingsToReadBackAreNotLeftOut) {
  const ModelUnderTest model(oracle_folder("olmoe"));
  for (const bool reads_logits : {false, true}) {
    for (const AuditMode audit : {AuditMode::kNone, AuditMode::kDeferred}) {
      Traffic traffic, expected_traffic;
      backend_cuda::FusedModel* made = nullptr;
      const auto device = make_on_device(model, traffic, &made),
                 plain = make_on_device(model, expected_traffic);
      StepDriver driver(model, *device), expected(model, *plain);
      const Part first{0, {3, 1, 4}};
      const int32_t id = driver.step({first}, AuditMode::kNone, false, {{0, {-3}}}).words[2];
      expected.step({first}, AuditMode::kNone, false);
      expect_same(model, driver.step({{0, {id}}}, audit, reads_logits),
                  expected.step({{0, {id}}}, audit, reads_logits));
      EXPECT_EQ(made->steps_ahead(), audit == AuditMode::kNone && !reads_logits ? 1 : 0);
    }
  }
}

TEST(CudaExecutorAhead, TooLargeAStepWaits) {
  ModelUnderTest model(oracle_folder("llama"));
  model.options.max_sequences = 1;  // two stand in a step all the same, while blocks last
  Traffic traffic;
  backend_cuda::FusedModel* made = nullptr;
  const auto device = make_on_device(model, traffic, &made);
  StepDriver driver(model, *device);
  const StepResult first =
      driver.step({{0, {1}}}, AuditMode::kDeferred, false, {{0, {-1}}, {0, {-1}}});
  EXPECT_EQ(traffic.graph_launches, 1);
  driver.step({{0, {first.words[0]}}}, AuditMode::kDeferred, false, {{0, {-1}}});
  EXPECT_EQ(traffic.graph_launches, 3);
}

}  // namespace
}  // namespace vitrine::testing
