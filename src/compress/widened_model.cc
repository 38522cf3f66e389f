// SPDX-License-Identifier: Apache-2.0
#include "widened_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "weight_writer.h"

namespace vitrine::compress {

bool has_float8_layers(const QuantizePlan& plan) {
  return std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
    return planned.method != nullptr && planned.is_widened();
  });
}

void write_widened(const Checkpoint& checkpoint, const QuantizePlan& plan, ProgressTeller& progress,
                   const std::string& folder) {
  auto config = nlohmann::ordered_json::parse(checkpoint.config_json());
  for (nlohmann::ordered_json* part : {&config, &config["text_config"]}) {
    if (part->is_object()) part->erase("quantization_config");
  }
  if (config["text_config"].is_null()) config.erase("text_config");
  write_file_atomically(folder + "/config.json", config.dump());

  std::vector<const PlannedTensor*> tensors;
  for (const PlannedTensor& planned : plan.tensors) {
    // The head that the plan makes of tied embeddings comes last, and is no tensor of the source.
    const bool is_made = plan.unties_head && &planned == &plan.tensors.back();
    if (!is_made) tensors.push_back(&planned);
  }
  SafetensorsWriter writer(folder + "/model.safetensors");
  std::vector<double> work;
  for (const PlannedTensor* planned : tensors) {
    writer.declare(planned->source->name, planned->dtype, planned->source->shape);
    work.push_back(static_cast<double>(planned->source->num_bytes));
  }
  writer.begin({{"format", "pt"}});
  progress.begin_stage("widening", std::move(work));
  const Folds none;
  const BeforeBlock before_block = [&] { progress.tell(); };
  WeightWriter weights(checkpoint, writer, none, before_block);
  for (size_t i = 0; i < tensors.size(); ++i) {
    progress.begin(i, tensors[i]->source->name);
    weights.copy(*tensors[i]);
    progress.end(true);
  }
  writer.finish();
}

}  // namespace vitrine::compress
