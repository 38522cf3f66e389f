// SPDX-License-Identifier: Apache-2.0
#include "width_meter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "mixed_bits.h"
#include "ops/decoder_ops.h"

namespace vitrine::compress {
namespace {

constexpr int64_t kMeasuredTokens = 1024;

using Texts = std::vector<std::vector<int32_t>>;

/// The first tokens of a calibration.
Texts first_texts(const Texts& calibration) {
  Texts texts;
  int64_t left = kMeasuredTokens;
  for (const std::vector<int32_t>& text : calibration) {
    const int64_t count = std::min(std::ssize(text), left);
    if (count > 0) texts.emplace_back(text.begin(), text.begin() + count);
    left -= count;
  }
  return texts;
}

/// Returns a step through `count` texts that meets each once, and neighbours of no short period:
/// windows of several sources stand in turn.
int64_t stride_of(int64_t count) {
  auto stride = std::max<int64_t>(1, static_cast<int64_t>(0.618 * static_cast<double>(count)));
  while (std::gcd(stride, count) != 1) ++stride;
  return stride;
}

/// Pieces of texts from all over a calibration, for the choice first and then for its judgement.
void take_spread(const Texts& calibration, Texts& chosen, Texts& others) {
  constexpr int64_t kPiece = 128;
  int64_t left = kMeasuredTokens, left_of_others = kMeasuredTokens, longest = 0;
  for (const std::vector<int32_t>& text : calibration) {
    longest = std::max(longest, std::ssize(text));
  }
  const int64_t count = std::ssize(calibration), stride = stride_of(count);
  for (int64_t begin = 0; begin < longest && left_of_others > 0; begin += kPiece) {
    for (int64_t i = 0; i < count && left_of_others > 0; ++i) {
      const std::vector<int32_t>& text = calibration[static_cast<size_t>(i * stride % count)];
      int64_t& room = left > 0 ? left : left_of_others;
      Texts& to = left > 0 ? chosen : others;
      const int64_t size = std::min({std::ssize(text) - begin, kPiece, room});
      if (size <= 0) continue;
      to.emplace_back(text.begin() + begin, text.begin() + begin + size);
      room -= size;
    }
  }
}

void make_log_probabilities(std::vector<float>& row) {
  const float largest = *std::ranges::max_element(row);
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit) - largest);
  const auto shift = static_cast<float>(largest + std::log(sum));
  for (float& logit : row) logit -= shift;
}

}  // namespace

WidthMeter::WidthMeter(const ops::Graph& graph, const std::string& model,
                       const QuantizeOptions& options)
    : tap_of_(static_cast<size_t>(graph.num_layers), kNoTap),
      experts_of_(static_cast<size_t>(graph.num_layers), 0) {
  if (widens_experts(options.scheme)) {
    take_spread(options.calibration, texts_, other_texts_);
  } else {
    texts_ = first_texts(options.calibration);
  }
  Texts all = texts_;
  all.insert(all.end(), other_texts_.begin(), other_texts_.end());
  EngineOptions engine = text_options(all, options.threads, options.lenient_weights);
  engine.keep_logits = true;
  engine.max_logit_rows = engine.max_step_tokens;
  if (widens_experts(options.scheme)) add_taps(graph, engine);
  engine_ = Engine::load(model, engine);
  engine_->set_tap_reader(this);
  plain_ = predict();
}

void WidthMeter::add_taps(const ops::Graph& graph, EngineOptions& engine) {
  for (const ops::OpNode& node : graph.nodes) {
    const auto* experts = node.find<ops::ExpertsParameters>();
    if (experts == nullptr || node.layer < 0) continue;
    tap_of_[static_cast<size_t>(node.layer)] = engine.taps.size();
    experts_of_[static_cast<size_t>(node.layer)] = experts->experts;
    Tap tap;
    tap.layer = node.layer;
    tap.op = node.type;
    tap.value = graph.values[static_cast<size_t>(node.outputs[0])].name;
    tap.side = Tap::Side::kOutput;
    engine.taps.push_back(tap);
  }
}

WidthMeter::~WidthMeter() { engine_->set_tap_reader(nullptr); }

void WidthMeter::read(const TapRows& rows) {
  if (rows.tap != tap_) return;
  if (is_looking_) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(outputs_, rows.rows);
    append(experts_, rows.experts);
    append(weights_, rows.weights);
    return;
  }
  // The router stands before the experts: whatever they are, slots hold the same ones.
  const auto width = static_cast<size_t>(rows.width);
  for (size_t slot = 0; slot < rows.experts.size(); ++slot) {
    const float* before = outputs_.data() + errors_.size() * width;
    double sum = 0;
    for (size_t i = 0; i < width; ++i) {
      const double difference = static_cast<double>(rows.rows[slot * width + i]) - before[i];
      sum += difference * difference;
    }
    const double weight = weights_[errors_.size()];
    errors_.push_back(weight * weight * sum);
  }
}

std::vector<double> WidthMeter::look_at_experts(int layer) {
  tap_ = tap_of_[static_cast<size_t>(layer)];
  num_experts_ = experts_of_[static_cast<size_t>(layer)];
  outputs_.clear();
  experts_.clear();
  weights_.clear();
  std::vector<double> shares(static_cast<size_t>(num_experts_), 0.0);
  if (tap_ == kNoTap) return shares;
  is_looking_ = true;
  predict();
  is_looking_ = false;
  for (const int32_t expert : experts_) shares[static_cast<size_t>(expert)] += 1;
  for (double& share : shares) share /= static_cast<double>(plain_.size());
  return shares;
}

double WidthMeter::divergence() {
  errors_.clear();
  by_token_.clear();
  const std::vector<std::vector<float>> rows = predict();
  double sum = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    double own = 0;
    for (size_t i = 0; i < rows[row].size(); ++i) {
      const double log_p = plain_[row][i];
      own += std::exp(log_p) * (log_p - rows[row][i]);
    }
    by_token_.push_back(own);
    sum += own;
  }
  return sum / static_cast<double>(std::max<size_t>(1, rows.size()));
}

std::vector<double> WidthMeter::divergence_by_expert() const {
  std::vector<double> by_expert(static_cast<size_t>(num_experts_), 0.0);
  const size_t top_k = errors_.size() / std::max<size_t>(1, by_token_.size());
  for (size_t token = 0; token < by_token_.size() && top_k > 0; ++token) {
    const auto own = std::span(errors_).subspan(token * top_k, top_k);
    double all = 0;
    for (const double error : own) all += error;
    for (size_t i = 0; i < top_k && all > 0; ++i) {
      by_expert[static_cast<size_t>(experts_[token * top_k + i])] +=
          by_token_[token] * own[i] / all / static_cast<double>(by_token_.size());
    }
  }
  return by_expert;
}

void WidthMeter::take_other_texts() {
  tap_ = kNoTap;
  if (other_texts_.empty()) return;
  texts_ = std::move(other_texts_);
  plain_.clear();
  plain_ = predict();
}

std::vector<std::vector<float>> WidthMeter::predict() {
  std::vector<std::vector<float>> rows;
  for (const std::vector<int32_t>& text : texts_) {
    StepInput input;
    input.sequence = engine_->create_sequence();
    input.tokens = text;
    input.rows = StepInput::Rows::kAll;
    for (const StepOutput& output : engine_->step({&input, 1})) {
      rows.emplace_back(output.scores.begin(), output.scores.end());
      make_log_probabilities(rows.back());
    }
    engine_->release(input.sequence);
  }
  return rows;
}

}  // namespace vitrine::compress
