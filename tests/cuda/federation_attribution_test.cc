// SPDX-License-Identifier: Apache-2.0
// Attribution of federations on CUDA's fused path, emulated: each specialist's terms have the bits
// of the CPU's, whoever makes the joint and chooses by it.
#include "tests/cuda/cuda_federation_fixture.h"

namespace vitrine::testing {
namespace {

void expect_same_attribution(const RecordedAnswer& cpu, const RecordedAnswer& cuda) {
  EXPECT_EQ(cpu.result.tokens, cuda.result.tokens);
  ASSERT_EQ(cpu.records.size(), cuda.records.size());
  size_t compared = 0;
  for (size_t i = 0; i < cpu.records.size(); ++i) {
    EXPECT_EQ(record_digest(cpu.records[i]), record_digest(cuda.records[i])) << "record " << i;
    const auto &a = cpu.records[i].prediction.federation.attributions,
               &b = cuda.records[i].prediction.federation.attributions;
    ASSERT_EQ(a.size(), b.size());
    for (size_t s = 0; s < a.size(); ++s) {
      expect_same_terms(a[s], b[s]);
      compared += a[s].terms.size();
    }
  }
  EXPECT_GT(compared, 40U);
}

RecordedAnswer answer_of(const FederationSpec& spec, bool is_cuda, const SamplerOptions& sampler,
                         const char* regex, bool samples_on_device = true) {
  EngineOptions options = options_on(is_cuda);
  options.attribution = true;
  if (is_cuda) options.sample_on_device = samples_on_device;
  const auto federation = Federation::load(spec, options);
  return recorded_answer(*federation, sampler, regex, 4);
}

const SamplerOptions kDrawn{.temperature = 1.1F, .top_k = 40, .seed = 7};

TEST_F(CudaFederation, AttributionIsTheCpus) {
  for (const FederationSpec* spec : all()) {
    const char* const regex = spec == &adapted_ || spec == &product_ ? "(ab|cd|[0-9])+" : nullptr;
    expect_same_attribution(answer_of(*spec, false, kDrawn, regex),
                            answer_of(*spec, true, kDrawn, regex));
  }
}

// The passes stop for it.
TEST_F(CudaFederation, AttributionWhereTheHostMakesTheJoint) {
  const SamplerOptions mirostat{.seed = 3, .mirostat = 2};
  for (const FederationSpec* spec : {&adapted_product_, &gate_, &separate_}) {
    expect_same_attribution(answer_of(*spec, false, mirostat, nullptr),
                            answer_of(*spec, true, mirostat, nullptr));
    expect_same_attribution(answer_of(*spec, false, kDrawn, nullptr),
                            answer_of(*spec, true, kDrawn, nullptr, /*samples_on_device=*/false));
  }
}

// Rows of several sequences in one step, and steps without rows; one readback where one model
// makes all of it.
TEST_F(CudaFederation, AttributionOfSeveralRows) {
  for (const FederationSpec* spec : all()) {
    std::vector<TokenRecord> records[2];
    for (const bool is_cuda : {false, true}) {
      EngineOptions options = options_on(is_cuda);
      options.attribution = true;
      const auto federation = Federation::load(*spec, options);
      VectorSink sink;
      federation->set_audit_sink(&sink);
      std::vector<StepInput> inputs(3);
      for (StepInput& input : inputs) input.sequence = federation->create_sequence();
      const std::span<const int32_t> ids(prompt_);
      inputs[0].tokens = ids.first(5);
      inputs[0].rows = StepInput::Rows::kAll;
      inputs[1].tokens = ids.subspan(8, 3);
      inputs[1].rows = StepInput::Rows::kNone;
      inputs[2].tokens = ids.subspan(20, 2);
      federation->step(inputs);
      federation->step({&inputs[1], 1});
      federation->step(inputs);
      if (is_cuda && federation->engines().size() == 1) {
        EXPECT_EQ(federation->engines()[0]->readback_count(), 3U) << "once a pass";
      }
      federation->set_audit_sink(nullptr);
      records[is_cuda ? 1 : 0] = sink.take();
    }
    expect_same_attribution({{}, records[0]}, {{}, records[1]});
  }
}

}  // namespace
}  // namespace vitrine::testing
