// The launches of each op.
#include <cmath>

#include "backend_cuda/fused_plan.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/head/head.h"
#include "kernels/cuda/kv/rope_kv.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "ops/adapters.h"

namespace vitrine::backend_cuda {

using kernels::cuda::Addend;
using kernels::cuda::Epilogue;
using ops::OpNode;

void FusedPlan::plan_embed(const OpNode& node) {
  RowsBuffer& out = value(node.outputs[0]);
  const kernels::cuda::EmbeddingTable& table =
      weights_.table(node.weight("table"), graph_.vocab_size, out.width);
  const auto multiplier = static_cast<float>(node.attribute("multiplier", 1.0));
  add(
      [&table, &out, multiplier](const StepMemory& memory, Stream stream) {
        return kernels::cuda::embed_rows(table, memory.token_ids, memory.shape.tokens, multiplier,
                                         out.data, stream);
      },
      "embed");
}

void FusedPlan::plan_norm(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[0]);
  RowsBuffer& out = value(node.outputs[0]);
  kernels::cuda::RmsNorm norm;
  norm.n = in.width;
  norm.eps = static_cast<float>(node.attribute("eps"));
  norm.weight = weights_.vector({{node.weight("weight"), in.width}});
  norm.residual = in.data;
  const bool takes_addend = addend_.has_value();
  if (takes_addend) norm.addend = *addend_;
  addend_.reset();
  const AuditLayout::Layer* record = node.flag("audit") ? record_of(node.layer) : nullptr;
  const int32_t slot = record != nullptr ? record->residual_norm : -1;
  const int64_t stride = layout_.token_words;
  add(
      [&out, norm, slot, stride](const StepMemory& memory, Stream stream) {
        kernels::cuda::RmsNorm own = norm;
        own.out = out.values(memory);
        if (out.is_head_input) own.input_rows = memory.row_tokens;
        if (!out.int8_rows.empty()) {
          own.group_size = out.int8_rows.begin()->first;
          own.int8_rows = out.int8_rows.begin()->second;
        }
        if (slot >= 0) {
          own.norms = reinterpret_cast<float*>(memory.token_records) + slot;
          own.norm_stride = stride;
        }
        return kernels::cuda::rms_norm(
            own, out.is_head_input ? memory.shape.rows : memory.shape.tokens, stream);
      },
      takes_addend ? "combine+rms_norm" : "rms_norm");
  add_forms(out, 0);
}

void FusedPlan::plan_qkv(const OpNode& node) {
  constexpr const char* kRoles[] = {"q", "k", "v"};
  constexpr const char* kBiases[] = {"q_bias", "k_bias", "v_bias"};
  RowsBuffer& in = value(node.inputs[0]);
  std::vector<MatrixPart> parts;
  std::vector<std::pair<std::string, int64_t>> biases;
  int64_t width = 0;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t rows = value(node.outputs[i]).width;
    parts.push_back({node.weight(kRoles[i]), rows});
    if (!node.weight(kBiases[i]).empty()) biases.emplace_back(node.weight(kBiases[i]), rows);
    width += rows;
  }
  qkv_ = static_cast<float*>(scratch("queries, keys and values", max_tokens_ * width * 4));
  const float* bias = biases.size() == 3 ? weights_.vector(biases) : nullptr;
  Epilogue epilogue;
  epilogue.out = qkv_;
  epilogue.out_stride = width;
  epilogue.bias = bias;
  if (const DeviceMatrix* all = weights_.stacked(parts, in.width)) {
    add_product(*all, in, epilogue);
    return;
  }
  int64_t first = 0;
  for (const MatrixPart& part : parts) {
    epilogue.out = qkv_ + first;
    epilogue.bias = bias != nullptr ? bias + first : nullptr;
    add_product(weights_.matrix(part.module, part.rows, in.width), in, epilogue);
    first += part.rows;
  }
}

void FusedPlan::plan_attention(const OpNode& node) {
  RowsBuffer& out = value(node.outputs[0]);
  const auto heads = static_cast<int32_t>(graph_.num_heads);
  if (node.flag("norm_whole_row") && !node.weight("q_norm").empty()) {
    throw Error(ErrorKind::kUnsupported,
                "a norm over whole rows of queries and keys (olmoe) has no CUDA kernel in this "
                "version; use --kernels reference");
  }
  auto* queries = static_cast<float*>(scratch("rotated queries", out.capacity * out.width * 4));
  kernels::cuda::RopeKv rope;
  rope.heads = heads;
  rope.qkv = qkv_;
  rope.qkv_stride = (graph_.num_heads + 2 * graph_.num_kv_heads) * graph_.head_dim;
  if (!node.weight("q_norm").empty()) {
    rope.query_norm = weights_.vector({{node.weight("q_norm"), graph_.head_dim}});
    rope.key_norm = weights_.vector({{node.weight("k_norm"), graph_.head_dim}});
  }
  rope.eps = static_cast<float>(node.attribute("eps", 0.0));
  rope.clip = static_cast<float>(node.attribute("clip", 0.0));
  rope.cos = rope_cos_;
  rope.sin = rope_sin_;
  rope.cache = kv_[static_cast<size_t>(node.layer)];
  rope.query = queries;
  add(
      [rope](const StepMemory& memory, Stream stream) {
        kernels::cuda::RopeKv own = rope;
        own.positions = memory.positions;
        own.blocks = {memory.tables, memory.table_stride, memory.sequences};
        return kernels::cuda::rope_kv_write(own, memory.shape.tokens, stream);
      },
      "rope+kv_write");

  kernels::cuda::AttentionArguments attention;
  attention.kv = rope.cache;
  attention.heads = heads;
  attention.scale = static_cast<float>(node.attribute("scale"));
  attention.queries = queries;
  attention.out = out.data;
  attention.tokens = static_cast<int32_t>(max_tokens_);
  attention.ranges =
      (options_.max_context + kernels::cuda::kAttentionRange - 1) / kernels::cuda::kAttentionRange;
  if (attention.ranges > 1) {
    attention.scratch = static_cast<float*>(
        scratch("ranges of attention", attention_scratch_floats(attention) * 4));
  }
  add(
      [attention](const StepMemory& memory, Stream stream) {
        kernels::cuda::AttentionArguments own = attention;
        own.tokens = memory.shape.tokens;
        own.ranges = memory.shape.ranges;
        own.positions = memory.positions;
        own.blocks = {memory.tables, memory.table_stride, memory.sequences};
        own.tiles = memory.tiles;
        own.tile_count = memory.shape.tokens;
        return kernels::cuda::attention(own, memory.queries, stream);
      },
      rope.cache.format == kernels::cuda::FloatFormat::kF32   ? "attention_f32"
      : rope.cache.format == kernels::cuda::FloatFormat::kF16 ? "attention_f16"
                                                              : "attention_bf16");
  add_forms(out, 1);
}

void FusedPlan::plan_project(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[0]);
  RowsBuffer& residual = value(node.outputs[0]);
  Epilogue epilogue;
  if (!node.weight("bias").empty()) {
    epilogue.bias = weights_.vector({{node.weight("bias"), residual.width}});
  }
  epilogue.adds_residual = true;
  epilogue.residual_scale = static_cast<float>(node.attribute("multiplier", 1.0));
  epilogue.out = residual.data;
  epilogue.out_stride = residual.width;
  add_product(weights_.matrix(node.weight("weight"), residual.width, in.width), in, epilogue);
}

void FusedPlan::plan_dense(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[0]);
  RowsBuffer& out = value(node.outputs[0]);
  const int64_t intermediate = node.integer("intermediate");
  RowsBuffer& hidden = shared_rows("a dense block's hidden layer", max_tokens_, intermediate);
  const DeviceMatrix& gate = weights_.matrix(node.weight("gate"), intermediate, in.width);
  const DeviceMatrix& up = weights_.matrix(node.weight("up"), intermediate, in.width);
  add_gate_up(gate, up, in, hidden);
  Epilogue epilogue;
  epilogue.adds_residual = node.flag("residual");
  if (epilogue.adds_residual) {
    epilogue.residual_scale = static_cast<float>(node.attribute("multiplier", 1.0));
  }
  epilogue.out = out.data;
  epilogue.out_stride = out.width;
  add_product(weights_.matrix(node.weight("down"), out.width, intermediate), hidden, epilogue);
}

void FusedPlan::plan_combine(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[1]);
  const Routes& routes = routes_.at(node.layer);
  Addend addend;
  addend.kind = Addend::Kind::kExperts;
  addend.multiplier = static_cast<float>(node.attribute("multiplier", 1.0));
  addend.slots = value(node.inputs[0]).data;
  addend.weights = routes.weights;
  addend.top_k = routes.top_k;
  if (node.inputs.size() > 2) addend.shared = value(node.inputs[2]).data;
  if (!node.weight("shared_gate").empty()) {
    auto* gates = static_cast<float*>(scratch("shared experts' gates", max_tokens_ * 4));
    Epilogue epilogue;
    epilogue.out = gates;
    epilogue.out_stride = 1;
    add_product(weights_.matrix(node.weight("shared_gate"), 1, in.width), in, epilogue);
    addend.shared_gate = gates;
  }
  addend_ = addend;
}

void FusedPlan::finish_addend() {
  if (!addend_.has_value()) return;
  float* residual = value(graph_.nodes[0].outputs[0]).data;
  const int64_t width = value(graph_.nodes[0].outputs[0]).width;
  const bool for_rows = node_is_for_rows_;
  node_is_for_rows_ = false;
  add(
      [addend = *addend_, residual, width](const StepMemory& memory, Stream stream) {
        return kernels::cuda::add_to_residual(addend, memory.shape.tokens, width, residual, stream);
      },
      "combine+residual");
  launches_.back().node = entries_.size() - 1;  // of the combine, not of what comes next
  node_is_for_rows_ = for_rows;
  addend_.reset();
}

void FusedPlan::plan_head(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[0]);
  Epilogue epilogue;  // writes to StepMemory::logits
  epilogue.out_stride = graph_.vocab_size;
  add_product(weights_.matrix(node.weight("weight"), graph_.vocab_size, in.width), in, epilogue);
  kernels::cuda::Head head;
  head.vocab = graph_.vocab_size;
  head.multiplier = static_cast<float>(node.attribute("multiplier", 1.0));
  head.blocks = static_cast<kernels::cuda::HeadBlock*>(
      scratch("the head's statistics", max_rows_ * kernels::cuda::head_blocks(head.vocab) *
                                           static_cast<int64_t>(sizeof(kernels::cuda::HeadBlock))));
  head.record = {nullptr,         layout_.row_words, layout_.chosen_logit, layout_.log_sum_exp,
                 layout_.entropy, layout_.top_ids,   layout_.top_logits,   layout_.logits_digest};
  add(
      [head](const StepMemory& memory, Stream stream) {
        kernels::cuda::Head own = head;
        own.logits = memory.logits;
        own.targets = memory.row_targets;
        own.chosen_ids = memory.chosen_ids;
        if (head.record.stride > 0) own.record.words = memory.row_records;
        return kernels::cuda::head_epilogue(own, memory.shape.rows, stream);
      },
      "log_sum_exp+top_10+digest");
}

}  // namespace vitrine::backend_cuda
