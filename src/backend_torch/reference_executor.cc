// SPDX-License-Identifier: Apache-2.0
// The reference path: the graph through plain ATen calls, on any device.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>

#include "backend_torch/forced_tensors.h"
#include "backend_torch/naive_audit.h"
#include "backend_torch/pass_words.h"
#include "backend_torch/readback.h"
#include "backend_torch/tensor_sampler.h"
#include "backend_torch/torch_device.h"
#include "backend_torch/torch_errors.h"
#include "backend_torch/torch_op.h"
#include "backend_torch/upload.h"
#include "engine/reference_backend.h"
#include "engine/run/adapter_groups.h"
#include "ops/decoder_ops.h"
#include "vitrine/torch.h"

namespace vitrine::backend_torch {

namespace {

class ReferenceExecutor final : public engine::Executor {
 public:
  explicit ReferenceExecutor(engine::ReferenceInputs& inputs)
      : device_(torch_device(inputs.options.device)),
        graph_(inputs.graph),
        layout_(inputs.layout),
        words_(graph_, layout_),
        block_size_(inputs.options.kv_block_size),
        weights_(std::move(inputs.weights), device_),
        adapter_bytes_(inputs.adapter_bytes),
        adapter_parameters_(inputs.adapter_parameters),
        layer_begins_(ops::layer_begins(graph_)) {
    const c10::InferenceMode guard;
    if (inputs.adapters != nullptr) {
      adapters_.emplace(*inputs.adapters, device_);
      adapter_groups_.reserve(static_cast<size_t>(inputs.adapters->size()),
                              static_cast<size_t>(inputs.options.max_step_tokens));
    }
    rope_cos_ = upload_rope(inputs.rope_cos, inputs.options.max_context, inputs.rope_half);
    rope_sin_ = upload_rope(inputs.rope_sin, inputs.options.max_context, inputs.rope_half);
    if (inputs.sliding_half > 0) {
      const int64_t half = inputs.sliding_half;
      sliding_cos_ = upload_rope(inputs.sliding_cos, inputs.options.max_context, half);
      sliding_sin_ = upload_rope(inputs.sliding_sin, inputs.options.max_context, half);
    }
    // One block more than the pool has: the first pass, which loads the weights, writes there.
    const int64_t slots = (inputs.num_blocks + 1) * block_size_;
    for (const engine::ReferenceInputs::KvLayer& kept : inputs.kv) {
      const auto floats = at::TensorOptions().dtype(to_torch(kept.type)).device(device_);
      const auto layer = static_cast<int>(kv_.size());
      const ops::KvShape shape = graph_.kv_shape(layer);
      const bool keeps_keys = shape.source == layer && !graph_.keeps_state(layer);
      const int64_t width = keeps_keys ? shape.kv_heads * shape.head_dim : 0;
      const int64_t value_width = graph_.value_dim > 0 ? 0 : width;
      kv_.push_back({at::zeros({slots, width}, floats), at::zeros({slots, value_width}, floats),
                     kept.rounds_to_integers});
    }
    make_states(inputs.num_states + 1);
    const auto spare = static_cast<int32_t>(inputs.num_blocks);
    engine::StepBatch first;
    first.token_ids = {0};
    first.positions = {0};
    first.row_tokens = {0};
    first.row_targets = {-1};
    first.spans = {{0, 1, 0, &spare}};
    first.spans[0].state = static_cast<int32_t>(inputs.num_states);
    first.span_adapters = {-1};
    std::vector<int32_t> word(1);
    engine::PassOutput output{reinterpret_cast<std::byte*>(word.data()), nullptr, nullptr};
    run_from_choice(first, output);
    readback_ = {};
    taps_ = inputs.taps;
    for (const ops::OpNode& node : graph_.nodes)
      plan_.push_back({node.layer, node.type, "aten", 0});
  }

  // Its choices are the device's: there is nobody to stop for.
  void run_to_choice(const engine::StepBatch& /*batch*/, engine::PassOutput& /*output*/) override {}
  void run_from_choice(const engine::StepBatch& batch, engine::PassOutput& output) override {
    with_own_errors(
        [&] { return "a pass of " + std::to_string(batch.token_ids.size()) + " tokens"; },
        [&] { run_pass(batch, output); });
  }

  bool runs_layers() const override { return true; }

  void copy_block(int32_t from, int32_t to) override {
    with_own_errors([] { return "copying a block of keys and values"; },
                    [&] { copy_kept_block(from, to); });
  }
  void copy_state(int32_t from, int32_t to) override {
    with_own_errors([] { return "copying a sequence's state"; },
                    [&] { copy_kept_state(from, to); });
  }

  const std::vector<PlanEntry>& plan() const override { return plan_; }
  const ops::Readback& readback() const override { return readback_; }

  void describe(ModelSummary& summary) const override {
    summary.kernels = "reference";
    summary.isa = "aten";
    summary.invariant = false;
    summary.threads = at::get_num_threads();
    summary.weight_bytes = weights_.num_bytes() + adapter_bytes_;
    summary.num_parameters = weights_.num_parameters() + adapter_parameters_;
    for (const ReferenceKv& kv : kv_) summary.kv_bytes += kv.keys.nbytes() + kv.values.nbytes();
    for (const ReferenceStates& states : states_) {
      for (const at::Tensor* kept : {&states.rule, &states.inputs}) {
        if (kept->defined()) summary.kv_bytes += kept->nbytes();
      }
    }
    summary.bytes_per_token = weights_.num_bytes();
  }

 private:
  void run_pass(const engine::StepBatch& batch, engine::PassOutput& output) {
    const c10::InferenceMode guard;
    const Float32Guard float32(device_);
    const bool audit = batch.audit_mode != AuditMode::kNone;
    const bool naive = batch.audit_mode == AuditMode::kNaive;
    ReferenceStep step;
    ReferenceAudit audit_values;
    NaiveReferenceAudit naive_audit(readback_);
    fill(step, batch);
    if (!batch.forced_routes.empty()) {
      force_routes(layout_, batch.forced_routes, device_, step.forced_ids, step.forced_weights);
    }
    step.statistics = audit;
    step.full_audit = audit && layout_.level == AuditLevel::kFull;
    if (audit && !naive) step.audit = &audit_values;
    if (naive) step.hook = &naive_audit;
    ReferenceAttribution attribution;
    const bool attributes = audit && !layout_.terms.empty() && !batch.row_tokens.empty();
    if (attributes) step.attribution = &attribution;
    step.taps = taps_;
    step.readback = &readback_;
    step.host_token_ids = batch.token_ids.data();
    step.host_positions = batch.positions.data();
    const engine::NodeRange layers = engine::nodes_of(batch, layer_begins_);
    const bool is_later = batch.first_layer > 0;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const ops::OpNode& node = graph_.nodes[i];
      if (i == layers.begin && is_later) {
        step.value(graph_.stream()) =
            at::from_blob(const_cast<float*>(batch.residual),
                          {std::ssize(batch.token_ids), residual_width()}, at::kFloat)
                .clone()
                .to(device_);
      }
      if (i < layers.begin && i >= layer_begins_[0]) continue;
      if (i < layers.begin && is_later && !graph_.layers_read_tokens) continue;
      if (i >= layers.end && (i < layer_begins_.back() || batch.row_tokens.empty())) continue;
      if (batch.watch != nullptr) batch.watch->check();
      find_torch_op(node.type).run(step, node);
      if (graph_.is_head(node) && !batch.row_steps.empty()) choose_rows(step, batch.row_steps);
    }
    read_back(batch, step, audit_values, output);
    if (batch.reads_residual) {
      const at::Tensor rows = step.value(graph_.stream()).contiguous();
      residual_.resize(static_cast<size_t>(rows.numel()));
      backend_torch::read_back(readback_, residual_.data(), rows, rows.numel());
      output.residual = residual_.data();
    }
    if (naive) words_.write_naive(batch, naive_audit.take(), output.words);
    if (attributes) {
      const size_t streams = attribution.streams.size();
      words_.write_attribution(batch, dots_, streams, streams + attribution.experts.size(),
                               output.words);
    }
  }

  void copy_kept_block(int32_t from, int32_t to) {
    const c10::InferenceMode guard;
    for (ReferenceKv& kv : kv_) {
      for (at::Tensor* cache : {&kv.keys, &kv.values}) {
        cache->narrow(0, to * block_size_, block_size_)
            .copy_(cache->narrow(0, from * block_size_, block_size_));
      }
    }
  }

  void copy_kept_state(int32_t from, int32_t to) {
    const c10::InferenceMode guard;
    for (ReferenceStates& states : states_) {
      for (at::Tensor* kept : {&states.rule, &states.inputs}) {
        if (!kept->defined()) continue;
        at::Tensor target = kept->select(0, to);
        if (from < 0) {
          target.zero_();
        } else {
          target.copy_(kept->select(0, from));
        }
      }
    }
  }

  void make_states(int64_t slots) {
    const auto floats = at::TensorOptions().dtype(at::kFloat).device(device_);
    states_.resize(static_cast<size_t>(graph_.num_layers));
    for (const ops::OpNode& node : graph_.nodes) {
      const ops::StateShapes shapes = node.parameters->state(graph_, node);
      if (shapes.inputs.empty()) continue;
      const auto zeros = [&](std::vector<int64_t> shape) {
        shape.insert(shape.begin(), slots);
        return at::zeros(shape, floats);
      };
      auto& state = states_[static_cast<size_t>(node.layer)];
      state.inputs = zeros(shapes.inputs);
      if (!shapes.rule.empty()) state.rule = zeros(shapes.rule);
    }
  }

  // In place of the head's choices, before attribution asks for them.
  void choose_rows(ReferenceStep& step, const std::vector<const DeviceSamplerSteps*>& row_steps) {
    std::vector<at::Tensor> ids, facts;
    for (size_t row = 0; row < row_steps.size(); ++row) {
      const auto index = static_cast<int64_t>(row);
      if (row_steps[row] == nullptr) {
        ids.push_back(step.chosen_ids.narrow(0, index, 1));
        facts.push_back(at::zeros({int64_t{engine::kChoiceFacts}}, step.logits.options()));
        continue;
      }
      TensorChoice choice = choose_with_tensors(step.logits[index], row_steps[row]->list());
      ids.push_back(std::move(choice.id));
      facts.push_back(std::move(choice.facts));
    }
    step.chosen_ids = at::cat(ids);
    choice_facts_ = at::cat(facts);
    if (!step.statistics) return;
    const at::Tensor chosen = at::gather(step.logits, 1, step.chosen_ids.clamp_min(0).unsqueeze(1));
    step.row_floats =
        at::cat({chosen, step.row_floats.narrow(1, 1, step.row_floats.size(1) - 1)}, 1);
  }

  at::Tensor upload_rope(const float* values, int64_t positions, int64_t half) const {
    // The tensor is cloned at once, so nothing is written through the pointer.
    return at::from_blob(const_cast<float*>(values), {positions, half},
                         at::TensorOptions().dtype(at::kFloat))
        .clone()
        .to(device_);
  }

  int64_t slot(const engine::BatchSpan& span, int64_t position) const {
    return static_cast<int64_t>(span.block_table[position / block_size_]) * block_size_ +
           position % block_size_;
  }

  void fill(ReferenceStep& step, const engine::StepBatch& batch) {
    step.graph = &graph_;
    step.weights = &weights_;
    step.kv = &kv_;
    step.states = &states_;
    step.rope_cos = rope_cos_;
    step.rope_sin = rope_sin_;
    step.sliding_cos = sliding_cos_;
    step.sliding_sin = sliding_sin_;
    step.values.resize(graph_.values.size());
    if (adapters_) step.adapters = &*adapters_;
    const std::span<const ops::AdapterRows> adapters = adapter_groups_.gather(batch);
    step.routes_ids.resize(static_cast<size_t>(graph_.num_layers));
    step.routes_weights.resize(static_cast<size_t>(graph_.num_layers));
    // All ids of the pass go up in one copy.
    std::vector<int64_t> ids;
    auto append = [&ids](const std::vector<int32_t>& values) {
      ids.insert(ids.end(), values.begin(), values.end());
    };
    append(batch.token_ids);
    append(batch.positions);
    append(batch.row_tokens);
    append(batch.row_targets);
    for (const engine::BatchSpan& span : batch.spans) {
      for (int64_t i = 0; i < span.num_tokens; ++i) ids.push_back(slot(span, span.past + i));
    }
    for (const engine::BatchSpan& span : batch.spans) {
      for (int64_t i = 0; i < span.past + span.num_tokens; ++i) ids.push_back(slot(span, i));
    }
    for (const ops::AdapterRows& of : adapters) ids.insert(ids.end(), of.rows, of.rows + of.count);
    const at::Tensor uploaded = upload(ids, at::kLong, device_);
    int64_t next = 0;
    auto take = [&](int64_t count) {
      next += count;
      return uploaded.narrow(0, next - count, count);
    };
    const auto tokens = static_cast<int64_t>(batch.token_ids.size());
    const auto rows = static_cast<int64_t>(batch.row_tokens.size());
    step.token_ids = take(tokens);
    step.positions = take(tokens);
    step.row_tokens = take(rows);
    step.row_targets = take(rows);
    step.new_slots = take(tokens);
    for (const engine::BatchSpan& span : batch.spans) {
      step.spans.push_back({span.first_token, span.num_tokens, span.past,
                            take(span.past + span.num_tokens), span.state});
    }
    for (const ops::AdapterRows& of : adapters) {
      step.adapter_rows.push_back({of.adapter, take(of.count)});
    }
  }

  // Joins everything that the host wants into one tensor: a number of calls that does not depend on
  // the number of layers, then one copy. Ids travel as float32, which holds them exactly.
  void read_back(const engine::StepBatch& batch, ReferenceStep& step, ReferenceAudit& audit,
                 engine::PassOutput& output) {
    const auto rows = static_cast<int64_t>(batch.row_tokens.size());
    const auto tokens = static_cast<int64_t>(batch.token_ids.size());
    std::vector<at::Tensor> parts;
    if (rows > 0) parts.push_back(step.chosen_ids.to(at::kFloat));
    if (step.audit != nullptr) {
      if (rows > 0) append_rows(step, parts);
      parts.push_back(at::cat(audit.mean_squares, 1).reshape({-1}));
      if (!audit.expert_ids.empty()) {
        parts.push_back(at::cat(audit.expert_ids, 1).to(at::kFloat).reshape({-1}));
        parts.push_back(at::cat(audit.expert_weights, 1).reshape({-1}));
      }
      if (!audit.router_scores.empty())
        parts.push_back(at::cat(audit.router_scores, 1).reshape({-1}));
      if (!audit.router_probs.empty())
        parts.push_back(at::cat(audit.router_probs, 1).reshape({-1}));
    }
    const size_t hidden_states = parts.size();
    if (!audit.hidden_states.empty()) {
      parts.push_back(at::cat(audit.hidden_states, 1).reshape({-1}));
    }
    const size_t attribution = parts.size();
    if (step.attribution != nullptr) parts.push_back(step.attribution->dots.reshape({-1}));
    const size_t hidden = parts.size();
    if (batch.read_hidden_states && rows > 0) {
      parts.push_back(step.value(head_input()).reshape({-1}));
    }
    const size_t choices = parts.size();
    if (!batch.row_steps.empty()) parts.push_back(choice_facts_);
    if (batch.read_logits && rows > 0) parts.push_back(step.logits.reshape({-1}));
    if (parts.empty()) return;
    at::Tensor joined = parts.size() == 1 ? parts[0] : at::cat(parts, 0);
    host_.resize(static_cast<size_t>(joined.numel()));
    backend_torch::read_back(readback_, host_.data(), joined, joined.numel());
    std::vector<const float*> sources;
    const float* next = host_.data();
    for (const at::Tensor& part : parts) {
      sources.push_back(next);
      next += part.numel();
    }
    if (step.attribution != nullptr) dots_ = sources[attribution];
    size_t source = 0;
    if (rows > 0) {
      const float* chosen = sources[source++];
      auto* words = reinterpret_cast<int32_t*>(output.words);
      for (int64_t row = 0; row < rows; ++row) words[row] = static_cast<int32_t>(chosen[row]);
    }
    if (step.audit != nullptr) {
      const float* row_floats = rows > 0 ? sources[source] : nullptr;
      const float* top_ids = rows > 0 ? sources[source + 1] : nullptr;
      const float* top_logits = rows > 0 ? sources[source + 2] : nullptr;
      if (rows > 0) source += 3;
      words_.write_rows(rows, row_floats, top_ids, top_logits, output.words);
      words_.write_tokens(rows, tokens, sources.data() + source, output.words);
      if (!audit.hidden_states.empty()) {
        words_.write_hidden_states(rows, tokens, sources[hidden_states], output.words);
      }
    }
    output.choice_facts = batch.row_steps.empty() ? nullptr : sources[choices];
    output.logits = batch.read_logits && rows > 0 ? sources.back() : nullptr;
    output.hidden_states = batch.read_hidden_states && rows > 0 ? sources[hidden] : nullptr;
  }

  int64_t residual_width() const { return graph_.width(graph_.stream()); }
  ops::ValueId head_input() const { return graph_.heads.at(0).input; }

  static void append_rows(const ReferenceStep& step, std::vector<at::Tensor>& parts) {
    parts.push_back(step.row_floats.reshape({-1}));
    parts.push_back(step.top_ids.to(at::kFloat).reshape({-1}));
    parts.push_back(step.top_logits.reshape({-1}));
  }

  at::Device device_;
  ops::Graph graph_;
  AuditLayout layout_;
  PassWords words_;
  int64_t block_size_;
  TensorWeights weights_;
  std::optional<TensorAdapters> adapters_;
  engine::AdapterGroups adapter_groups_;
  uint64_t adapter_bytes_;
  int64_t adapter_parameters_;
  std::vector<ReferenceKv> kv_;
  std::vector<ReferenceStates> states_;  // by layer
  at::Tensor rope_cos_, rope_sin_, sliding_cos_, sliding_sin_;
  std::vector<PlanEntry> plan_;
  std::vector<float> host_;
  const float* dots_ = nullptr;  // in host_
  std::vector<float> residual_;  // on the host, of a pass that asks for it
  at::Tensor choice_facts_;      // [rows * 4], of the pass under way
  ops::Readback readback_;
  ops::TapBook* taps_ = nullptr;
  std::vector<size_t> layer_begins_;
};

}  // namespace

}  // namespace vitrine::backend_torch

vitrine::engine::Executor* vitrine_torch_make_executor(vitrine::engine::ReferenceInputs& inputs) {
  using vitrine::backend_torch::ReferenceExecutor;
  return vitrine::backend_torch::with_own_errors(
      [&] { return "loading on " + inputs.options.device.name(); },
      [&] { return std::make_unique<ReferenceExecutor>(inputs).release(); });
}
