// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <unordered_map>

#include "documents.h"
#include "layer_quantizer.h"
#include "mixed_bits.h"
#include "plan.h"
#include "source_rows.h"
#include "stored_form.h"
#include "vitrine/compress.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = 16u << 20;  // of float32 weights, or of copied bytes
constexpr uint64_t kMaxSideFileBytes = 512u << 20;

/// A folder beside `out` that takes its place on commit(), and vanishes without it.
class ReplacementFolder {
 public:
  explicit ReplacementFolder(const std::string& out) {
    target_ = fs::path(out).lexically_normal();
    if (!target_.has_filename()) target_ = target_.parent_path();
    refuse_occupied_target();
    std::random_device random;
    temporary_ = target_.parent_path() / ("." + target_.filename().string() + ".tmp-" +
                                          std::to_string(random()) + std::to_string(random()));
    std::error_code error;
    if (!fs::create_directory(temporary_, error)) fail("can't be made", error);
  }
  ReplacementFolder(const ReplacementFolder&) = delete;
  ReplacementFolder& operator=(const ReplacementFolder&) = delete;
  ~ReplacementFolder() {
    std::error_code ignored;
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  }

  std::string path() const { return temporary_.string(); }

  void commit() {
    refuse_occupied_target();
    std::error_code error;
    fs::rename(temporary_, target_, error);
    if (error) fail("can't be made", error);
    temporary_.clear();
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::error_code& error) const {
    throw Error(ErrorKind::kIo, target_.string() + ": " + what + ": " + error.message());
  }

  void refuse_occupied_target() const {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(target_, error);
    if (!fs::exists(status)) return;
    const bool is_free = fs::is_directory(status) && fs::is_empty(target_, error) && !error;
    if (!is_free) {
      throw Error(
          ErrorKind::kInvalidArgument,
          target_.string() + ": exists and isn't an empty folder; expected a new or empty one");
    }
  }

  fs::path target_;
  fs::path temporary_;
};

/// A multiple of the zero points that a word holds.
int64_t rows_of_block(int64_t cols) {
  return std::max<int64_t>(
      8, static_cast<int64_t>(kBlockBytes / sizeof(float)) / std::max<int64_t>(1, cols) / 8 * 8);
}

using compress::Folds;
using compress::PlannedTensor;
using BeforeBlock = std::function<void()>;

/// Writes a folder's weights as they are read, block by block.
class WeightWriter {
 public:
  WeightWriter(const Checkpoint& checkpoint, SafetensorsWriter& writer, const Folds& folds,
               const BeforeBlock& before_block)
      : checkpoint_(checkpoint), writer_(writer), folds_(folds), before_block_(before_block) {}

  /// Quantizes a matrix in blocks of rows (a row's groups are its own, so blocks change nothing).
  /// `largest` is what QuantMethod::quantize_part is given.
  QuantizedTensorReport quantize(const PlannedTensor& planned, float largest) {
    const TensorInfo& source = *planned.source;
    const int64_t rows = source.shape[0], cols = source.shape[1];
    QuantizedTensorReport report{planned.module, planned.method->bits, planned.group_size, 0.0,
                                 0.0};
    double error_sum = 0.0;
    float divisor = 1.0f;
    for_each_block(planned, [&](int64_t row, int64_t count, std::span<const float> weights) {
      const QuantizedMatrix matrix = quantize_rows(planned, row, count, weights, largest);
      divisor = matrix.divisor;
      const QuantError error = quantization_error(weights, matrix);
      error_sum += error.mean_absolute * static_cast<double>(weights.size());
      report.worst_absolute_error = std::max(report.worst_absolute_error, error.worst_absolute);
      compress::write_rows(writer_, planned, matrix);
    });
    compress::write_rest(writer_, planned, {.divisor = divisor});
    if (rows > 0 && cols > 0) {
      report.mean_absolute_error =
          error_sum / (static_cast<double>(rows) * static_cast<double>(cols));
    }
    return report;
  }

  /// Returns the largest |weight| of a matrix.
  float largest(const PlannedTensor& planned) {
    float largest = 0.0f;
    for_each_block(planned, [&](int64_t, int64_t, std::span<const float> weights) {
      for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
    });
    return largest;
  }

  void copy(const PlannedTensor& planned) {
    const TensorInfo& info = *planned.source;
    const compress::Fold* fold = folds_.find(info.name);
    if (planned.is_widened() || fold != nullptr) {
      compress::SourceRows source_rows(checkpoint_, planned, fold);
      const int64_t block_rows = rows_of_block(source_rows.columns());
      for (int64_t row = 0; row < info.shape[0]; row += block_rows) {
        before_block_();
        writer_.write(info.name, source_rows.read(row, std::min(block_rows, info.shape[0] - row)));
      }
      return;
    }
    std::vector<std::byte> block;
    for (uint64_t done = 0; done < info.num_bytes; done += block.size()) {
      before_block_();
      block.resize(std::min(kBlockBytes, info.num_bytes - done));
      checkpoint_.read(info, done, block);
      writer_.write(info.name, block);
    }
  }

 private:
  template <typename Visit>
  void for_each_block(const PlannedTensor& planned, Visit visit) {
    const int64_t rows = planned.source->shape[0];
    compress::SourceRows source_rows(checkpoint_, planned, folds_.find(planned.source->name));
    const int64_t block_rows = rows_of_block(source_rows.columns());
    for (int64_t row = 0; row < rows; row += block_rows) {
      before_block_();
      const int64_t count = std::min(block_rows, rows - row);
      const std::vector<float> weights = source_rows.read_floats(row, count);
      visit(row, count, std::span<const float>(weights));
    }
  }

  QuantizedMatrix quantize_rows(const PlannedTensor& planned, int64_t row, int64_t count,
                                std::span<const float> weights, float largest) const {
    const TensorInfo& source = *planned.source;
    const QuantMethod& method = *planned.method;
    try {
      if (method.quantize_part != nullptr) {
        return method.quantize_part(weights, count, source.shape[1], planned.dtype, largest);
      }
      return method.quantize(weights, count, source.shape[1], planned.dtype, planned.group_size);
    } catch (const Error& error) {  // sizes fit by the plan: what is left is the file's content
      throw Error(ErrorKind::kBadFile,
                  checkpoint_.weight_files()[static_cast<size_t>(source.file_index)] +
                      ": tensor '" + source.name + "' from row " + std::to_string(row) + ": " +
                      error.what());
    }
  }

  const Checkpoint& checkpoint_;
  SafetensorsWriter& writer_;
  const Folds& folds_;
  const BeforeBlock& before_block_;
};

using Reports = std::unordered_map<const compress::PlannedTensor*, QuantizedTensorReport>;

/// Throws where the engine, into which a calibration puts floats, keeps a matrix in 8 bits.
void refuse_float8_layers(const Checkpoint& checkpoint, const compress::QuantizePlan& plan,
                          const QuantizeOptions& options) {
  if (options.calibration.empty()) return;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr || !planned.is_widened()) continue;
    throw Error(ErrorKind::kUnsupported,
                checkpoint.path() + ": tensor '" + planned.source->name +
                    "' is in 8-bit floats, which no calibration runs through; expected a model in "
                    "16 or 32 bits, or method rtn without a calibration");
  }
}

/// Throws where fewer matrices of the layers were reached than were asked for.
void require_reached(const compress::QuantizePlan& plan, const Reports& reports, double least) {
  int64_t all = 0, reached = 0;
  std::string first;
  for (const compress::PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr || !planned.module.starts_with("model.layers.")) continue;
    ++all;
    const auto found = reports.find(&planned);
    if (found != reports.end() && found->second.calibration_rows > 0) {
      ++reached;
    } else if (first.empty()) {
      first = planned.module;
    }
  }
  if (static_cast<double>(reached) >= least * static_cast<double>(all)) return;
  throw Error(ErrorKind::kInvalidArgument,
              "the calibration reaches " + std::to_string(reached) + " of " + std::to_string(all) +
                  " matrices (not " + first + "); expected a share of " + std::to_string(least) +
                  ": more text, or text of another kind");
}

/// Writes the matrices that the calibration reaches.
Reports write_calibrated(const Checkpoint& checkpoint, SafetensorsWriter& writer,
                         const compress::QuantizePlan& plan, const QuantizeOptions& options,
                         Folds& folds) {
  Reports reports;
  const auto total = static_cast<int64_t>(plan.tensors.size());
  compress::quantize_by_layers(checkpoint, plan, options, folds, [&](const auto& calibrated) {
    const PlannedTensor& planned = *calibrated.planned;
    if (options.progress) options.progress(std::ssize(reports), total, planned.source->name);
    compress::write_rows(writer, planned, calibrated.matrix);
    compress::write_rest(
        writer, planned,
        {.divisor = calibrated.matrix.divisor, .largest_input = calibrated.facts.largest_input});
    const QuantError error = quantization_error(calibrated.weights, calibrated.matrix);
    reports[&planned] = {.name = planned.module,
                         .bits = planned.method->bits,
                         .group_size = planned.group_size,
                         .mean_absolute_error = error.mean_absolute,
                         .worst_absolute_error = error.worst_absolute,
                         .calibration_rows = calibrated.facts.rows_seen,
                         .shrinkage = calibrated.facts.shrinkage,
                         .damping = calibrated.facts.damping,
                         .loss = calibrated.facts.loss};
  });
  require_reached(plan, reports, options.least_reached);
  return reports;
}

/// The largest |weight| of the matrices that share what stands once for a matrix, by family.
std::unordered_map<int, float> find_largest(WeightWriter& weights,
                                            const compress::QuantizePlan& plan) {
  std::unordered_map<int, float> largest;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr || planned.method->quantize_part == nullptr) continue;
    float& of_family = largest[planned.family];
    of_family = std::max(of_family, weights.largest(planned));
  }
  return largest;
}

QuantizeReport write_weights(const Checkpoint& checkpoint, const compress::QuantizePlan& plan,
                             const QuantizeOptions& options, const std::string& path,
                             std::vector<std::string>& folded) {
  SafetensorsWriter writer(path);
  QuantizeReport report;
  const auto declare = [&](const std::string& name, DType dtype,
                           const std::vector<int64_t>& shape) {
    writer.declare(name, dtype, shape);
    uint64_t bytes = dtype_size(dtype);
    for (const int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
    report.result_bytes += bytes;
  };
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method != nullptr) {
      compress::declare_matrix(declare, planned);
    } else {
      declare(planned.source->name, planned.dtype, planned.source->shape);
    }
  }
  for (const TensorInfo& info : checkpoint.tensors()) report.source_bytes += info.stored_bytes;
  writer.begin({{"format", "pt"}});
  Folds folds;
  Reports calibrated;
  const QuantMethod& scheme = find_quant_method(compress::base_scheme(options.scheme));
  if (compress::find_layer_method(options.method).needs_texts(scheme)) {
    calibrated = write_calibrated(checkpoint, writer, plan, options, folds);
  }
  folded = folds.names();
  const auto total = static_cast<int64_t>(plan.tensors.size());
  int64_t done = 0;
  const BeforeBlock before_block = [&] {
    const auto at = static_cast<size_t>(std::min(done, total - 1));
    if (options.progress) options.progress(done, total, plan.tensors[at].source->name);
  };
  WeightWriter weights(checkpoint, writer, folds, before_block);
  const std::unordered_map<int, float> largest = find_largest(weights, plan);
  for (; done < total; ++done) {
    const PlannedTensor& planned = plan.tensors[static_cast<size_t>(done)];
    if (const auto found = calibrated.find(&planned); found != calibrated.end()) {
      report.quantized.push_back(found->second);
      continue;
    }
    before_block();
    if (planned.method != nullptr) {
      const auto found = largest.find(planned.family);
      report.quantized.push_back(
          weights.quantize(planned, found == largest.end() ? 0.0f : found->second));
    } else {
      weights.copy(planned);
      report.unquantized.push_back({planned.source->name, planned.reason});
    }
  }
  writer.finish();
  return report;
}

void check_method(const QuantizeOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::kInvalidArgument, what);
  };
  const QuantMethod& scheme = find_quant_method(compress::base_scheme(options.scheme));
  const compress::LayerMethod& method = compress::find_layer_method(options.method);
  const std::string_view obstacle = method.obstacle(scheme);
  if (!obstacle.empty()) {
    refuse("method " + options.method + " makes no " + options.scheme + "; expected " +
           std::string(obstacle));
  }
  const bool needs_texts =
      method.needs_texts(scheme) || compress::mixed_bits(options.scheme).has_value();
  if (!needs_texts && !options.calibration.empty()) {
    refuse("method " + options.method + " takes no calibration for " + options.scheme +
           "; expected none, or gptq, awq or smoothquant");
  }
  if (needs_texts && options.calibration.empty()) {
    refuse("method " + options.method + " needs a calibration for " + options.scheme +
           "; expected texts");
  }
  if (!(options.smoothing >= 0 && options.smoothing <= 1)) {
    refuse("smoothing is " + std::to_string(options.smoothing) + "; expected 0 to 1");
  }
  for (const std::vector<int32_t>& text : options.calibration) {
    if (text.empty()) refuse("a text of the calibration has no tokens; expected some");
  }
}

}  // namespace

QuantizeReport quantize_checkpoint(const std::string& in, const std::string& out,
                                   const QuantizeOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(in);
  check_method(options);
  compress::QuantizePlan plan = compress::plan_quantization(checkpoint, options);
  refuse_float8_layers(checkpoint, plan, options);
  ReplacementFolder folder(out);
  if (const std::optional<double> bits = compress::mixed_bits(options.scheme)) {
    compress::choose_widths(checkpoint, options, *bits, plan);
  }

  QuantizeReport report =
      write_weights(checkpoint, plan, options, folder.path() + "/model.safetensors", plan.folded);
  write_file_atomically(folder.path() + "/config.json",
                        compress::quantized_config_json(checkpoint, plan));
  std::vector<std::string> result_names = {"config.json", "model.safetensors"};
  std::vector<compress::FileRecord> source_files;
  const auto add_text = [&](const std::string& name, const std::string& text) {
    if (text.empty()) return;
    write_file_atomically(folder.path() + "/" + name, text);
    result_names.push_back(name);
  };
  if (checkpoint.is_gguf()) {
    add_text("generation_config.json", checkpoint.generation_config_json());
    add_text("tokenizer.json", checkpoint.tokenizer_json());
    add_text("tokenizer_config.json", checkpoint.tokenizer_config_json());
  } else {
    source_files.push_back(compress::record_file(in, "config.json"));
    for (const char* name :
         {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
          "special_tokens_map.json", "chat_template.jinja", "tekken.json", "tiktoken.model"}) {
      const std::string path = in + "/" + name;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      add_text(name, read_text_file(path, kMaxSideFileBytes));
      source_files.push_back(compress::record_file(in, name));
    }
  }
  if (options.evaluate) report.evaluation = options.evaluate(folder.path());
  const std::string facts = options.facts ? options.facts(folder.path()) : "{}";

  for (const std::string& path : checkpoint.weight_files()) {
    source_files.push_back(compress::record_file(fs::path(path).parent_path().string(),
                                                 fs::path(path).filename().string()));
  }
  std::vector<compress::FileRecord> result_files;
  for (const std::string& name : result_names) {
    result_files.push_back(compress::record_file(folder.path(), name));
  }
  const std::string source_name =
      options.source_name.empty() ? compress::last_part(in) : options.source_name;
  write_file_atomically(folder.path() + "/vitrine_manifest.json",
                        compress::manifest_json(plan, options, report, source_name, source_files,
                                                result_files, facts));
  if (options.finish) options.finish(folder.path());
  folder.commit();
  return report;
}

}  // namespace vitrine
