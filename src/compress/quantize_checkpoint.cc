// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <random>
#include <unordered_map>

#include "documents.h"
#include "layer_quantizer.h"
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

using BeforeBlock = std::function<void()>;

/// Quantizes one matrix in blocks of rows (a row's groups are its own, so blocks change nothing).
QuantizedTensorReport write_quantized(const Checkpoint& checkpoint, SafetensorsWriter& writer,
                                      const compress::PlannedTensor& planned, int group_size,
                                      const BeforeBlock& before_block) {
  const TensorInfo& source = *planned.source;
  const int64_t rows = source.shape[0];
  const int64_t cols = source.shape[1];
  const int64_t block_rows = rows_of_block(cols);
  QuantizedTensorReport report{planned.module, planned.method->bits,
                               compress::stored_group_size(*planned.method, group_size), 0.0, 0.0};
  double error_sum = 0.0;
  compress::SourceRows source_rows(checkpoint, planned);
  std::vector<float> weights;
  for (int64_t row = 0; row < rows; row += block_rows) {
    before_block();
    const int64_t count = std::min(block_rows, rows - row);
    weights.resize(static_cast<size_t>(count * cols));
    widen_to_f32(source_rows.read(row, count).data(), planned.dtype, count * cols, weights.data());
    QuantizedMatrix matrix;
    try {
      matrix = planned.method->quantize(weights, count, cols, planned.dtype, group_size);
    } catch (const Error& error) {  // sizes fit by the plan: what is left is the file's content
      throw Error(ErrorKind::kBadFile,
                  checkpoint.weight_files()[static_cast<size_t>(source.file_index)] + ": tensor '" +
                      source.name + "' from row " + std::to_string(row) + ": " + error.what());
    }
    const QuantError error = quantization_error(weights, matrix);
    error_sum += error.mean_absolute * static_cast<double>(weights.size());
    report.worst_absolute_error = std::max(report.worst_absolute_error, error.worst_absolute);
    compress::write_rows(writer, planned, matrix);
  }
  compress::write_shape(writer, planned);
  if (rows > 0 && cols > 0) {
    report.mean_absolute_error =
        error_sum / (static_cast<double>(rows) * static_cast<double>(cols));
  }
  return report;
}

void copy_tensor(const Checkpoint& checkpoint, SafetensorsWriter& writer,
                 const compress::PlannedTensor& planned, const BeforeBlock& before_block) {
  const TensorInfo& info = *planned.source;
  if (planned.is_widened()) {
    compress::SourceRows source_rows(checkpoint, planned);
    const int64_t block_rows = rows_of_block(info.shape[1]);
    for (int64_t row = 0; row < info.shape[0]; row += block_rows) {
      before_block();
      writer.write(info.name, source_rows.read(row, std::min(block_rows, info.shape[0] - row)));
    }
    return;
  }
  std::vector<std::byte> block;
  for (uint64_t done = 0; done < info.num_bytes; done += block.size()) {
    before_block();
    block.resize(std::min(kBlockBytes, info.num_bytes - done));
    checkpoint.read(info, done, block);
    writer.write(info.name, block);
  }
}

using Reports = std::unordered_map<const compress::PlannedTensor*, QuantizedTensorReport>;

/// Throws where fewer matrices of the layers were reached than were asked for.
void require_reached(const compress::QuantizePlan& plan, const Reports& reports, double least) {
  int64_t all = 0, reached = 0;
  std::string first;
  for (const compress::PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr || !planned.module.starts_with("model.layers.")) continue;
    ++all;
    if (reports.contains(&planned)) {
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
                         const compress::QuantizePlan& plan, const QuantizeOptions& options) {
  Reports reports;
  const auto total = static_cast<int64_t>(plan.tensors.size());
  compress::quantize_by_layers(checkpoint, plan, options, [&](const auto& calibrated) {
    const compress::PlannedTensor& planned = *calibrated.planned;
    if (options.progress) options.progress(std::ssize(reports), total, planned.source->name);
    compress::write_rows(writer, planned, calibrated.matrix);
    compress::write_shape(writer, planned);
    const QuantError error = quantization_error(calibrated.weights, calibrated.matrix);
    reports[&planned] = {.name = planned.module,
                         .bits = planned.method->bits,
                         .group_size = options.group_size,
                         .mean_absolute_error = error.mean_absolute,
                         .worst_absolute_error = error.worst_absolute,
                         .calibration_rows = calibrated.rows_seen,
                         .shrinkage = calibrated.shrinkage,
                         .damping = calibrated.damping,
                         .loss = calibrated.loss};
  });
  require_reached(plan, reports, options.least_reached);
  return reports;
}

QuantizeReport write_weights(const Checkpoint& checkpoint, const compress::QuantizePlan& plan,
                             const QuantizeOptions& options, const std::string& path) {
  SafetensorsWriter writer(path);
  QuantizeReport report;
  for (const compress::PlannedTensor& planned : plan.tensors) {
    if (planned.method != nullptr) {
      compress::declare_matrix(writer, planned, options.group_size);
      report.result_bytes += compress::matrix_bytes(planned, options.group_size);
    } else {
      writer.declare(planned.source->name, planned.dtype, planned.source->shape);
      report.result_bytes +=
          planned.source->num_bytes * (planned.is_widened() ? dtype_size(planned.dtype) : 1);
    }
  }
  for (const TensorInfo& info : checkpoint.tensors()) report.source_bytes += info.stored_bytes;
  writer.begin({{"format", "pt"}});
  Reports calibrated;
  if (!options.calibration.empty())
    calibrated = write_calibrated(checkpoint, writer, plan, options);
  const auto total = static_cast<int64_t>(plan.tensors.size());
  for (int64_t done = 0; done < total; ++done) {
    const compress::PlannedTensor& planned = plan.tensors[static_cast<size_t>(done)];
    if (const auto found = calibrated.find(&planned); found != calibrated.end()) {
      report.quantized.push_back(found->second);
      continue;
    }
    const auto before_block = [&] {
      if (options.progress) options.progress(done, total, planned.source->name);
    };
    before_block();
    if (planned.method != nullptr) {
      report.quantized.push_back(
          write_quantized(checkpoint, writer, planned, options.group_size, before_block));
    } else {
      copy_tensor(checkpoint, writer, planned, before_block);
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
  if (options.method != "rtn" && options.method != "gptq") {
    refuse("method '" + options.method + "' is unknown; expected rtn or gptq");
  }
  if (options.method == "rtn" && !options.calibration.empty()) {
    refuse("method rtn takes no calibration; expected none, or gptq");
  }
  if (options.method == "rtn") return;
  if (options.calibration.empty()) refuse("method gptq needs a calibration; expected texts");
  if (find_quant_method(options.scheme).number_format != NumberFormat::kInteger) {
    refuse("method gptq makes integers and no " + options.scheme + "; expected int8, int4 or int3");
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
  const compress::QuantizePlan plan = compress::plan_quantization(checkpoint, options);
  ReplacementFolder folder(out);

  QuantizeReport report =
      write_weights(checkpoint, plan, options, folder.path() + "/model.safetensors");
  write_file_atomically(folder.path() + "/config.json",
                        compress::quantized_config_json(checkpoint, plan, options));
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
