// SPDX-License-Identifier: Apache-2.0
// `quant_method: exl2`, as exllamav2 writes it: which modules are quantized, and in how many bits,
// shows in their tensors. Its weight files are output.safetensors or output-00001-of-00003
// .safetensors and so on, beside an index of the model that it quantized, which names none of them.
#include <algorithm>
#include <filesystem>

#include "file_io.h"
#include "quantization_config.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr std::string_view kFilesBegin = "output-";
constexpr std::string_view kFilesEnd = ".safetensors";

/// Returns the names of such files of a folder, in order.
std::vector<std::string> names_of_output(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kFilesBegin) && name.ends_with(kFilesEnd)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

/// Returns "00003", with five digits at least.
std::string five_digits(size_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < 5) digits.insert(0, 5 - digits.size(), '0');
  return digits;
}

class Exl2Config final : public QuantizationConfig {
 public:
  explicit Exl2Config(const Fields& fields) {
    fields.number("bits", 0.0, 16.0);
    fields.integer("head_bits", 2, 16);
  }

  std::optional<QuantizedModule> find(std::string_view) const override {
    return QuantizedModule{.bits = 8, .format = "exl2", .layout = &exl2_layout()};
  }

  std::vector<std::string> find_weight_files(const std::string& folder) const override {
    const std::string one = folder + "/output.safetensors";
    if (file_exists(one)) return {one};
    const std::vector<std::string> names = names_of_output(folder);
    std::vector<std::string> paths;
    for (const std::string& name : names) {
      // The last one's number says how many there are.
      const std::string expected = std::string(kFilesBegin) + five_digits(paths.size() + 1) +
                                   "-of-" + five_digits(names.size()) + std::string(kFilesEnd);
      if (name != expected) {
        throw_bad_file(folder + ": holds " + std::to_string(names.size()) +
                       " weight files, among them " + quote_text(name) + "; expected " +
                       quote_text(expected) + ", and each of the files that exllamav2 wrote");
      }
      paths.push_back(folder + "/" + name);
    }
    return paths;
  }
};

const QuantMethodFile kExl2Method("exl2", &read_as<Exl2Config>);

}  // namespace
}  // namespace vitrine::checkpoint
