// SPDX-License-Identifier: Apache-2.0
// `quant_method: compressed-tensors`, as llm-compressor writes it: groups of modules, each with a
// format.
#include <charconv>

#include "input_scale.h"
#include "name_pattern.h"
#include "quantization_config.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr const char* kFormats =
    "'pack-quantized', 'int-quantized', 'naive-quantized', 'float-quantized', "
    "'nvfp4-pack-quantized', 'mxfp4-pack-quantized' or 'mxfp8-quantized'";

void require_symmetric(const Fields& weights) {
  if (!weights.boolean("symmetric").value_or(true)) weights.unsupported("symmetric", "true");
}

QuantizedModule read_float_weights(const Fields& weights) {
  QuantizedModule scheme = float8_module("float-quantized", 0);
  if (weights.required_integer("num_bits", 1, 64) != 8) weights.unsupported("num_bits", "8");
  expect_string(weights, "type", "float");
  require_symmetric(weights);
  const std::string strategy = weights.string("strategy").value_or("");
  if (strategy == "channel") {
    scheme.block_rows = 1;
  } else if (strategy == "group") {
    scheme.block_rows = 1;
    scheme.group_size = static_cast<int>(weights.required_integer("group_size", 1, 1 << 20));
  } else if (strategy == "block") {
    read_float_block(weights, "block_structure", scheme);
  } else if (strategy != "tensor") {
    weights.unsupported("strategy", "'tensor', 'channel', 'group' or 'block'");
  }
  return scheme;
}

/// Reads floats of 4 or 8 bits with scales of a byte.
QuantizedModule read_small_floats(const Fields& weights, int bits, int group_size,
                                  const char* format, const ModuleLayout& layout) {
  if (weights.required_integer("num_bits", 1, 64) != bits) {
    weights.unsupported("num_bits", std::to_string(bits));
  }
  expect_string(weights, "type", "float");
  require_symmetric(weights);
  if (const auto found = weights.integer("group_size", -1, 1 << 20);
      found && *found != group_size) {
    weights.unsupported("group_size", std::to_string(group_size));
  }
  return {.bits = bits, .group_size = group_size, .format = format, .layout = &layout};
}

/// Says whether the version that wrote a folder, "0.17.0", left bits of words unused.
bool pads_words(const Fields& config) {
  const std::string version = config.string("version").value_or("");
  constexpr std::string_view kMajor = "0.";
  constexpr int kFirstDense = 18;
  int minor = kFirstDense;
  if (version.starts_with(kMajor)) {
    std::from_chars(version.data() + kMajor.size(), version.data() + version.size(), minor);
  }
  return minor < kFirstDense;
}

QuantizedModule read_integer_weights(const Fields& weights, bool is_packed, bool is_padded) {
  const ModuleLayout& packed = is_padded ? padded_layout() : packed_layout();
  QuantizedModule scheme = {.format = is_packed ? "pack-quantized" : "int-quantized",
                            .layout = is_packed ? &packed : &int8_layout()};
  scheme.bits = static_cast<int>(weights.required_integer("num_bits", 1, 64));
  if (scheme.bits < 2 || scheme.bits > 8) weights.unsupported("num_bits", "2 to 8");
  if (!is_packed) scheme.bits = 8;  // a byte holds fewer, too
  expect_string(weights, "type", "int");
  scheme.symmetric = weights.boolean("symmetric").value_or(true);
  const std::string strategy = weights.string("strategy").value_or("group");
  if (strategy == "group") {
    scheme.group_size = read_group_size(weights, {"group_size"});
  } else if (strategy == "tensor" && !is_packed) {
    scheme.block_rows = 0;
  } else if (strategy != "channel") {
    weights.unsupported("strategy",
                        is_packed ? "'group' or 'channel'" : "'group', 'channel' or 'tensor'");
  }
  refuse_unless_empty(weights, "block_structure");
  return scheme;
}

/// Reads weights by `format`, and those of "naive-quantized" by their numbers.
QuantizedModule read_weights(const Fields& weights, const Fields& place, const std::string& format,
                             bool is_padded) {
  if (format == "pack-quantized") return read_integer_weights(weights, true, is_padded);
  if (format == "int-quantized") return read_integer_weights(weights, false, is_padded);
  if (format == "float-quantized") return read_float_weights(weights);
  if (format == "naive-quantized") {
    return weights.string("type") == "float" ? read_float_weights(weights)
                                             : read_integer_weights(weights, false, false);
  }
  if (format == "nvfp4-pack-quantized") {
    return read_small_floats(weights, 4, 16, "nvfp4-pack-quantized", nvfp4_layout());
  }
  if (format == "mxfp4-pack-quantized") {
    return read_small_floats(weights, 4, 32, "mxfp4-pack-quantized", mxfp4_layout());
  }
  if (format == "mxfp8-quantized") {
    return read_small_floats(weights, 8, 32, "mxfp8-quantized", mxfp8_layout());
  }
  if (format == "marlin-24" || format == "marlin_24") {
    refuse_format(place, "format",
                  "is stored in the order of one GPU kernel (2:4 Marlin) that no tool reads back",
                  "the model quantized again by llm-compressor without sparsity "
                  "(save_pretrained(..., quantization_format='pack-quantized')), or its float "
                  "model and `vitrine quantize`");
  }
  place.unsupported("format", kFormats);
}

/// Says how activations are kept that the file wants in fewer bits.
std::string activation_note(const Fields& activations, ActivationUse use) {
  if (use != ActivationUse::kFloat) {
    return std::string("activations: int8 with ") +
           (use == ActivationUse::kDynamic ? "one scale a token" : "one scale of the file") +
           ", as the file asks, where kernels of the CPU take it; else in groups, on the reference "
           "path "
           "as floats";
  }
  const int64_t bits = activations.integer("num_bits", 1, 64).value_or(8);
  const bool is_dynamic =
      activations.find("dynamic") != nullptr && *activations.find("dynamic") != false;
  const std::string type = activations.string("type").value_or("int");
  return std::string("activations: the file asks for ") + (type == "int" ? "int" : "fp") +
         std::to_string(bits) + (is_dynamic ? " (dynamic)" : " (static)") +
         "; kernels take int8 in groups beside integers and float32 beside floats, which loses no "
         "more";
}

class CompressedTensorsConfig final : public QuantizationConfig {
 public:
  explicit CompressedTensorsConfig(const Fields& fields) {
    const std::string format = fields.string("format").value_or("");
    if (const auto status = fields.string("quantization_status");
        status && *status != "compressed" && *status != "frozen") {
      fields.unsupported("quantization_status", "'compressed'");
    }
    if (has_content(fields, "transform_config")) {
      refuse_format(
          fields, "transform_config",
          "rotates activations while the model runs, which no op here does",
          "the model quantized without transforms (llm-compressor: leave QuIPModifier "
          "and SpinQuantModifier out), or with rotations that are fused into the weights");
    }
    if (has_content(fields, "kv_cache_scheme")) add_cache_note("kv_cache_scheme");
    const bool is_sparse = read_sparsity(fields);
    for (const std::string& name : fields.strings("ignore")) {
      ignore_.emplace_back(name, fields.place() + ": ignore");
    }
    const std::optional<Fields> groups = fields.object("config_groups");
    if (!groups) {
      if (is_sparse) return;
      fields.bad("config_groups", "an object of groups");
    }
    for (const auto& [name, group] : fields.find("config_groups")->items()) {
      const std::string place = groups->place() + "." + quote_text(name);
      if (group.is_array()) {
        throw_unsupported(place + ": is a preset; expected targets and weights written out");
      }
      if (!group.is_object()) throw_bad_file(place + ": is not an object; expected one");
      read_group(Fields(group, place), fields, format);
    }
  }

  /// Decides as compressed-tensors does: ignored modules first, then exact names, then expressions,
  /// then the class "Linear".
  std::optional<QuantizedModule> find(std::string_view module_name) const override {
    if (const QuantizedModule* found = find_target(module_name)) return *found;
    return sparse_;
  }

 private:
  struct Target {
    NamePattern pattern;
    QuantizedModule scheme;
  };

  const QuantizedModule* find_target(std::string_view module_name) const {
    for (const NamePattern& pattern : ignore_) {
      if (pattern.text() == "Linear" || pattern.matches(module_name)) return nullptr;
    }
    for (const bool expressions : {false, true}) {
      for (const Target& target : targets_) {
        if (target.pattern.is_expression() == expressions && target.pattern.matches(module_name)) {
          return &target.scheme;
        }
      }
    }
    for (const Target& target : targets_) {
      if (target.pattern.text() == "Linear") return &target.scheme;
    }
    return nullptr;
  }

  /// Returns whether matrices of floats are stored without their zeros.
  bool read_sparsity(const Fields& fields) {
    const auto sparsity = fields.object("sparsity_config");
    if (!sparsity || !has_content(fields, "sparsity_config")) return false;
    const std::string format = sparsity->string("format").value_or("");
    if (format == "dense") return false;
    if (format != "sparse-24-bitmask") {
      refuse_format(*sparsity, "format", "no reader here expands",
                    "'dense' or 'sparse-24-bitmask': compressed-tensors up to 0.14 writes the "
                    "first with ModelCompressor.decompress_model and save_pretrained");
    }
    sparse_ = {.bits = 16, .format = "sparse-24-bitmask", .layout = &sparse24_layout()};
    return true;
  }

  void read_group(const Fields& group, const Fields& config, const std::string& format) {
    const std::optional<std::string> own = group.string("format");
    const std::optional<Fields> weights = group.object("weights");
    if (!weights) group.bad("weights", "an object");
    QuantizedModule scheme =
        read_weights(*weights, own ? group : config, own ? *own : format, pads_words(config));
    refuse_unless_empty(group, "output_activations");
    if (has_content(group, "input_activations")) {
      const Fields activations = *group.object("input_activations");
      scheme.activations = read_activation_use(activations, scheme);
      const std::string note = activation_note(activations, scheme.activations);
      if (notes().empty() || notes().back() != note) add_note(note);
    }
    if (weights->boolean("dynamic").value_or(false)) weights->unsupported("dynamic", "false");
    // How an order shows is in the tensors: weight_g_idx.
    if (const nlohmann::json* order = weights->find("actorder");
        order != nullptr && !order->is_boolean() && *order != "weight" && *order != "static" &&
        *order != "group" && *order != "dynamic") {
      weights->unsupported("actorder", "null, 'weight', 'static', 'group' or 'dynamic'");
    }
    const std::vector<std::string> targets = group.strings("targets");
    if (targets.empty()) group.bad("targets", "a list of module names");
    for (const std::string& target : targets) {
      targets_.push_back({NamePattern(target, group.place() + ": targets"), scheme});
    }
  }

  std::vector<NamePattern> ignore_;
  std::vector<Target> targets_;
  std::optional<QuantizedModule> sparse_;
};

const QuantMethodFile kCompressedTensors("compressed-tensors", &read_as<CompressedTensorsConfig>);

}  // namespace
}  // namespace vitrine::checkpoint
