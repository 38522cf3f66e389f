// SPDX-License-Identifier: Apache-2.0
// Writes the weights of a quantized folder, as Vitrine reads them, as a folder in float32:
//
//     build/bench/float_copy FOLDER OUT
//
// OUT is there already. bench/peers/compare_transformers.py runs it: of float32 the activations
// stay floats, so that nothing but the weights parts it from what others read of FOLDER.
#include <cstdio>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"

namespace {

using vitrine::Checkpoint;
using vitrine::TensorInfo;

std::string module_of(const TensorInfo& info) { return info.name.substr(0, info.name.rfind('.')); }

void write_copy(const Checkpoint& source, const std::string& out) {
  std::map<std::string, vitrine::QuantizedTensors> modules;
  std::vector<const TensorInfo*> plain;
  for (const TensorInfo& info : source.tensors()) {
    const std::string module = module_of(info);
    if (!modules.contains(module)) {
      if (auto tensors = source.find_quantized_tensors(module)) modules.emplace(module, *tensors);
    }
    if (!modules.contains(module) || info.name.ends_with(".bias")) plain.push_back(&info);
  }
  vitrine::SafetensorsWriter writer(out + "/model.safetensors");
  for (const auto& [module, tensors] : modules) {
    writer.declare(module + ".weight", vitrine::DType::kF32, {tensors.rows, tensors.cols});
  }
  for (const TensorInfo* info : plain)
    writer.declare(info->name, vitrine::DType::kF32, info->shape);
  writer.begin({{"format", "pt"}});
  for (const auto& [module, tensors] : modules) {
    const std::vector<float> values = source.read_quantized_floats(tensors, 0, tensors.rows);
    writer.write(module + ".weight", std::as_bytes(std::span(values)));
  }
  for (const TensorInfo* info : plain) {
    const std::vector<float> values = source.read_f32(*info);
    writer.write(info->name, std::as_bytes(std::span(values)));
  }
  writer.finish();
  auto config = nlohmann::json::parse(source.config_json());
  config.erase("quantization_config");
  vitrine::write_file_atomically(out + "/config.json", config.dump());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fputs("use: float_copy FOLDER OUT\n", stderr);
    return 2;
  }
  write_copy(Checkpoint::open(argv[1]), argv[2]);
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "float_copy: %s\n", error.what()), 1;
}
