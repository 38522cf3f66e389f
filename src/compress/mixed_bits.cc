// SPDX-License-Identifier: Apache-2.0
#include "mixed_bits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "layer_run.h"
#include "model/architecture.h"
#include "source_rows.h"

namespace vitrine::compress {
namespace {

constexpr std::string_view kMixed = "mixed:";
constexpr const char* kWidths[] = {"int3", "int4", "int8"};
constexpr size_t kNumWidths = std::size(kWidths);
constexpr int64_t kJudgedTokens = 1024;
constexpr double kScaleBits = 16;
constexpr double kWorst = 1e9;  // stands for a divergence that is no number

/// Matrices of one layer that get the same width.
struct LayerPart {
  std::vector<PlannedTensor*> matrices;
  double weights = 0;                  // in all of them, as often as they count
  double divergence[kNumWidths] = {};  // of the predictions, rounded to each width
  size_t width = 0;                    // that was chosen
};

double bits_of(size_t width, int group_size) {
  return find_quant_method(kWidths[width]).bits + kScaleBits / group_size;
}

/// What a model predicts of some texts.
class Predictions {
 public:
  Predictions(const std::string& model, const QuantizeOptions& options) {
    int64_t tokens = 0;
    for (const std::vector<int32_t>& text : options.calibration) {
      if (tokens >= kJudgedTokens) break;
      const auto count = std::min<int64_t>(std::ssize(text), kJudgedTokens - tokens);
      texts_.emplace_back(text.begin(), text.begin() + count);
      tokens += count;
    }
    EngineOptions engine = text_options(texts_, options.threads, options.lenient_weights);
    engine.keep_logits = true;
    engine.max_logit_rows = engine.max_step_tokens;
    engine_ = Engine::load(model, engine);
    plain_ = read();
  }

  Engine& engine() { return *engine_; }

  /// The mean KL of what the engine predicts now from what it did at first.
  double divergence() {
    const std::vector<std::vector<float>> rows = read();
    double sum = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      for (size_t i = 0; i < rows[row].size(); ++i) {
        const double log_p = plain_[row][i];
        sum += std::exp(log_p) * (log_p - rows[row][i]);
      }
    }
    return sum / static_cast<double>(std::max<size_t>(1, rows.size()));
  }

 private:
  /// Log-probabilities, a row for each token.
  std::vector<std::vector<float>> read() {
    std::vector<std::vector<float>> rows;
    for (const std::vector<int32_t>& text : texts_) {
      StepInput input;
      input.sequence = engine_->create_sequence();
      input.tokens = text;
      input.rows = StepInput::Rows::kAll;
      for (const StepOutput& output : engine_->step({&input, 1})) {
        rows.emplace_back(output.scores.begin(), output.scores.end());
        make_logprobs(rows.back());
      }
      engine_->release(input.sequence);
    }
    return rows;
  }

  static void make_logprobs(std::vector<float>& row) {
    const float largest = *std::ranges::max_element(row);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit) - largest);
    const auto shift = static_cast<float>(largest + std::log(sum));
    for (float& logit : row) logit -= shift;
  }

  std::vector<std::vector<int32_t>> texts_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<float>> plain_;
};

std::vector<LayerPart> find_parts(const Checkpoint& checkpoint, const QuantizeOptions& options,
                                  QuantizePlan& plan) {
  std::unordered_map<std::string, PlannedTensor*> planned;
  for (PlannedTensor& tensor : plan.tensors) {
    if (tensor.method != nullptr) planned[tensor.module] = &tensor;
  }
  const ops::Graph graph = model::build_graph(checkpoint, parse_model_config(checkpoint));
  std::map<int, double> shares;  // of an expert's tokens, by layer
  for (const ops::OpNode& node : graph.nodes) {
    const ops::RoutedOp routed = node.parameters->routed(graph, node);
    if (routed.experts == 0) continue;
    shares[node.layer] = static_cast<double>(routed.top_k) / static_cast<double>(routed.experts);
  }
  std::vector<LayerPart> parts;
  int number = 0;
  for (const LayerSites& layer : find_layer_sites(graph)) {
    std::map<size_t, LayerPart> by_site;
    for (const SiteMatrix& matrix : layer.matrices) {
      const auto found = planned.find(matrix.module);
      if (found == planned.end()) continue;
      const bool counts_less = options.mixed_by_use && matrix.expert >= 0;
      LayerPart& part = by_site[matrix.site];
      part.matrices.push_back(found->second);
      const std::vector<int64_t>& shape = found->second->source->shape;
      part.weights += static_cast<double>(shape[0]) * static_cast<double>(shape[1]) *
                      (counts_less ? shares[number] : 1.0);
    }
    for (auto& [site, part] : by_site) parts.push_back(std::move(part));
    ++number;
  }
  return parts;
}

void measure(const Checkpoint& checkpoint, const std::string& model, const QuantizeOptions& options,
             std::vector<LayerPart>& parts, ProgressTeller& progress) {
  Predictions predictions(model, options);
  progress.begin_stage("widths", std::vector<double>(parts.size(), 1.0));
  for (LayerPart& part : parts) {
    progress.begin(static_cast<size_t>(&part - parts.data()), part.matrices.front()->source->name);
    std::vector<std::vector<float>> weights;
    for (const PlannedTensor* matrix : part.matrices) {
      weights.push_back(SourceRows(checkpoint, *matrix).read_floats(0, matrix->source->shape[0]));
    }
    for (size_t width = 0; width < kNumWidths; ++width) {
      const QuantMethod& method = find_quant_method(kWidths[width]);
      for (size_t i = 0; i < weights.size(); ++i) {
        const PlannedTensor& matrix = *part.matrices[i];
        predictions.engine().replace_matrix(
            matrix.module, dequantize_matrix(method.quantize(weights[i], matrix.source->shape[0],
                                                             matrix.source->shape[1], matrix.dtype,
                                                             matrix.group_size)));
      }
      const double divergence = predictions.divergence();
      part.divergence[width] = std::isfinite(divergence) ? std::max(0.0, divergence) : kWorst;
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      predictions.engine().replace_matrix(part.matrices[i]->module, weights[i]);
    }
    progress.end(true);
  }
}

/// Widens, as long as the budget holds it, the part that gains most for each bit.
void widen_parts(std::vector<LayerPart>& parts, int group_size, double budget) {
  double taken = 0;
  for (const LayerPart& part : parts) taken += part.weights * bits_of(0, group_size);
  for (;;) {
    LayerPart* best = nullptr;
    size_t best_width = 0;
    double best_gain = 0;
    for (LayerPart& part : parts) {
      for (size_t width = part.width + 1; width < kNumWidths; ++width) {
        const double more =
            part.weights * (bits_of(width, group_size) - bits_of(part.width, group_size));
        const double gain = (part.divergence[part.width] - part.divergence[width]) / more;
        if (taken + more > budget || gain <= best_gain) continue;
        best = &part;
        best_width = width;
        best_gain = gain;
      }
    }
    if (best == nullptr) return;
    taken += best->weights * (bits_of(best_width, group_size) - bits_of(best->width, group_size));
    best->width = best_width;
  }
}

}  // namespace

std::optional<double> mixed_bits(const std::string& scheme) {
  if (!scheme.starts_with(kMixed)) return std::nullopt;
  double bits = 0;
  const char* end = scheme.data() + scheme.size();
  const auto [stopped, error] = std::from_chars(scheme.data() + kMixed.size(), end, bits);
  if (error == std::errc() && stopped == end && bits >= 3 && bits <= 9) return bits;
  throw Error(ErrorKind::kInvalidArgument,
              "scheme '" + scheme + "' has no number of bits; expected mixed:3.125 to mixed:9");
}

std::string base_scheme(const std::string& scheme) { return mixed_bits(scheme) ? "int4" : scheme; }

void choose_widths(const Checkpoint& checkpoint, const std::string& model,
                   const QuantizeOptions& options, double bits, QuantizePlan& plan,
                   ProgressTeller& progress) {
  std::vector<LayerPart> parts = find_parts(checkpoint, options, plan);
  double weights = 0;
  for (const LayerPart& part : parts) weights += part.weights;
  if (bits < bits_of(0, options.group_size)) {
    throw Error(ErrorKind::kInvalidArgument, "scheme '" + options.scheme +
                                                 "' has fewer bits than int3 in groups of " +
                                                 std::to_string(options.group_size) + ", " +
                                                 std::to_string(bits_of(0, options.group_size)) +
                                                 "; expected more bits, or larger groups");
  }
  measure(checkpoint, model, options, parts, progress);
  widen_parts(parts, options.group_size, bits * weights);
  for (const LayerPart& part : parts) {
    for (PlannedTensor* matrix : part.matrices) {
      matrix->method = &find_quant_method(kWidths[part.width]);
    }
  }
}

}  // namespace vitrine::compress
