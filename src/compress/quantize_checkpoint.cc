// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>
#include <unordered_map>

#include "documents.h"
#include "fold_file.h"
#include "kept_fields.h"
#include "layer_quantizer.h"
#include "mixed_bits.h"
#include "plan.h"
#include "replacement_folder.h"
#include "stored_form.h"
#include "vitrine/compress.h"
#include "weight_writer.h"
#include "widened_model.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxSideFileBytes = 512u << 20;

using compress::Folds;
using compress::KeptLayers;
using compress::PlannedTensor;
using compress::ProgressTeller;
using compress::WeightWriter;

using Reports = std::unordered_map<const compress::PlannedTensor*, QuantizedTensorReport>;

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

/// What a run goes on with, and how it tells where it is.
struct Kept {
  const std::string& model;      // that the engine runs
  KeptLayers* layers = nullptr;  // null: nothing is kept
  ProgressTeller& progress;
  int64_t& taken_up;
};

/// Writes the matrices that the calibration reaches.
Reports write_calibrated(const Checkpoint& checkpoint, SafetensorsWriter& writer,
                         const compress::QuantizePlan& plan, const QuantizeOptions& options,
                         const Kept& kept, Folds& folds) {
  Reports reports;
  const auto take_matrix = [&](const compress::CalibratedMatrix& calibrated) {
    const PlannedTensor& planned = *calibrated.planned;
    compress::write_rows(writer, planned, calibrated.matrix);
    compress::write_rest(
        writer, planned,
        {.divisor = calibrated.matrix.divisor, .input_range = calibrated.facts.input_range});
    reports[&planned] = {.name = planned.module,
                         .bits = planned.method->bits,
                         .group_size = planned.group_size,
                         .mean_absolute_error = calibrated.error.mean_absolute,
                         .worst_absolute_error = calibrated.error.worst_absolute,
                         .calibration_rows = calibrated.facts.rows_seen,
                         .shrinkage = calibrated.facts.shrinkage,
                         .damping = calibrated.facts.damping,
                         .loss = calibrated.facts.loss};
  };
  kept.taken_up = compress::quantize_by_layers(checkpoint, kept.model, plan, options, folds,
                                               kept.layers, kept.progress, take_matrix);
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
                             const QuantizeOptions& options, const std::string& model,
                             KeptLayers* kept, ProgressTeller& progress, const std::string& path,
                             Folds& folds) {
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
  Reports calibrated;
  const QuantMethod& scheme = find_quant_method(compress::base_scheme(options.scheme));
  if (compress::find_layer_method(options.method).needs_texts(scheme)) {
    calibrated = write_calibrated(checkpoint, writer, plan, options,
                                  {model, kept, progress, report.layers_taken_up}, folds);
  }
  std::vector<double> work;
  for (const PlannedTensor& planned : plan.tensors) {
    work.push_back(calibrated.contains(&planned) ? 0.0
                                                 : static_cast<double>(planned.source->num_bytes));
  }
  progress.begin_stage("tensors", std::move(work));
  const compress::BeforeBlock before_block = [&] { progress.tell(); };
  WeightWriter weights(checkpoint, writer, folds, before_block);
  const std::unordered_map<int, float> largest = find_largest(weights, plan);
  for (size_t number = 0; number < plan.tensors.size(); ++number) {
    const PlannedTensor& planned = plan.tensors[number];
    if (const auto found = calibrated.find(&planned); found != calibrated.end()) {
      report.quantized.push_back(found->second);
      continue;
    }
    progress.begin(number, planned.source->name);
    if (planned.method != nullptr) {
      const auto found = largest.find(planned.family);
      report.quantized.push_back(
          weights.quantize(planned, found == largest.end() ? 0.0f : found->second));
    } else {
      weights.copy(planned);
      report.unquantized.push_back({planned.source->name, planned.reason});
    }
    progress.end(true);
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

/// Returns what stands in the manifest of the files with the source's weights.
std::vector<compress::FileRecord> record_weights(const Checkpoint& checkpoint,
                                                 ProgressTeller& progress) {
  std::vector<compress::FileRecord> records;
  for (const std::string& path : checkpoint.weight_files()) {
    progress.tell(fs::path(path).filename().string());
    records.push_back(compress::record_file(fs::path(path).parent_path().string(),
                                            fs::path(path).filename().string()));
  }
  return records;
}

/// Whether the same call can succeed later, by what it has done so far.
bool is_worth_keeping(const Error& error) {
  return error.kind() == ErrorKind::kCancelled || error.kind() == ErrorKind::kIo ||
         error.kind() == ErrorKind::kOutOfMemory;
}

/// Quantizes a checkpoint, with what an earlier run has kept.
class CheckpointQuantizer {
 public:
  CheckpointQuantizer(const std::string& in, const std::string& out, const QuantizeOptions& options)
      : in_(in), out_(out), options_(options), checkpoint_(Checkpoint::open(in)) {}

  QuantizeReport run() {
    check_method(options_);
    plan_ = compress::plan_quantization(checkpoint_, options_);
    take_up();
    try {
      return make();
    } catch (const Error& error) {
      if (kept_ && is_worth_keeping(error)) kept_->stay();
      throw;
    } catch (const std::bad_alloc&) {
      if (kept_) kept_->stay();
      throw;
    }
  }

 private:
  /// Finds out what an earlier run has kept.
  void take_up() {
    if (!options_.keep_layers) return;
    compress::refuse_occupied(compress::target_of(out_));
    if (options_.calibration.empty()) return KeptLayers::remove_left(out_);
    weight_files_ = record_weights(checkpoint_, progress_);
    kept_.emplace(out_, compress::kept_fields(checkpoint_, options_, weight_files_));
    if (!kept_->note().empty()) progress_.note(kept_->note());
  }

  QuantizeReport make() {
    compress::ReplacementFolder folder(out_, kept_ ? kept_->result() : fs::path());
    KeptLayers* const kept = kept_ ? &*kept_ : nullptr;
    std::optional<compress::ReplacementFolder> widened;  // never takes a place
    std::string model = checkpoint_.path();
    if (!options_.calibration.empty() && compress::has_float8_layers(plan_)) {
      widened.emplace(out_, kept_ ? kept_->model() : fs::path());
      model = widened->path();
      compress::write_widened(checkpoint_, plan_, progress_, model);
    }
    if (const std::optional<double> bits = compress::mixed_bits(options_.scheme)) {
      compress::take_widths(checkpoint_, model, options_, *bits, plan_, kept, progress_);
    }
    Folds folds;
    QuantizeReport report = write_weights(checkpoint_, plan_, options_, model, kept, progress_,
                                          folder.path() + "/model.safetensors", folds);
    plan_.folded = folds.names();
    const model::AdapterFolds earlier(checkpoint_);
    for (const std::string& module : earlier.unknown()) {
      const std::string tensor = module + std::string(compress::kWeight);
      if (std::ranges::find(plan_.folded, tensor) == plan_.folded.end()) {
        plan_.folded.push_back(tensor);
      }
    }
    widened.reset();
    write_file_atomically(folder.path() + "/config.json",
                          compress::quantized_config_json(checkpoint_, plan_));
    result_names_ = {"config.json", "model.safetensors"};
    const std::string folds_name =
        compress::write_folds(checkpoint_, earlier, folds, folder.path());
    if (!folds_name.empty()) result_names_.push_back(folds_name);
    add_side_files(folder.path());
    if (options_.evaluate) report.evaluation = options_.evaluate(folder.path());
    const std::string facts = options_.facts ? options_.facts(folder.path()) : "{}";
    write_manifest(folder.path(), report, facts);
    if (options_.finish) options_.finish(folder.path());
    folder.commit();
    return report;
  }

  void add_side_files(const std::string& folder) {
    const auto add_text = [&](const std::string& name, const std::string& text) {
      if (text.empty()) return;
      write_file_atomically(folder + "/" + name, text);
      result_names_.push_back(name);
    };
    if (checkpoint_.is_gguf()) {
      add_text("generation_config.json", checkpoint_.generation_config_json());
      add_text("tokenizer.json", checkpoint_.tokenizer_json());
      add_text("tokenizer_config.json", checkpoint_.tokenizer_config_json());
      return;
    }
    source_files_.push_back(compress::record_file(in_, "config.json"));
    for (const char* name :
         {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
          "special_tokens_map.json", "chat_template.jinja", "tekken.json", "tiktoken.model"}) {
      const std::string path = in_ + "/" + name;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      add_text(name, read_text_file(path, kMaxSideFileBytes));
      source_files_.push_back(compress::record_file(in_, name));
    }
  }

  void write_manifest(const std::string& folder, const QuantizeReport& report,
                      const std::string& facts) {
    if (!kept_) weight_files_ = record_weights(checkpoint_, progress_);
    source_files_.insert(source_files_.end(), weight_files_.begin(), weight_files_.end());
    std::vector<compress::FileRecord> result_files;
    for (const std::string& name : result_names_) {
      result_files.push_back(compress::record_file(folder, name));
    }
    const std::string source_name =
        options_.source_name.empty() ? compress::last_part(in_) : options_.source_name;
    write_file_atomically(folder + "/vitrine_manifest.json",
                          compress::manifest_json(plan_, options_, report, source_name,
                                                  source_files_, result_files, facts));
  }

  const std::string& in_;
  const std::string& out_;
  const QuantizeOptions& options_;
  const Checkpoint checkpoint_;
  compress::QuantizePlan plan_;
  ProgressTeller progress_{options_};
  std::optional<KeptLayers> kept_;
  std::vector<compress::FileRecord> weight_files_, source_files_;
  std::vector<std::string> result_names_;
};

}  // namespace

QuantizeReport quantize_checkpoint(const std::string& in, const std::string& out,
                                   const QuantizeOptions& options) {
  return CheckpointQuantizer(in, out, options).run();
}

}  // namespace vitrine
