// SPDX-License-Identifier: Apache-2.0
// attribution: after the head, the dot of every kept vector with the direction of the chosen token
// (its unembedding row times the norm's weight), times the norm's scale, and with that of the
// runner-up.
#include <algorithm>
#include <cmath>

#include "ops/attribution.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

using Term = AuditLayout::Term;

class PlannedAttribution final : public PlannedOp {
 public:
  PlannedAttribution(PlanContext& context, const OpNode& node, const AttributionParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        layout_(context.audit),
        hidden_(context.scratch.value(node.inputs[0]).width),
        head_(context.weights.matrix(own.matrix, context.graph.vocab_size, hidden_)),
        norm_(context.weights.vector(own.norm, hidden_)),
        eps_(static_cast<float>(own.eps)),
        multiplier_(static_cast<float>(own.multiplier)),
        soft_cap_(static_cast<float>(own.soft_cap)),
        parts_(attribution_parts(context.graph)),
        vectors_(attribution_vectors(context.graph)),
        mean_squares_(final_mean_squares(context)) {
    kept_ = kept_vectors(context);
    directions_ = context.scratch.array<float>(context.shape.max_rows * 2 * hidden_);
    plan_head_rows(context);
    dots_ = context.scratch.array<float>(context.shape.max_rows * 2 * vectors_);
    weights_ = kept_weights(context);
    find_factors(context);
    add_phase("attribute", &PlannedAttribution::pieces, &PlannedAttribution::run);
  }

  void use_loaded_weights() override {
    if (head_row_memory_ != nullptr) kernels::make_row_major(head_, head_row_memory_);
  }

  // Fetches the head's rows of the two likeliest tokens: one is the runner-up, and most often the
  // other is chosen.
  void fetch_ahead(const StepState& step) override {
    if (!step.audit) return;
    for (int64_t row = 0; row < step.rows; ++row) {
      const auto* ids = reinterpret_cast<const int32_t*>(record_of(step, row)) + layout_.top_ids;
      for (int i = 0; i < 2; ++i) fetch_head_row(std::max(0, ids[i]));
    }
  }

  int64_t pieces(const StepState& step) const { return step.audit ? step.rows : 0; }

  void run(const StepState& step, int64_t row) const {
    float* dots = dots_ + row * 2 * vectors_;
    kernels::Weight kept;
    kept.rows = vectors_;
    kept.cols = hidden_;
    kept.data = kept_ + row * vectors_ * hidden_;
    kernels::Activations input;
    input.value_stride = hidden_;
    kernels::RowMap both;
    both.count = 2;
    const int32_t chosen = std::max(0, step.chosen_ids[row]);
    const int32_t ids[2] = {chosen, runner_up(step, row, chosen)};
    float* directions = directions_ + row * 2 * hidden_;
    fetch_head_row(ids[0]);
    fetch_head_row(ids[1]);
    for (int side = 0; side < 2; ++side) find_direction(ids[side], directions + side * hidden_);
    input.values = directions;
    kernel_.linear(kept, 0, vectors_, input, both, nullptr, nullptr, dots, vectors_);
    const float scale = multiplier_ / std::sqrt(mean_squares_[row] + eps_);
    for (float* side : {dots, dots + vectors_}) {
      for (int64_t i = 0; i < vectors_; ++i) side[i] *= scale * factors_[i];
    }
    auto* terms = reinterpret_cast<float*>(record_of(step, row)) + layout_.attribution;
    write_terms(row, dots, terms);
    write_terms(row, dots + vectors_, terms + layout_.terms.size());
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".linear_f32";
  }

 private:
  std::byte* record_of(const StepState& step, int64_t row) const {
    return step.row_records + static_cast<size_t>(row) * static_cast<size_t>(layout_.row_words) * 4;
  }

  int32_t runner_up(const StepState& step, int64_t row, int32_t chosen) const {
    const auto* ids = reinterpret_cast<const int32_t*>(record_of(step, row)) + layout_.top_ids;
    const int32_t given = step.runners_up == nullptr ? -1 : step.runners_up[row];
    return std::max(0, given >= 0 ? given : ids[0] != chosen ? ids[0] : ids[1]);
  }

  /// A packed row is a cache line for each four columns, which a short step notices
  /// (docs/lab/recorder.md). A head that is larger than this has steps too long for that.
  void plan_head_rows(PlanContext& context) {
    constexpr int64_t kMaxBytes = int64_t{16} << 20;
    if (head_.blocks != nullptr) return;  // a mapped one may change its rows
    kernels::RowMajor rows = kernels::row_major(head_);
    const int64_t bytes = head_.rows * rows.stride;
    if (bytes == 0 || bytes > kMaxBytes) return;
    head_row_memory_ = context.scratch.array<std::byte>(bytes);
    rows.data = head_row_memory_;
    head_rows_ = rows;
  }

  /// What of a vector is in the stream at its end: layers' scalars behind it multiply it.
  void find_factors(PlanContext& context) {
    factors_ = context.scratch.array<float>(vectors_);
    double later = 1;
    for (size_t i = parts_.size(); i-- > 0;) {
      const AttributionPart& part = parts_[i];
      double scalar = 1;
      if (!part.scalar.empty()) {
        const float* value = context.weights.vector(part.scalar, 1);
        if (context.weights.holds_numbers()) scalar = double{*value};
      }
      // A stream was kept behind its own part's scalar, experts before it.
      const double own = part.kind == Term::Kind::kExpert ? later * scalar : later;
      std::fill_n(factors_ + part.first, part.num_vectors(), static_cast<float>(own));
      later *= scalar;
    }
  }

  /// Both rows come from far: so they come together.
  void fetch_head_row(int32_t id) const {
    const std::byte* line = head_rows_.data + id * head_rows_.stride;
    for (int64_t i = 0; i < head_rows_.stride; i += 64) __builtin_prefetch(line + i);
  }

  void find_direction(int32_t id, float* to) const {
    if (head_rows_.data != nullptr) return kernel_.widen_row(head_rows_, id, norm_, to);
    products_.embed_row(head_, id, 1.0F, to);
    kernel_.multiply(norm_, hidden_, to);
  }

  void write_terms(int64_t row, const float* dots, float* out) const {
    float before = 0;  // the stream, before the op at hand
    for (const AttributionPart& part : parts_) {
      const float* dot = dots + part.first;
      if (part.kind == Term::Kind::kExpert) {
        const auto multiplier = static_cast<float>(part.multiplier);
        const float* weights = weights_ + row * vectors_ + part.first;
        for (int32_t i = 0; i < part.num_vectors(); ++i) {
          *out = multiplier * (weights[i] * dot[i]);
          before += *out++;
        }
      } else {
        *out++ = *dot - before;
        before = *dot;
      }
    }
    if (soft_cap_ == 0) return;
    float capped = before;
    kernel_.soft_cap(soft_cap_, 1, &capped);
    *out = capped - before;
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  AuditLayout layout_;
  int64_t hidden_;
  const kernels::Weight& head_;
  kernels::RowMajor head_rows_;           // the same, where it is kept, in the memory below
  std::byte* head_row_memory_ = nullptr;  // filled once the head is read
  const float* norm_;
  float eps_, multiplier_, soft_cap_;
  std::vector<AttributionPart> parts_;
  int64_t vectors_;
  const float* mean_squares_;    // [rows]
  float* kept_ = nullptr;        // [rows, vectors, hidden]
  float* weights_ = nullptr;     // [rows, vectors]
  float* directions_ = nullptr;  // [rows, 2, hidden]
  float* dots_ = nullptr;        // [rows, 2, vectors]
  float* factors_ = nullptr;     // [vectors]
};

std::unique_ptr<PlannedOp> plan_attribution_head(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedAttribution>(context, node, node.as<AttributionParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"attribution", plan_attribution_head}));

}  // namespace
}  // namespace vitrine::ops
