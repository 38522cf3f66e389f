// SPDX-License-Identifier: Apache-2.0
#include "layer_quantizer.h"

#include "model/architecture.h"

namespace vitrine::compress {

void quantize_by_layers(const Checkpoint& checkpoint, const QuantizePlan& plan,
                        const QuantizeOptions& options, Folds& folds,
                        const std::function<void(const CalibratedMatrix&)>& on_matrix) {
  const LayerMethod& method = find_layer_method(options.method);
  std::unordered_map<std::string, const PlannedTensor*> planned;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.method != nullptr) planned[tensor.module] = &tensor;
  }
  const ModelConfig config = parse_model_config(checkpoint);
  const ops::Graph graph = model::build_graph(checkpoint, config);
  const std::vector<LayerSites> layers = find_layer_sites(graph);
  const CalibrationContext context{
      checkpoint, options, planned, folds, thread_count(options.threads), on_matrix};
  LayerRun run(checkpoint.path(), options.calibration, layers, graph.has_state(), context.threads,
               options.lenient_weights);
  for (const LayerSites& layer : layers) {
    const std::vector<SiteRows> sites = run.look();
    LayerWork work(context, layer, sites, run);
    method.quantize(work);
    run.pass();
  }
}

}  // namespace vitrine::compress
