// SPDX-License-Identifier: Apache-2.0
#include "engine/run/device_executor.h"

#include <cstring>

#include "engine/device_backend.h"
#include "engine/run/audit_layout.h"
#include "engine/run/kv_choice.h"
#include "model/rope.h"
#include "model/weights.h"

namespace vitrine::engine {

namespace {

void require_absent(bool absent, const std::string& what, const Device& device) {
  if (absent) return;
  throw Error(ErrorKind::kUnsupported, what + " has no fused kernels on device '" + device.name() +
                                           "' in this version; use --kernels reference, or "
                                           "--device cpu");
}

void refuse_naive(AuditMode mode, const Device& device) {
  require_absent(mode != AuditMode::kNaive, "audit mode naive", device);
}

void check_options(const ExecutorInputs& inputs) {
  const EngineOptions& options = inputs.options;
  require_absent(options.expert_cache_bytes == 0, "engine option 'expert_cache_bytes'",
                 options.device);
  require_absent(!options.mmap_weights, "engine option 'mmap_weights'", options.device);
  refuse_naive(inputs.layout.mode, options.device);
}

class DeviceExecutor final : public Executor {
 public:
  DeviceExecutor(const ExecutorInputs& inputs, const DeviceModelFactory& make_model)
      : layout_(inputs.layout),
        device_(inputs.options.device),
        vocab_(static_cast<size_t>(inputs.graph.vocab_size)) {
    check_options(inputs);
    const kernels::CpuKernels& kernel = ops::select_cpu_kernels();
    model::CheckpointWeights weights(kernel, inputs.checkpoint, inputs.weights_read);
    weights.read_for_device();
    std::vector<float> cos, sin;
    fill_rope_tables(inputs.config, inputs.options, cos, sin);
    model_ =
        make_model({inputs.graph, inputs.layout, inputs.options, inputs.num_blocks,
                    *kv_codec(inputs.options, 0).device_type, kernel, weights, inputs.weights_read,
                    model::rope_half(inputs.config, model::RopeKind::kOwn), cos.data(), sin.data(),
                    inputs.adapters, inputs.joint});
    num_parameters_ = weights.num_parameters();
    if (inputs.adapters != nullptr) num_parameters_ += inputs.adapters->num_parameters();
    if (!inputs.weights_read) return;
    weights.load(inputs.options.threads, 0, inputs.options.cancelled);
    model_->load();
  }

  // The graph of a step runs whole where nobody chooses in its middle.
  void run_to_choice(const StepBatch& batch, PassOutput& output) override {
    if (batch.choice_point != ChoicePoint::kBehindHead) return;
    if (batch.watch != nullptr) batch.watch->check();
    take(model_->run_to_choice(batch), output);
    if (!batch.row_tokens.empty()) readback_.note();
  }
  void run_from_choice(const StepBatch& batch, PassOutput& output) override {
    if (batch.watch != nullptr) batch.watch->check();
    const bool is_in_parts = batch.choice_point == ChoicePoint::kBehindHead;
    const DevicePass pass = is_in_parts ? model_->run_from_choice(batch) : model_->run(batch);
    const size_t rows = batch.row_tokens.size();
    if (batch.joint == nullptr) {
      readback_.copy(output.words, pass.chosen_ids, rows * sizeof(int32_t));
    } else {  // nothing is chosen for the rows themselves
      std::memset(output.words, 0xff, rows * sizeof(int32_t));
      readback_.copy(output.words, pass.joint.chosen_ids, batch.joint->count() * sizeof(int32_t));
    }
    if (batch.audit_mode != AuditMode::kNone) {
      std::byte* to = output.words + rows * sizeof(int32_t);
      const size_t row_bytes = rows * static_cast<size_t>(layout_.row_words) * sizeof(int32_t);
      std::memcpy(to, pass.row_records, row_bytes);
      std::memcpy(
          to + row_bytes, pass.token_records,
          batch.token_ids.size() * static_cast<size_t>(layout_.token_words) * sizeof(int32_t));
    }
    if (is_in_parts) {
      write_choices(batch, output);
    } else {
      take(pass, output);
    }
  }

  bool keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const override {
    return model_->keep_choosable(row_steps);
  }
  bool runs_ahead() const override { return true; }
  bool runs_trees() const override { return true; }
  void check_audit_mode(AuditMode mode) const override { refuse_naive(mode, device_); }
  void copy_block(int32_t from, int32_t to) override { model_->copy_block(from, to); }
  const std::vector<PlanEntry>& plan() const override { return model_->plan(); }
  const ops::Readback& readback() const override { return readback_; }
  std::optional<double> measure_read_bandwidth(double seconds) override {
    return model_->measure_read_bandwidth(seconds);
  }

  void describe(ModelSummary& summary) const override {
    const DeviceMemoryUse memory = model_->memory_use();
    summary.kernels = "fused";
    summary.isa = device_.name();
    summary.invariant = true;
    summary.num_parameters = num_parameters_;
    summary.weight_bytes = memory.weights;
    summary.kv_bytes = memory.kv;
    summary.arena_bytes = memory.activations;
    for (const PlanEntry& entry : plan()) summary.bytes_per_token += entry.weight_bytes;
  }

 private:
  static void take(const DevicePass& pass, PassOutput& output) {
    output.logits = pass.logits;
    output.hidden_states = pass.hidden_states;
    output.choice_facts = pass.choice_facts;
    output.joint = pass.joint;
    output.rows_on_device = pass.rows_on_device;
  }

  // The host's choices, in place of the head's.
  void write_choices(const StepBatch& batch, const PassOutput& output) const {
    const size_t rows = batch.row_tokens.size();
    for (size_t row = 0; row < batch.chosen.size(); ++row) {
      const int32_t id = batch.chosen[row];
      if (id < 0) continue;
      // A federation's rows may have stayed on the device; their logits are in its own record.
      const bool records = output.logits != nullptr && batch.audit_mode != AuditMode::kNone;
      const float logit = records ? output.logits[row * vocab_ + static_cast<size_t>(id)] : 0.0F;
      write_choice(layout_, rows, row, id, logit, records, output.words);
    }
  }

  AuditLayout layout_;
  Device device_;
  size_t vocab_;
  std::unique_ptr<DeviceModel> model_;
  ops::Readback readback_;
  int64_t num_parameters_ = 0;
};

}  // namespace

std::unique_ptr<Executor> make_device_executor(const ExecutorInputs& inputs,
                                               const DeviceModelFactory& make_model) {
  return std::make_unique<DeviceExecutor>(inputs, make_model);
}

std::unique_ptr<Executor> make_device_executor(const ExecutorInputs& inputs) {
  check_options(inputs);
  return make_device_executor(inputs, [&](const DeviceModelInputs& model) {
    return make_device_model(inputs.options.device, model);
  });
}

}  // namespace vitrine::engine
