// SPDX-License-Identifier: Apache-2.0
// Copies of oracles that differ from them in a field or a tensor.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {

/// A copy of an oracle whose config and tensors can be edited.
class EditedModel {
 public:
  using Edit = std::function<void(nlohmann::json&)>;
  struct Tensor {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  using Tensors = std::map<std::string, Tensor>;

  explicit EditedModel(const std::string& oracle, const Edit& edit_config = {},
                       const std::function<void(Tensors&)>& edit_tensors = {}) {
    const Checkpoint source = Checkpoint::open(oracle_folder(oracle));
    nlohmann::json config = nlohmann::json::parse(source.config_json());
    if (edit_config) edit_config(config);
    write_bytes(folder_ / "config.json", config.dump());
    Tensors tensors;
    for (const TensorInfo& info : source.tensors()) {
      Tensor tensor{info.dtype, info.shape, std::vector<std::byte>(info.num_bytes)};
      source.read(info, tensor.bytes);
      tensors[info.name] = std::move(tensor);
    }
    if (edit_tensors) edit_tensors(tensors);
    SafetensorsWriter writer(folder_ / "model.safetensors");
    for (const auto& [name, tensor] : tensors) writer.declare(name, tensor.dtype, tensor.shape);
    writer.begin();
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes);
    writer.finish();
  }
  std::string path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace vitrine::testing
