// SPDX-License-Identifier: Apache-2.0
#include "side_config.h"

#include "file_io.h"
#include "text.h"

namespace vitrine::checkpoint {

std::unique_ptr<const QuantizationConfig> read_side_config(const std::string& folder) {
  struct SideFile {
    const char* name;
    const char* quant_method;  ///< where the file names none
    const char* inside;        ///< the object that has the fields; null: the whole
  };
  constexpr SideFile kFiles[] = {{"/hf_quant_config.json", "modelopt", "quantization"},
                                 {"/quantize_config.json", "gptq", nullptr},
                                 {"/quant_config.json", "awq", nullptr}};
  constexpr uint64_t kMaxBytes = 4U << 20;
  for (const SideFile& file : kFiles) {
    const std::string path = folder + file.name;
    if (!file_exists(path)) continue;
    nlohmann::json object = parse_json_object(read_text_file(path, kMaxBytes), path);
    if (file.inside != nullptr) {
      const Fields whole(object, path);
      if (!whole.object(file.inside)) whole.bad(file.inside, "an object");
      object = nlohmann::json(object[file.inside]);
    }
    if (!object.contains("quant_method")) object["quant_method"] = file.quant_method;
    return read_quantization(Fields(object, path));
  }
  return nullptr;
}

}  // namespace vitrine::checkpoint
