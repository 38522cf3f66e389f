// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/joint_model.h"

#include <algorithm>
#include <bit>

#include "backend_cuda/sampler_steps.h"
#include "backend_cuda/word_layout.h"

namespace vitrine::backend_cuda {

using kernels::cuda::HeadBlock;
using kernels::cuda::JointSum;
using kernels::cuda::SampleStep;

namespace {

size_t bytes_of(int64_t words) { return static_cast<size_t>(words) * sizeof(int32_t); }

}  // namespace

JointModel::JointModel(std::unique_ptr<DeviceRuntime> runtime, const engine::DeviceJointSpec& spec,
                       int64_t vocab)
    : runtime_(checked(std::move(runtime))),
      layout_(spec),
      vocab_(vocab),
      sampler_words_(spec.max_sampled * most_sampler_words(vocab)),
      samples_(spec.max_sampled > 0),
      sums_(*runtime_, static_cast<size_t>(joint_sums_bytes(spec, vocab)), "a joint's sums"),
      blocks_(*runtime_, static_cast<size_t>(joint_blocks_bytes(spec, vocab)),
              "a joint's statistics"),
      device_in_(
          *runtime_,
          bytes_of(layout_.input_words(spec.max_rows) +
                   (samples_ ? aligned(spec.max_rows * kChoiceStepWords) : 0) + sampler_words_),
          "a joint's inputs"),
      device_out_(*runtime_,
                  bytes_of(aligned(spec.max_rows * choice_words(true)) +
                           layout_.result_words(spec.max_rows) + spec.max_rows * vocab),
                  "a joint's rows"),
      host_in_(*runtime_, device_in_.size(), "a joint's inputs"),
      host_out_(*runtime_, device_out_.size(), "a joint's rows") {
  const JointScratch scratch{reinterpret_cast<JointSum*>(sums_.data()),
                             reinterpret_cast<HeadBlock*>(blocks_.data()),
                             upload(spec.combiner.gate), upload(spec.combiner.bias)};
  launches_ = joint_launches(spec, vocab, scratch);
}

const float* JointModel::upload(const std::vector<float>& values) {
  if (values.empty()) return nullptr;
  const size_t bytes = values.size() * sizeof(float);
  const DeviceBuffer& to = constants_.emplace_back(*runtime_, bytes, "a gate");
  check(runtime_->copy_to_device(to.data(), values.data(), bytes), "copying a gate");
  check(runtime_->wait(), "copying a gate");
  return reinterpret_cast<const float*>(to.data());
}

JointMemory JointModel::at(int32_t joints, bool samples, std::byte* in, std::byte* out) const {
  JointMemory memory;
  memory.joints = joints;
  memory.samples = samples;
  auto* const inputs = reinterpret_cast<int32_t*>(in);
  auto* const results = reinterpret_cast<int32_t*>(out);
  const int64_t choices = aligned(joints * choice_words(samples));
  layout_.place(memory, inputs, results + choices);
  memory.words = inputs;
  memory.steps = reinterpret_cast<SampleStep*>(inputs + layout_.input_words(joints));
  memory.chosen_ids = results;
  memory.choice_facts = reinterpret_cast<float*>(results + joints);
  memory.logits = reinterpret_cast<float*>(results + choices + layout_.result_words(joints));
  return memory;
}

StepGraph& JointModel::graph_of(const JointMemory& device) {
  const std::pair<int32_t, bool> shape{device.joints, device.samples};
  std::unique_ptr<StepGraph> graph;
  const auto found = graphs_.find(shape);
  if (found != graphs_.end()) return *found->second;
  check(runtime_->begin_capture(), "recording a joint");
  Status status;
  for (const JointLaunch& launch : launches_) {
    if (status.ok() && (device.samples || !launch.samples)) {
      status = launch.start(device, runtime_->stream());
    }
  }
  const Status ended = runtime_->end_capture(&graph);
  check(status, "starting a joint");
  check(ended, "recording a joint");
  return *(graphs_[shape] = std::move(graph));
}

engine::DeviceJointResult JointModel::run(const engine::DeviceJointStep& step,
                                          std::span<const float* const> sources) {
  const auto rows = static_cast<int64_t>(step.count());
  const auto joints = static_cast<int32_t>(
      std::min<int64_t>(static_cast<int64_t>(std::bit_ceil(step.count())), layout_.max_joints()));
  const bool samples = !step.steps.empty();
  const JointMemory host = at(joints, samples, host_in_.data(), host_out_.data());
  const JointMemory device = at(joints, samples, device_in_.data(), device_out_.data());
  layout_.write(step, sources, host);
  int64_t words = layout_.input_words(joints);
  if (samples) {
    words = write_steps(step.steps, joints, words + aligned(joints * kChoiceStepWords), host.steps,
                        host.words);
  }
  StepGraph& graph = graph_of(device);
  check(runtime_->copy_to_device(device_in_.data(), host_in_.data(), bytes_of(words)),
        "copying a joint's inputs");
  check(runtime_->launch(graph), "starting a joint");
  const void* end = host.values + rows * layout_.values();
  if (step.reads_logits) end = host.logits + rows * vocab_;
  check(runtime_->start_read_back(
            0, host_out_.data(), device_out_.data(),
            static_cast<size_t>(static_cast<const std::byte*>(end) - host_out_.data())),
        "a joint");
  check(runtime_->finish_read_back(0), "a joint");
  return {host.chosen_ids, samples ? host.choice_facts : nullptr, host.records, host.values,
          step.reads_logits ? host.logits : nullptr};
}

bool JointModel::keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const {
  return keep_takeable(row_steps, samples_ ? sampler_words_ : -1);
}

uint64_t JointModel::num_bytes() const {
  uint64_t bytes = sums_.size() + blocks_.size() + device_in_.size() + device_out_.size();
  for (const DeviceBuffer& of : constants_) bytes += of.size();
  return bytes;
}

}  // namespace vitrine::backend_cuda
