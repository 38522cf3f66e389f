// SPDX-License-Identifier: Apache-2.0
#include "mixed_bits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "model/architecture.h"
#include "source_rows.h"
#include "width_meter.h"

namespace vitrine::compress {
namespace {

constexpr std::string_view kMixed = "mixed:";
constexpr std::string_view kByExpert = ":experts";  // behind the bits
constexpr const char* kWidths[] = {"int3", "int4", "int8"};
constexpr size_t kNumWidths = std::size(kWidths);
constexpr double kScaleBits = 16;
constexpr double kLeastUse = 1e-4;  // of an expert that no token reached
constexpr double kWorst = 1e9;      // stands for a divergence that is no number

/// Matrices of one layer that get the same width.
struct LayerPart {
  int layer = 0;
  std::vector<PlannedTensor*> matrices;
  std::vector<int64_t> experts;               // of each matrix; -1: none
  double weights = 0;                         // in all of them, as often as they count
  double divergence[kNumWidths] = {};         // of the predictions, rounded to each width
  std::vector<double> by_expert[kNumWidths];  // the divergence, divided among experts
  std::vector<double> use;                    // the share of tokens that reaches each expert
  size_t width = 0;                           // that was chosen

  bool has_experts() const { return experts.front() >= 0; }
};

double bits_of(size_t width, int group_size) {
  return find_quant_method(kWidths[width]).bits + kScaleBits / group_size;
}

double weights_in(const PlannedTensor& matrix) {
  const std::vector<int64_t>& shape = matrix.source->shape;
  return static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
}

std::vector<LayerPart> find_parts(const ops::Graph& graph, const QuantizeOptions& options,
                                  QuantizePlan& plan) {
  std::unordered_map<std::string, PlannedTensor*> planned;
  for (PlannedTensor& tensor : plan.tensors) {
    if (tensor.method != nullptr) planned[tensor.module] = &tensor;
  }
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
      part.layer = number;
      part.matrices.push_back(found->second);
      part.experts.push_back(matrix.expert);
      part.weights += weights_in(*found->second) * (counts_less ? shares[number] : 1.0);
    }
    for (auto& [site, part] : by_site) parts.push_back(std::move(part));
    ++number;
  }
  return parts;
}

void round_to(Engine& engine, const PlannedTensor& matrix, std::span<const float> weights,
              size_t width) {
  const std::vector<int64_t>& shape = matrix.source->shape;
  engine.replace_matrix(matrix.module,
                        dequantize_matrix(find_quant_method(kWidths[width])
                                              .quantize(weights, shape[0], shape[1], matrix.dtype,
                                                        matrix.group_size)));
}

std::vector<float> floats_of(const Checkpoint& checkpoint, const PlannedTensor& matrix) {
  return SourceRows(checkpoint, matrix).read_floats(0, matrix.source->shape[0]);
}

double finite(double divergence) {
  return std::isfinite(divergence) ? std::max(0.0, divergence) : kWorst;
}

void measure(const Checkpoint& checkpoint, WidthMeter& meter, bool by_expert,
             std::vector<LayerPart>& parts, ProgressTeller& progress) {
  progress.begin_stage("widths", std::vector<double>(parts.size(), 1.0));
  for (LayerPart& part : parts) {
    progress.begin(static_cast<size_t>(&part - parts.data()), part.matrices.front()->source->name);
    const bool divides = by_expert && part.has_experts();
    if (divides) part.use = meter.look_at_experts(part.layer);
    std::vector<std::vector<float>> weights;
    for (const PlannedTensor* matrix : part.matrices) {
      weights.push_back(floats_of(checkpoint, *matrix));
    }
    for (size_t width = 0; width < kNumWidths; ++width) {
      for (size_t i = 0; i < weights.size(); ++i) {
        round_to(meter.engine(), *part.matrices[i], weights[i], width);
      }
      part.divergence[width] = finite(meter.divergence());
      if (!divides) continue;
      part.by_expert[width] = meter.divergence_by_expert();
      for (double& own : part.by_expert[width]) own = finite(own);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      meter.engine().replace_matrix(part.matrices[i]->module, weights[i]);
    }
    progress.end(true);
  }
}

/// Returns parts of one expert each, and those without experts.
std::vector<LayerPart> split_experts(const std::vector<LayerPart>& parts, bool counts_use) {
  std::vector<LayerPart> all;
  for (const LayerPart& part : parts) {
    if (!part.has_experts()) {
      all.push_back(part);
      continue;
    }
    std::map<int64_t, LayerPart> by_number;
    for (size_t i = 0; i < part.matrices.size(); ++i) {
      const auto expert = static_cast<size_t>(part.experts[i]);
      LayerPart& own = by_number[part.experts[i]];
      own.layer = part.layer;
      own.matrices.push_back(part.matrices[i]);
      own.experts.push_back(part.experts[i]);
      own.weights += weights_in(*part.matrices[i]) *
                     (counts_use ? std::max(part.use[expert], kLeastUse) : 1.0);
      for (size_t width = 0; width < kNumWidths; ++width) {
        own.divergence[width] = part.by_expert[width][expert];
      }
    }
    for (auto& [number, own] : by_number) all.push_back(std::move(own));
  }
  return all;
}

/// Returns what the model loses with all parts in their widths, which it keeps.
double judge(const Checkpoint& checkpoint, WidthMeter& meter, const std::vector<LayerPart>& parts,
             ProgressTeller& progress) {
  for (const LayerPart& part : parts) {
    progress.tell(part.matrices.front()->source->name);  // which may end the run
    for (const PlannedTensor* matrix : part.matrices) {
      round_to(meter.engine(), *matrix, floats_of(checkpoint, *matrix), part.width);
    }
  }
  return finite(meter.divergence());
}

/// Widens, as long as the budget holds it, the part that gains most for each bit.
void widen_parts(std::vector<LayerPart>& parts, int group_size, double budget) {
  double bits[kNumWidths], taken = 0;
  for (size_t width = 0; width < kNumWidths; ++width) bits[width] = bits_of(width, group_size);
  for (const LayerPart& part : parts) taken += part.weights * bits[0];
  for (;;) {
    LayerPart* best = nullptr;
    size_t best_width = 0;
    double best_gain = 0;
    for (LayerPart& part : parts) {
      for (size_t width = part.width + 1; width < kNumWidths; ++width) {
        const double more = part.weights * (bits[width] - bits[part.width]);
        const double gain = (part.divergence[part.width] - part.divergence[width]) / more;
        if (taken + more > budget || gain <= best_gain) continue;
        best = &part;
        best_width = width;
        best_gain = gain;
      }
    }
    if (best == nullptr) return;
    taken += best->weights * (bits[best_width] - bits[best->width]);
    best->width = best_width;
  }
}

}  // namespace

std::optional<double> mixed_bits(const std::string& scheme) {
  if (!scheme.starts_with(kMixed)) return std::nullopt;
  double bits = 0;
  std::string_view number = std::string_view(scheme).substr(kMixed.size());
  if (number.ends_with(kByExpert)) number.remove_suffix(kByExpert.size());
  const char* end = number.data() + number.size();
  const auto [stopped, error] = std::from_chars(number.data(), end, bits);
  if (error == std::errc() && stopped == end && bits >= 3 && bits <= 9) return bits;
  throw Error(
      ErrorKind::kInvalidArgument,
      "scheme '" + scheme +
          "' has no number of bits; expected mixed:3.125 to mixed:9, or mixed:BITS:experts");
}

bool widens_experts(const std::string& scheme) {
  return scheme.starts_with(kMixed) &&
         std::string_view(scheme).substr(kMixed.size()).ends_with(kByExpert);
}

std::string base_scheme(const std::string& scheme) { return mixed_bits(scheme) ? "int4" : scheme; }

void choose_widths(const Checkpoint& checkpoint, const std::string& model,
                   const QuantizeOptions& options, double bits, QuantizePlan& plan,
                   ProgressTeller& progress) {
  const ops::Graph graph = model::build_graph(checkpoint, parse_model_config(checkpoint));
  std::vector<LayerPart> parts = find_parts(graph, options, plan);
  double weights = 0;
  for (const LayerPart& part : parts) weights += part.weights;
  if (bits < bits_of(0, options.group_size)) {
    throw Error(ErrorKind::kInvalidArgument, "scheme '" + options.scheme +
                                                 "' has fewer bits than int3 in groups of " +
                                                 std::to_string(options.group_size) + ", " +
                                                 std::to_string(bits_of(0, options.group_size)) +
                                                 "; expected more bits, or larger groups");
  }
  const double budget = bits * weights;
  WidthMeter meter(graph, model, options);
  measure(checkpoint, meter, widens_experts(options.scheme), parts, progress);
  if (widens_experts(options.scheme)) {
    std::vector<LayerPart> single = split_experts(parts, options.mixed_by_use);
    widen_parts(parts, options.group_size, budget);
    widen_parts(single, options.group_size, budget);
    meter.take_other_texts();
    plan.recipes = {.by_layer = judge(checkpoint, meter, parts, progress),
                    .by_expert = judge(checkpoint, meter, single, progress)};
    if (plan.recipes->by_expert < plan.recipes->by_layer) parts = std::move(single);
  } else {
    widen_parts(parts, options.group_size, budget);
  }
  for (const LayerPart& part : parts) {
    for (PlannedTensor* matrix : part.matrices) {
      matrix->method = &find_quant_method(kWidths[part.width]);
    }
  }
}

}  // namespace vitrine::compress
