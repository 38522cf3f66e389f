// SPDX-License-Identifier: Apache-2.0
// short_convolution: a causal convolution of each channel by itself, with a gate before it and one
// behind it (lfm2_moe). A piece owns a tile of channels of one sequence and goes through its tokens
// in order, so neither chunks nor threads show.
#include <algorithm>
#include <array>

#include "kernels/cpu/delta_kernels.h"
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

constexpr int64_t kTileChannels = 128;  // whole groups of what reads the output

class PlannedShortConvolution final : public PlannedOp {
 public:
  PlannedShortConvolution(PlanContext& context, const OpNode& node,
                          const ShortConvolutionParameters& own)
      : kernel_(context.kernel),
        delta_(kernels::delta_kernels(context.kernel)),
        count_(own.taps),
        state_(context.states[static_cast<size_t>(node.layer)]),
        in_(context.scratch.value(node.inputs[0])),
        out_(context.scratch.value(node.outputs[0])),
        stored_taps_(context.weights.vector(own.weight, out_.width * count_)),
        bias_(own.bias.empty() ? nullptr : context.weights.vector(own.bias, out_.width)),
        taps_(context.scratch.array<float>(out_.width * count_)),
        journal_(context.scratch.array<float>(context.shape.max_rows * out_.width)) {
    add_phase("convolve", &PlannedShortConvolution::pieces, &PlannedShortConvolution::run);
  }

  void use_loaded_weights() override {
    for (int64_t channel = 0; channel < out_.width; ++channel) {
      for (int64_t tap = 0; tap < count_; ++tap) {
        taps_[tap * out_.width + channel] = stored_taps_[channel * count_ + tap];
      }
    }
  }

  int64_t pieces(const StepState& step) const { return step.num_state_spans * tiles(); }
  void run(const StepState& step, int64_t piece) const {
    const StateSpan& span = step.state_spans[piece / tiles()];
    const int64_t first = piece % tiles() * kTileChannels;
    const int64_t n = std::min(kTileChannels, out_.width - first);
    float* const state = state_.of(span.slot) + first;  // [count_ - 1, width]
    // The last inputs by turns: that of the position p of the span is in row p + count_ - 1.
    std::array<std::array<float, kTileChannels>, kMaxTaps> recent;
    const auto turn = [&](int64_t row) { return recent[static_cast<size_t>(row % count_)].data(); };
    for (int64_t row = 0; row + 1 < count_; ++row) {
      std::copy_n(state + row * out_.width, n, turn(row));
    }
    for (int64_t at = 0; at < span.num_tokens; ++at) {
      const int64_t token = span.first_token + at;
      const float* b = in_.row(token) + first;
      const float* c = b + out_.width;
      const float* x = c + out_.width;
      float* const newest = turn(at + count_ - 1);
      for (int64_t i = 0; i < n; ++i) newest[i] = b[i] * x[i];
      if (span.journal >= 0) std::copy_n(newest, n, journal_row(span, at) + first);
      std::array<const float*, kMaxTaps> inputs;
      for (int64_t tap = 0; tap < count_; ++tap) inputs[static_cast<size_t>(tap)] = turn(at + tap);
      delta_.gated_convolve(inputs.data(), taps_ + first, out_.width, static_cast<int32_t>(count_),
                            bias_ == nullptr ? nullptr : bias_ + first, c, n,
                            out_.row(token) + first);
      out_.quantize(kernel_, token, first, first + n);
    }
    for (int64_t row = 0; row + 1 < count_; ++row) {
      std::copy_n(turn(span.num_tokens + row), n, state + row * out_.width);
    }
  }

  void replay(const StateSpan& span) const override {
    float* const state = state_.of(span.slot);
    for (int64_t row = 0; row + 1 < count_; ++row) {
      const int64_t source = span.num_tokens - (count_ - 1) + row;  // of the span
      const float* from =
          source < 0 ? state + (row + span.num_tokens) * out_.width : journal_row(span, source);
      std::copy_n(from, out_.width, state + row * out_.width);
    }
  }

  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".gated_convolve";
  }
  uint64_t weight_bytes() const override {
    const int64_t numbers = out_.width * (count_ + (bias_ == nullptr ? 0 : 1));
    return static_cast<uint64_t>(numbers) * sizeof(float);
  }

 private:
  int64_t tiles() const { return divide_up(out_.width, kTileChannels); }
  /// [width] what a token of a span brings to the state.
  float* journal_row(const StateSpan& span, int64_t token) const {
    return journal_ + (span.journal + token) * out_.width;
  }

  const kernels::CpuKernels& kernel_;
  const kernels::DeltaKernels& delta_;
  int64_t count_;  // of taps
  const StateLayer& state_;
  RowBuffer& in_;
  RowBuffer& out_;
  const float* stored_taps_;
  const float* bias_;
  float* taps_;     // [count_, width]
  float* journal_;  // [max_rows, width]
};

std::unique_ptr<PlannedOp> plan_short_convolution(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedShortConvolution>(context, node,
                                                   node.as<ShortConvolutionParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"short_convolution", plan_short_convolution}));

}  // namespace
}  // namespace vitrine::ops
