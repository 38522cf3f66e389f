// SPDX-License-Identifier: Apache-2.0
// The reference path: the graph through plain ATen calls, on any device.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/device_backend.h"
#include "engine/executor.h"
#include "engine/forced_routes.h"
#include "engine/tensor_sampler.h"
#include "engine/upload.h"
#include "model/reference_adapters.h"
#include "model/reference_weights.h"
#include "ops/attribution.h"
#include "ops/naive_audit.h"
#include "ops/op.h"
#include "ops/reference.h"

namespace vitrine::engine {

namespace {

// No exception of libtorch's leaves the library.
[[noreturn]] void throw_as_ours(const c10::Error& error, const std::string& what) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    throw Error(ErrorKind::kOutOfMemory, what + " on the reference path ran out of memory; lower " +
                                             "max_context or use a smaller model");
  }
  const std::string text = error.what_without_backtrace();
  throw Error(ErrorKind::kInternal,
              what + " on the reference path failed: " + text.substr(0, text.find('\n')));
}

class ReferenceExecutor final : public Executor {
 public:
  explicit ReferenceExecutor(const ExecutorInputs& inputs)
      : device_(torch_device(inputs.options.device)),
        graph_(inputs.graph),
        layout_(inputs.layout),
        parts_(ops::attribution_parts(graph_)),
        block_size_(inputs.options.kv_block_size),
        weights_(inputs.checkpoint, device_) {
    const c10::InferenceMode guard;
    if (inputs.adapters != nullptr) {
      adapters_.emplace(*inputs.adapters, device_);
      adapter_groups_.reserve(static_cast<size_t>(inputs.adapters->size()),
                              static_cast<size_t>(inputs.options.max_step_tokens));
      adapter_bytes_ = inputs.adapters->num_bytes();
      adapter_parameters_ = inputs.adapters->num_parameters();
    }
    std::vector<float> cos, sin;
    fill_rope_tables(inputs.config, inputs.options, cos, sin);
    const int64_t half = inputs.config.head_dim / 2;
    rope_cos_ = upload_floats(cos, {inputs.options.max_context, half});
    rope_sin_ = upload_floats(sin, {inputs.options.max_context, half});
    // One block more than the pool has: the first pass, which loads the weights, writes there.
    const int64_t slots = (inputs.num_blocks + 1) * block_size_;
    const at::ScalarType type = inputs.options.kv_dtype == DType::kF16    ? at::kHalf
                                : inputs.options.kv_dtype == DType::kBF16 ? at::kBFloat16
                                                                          : at::kFloat;
    const auto floats = at::TensorOptions().dtype(type).device(device_);
    for (int layer = 0; layer < graph_.num_layers; ++layer) {
      const int64_t width = graph_.num_kv_heads * graph_.head_dim;
      kv_.push_back({at::zeros({slots, width}, floats), at::zeros({slots, width}, floats),
                     inputs.options.kv_dtype == DType::kI16});
    }
    const auto spare = static_cast<int32_t>(inputs.num_blocks);
    StepBatch first;
    first.token_ids = {0};
    first.positions = {0};
    first.row_tokens = {0};
    first.row_targets = {-1};
    first.spans = {{0, 1, 0, &spare}};
    first.span_adapters = {-1};
    std::vector<int32_t> word(1);
    PassOutput output{reinterpret_cast<std::byte*>(word.data()), nullptr, nullptr};
    run_from_choice(first, output);
    readback_ = {};
    for (const ops::OpNode& node : graph_.nodes)
      plan_.push_back({node.layer, node.type, "aten", 0});
  }

  // Its choices are the device's: there is nobody to stop for.
  void run_to_choice(const StepBatch& /*batch*/, PassOutput& /*output*/) override {}
  void run_from_choice(const StepBatch& batch, PassOutput& output) override {
    try {
      run_pass(batch, output);
    } catch (const c10::Error& error) {
      throw_as_ours(error, "a pass of " + std::to_string(batch.token_ids.size()) + " tokens");
    }
  }

  void run_pass(const StepBatch& batch, PassOutput& output) {
    const c10::InferenceMode guard;
    const Float32Guard float32(device_);
    const bool audit = batch.audit_mode != AuditMode::kNone;
    const bool naive = batch.audit_mode == AuditMode::kNaive;
    ops::ReferenceStep step;
    ops::ReferenceAudit audit_values;
    ops::NaiveReferenceAudit naive_audit(readback_);
    fill(step, batch);
    if (!batch.forced_routes.empty()) {
      force_routes(layout_, batch.forced_routes, device_, step.forced_ids, step.forced_weights);
    }
    step.statistics = audit;
    step.full_audit = audit && layout_.level == AuditLevel::kFull;
    if (audit && !naive) step.audit = &audit_values;
    if (naive) step.hook = &naive_audit;
    ops::ReferenceAttribution attribution;
    const bool attributes = audit && !layout_.terms.empty() && !batch.row_tokens.empty();
    if (attributes) step.attribution = &attribution;
    for (const ops::OpNode& node : graph_.nodes) {
      if (node.layer < 0 && batch.row_tokens.empty() && node.type != "embed") continue;
      ops::find_op(node.type).reference(step, node);
      if (node.type == "head" && !batch.row_steps.empty()) choose_rows(step, batch.row_steps);
    }
    if (naive) {
      read_back_naive(batch, step, naive_audit.take(), output);
    } else {
      read_back(batch, step, audit_values, output);
    }
    if (attributes) write_attribution(batch, attribution, output.words);
  }

  void copy_block(int32_t from, int32_t to) override {
    const c10::InferenceMode guard;
    for (ops::ReferenceKv& kv : kv_) {
      for (at::Tensor* cache : {&kv.keys, &kv.values}) {
        cache->narrow(0, to * block_size_, block_size_)
            .copy_(cache->narrow(0, from * block_size_, block_size_));
      }
    }
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
    for (const ops::ReferenceKv& kv : kv_) summary.kv_bytes += 2 * kv.keys.nbytes();
    summary.bytes_per_token = weights_.num_bytes();
  }

 private:
  // In place of the head's choices, before attribution asks for them.
  void choose_rows(ops::ReferenceStep& step,
                   const std::vector<const DeviceSamplerSteps*>& row_steps) {
    std::vector<at::Tensor> ids, facts;
    for (size_t row = 0; row < row_steps.size(); ++row) {
      const auto index = static_cast<int64_t>(row);
      if (row_steps[row] == nullptr) {
        ids.push_back(step.chosen_ids.narrow(0, index, 1));
        facts.push_back(at::zeros({int64_t{kChoiceFacts}}, step.logits.options()));
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

  at::Tensor upload_floats(std::vector<float>& values, at::IntArrayRef shape) const {
    return at::from_blob(values.data(), shape, at::TensorOptions().dtype(at::kFloat))
        .clone()
        .to(device_);
  }

  int64_t slot(const BatchSpan& span, int64_t position) const {
    return static_cast<int64_t>(span.block_table[position / block_size_]) * block_size_ +
           position % block_size_;
  }

  void fill(ops::ReferenceStep& step, const StepBatch& batch) {
    step.graph = &graph_;
    step.weights = &weights_;
    step.kv = &kv_;
    step.rope_cos = rope_cos_;
    step.rope_sin = rope_sin_;
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
    for (const BatchSpan& span : batch.spans) {
      for (int64_t i = 0; i < span.num_tokens; ++i) ids.push_back(slot(span, span.past + i));
    }
    for (const BatchSpan& span : batch.spans) {
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
    for (const BatchSpan& span : batch.spans) {
      step.spans.push_back(
          {span.first_token, span.num_tokens, span.past, take(span.past + span.num_tokens)});
    }
    for (const ops::AdapterRows& of : adapters) {
      step.adapter_rows.push_back({of.adapter, take(of.count)});
    }
  }

  // Joins everything that the host wants into one tensor: a number of calls that does not depend on
  // the number of layers, then one copy. Ids travel as float32, which holds them exactly.
  void read_back(const StepBatch& batch, ops::ReferenceStep& step, ops::ReferenceAudit& audit,
                 PassOutput& output) {
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
    readback_.copy(host_.data(), joined, joined.numel());
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
      const auto count =
          static_cast<int32_t>(std::min<int64_t>(kAuditTopTokens, graph_.vocab_size));
      write_rows(rows, count, row_floats, top_ids, top_logits, output.words);
      write_tokens(rows, tokens, sources.data() + source, output.words);
      if (!audit.hidden_states.empty()) {
        write_hidden_states(rows, tokens, sources[hidden_states], output.words);
      }
    }
    output.choice_facts = batch.row_steps.empty() ? nullptr : sources[choices];
    output.logits = batch.read_logits && rows > 0 ? sources.back() : nullptr;
    output.hidden_states = batch.read_hidden_states && rows > 0 ? sources[hidden] : nullptr;
  }

  ops::ValueId head_input() const {
    return std::ranges::find(graph_.nodes, "head", &ops::OpNode::type)->inputs[0];
  }

  static void append_rows(const ops::ReferenceStep& step, std::vector<at::Tensor>& parts) {
    parts.push_back(step.row_floats.reshape({-1}));
    parts.push_back(step.top_ids.to(at::kFloat).reshape({-1}));
    parts.push_back(step.top_logits.reshape({-1}));
  }

  void write_rows(int64_t rows, int32_t count, const float* row_floats, const float* top_ids,
                  const float* top_logits, std::byte* out) const {
    if (layout_.row_words == 0) return;
    for (int64_t row = 0; row < rows; ++row) {
      std::byte* base = out + (rows + row * layout_.row_words) * 4;
      auto* words = reinterpret_cast<int32_t*>(base);
      auto* floats = reinterpret_cast<float*>(base);
      floats[layout_.chosen_logit] = row_floats[row * 7];
      floats[layout_.log_sum_exp] = row_floats[row * 7 + 1];
      floats[layout_.entropy] = row_floats[row * 7 + 2];
      for (int32_t i = 0; i < 2; ++i) {
        const float* pieces = row_floats + row * 7 + 3 + 2 * i;  // of 16 bits, signed
        const auto low = static_cast<uint16_t>(static_cast<int32_t>(pieces[0]));
        const auto high = static_cast<uint16_t>(static_cast<int32_t>(pieces[1]));
        words[layout_.logits_digest + i] = static_cast<int32_t>(uint32_t{high} << 16 | low);
      }
      for (int32_t i = 0; i < kAuditTopTokens; ++i) {
        words[layout_.top_ids + i] =
            i < count ? static_cast<int32_t>(top_ids[row * count + i]) : -1;
        floats[layout_.top_logits + i] = i < count ? top_logits[row * count + i] : 0.0F;
      }
    }
  }

  // The L2 norm, on the host: a device's square root may differ in the last bit.
  float norm(float mean_square) const {
    const auto hidden =
        static_cast<float>(graph_.values[static_cast<size_t>(graph_.nodes[0].outputs[0])].width);
    return std::sqrt(mean_square * hidden);
  }

  // sources: mean squares [tokens, layers], ids and weights [tokens, all top_k], probabilities.
  void write_tokens(int64_t rows, int64_t tokens, const float* const* sources,
                    std::byte* out) const {
    std::byte* base = out + rows * (1 + layout_.row_words) * 4;
    int64_t all_k = 0, all_experts = 0;
    for (const AuditLayout::Layer& layer : layout_.layers) {
      all_k += layer.top_k;
      if (layer.router_probs >= 0) all_experts += layer.num_experts;
    }
    const auto layers = static_cast<int64_t>(layout_.layers.size());
    for (int64_t token = 0; token < tokens; ++token, base += layout_.token_words * 4) {
      auto* words = reinterpret_cast<int32_t*>(base);
      auto* floats = reinterpret_cast<float*>(base);
      int64_t k = token * all_k, e = token * all_experts;
      for (int64_t i = 0; i < layers; ++i) {
        const AuditLayout::Layer& layer = layout_.layers[static_cast<size_t>(i)];
        floats[layer.residual_norm] = norm(sources[0][token * layers + i]);
        for (int32_t slot = 0; slot < layer.top_k; ++slot, ++k) {
          words[layer.expert_ids + slot] = static_cast<int32_t>(sources[1][k]);
          floats[layer.expert_weights + slot] = sources[2][k];
        }
        if (layer.router_probs < 0) continue;
        for (int32_t expert = 0; expert < layer.num_experts; ++expert, ++e) {
          floats[layer.router_probs + expert] = sources[3][e];
        }
      }
    }
  }

  // values: [tokens, layers asked for, hidden]
  void write_hidden_states(int64_t rows, int64_t tokens, const float* values,
                           std::byte* out) const {
    std::byte* base = out + rows * (1 + layout_.row_words) * 4;
    for (int64_t token = 0; token < tokens; ++token, base += layout_.token_words * 4) {
      for (const AuditLayout::HiddenState& state : layout_.hidden_states) {
        std::copy_n(values, layout_.hidden_size, reinterpret_cast<float*>(base) + state.values);
        values += layout_.hidden_size;
      }
    }
  }

  // The same words from values that were read one by one, in the order of the graph.
  void read_back_naive(const StepBatch& batch, ops::ReferenceStep& step,
                       const std::vector<std::vector<float>>& values, PassOutput& output) {
    ops::ReferenceAudit none;
    step.audit = nullptr;
    read_back(batch, step, none, output);
    const auto rows = static_cast<int64_t>(batch.row_tokens.size());
    const auto tokens = static_cast<int64_t>(batch.token_ids.size());
    std::byte* base = output.words + rows * (1 + layout_.row_words) * 4;
    size_t next = 0;
    auto scatter = [&](int32_t word, int32_t width, auto convert) {
      const std::vector<float>& source = values[next++];
      for (int64_t token = 0; token < tokens; ++token) {
        std::byte* record = base + token * layout_.token_words * 4;
        for (int32_t i = 0; i < width; ++i) {
          const auto value = convert(source[static_cast<size_t>(token * width + i)]);
          std::memcpy(record + (word + i) * 4, &value, 4);
        }
      }
    };
    auto as_float = [](float value) { return value; };
    auto as_id = [](float value) { return static_cast<int32_t>(value); };
    auto state = layout_.hidden_states.begin();
    const auto scatter_state = [&](size_t entering) {
      if (state == layout_.hidden_states.end() || state->layer != static_cast<int32_t>(entering)) {
        return;
      }
      scatter((state++)->values, layout_.hidden_size, as_float);
    };
    for (const AuditLayout::Layer& layer : layout_.layers) {
      scatter_state(static_cast<size_t>(layer.layer));
      scatter(layer.residual_norm, 1, [&](float value) { return norm(value); });
      if (layer.expert_ids < 0) continue;
      scatter(layer.expert_ids, layer.top_k, as_id);
      scatter(layer.expert_weights, layer.top_k, as_float);
      if (layer.router_probs >= 0) scatter(layer.router_probs, layer.num_experts, as_float);
    }
    scatter_state(layout_.layers.size());
    if (rows == 0) return;
    const auto count = static_cast<int32_t>(std::min<int64_t>(kAuditTopTokens, graph_.vocab_size));
    write_rows(rows, count, values[next].data(), values[next + 1].data(), values[next + 2].data(),
               output.words);
  }

  // Terms from the dots [2, streams + experts, rows] and from the routes that stand in the words.
  void write_attribution(const StepBatch& batch, const ops::ReferenceAttribution& kept,
                         std::byte* out) const {
    const size_t rows = batch.row_tokens.size();
    const size_t num_streams = kept.streams.size();
    const size_t vectors = num_streams + kept.experts.size();
    const std::byte* tokens = out + rows * (1 + static_cast<size_t>(layout_.row_words)) * 4;
    for (size_t row = 0; row < rows; ++row) {
      const std::byte* token = tokens + static_cast<size_t>(batch.row_tokens[row]) *
                                            static_cast<size_t>(layout_.token_words) * 4;
      const auto* ids = reinterpret_cast<const int32_t*>(token);
      auto* terms = reinterpret_cast<float*>(
                        out + (rows + row * static_cast<size_t>(layout_.row_words)) * 4) +
                    layout_.attribution;
      for (size_t side = 0; side < 2; ++side) {
        auto dot = [&](size_t vector) { return dots_[(side * vectors + vector) * rows + row]; };
        size_t stream = 0, expert = num_streams;
        float before = 0;  // the stream, before the part at hand
        auto add_expert = [&](float term) {
          *terms++ = term;
          before += term;
        };
        for (const ops::AttributionPart& part : parts_) {
          if (part.kind == AuditLayout::Term::Kind::kExpert) {
            const AuditLayout::Layer& layer = layout_.layers[static_cast<size_t>(part.layer)];
            const auto multiplier = static_cast<float>(part.multiplier);
            for (int32_t slot = 0; slot < part.top_k; ++slot) {
              const auto id = static_cast<size_t>(ids[layer.expert_ids + slot]);
              add_expert(multiplier * dot(expert + id));
            }
            expert += static_cast<size_t>(layer.num_experts);
            if (part.has_shared) add_expert(multiplier * dot(expert++));
          } else {
            *terms++ = dot(stream) - before;
            before = dot(stream++);
          }
        }
      }
    }
  }

  at::Device device_;
  ops::Graph graph_;
  AuditLayout layout_;
  std::vector<ops::AttributionPart> parts_;
  int64_t block_size_;
  model::TensorWeights weights_;
  std::optional<model::TensorAdapters> adapters_;
  AdapterGroups adapter_groups_;
  uint64_t adapter_bytes_ = 0;
  int64_t adapter_parameters_ = 0;
  std::vector<ops::ReferenceKv> kv_;
  at::Tensor rope_cos_, rope_sin_;
  std::vector<PlanEntry> plan_;
  std::vector<float> host_;
  const float* dots_ = nullptr;  // in host_
  at::Tensor choice_facts_;      // [rows * 4], of the pass under way
  ops::Readback readback_;
};

}  // namespace

std::unique_ptr<Executor> make_reference_executor(const ExecutorInputs& inputs) {
  try {
    return std::make_unique<ReferenceExecutor>(inputs);
  } catch (const c10::Error& error) {
    throw_as_ours(error, "loading on " + inputs.options.device.name());
  }
}

}  // namespace vitrine::engine
