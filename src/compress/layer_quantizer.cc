// SPDX-License-Identifier: Apache-2.0
#include "layer_quantizer.h"

#include <optional>

#include "model/architecture.h"

namespace vitrine::compress {
namespace {

using ModulePlan = std::unordered_map<std::string, const PlannedTensor*>;

/// The quantized weights of each layer: its share of the work.
std::vector<double> weights_of(const std::vector<LayerSites>& layers, const ModulePlan& planned) {
  std::vector<double> work;
  for (const LayerSites& layer : layers) {
    double weights = 1;  // a layer without any is still passed
    for (const SiteMatrix& matrix : layer.matrices) {
      const auto found = planned.find(matrix.module);
      if (found == planned.end()) continue;
      const std::vector<int64_t>& shape = found->second->source->shape;
      weights += static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
    }
    work.push_back(weights);
  }
  return work;
}

/// A layer of an earlier run; null: there is none.
std::unique_ptr<KeptLayerReader> find_kept(const KeptLayers* kept, size_t layer,
                                           ProgressTeller& progress) {
  if (kept == nullptr) return nullptr;
  std::string note;
  auto reader = kept->find(layer, note);
  if (!note.empty()) progress.note(note);
  return reader;
}

}  // namespace

int64_t quantize_by_layers(const Checkpoint& checkpoint, const std::string& model,
                           const QuantizePlan& plan, const QuantizeOptions& options, Folds& folds,
                           KeptLayers* kept, ProgressTeller& progress,
                           const std::function<void(const CalibratedMatrix&)>& on_matrix) {
  const LayerMethod& method = find_layer_method(options.method);
  ModulePlan planned;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.method != nullptr) planned[tensor.module] = &tensor;
  }
  const ModelConfig config = parse_model_config(checkpoint);
  const ops::Graph graph = model::build_graph(checkpoint, config);
  const std::vector<LayerSites> layers = find_layer_sites(graph);
  std::optional<KeptLayerWriter> writer;
  const std::function<void(const CalibratedMatrix&)> keep_matrix =
      [&](const CalibratedMatrix& matrix) {
        if (writer) writer->add(matrix);
        on_matrix(matrix);
      };
  const CalibrationContext context{
      checkpoint, options, planned, folds, thread_count(options.threads), progress, keep_matrix};
  LayerRun run(model, options.calibration, layers, graph.has_state(), context.threads,
               options.lenient_weights);
  progress.begin_stage("layers", weights_of(layers, planned));
  int64_t taken = 0;
  for (size_t number = 0; number < layers.size(); ++number) {
    const LayerSites& layer = layers[number];
    progress.begin(number, "model.layers." + std::to_string(number));
    const std::unique_ptr<KeptLayerReader> reader = find_kept(kept, number, progress);
    if (reader != nullptr) {
      LayerWork work(context, layer, {}, run);
      reader->read_folds(context.checkpoint, folds);
      reader->read_matrices([&](const std::string& module) { return work.find(module); },
                            [&](CalibratedMatrix&& matrix) { work.finish(matrix); });
      ++taken;
    } else {
      const std::vector<SiteRows> sites = run.look();
      LayerWork work(context, layer, sites, run);
      if (kept != nullptr) kept->begin(number, writer);
      method.quantize(work);
      const std::vector<std::string> changed = folds.take_changed();
      if (writer) writer->finish(folds, changed);
      writer.reset();
    }
    run.pass();
    progress.end(reader == nullptr);
  }
  return taken;
}

}  // namespace vitrine::compress
