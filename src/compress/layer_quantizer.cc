// SPDX-License-Identifier: Apache-2.0
#include "layer_quantizer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "expert_inputs.h"
#include "gptq.h"
#include "layer_run.h"
#include "model/architecture.h"
#include "source_rows.h"

namespace vitrine::compress {
namespace {

/// The products of the rows that some matrices share.
struct Inputs {
  std::vector<float> hessian;
  int64_t width = 0;
  int64_t rows_seen = 0;
  double shrinkage = 0;
};

std::vector<int32_t> all_rows(const Rows& rows) {
  std::vector<int32_t> chosen(static_cast<size_t>(rows.count()));
  std::iota(chosen.begin(), chosen.end(), 0);
  return chosen;
}

std::vector<int32_t> rows_of_expert(const SiteRows& site, int64_t expert) {
  std::vector<int32_t> chosen;
  for (size_t slot = 0; slot < site.experts.size(); ++slot) {
    if (site.experts[slot] != expert) continue;
    const auto top_k = static_cast<size_t>(site.top_k);
    chosen.push_back(static_cast<int32_t>(site.rows_per_token > 1 ? slot : slot / top_k));
  }
  return chosen;
}

/// Rows of all tokens, for each column of a matrix, that are added to an expert's own
/// (docs/lab/compression.md).
constexpr int64_t kAddedRows = 3;
/// Rows of other tokens, for each column, that an expert's down is shown to average over, and own
/// rows with which it needs none.
constexpr int64_t kShownRows = 16;

class LayerQuantizer {
 public:
  LayerQuantizer(const Checkpoint& checkpoint, const QuantizePlan& plan,
                 const QuantizeOptions& options,
                 const std::function<void(const CalibratedMatrix&)>& on_matrix)
      : checkpoint_(checkpoint),
        options_(options),
        on_matrix_(on_matrix),
        threads_(thread_count(options.threads)) {
    for (const PlannedTensor& planned : plan.tensors) {
      if (planned.method == nullptr || planned.method->number_format != NumberFormat::kInteger) {
        continue;
      }
      planned_[planned.module] = &planned;
    }
  }

  void run() {
    const ModelConfig config = parse_model_config(checkpoint_);
    const ops::Graph graph = model::build_graph(checkpoint_, config);
    const std::vector<LayerSites> layers = find_layer_sites(graph);
    LayerRun run(checkpoint_.path(), options_.calibration, layers, graph.has_state(), threads_,
                 options_.lenient_weights);
    for (const LayerSites& layer : layers) {
      const std::vector<SiteRows> sites = run.look();
      quantize(layer, sites, run.engine());
      run.pass();
    }
  }

 private:
  void quantize(const LayerSites& layer, std::span<const SiteRows> sites, Engine& engine) {
    std::map<std::pair<size_t, int64_t>, std::vector<const SiteMatrix*>> groups;
    for (const SiteMatrix& matrix : layer.matrices) {
      if (planned_.contains(matrix.module)) {
        groups[{matrix.site, matrix.expert}].push_back(&matrix);
      }
    }
    std::map<size_t, Inputs> all;  // of all tokens, by place
    for (const auto& [key, matrices] : groups) {
      const SiteRows& site = sites[key.first];
      const int64_t expert = key.second;
      Inputs inputs =
          sum_of(site.rows, expert < 0 ? all_rows(site.rows) : rows_of_expert(site, expert));
      if (inputs.rows_seen == 0) continue;
      if (expert >= 0 && site.rows_per_token == 1) {
        Inputs& shared = all[key.first];
        if (shared.hessian.empty()) shared = sum_of(site.rows, all_rows(site.rows));
        shrink(inputs, shared);
      } else if (expert >= 0 && inputs.rows_seen < kShownRows * inputs.width &&
                 planned_.contains(matrices.front()->gate) &&
                 planned_.contains(matrices.front()->up)) {
        shrink(inputs, inputs_of_others(*matrices.front(), sites, inputs.width));
      }
      const GptqFactor factor(inputs.hessian, inputs.width, gptq_);
      for (const SiteMatrix* matrix : matrices) {
        quantize_matrix(*planned_.at(matrix->module), inputs, factor, engine);
      }
    }
  }

  Inputs sum_of(const Rows& rows, std::span<const int32_t> chosen) const {
    Inputs inputs;
    inputs.width = rows.width;
    inputs.rows_seen = static_cast<int64_t>(chosen.size());
    if (inputs.rows_seen > 0) inputs.hessian = hessian(rows, chosen, threads_);
    return inputs;
  }

  /// What an expert's down meets of tokens whoever they are routed to.
  Inputs inputs_of_others(const SiteMatrix& matrix, std::span<const SiteRows> sites,
                          int64_t width) const {
    const std::vector<float> gate = read_weights(*planned_.at(matrix.gate));
    const std::vector<float> up = read_weights(*planned_.at(matrix.up));
    const Rows hidden =
        expert_hidden_rows(sites[matrix.outer].rows, kShownRows * width, gate, up, width, threads_);
    return sum_of(hidden, all_rows(hidden));
  }

  /// An expert that few tokens reach has too few rows to tell its columns apart: the rows of all
  /// tokens stand in for those that it lacks.
  void shrink(Inputs& inputs, const Inputs& all) const {
    const auto own = static_cast<double>(inputs.rows_seen);
    const auto lacked = static_cast<double>(kAddedRows * inputs.width);
    inputs.shrinkage = lacked / (lacked + own);
    const auto factor = static_cast<float>(lacked / static_cast<double>(all.rows_seen));
    for (size_t i = 0; i < inputs.hessian.size(); ++i) inputs.hessian[i] += factor * all.hessian[i];
  }

  std::vector<float> read_weights(const PlannedTensor& planned) const {
    const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
    std::vector<float> weights(static_cast<size_t>(rows * cols));
    SourceRows source(checkpoint_, planned);
    widen_to_f32(source.read(0, rows).data(), planned.dtype, rows * cols, weights.data());
    return weights;
  }

  void quantize_matrix(const PlannedTensor& planned, const Inputs& inputs, const GptqFactor& factor,
                       Engine& engine) {
    const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
    if (cols != inputs.width) {
      throw Error(ErrorKind::kInternal, "matrix " + planned.module + " has " +
                                            std::to_string(cols) + " columns and inputs of " +
                                            std::to_string(inputs.width));
    }
    const std::vector<float> weights = read_weights(planned);
    const QuantScheme scheme{planned.method->bits, options_.group_size, planned.method->symmetric};
    GptqResult result = gptq(weights, rows, cols, planned.dtype, scheme, factor, gptq_, threads_);
    engine.replace_matrix(planned.module, dequantize_matrix(result.matrix));
    on_matrix_({&planned, weights, std::move(result.matrix), inputs.rows_seen, inputs.shrinkage,
                result.loss, factor.damping()});
  }

  const Checkpoint& checkpoint_;
  const QuantizeOptions& options_;
  const std::function<void(const CalibratedMatrix&)>& on_matrix_;
  GptqOptions gptq_;
  int threads_;
  std::unordered_map<std::string, const PlannedTensor*> planned_;  // by module
};

}  // namespace

void quantize_by_layers(const Checkpoint& checkpoint, const QuantizePlan& plan,
                        const QuantizeOptions& options,
                        const std::function<void(const CalibratedMatrix&)>& on_matrix) {
  LayerQuantizer(checkpoint, plan, options, on_matrix).run();
}

}  // namespace vitrine::compress
