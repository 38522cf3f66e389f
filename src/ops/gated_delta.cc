// SPDX-License-Identifier: Apache-2.0
// gated_delta: linear attention with a state by the gated delta rule (Yang et al. 2024), in its
// recurrent form, for prefill and decode alike. A piece of the walk owns one tile of one head's
// state and goes through a sequence's tokens in order, so neither chunks nor threads show.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/delta_kernels.h"
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

constexpr float kL2Epsilon = 1e-6F;  // whatever rms_norm_eps is

class PlannedGatedDelta final : public PlannedOp {
 public:
  PlannedGatedDelta(PlanContext& context, const OpNode& node, const GatedDeltaParameters& own)
      : kernel_(context.kernel),
        delta_(kernels::delta_kernels(context.kernel)),
        own_(own),
        shape_(own.shape),
        state_(context.states[static_cast<size_t>(node.layer)]),
        out_(context.scratch.value(node.outputs[0])),
        convolved_(
            context.scratch.shared_rows("convolved", context.shape.max_tokens, shape_.channels())),
        gates_(context.scratch.shared_rows("delta_gates", context.shape.max_tokens,
                                           2 * shape_.value_heads)),
        stored_taps_(context.weights.vector(own.convolution, shape_.channels() * shape_.taps)),
        rate_(context.weights.vector(own.rate, shape_.value_heads)),
        bias_(context.weights.vector(own.bias, shape_.value_heads)),
        norm_(context.weights.vector(own.norm, shape_.value_dim)),
        taps_(context.scratch.array<float>(shape_.channels() * shape_.taps)),
        journal_(context.scratch.array<float>(context.shape.max_rows * journal_width())) {
    for (const ValueId input : node.inputs) inputs_.push_back(&context.scratch.value(input));
    add_phase("convolve", &PlannedGatedDelta::convolve_pieces, &PlannedGatedDelta::convolve);
    add_phase("walk", &PlannedGatedDelta::walk_pieces, &PlannedGatedDelta::walk);
    add_phase("gate", &PlannedGatedDelta::tiles_of_tokens, &PlannedGatedDelta::gate);
  }

  void use_loaded_weights() override {
    for (int64_t channel = 0; channel < shape_.channels(); ++channel) {
      for (int64_t tap = 0; tap < shape_.taps; ++tap) {
        taps_[tap * shape_.channels() + channel] = stored_taps_[channel * shape_.taps + tap];
      }
    }
  }

  /// A piece is a tile of tokens with one key head and its value heads.
  int64_t convolve_pieces(const StepState& step) const {
    return tiles_of_tokens(step) * shape_.key_heads;
  }
  void convolve(const StepState& step, int64_t piece) const {
    const int64_t head = piece % shape_.key_heads;
    for_tile(step, piece / shape_.key_heads, [&](int64_t token) { prepare(step, token, head); });
  }

  /// A tile of a head's columns, of one sequence; and for each sequence the convolution's last
  /// inputs, which nobody reads any more.
  int64_t walk_pieces(const StepState& step) const {
    return step.num_state_spans * (tiles_of_state() + 1);
  }
  void walk(const StepState& step, int64_t piece) const {
    const StateSpan& span = step.state_spans[piece / (tiles_of_state() + 1)];
    const int64_t tile = piece % (tiles_of_state() + 1);
    if (tile == tiles_of_state()) return keep_inputs(span);
    kernels::DeltaSpan run = run_of(span, tile, convolved_.row(span.first_token), convolved_.width,
                                    gates_.row(span.first_token), gates_.width);
    run.out = out_.row(span.first_token) + column_of_tile(tile);
    run.out_stride = out_.width;
    delta_.run(run);
  }

  void replay(const StateSpan& span) const override {
    const float* row = journal_ + span.journal * journal_width();
    const float* convolved = row + shape_.channels();
    for (int64_t tile = 0; tile < tiles_of_state(); ++tile) {
      delta_.run(run_of(span, tile, convolved, journal_width(), convolved + shape_.channels(),
                        journal_width()));
    }
    keep_rows(span, [&](int64_t token, float* to) {
      std::copy_n(row + token * journal_width(), shape_.channels(), to);
    });
  }

  void gate(const StepState& step, int64_t piece) const {
    for_tile(step, piece, [&](int64_t token) {
      for (int64_t head = 0; head < shape_.value_heads; ++head) {
        float* values = out_.row(token) + head * shape_.value_dim;
        kernel_.rms_norm(values, norm_, static_cast<float>(own_.eps), shape_.value_dim, values);
        delta_.multiply_silu(gate_of(token, head), shape_.value_dim, values);
      }
      out_.quantize(kernel_, token);
    });
  }

  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".convolve+gated_delta+gated_norm";
  }
  uint64_t weight_bytes() const override {
    const int64_t numbers =
        shape_.channels() * shape_.taps + 2 * shape_.value_heads + shape_.value_dim;
    return static_cast<uint64_t>(numbers) * sizeof(float);
  }

 private:
  static constexpr int64_t kTokensPerPiece = 8;

  int64_t tiles_of_tokens(const StepState& step) const {
    return divide_up(step.tokens, kTokensPerPiece);
  }
  template <typename Do>
  static void for_tile(const StepState& step, int64_t piece, const Do& run) {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) run(token);
  }

  /// Numbers in a row of the journal: the convolution's inputs and outputs, and the gates.
  int64_t journal_width() const { return 2 * shape_.channels() + 2 * shape_.value_heads; }

  /// Where a tile's columns stand in a row of values.
  int64_t column_of_tile(int64_t tile) const {
    return tile / shape_.tiles() * shape_.value_dim +
           tile % shape_.tiles() * kernels::kDeltaColumns;
  }

  /// A span's way through a tile, but for what it gives.
  kernels::DeltaSpan run_of(const StateSpan& span, int64_t tile, const float* convolved,
                            int64_t stride, const float* gates, int64_t gate_stride) const {
    const int64_t head = tile / shape_.tiles();
    const int64_t key_head =
        own_.is_tiled ? head % shape_.key_heads : head / shape_.values_of_key();
    const int64_t left = shape_.value_dim - tile % shape_.tiles() * kernels::kDeltaColumns;
    kernels::DeltaSpan run;
    run.state = state_.of(span.slot) + tile * shape_.tile_floats();
    run.key_dim = static_cast<int32_t>(shape_.key_dim);
    run.columns = static_cast<int32_t>(std::min<int64_t>(kernels::kDeltaColumns, left));
    run.tokens = span.num_tokens;
    run.query = convolved + key_head * shape_.key_dim;
    run.key = convolved + (shape_.key_heads + key_head) * shape_.key_dim;
    run.value = convolved + 2 * shape_.key_heads * shape_.key_dim + column_of_tile(tile);
    run.query_stride = run.key_stride = run.value_stride = stride;
    run.decay = gates + head;
    run.beta = run.decay + shape_.value_heads;
    run.gate_stride = gate_stride;
    return run;
  }

  int64_t tiles_of_state() const { return shape_.value_heads * shape_.tiles(); }

  /// Where channels begin that stand together in the input and in the convolution's weights: 0 the
  /// queries of a key head, 1 its keys, 2 its values.
  int64_t channel_of(int64_t head, int part) const {
    if (part == 2) {
      return 2 * shape_.key_heads * shape_.key_dim +
             head * shape_.values_of_key() * shape_.value_dim;
    }
    return (part * shape_.key_heads + head) * shape_.key_dim;
  }
  int64_t part_width(int part) const {
    return part == 2 ? shape_.values_of_key() * shape_.value_dim : shape_.key_dim;
  }
  /// Where that part of a head stands in a row of the first input.
  int64_t column_of(int64_t head, int part) const {
    if (!own_.is_grouped) return channel_of(head, part);
    const int64_t group = 2 * shape_.key_dim + 2 * shape_.values_of_key() * shape_.value_dim;
    return head * group + part * shape_.key_dim;
  }

  /// [value_dim]
  const float* gate_of(int64_t token, int64_t head) const {
    if (!own_.is_grouped) return inputs_[1]->row(token) + head * shape_.value_dim;
    const int64_t key_head = head / shape_.values_of_key(), rest = head % shape_.values_of_key();
    return inputs_[0]->row(token) + column_of(key_head, 2) + part_width(2) +
           rest * shape_.value_dim;
  }

  void prepare(const StepState& step, int64_t token, int64_t head) const {
    const StateSpan& span = span_of(step, token);
    float* const row = convolved_.row(token);
    for (int part = 0; part < 3; ++part) {
      const int64_t channel = channel_of(head, part), width = part_width(part);
      std::array<const float*, kMaxTaps> rows;
      for (int64_t tap = 0; tap < shape_.taps; ++tap) {
        const int64_t source = token - (shape_.taps - 1) + tap;
        rows[static_cast<size_t>(tap)] =
            source >= span.first_token
                ? inputs_[0]->row(source) + column_of(head, part)
                : kept_inputs(span, source - span.first_token + shape_.taps - 1) + channel;
      }
      delta_.convolve(rows.data(), taps_ + channel, shape_.channels(),
                      static_cast<int32_t>(shape_.taps), width, row + channel);
    }
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.key_dim)));
    delta_.l2_norm(row + channel_of(head, 0), kL2Epsilon, scale, shape_.key_dim);
    delta_.l2_norm(row + channel_of(head, 1), kL2Epsilon, 1.0F, shape_.key_dim);
    const int64_t count = shape_.values_of_key(), first = head * count;
    const float* b = own_.groups_strengths ? inputs_.back()->row(token) + 2 * first
                                           : inputs_[2]->row(token) + first;
    const float* a = own_.groups_strengths ? b + count : inputs_[3]->row(token) + first;
    float* decay = gates_.row(token) + first;
    delta_.gates(a, b, bias_ + first, rate_ + first, count, decay, decay + shape_.value_heads);
  }

  static const StateSpan& span_of(const StepState& step, int64_t token) {
    const StateSpan* const end = step.state_spans + step.num_state_spans;
    return *(
        std::upper_bound(step.state_spans, end, token,
                         [](int64_t at, const StateSpan& span) { return at < span.first_token; }) -
        1);
  }

  /// [taps - 1, channels], the oldest first: what came before the span's first token.
  float* kept_inputs(const StateSpan& span, int64_t row) const {
    return state_.of(span.slot) + tiles_of_state() * shape_.tile_floats() + row * shape_.channels();
  }

  /// A token's input of the convolution, channel by channel.
  void copy_inputs(int64_t token, float* to) const {
    const float* from = inputs_[0]->row(token);
    for (int64_t head = 0; head < shape_.key_heads; ++head) {
      for (int part = 0; part < 3; ++part) {
        std::copy_n(from + column_of(head, part), part_width(part), to + channel_of(head, part));
      }
    }
  }

  /// The last inputs of the convolution behind a span; `copy(token of the span, to)` has its own.
  template <typename Copy>
  void keep_rows(const StateSpan& span, const Copy& copy) const {
    const int64_t kept = shape_.taps - 1;
    for (int64_t row = 0; row < kept; ++row) {
      const int64_t source = span.num_tokens - kept + row;
      float* to = kept_inputs(span, row);
      if (source < 0) {
        std::copy_n(kept_inputs(span, row + span.num_tokens), shape_.channels(), to);
      } else {
        copy(source, to);
      }
    }
  }

  void keep_inputs(const StateSpan& span) const {
    keep_rows(span, [&](int64_t token, float* to) { copy_inputs(span.first_token + token, to); });
    if (span.journal < 0) return;
    for (int64_t token = 0; token < span.num_tokens; ++token) {
      float* to = journal_ + (span.journal + token) * journal_width();
      copy_inputs(span.first_token + token, to);
      to = std::copy_n(convolved_.row(span.first_token + token), shape_.channels(),
                       to + shape_.channels());
      std::copy_n(gates_.row(span.first_token + token), 2 * shape_.value_heads, to);
    }
  }

  const kernels::CpuKernels& kernel_;
  const kernels::DeltaKernels& delta_;
  const GatedDeltaParameters& own_;
  const GatedDeltaShape& shape_;
  const StateLayer& state_;
  RowBuffer& out_;
  RowBuffer& convolved_;  // [tokens, channels], normed
  RowBuffer& gates_;      // [tokens, 2, value_heads] decay, beta
  const float* stored_taps_;
  const float* rate_;  // [value_heads] -exp(A_log)
  const float* bias_;
  const float* norm_;
  float* taps_;     // [taps, channels]
  float* journal_;  // [max_rows, journal_width]
  std::vector<RowBuffer*> inputs_;
};

std::unique_ptr<PlannedOp> plan_gated_delta(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedGatedDelta>(context, node, node.as<GatedDeltaParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"gated_delta", plan_gated_delta}));

}  // namespace
}  // namespace vitrine::ops
