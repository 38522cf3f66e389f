// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/joint_kernels.h"

#include <algorithm>
#include <iterator>

#include "backend_cuda/word_layout.h"

namespace vitrine::backend_cuda {

static_assert(engine::kMaxJointSpecialists == kernels::cuda::kMaxSpecialists);

namespace {

using kernels::cuda::Head;
using kernels::cuda::HeadBlock;
using kernels::cuda::Joint;
using kernels::cuda::JointKind;
using kernels::cuda::JointSum;

constexpr int64_t kPointerWords = sizeof(const float*) / sizeof(int32_t);
constexpr int64_t kDoubleWords = sizeof(double) / sizeof(int32_t);

JointKind kind_of(CombinerSpec::Kind kind) {
  switch (kind) {
    case CombinerSpec::Kind::kGate: return JointKind::kGate;
    case CombinerSpec::Kind::kProduct: return JointKind::kProduct;
    case CombinerSpec::Kind::kMixture: break;
  }
  return JointKind::kMixture;
}

Joint joint_of(const engine::DeviceJointSpec& spec, int64_t vocab, const JointScratch& scratch) {
  Joint joint;
  joint.kind = kind_of(spec.combiner.kind);
  joint.specialists = spec.specialists;
  joint.vocab = vocab;
  std::ranges::copy(spec.combiner.weights, joint.weights);
  joint.hidden = spec.combiner.hidden_size;
  joint.gate = scratch.gate;
  joint.bias = scratch.bias;
  joint.sums = scratch.sums;
  return joint;
}

Joint with(const Joint& joint, const JointMemory& memory) {
  Joint own = joint;
  own.sources = memory.sources;
  own.rows = memory.rows;
  own.logits = memory.logits;
  own.values = memory.values;
  own.chosen_ids = memory.chosen_ids;
  own.best_ids = memory.records + engine::kJointTopIds;
  own.best_stride = engine::kJointRecordWords;
  return own;
}

Status take_statistics(const Head& head, const JointMemory& memory, Stream stream) {
  Head own = head;
  own.logits = memory.logits;
  own.targets = memory.targets;
  own.chosen_ids = memory.chosen_ids;
  own.record.words = memory.records;
  return kernels::cuda::head_epilogue(own, memory.joints, stream);
}

Status sample(int64_t vocab, const JointMemory& memory, Stream stream) {
  kernels::cuda::Sampling sampling;
  sampling.vocab = vocab;
  sampling.logits = memory.logits;
  sampling.steps = memory.steps;
  sampling.words = memory.words;
  sampling.chosen_ids = memory.chosen_ids;
  sampling.facts = memory.choice_facts;
  sampling.records = reinterpret_cast<float*>(memory.records) + engine::kJointChosenLogit;
  sampling.record_stride = engine::kJointRecordWords;
  return kernels::cuda::sample_rows(sampling, memory.joints, stream);
}

}  // namespace

int64_t JointLayout::source_words() const { return kPointerWords * width_; }

int64_t JointLayout::input_words(int32_t joints) const {
  return joints > 0 ? aligned(source_words() + joints * (width_ + 1)) : 0;
}

int64_t JointLayout::result_words(int32_t joints) const {
  return joints > 0 ? aligned(int64_t{joints} * engine::kJointRecordWords) +
                          aligned(kDoubleWords * joints * values_)
                    : 0;
}

void JointLayout::place(JointMemory& memory, int32_t* in, int32_t* out) const {
  memory.sources = reinterpret_cast<const float**>(in);
  memory.rows = in + source_words();
  memory.targets = memory.rows + memory.joints * width_;
  memory.records = out;
  memory.values =
      reinterpret_cast<double*>(out + aligned(int64_t{memory.joints} * engine::kJointRecordWords));
}

void JointLayout::write(const engine::DeviceJointStep& step, std::span<const float* const> sources,
                        const JointMemory& memory) const {
  std::ranges::copy(sources, memory.sources);
  int32_t* rows = std::ranges::copy(step.rows, memory.rows).out;
  int32_t* targets = std::ranges::copy(step.targets, memory.targets).out;
  for (auto row = std::ssize(step.targets); row < memory.joints; ++row) {
    rows = std::copy_n(memory.rows, width_, rows);
    *targets++ = memory.targets[0];
  }
}

int64_t joint_sums_bytes(const engine::DeviceJointSpec& spec, int64_t vocab) {
  return kernels::cuda::joint_blocks(vocab) * spec.max_rows * spec.specialists *
         static_cast<int64_t>(sizeof(JointSum));
}

int64_t joint_blocks_bytes(const engine::DeviceJointSpec& spec, int64_t vocab) {
  return kernels::cuda::head_blocks(vocab) * spec.max_rows *
         static_cast<int64_t>(sizeof(HeadBlock));
}

std::vector<JointLaunch> joint_launches(const engine::DeviceJointSpec& spec, int64_t vocab,
                                        const JointScratch& scratch) {
  static_assert(kernels::cuda::joint_values(5) == engine::joint_value_count(5));
  const Joint joint = joint_of(spec, vocab, scratch);
  Head head;  // of the joint's rows, as a model's of its logits
  head.vocab = vocab;
  head.blocks = scratch.blocks;
  head.record = {nullptr,
                 engine::kJointRecordWords,
                 engine::kJointChosenLogit,
                 engine::kJointLogSumExp,
                 engine::kJointEntropy,
                 engine::kJointTopIds,
                 engine::kJointTopLogits,
                 engine::kJointDigest};
  std::vector<JointLaunch> launches;
  launches.push_back({std::string(combiner_kind_name(spec.combiner.kind)), false,
                      [joint](const JointMemory& memory, Stream stream) {
                        return kernels::cuda::joint_rows(with(joint, memory), memory.joints,
                                                         stream);
                      }});
  launches.push_back({"top_10+digest", false, [head](const JointMemory& memory, Stream stream) {
                        return take_statistics(head, memory, stream);
                      }});
  if (spec.max_sampled > 0) {
    launches.push_back({"sample", true, [vocab](const JointMemory& memory, Stream stream) {
                          return sample(vocab, memory, stream);
                        }});
  }
  launches.push_back({"account", false, [joint](const JointMemory& memory, Stream stream) {
                        return kernels::cuda::joint_account(with(joint, memory), memory.joints,
                                                            stream);
                      }});
  return launches;
}

}  // namespace vitrine::backend_cuda
