// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "checkpoint/gguf_export.h"
#include "core/run_pieces.h"
#include "documents.h"
#include "gguf_mixture.h"
#include "plan.h"
#include "quant/block_quantizer.h"
#include "source_rows.h"
#include "stored_form.h"
#include "vitrine/gguf_export.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockRows = 64;  // of a matrix, which a thread makes

/// What a matrix's values become.
struct TensorType {
  std::string name;
  uint32_t ggml_type = 0;
  int64_t block_size = 1, block_bytes = 0;
  std::optional<DType> dtype;                        // of a float type
  const quant::BlockQuantizer* quantizer = nullptr;  // of blocks

  uint64_t row_bytes(int64_t cols) const {
    return static_cast<uint64_t>(cols / block_size * block_bytes);
  }
};

const std::map<std::string, TensorType, std::less<>>& float_types() {
  static const std::map<std::string, TensorType, std::less<>> types = {
      {"f32", {"f32", 0, 1, 4, DType::kF32}},
      {"f16", {"f16", 1, 1, 2, DType::kF16}},
      {"bf16", {"bf16", 30, 1, 2, DType::kBF16}}};
  return types;
}

TensorType type_of(std::string_view name) {
  const auto plain = float_types().find(name);
  if (plain != float_types().end()) return plain->second;
  const quant::BlockQuantizer* quantizer = quant::find_block_quantizer(name);
  const BlockFormat* format = find_block_format(quantizer->ggml_type);
  return {std::string(name),   format->ggml_type, format->block_size,
          format->block_bytes, std::nullopt,      quantizer};
}

/// The tensors of the source that one of the file is made of: one, or a layer's experts in order.
struct Part {
  std::string name;
  std::vector<const TensorInfo*> sources;
  TensorType type;
  std::vector<int64_t> shape;  // slowest first
  int64_t head_rows = 0;  // above 0: rows of a head, to be put as RoPE over neighbours has them
};

class GgufExporter {
 public:
  GgufExporter(const std::string& in, const std::string& out, const GgufExportOptions& options)
      : checkpoint_(Checkpoint::open(in)),
        options_(options),
        out_(out),
        config_(parse_model_config(checkpoint_)),
        form_(checkpoint::gguf_form_of(checkpoint_, config_)),
        mixture_(compress::find_mixture(options.type)),
        writer_(out) {}

  GgufExportReport run() {
    refuse_occupied();
    compress::refuse_integers(checkpoint_);
    plan();
    const std::string name =
        options_.name.empty() ? compress::last_part(checkpoint_.path()) : options_.name;
    checkpoint::set_model_keys(form_, config_, name, mixture_.file_type, writer_);
    if (!checkpoint_.tokenizer_json().empty()) {
      checkpoint::set_tokenizer_keys(checkpoint_, config_, writer_);
    }
    for (const Part& part : parts_) {
      const auto rows = static_cast<uint64_t>(
          std::max<int64_t>(1, product(part.shape) / std::max<int64_t>(1, part.shape.back())));
      const uint64_t bytes = rows * part.type.row_bytes(part.shape.back());
      writer_.declare(part.name, part.type.ggml_type, part.shape, bytes);
      report_.bytes += bytes;
    }
    writer_.begin();
    for (const Part& part : parts_) write(part);
    writer_.finish();
    name_unused();
    return std::move(report_);
  }

 private:
  static int64_t product(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }

  void refuse_occupied() const {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(out_, error))) return;
    throw Error(ErrorKind::kInvalidArgument, out_ + ": exists; expected a new file");
  }

  void plan() {
    std::map<std::string, size_t> numbers;
    for (const TensorInfo& info : checkpoint_.tensors()) {
      if (config_.tie_word_embeddings && info.name == "lm_head.weight") continue;
      if (compress::belongs_to_float8(checkpoint_, info.name)) continue;
      const std::string name = checkpoint::gguf_tensor_name(form_, info.name);
      if (name == info.name) {
        throw Error(ErrorKind::kUnsupported, checkpoint_.path() + ": tensor '" + info.name +
                                                 "' has no name in GGUF files of " +
                                                 std::string(form_.name) +
                                                 "; expected a model without it");
      }
      const auto [found, is_new] = numbers.emplace(name, parts_.size());
      if (is_new) parts_.push_back({name, {}, {}, {}, 0});
      parts_[found->second].sources.push_back(&info);
    }
    for (Part& part : parts_) complete(part);
  }

  void complete(Part& part) {
    const std::vector<int64_t>& shape = part.sources.front()->shape;
    const bool is_stacked = part.name.find("_exps.") != std::string::npos;
    if (is_stacked) {
      // Names sort "10" before "2".
      std::ranges::sort(part.sources, {}, [](const TensorInfo* info) {
        return std::pair(info->name.size(), info->name);
      });
      if (std::ssize(part.sources) != config_.num_experts) {
        throw Error(ErrorKind::kBadFile, checkpoint_.path() + ": '" + part.name + "' is made of " +
                                             std::to_string(part.sources.size()) +
                                             " experts; expected " +
                                             std::to_string(config_.num_experts));
      }
      part.shape.push_back(config_.num_experts);
    }
    part.shape.insert(part.shape.end(), shape.begin(), shape.end());
    if (part.name.find("ffn_gate_inp_shexp") != std::string::npos) part.shape = {shape.back()};
    const bool is_query = part.name.find(".attn_q.") != std::string::npos;
    const bool is_key = part.name.find(".attn_k.") != std::string::npos;
    if (form_.interleaved_rope && (is_query || is_key)) part.head_rows = config_.head_dim;
    part.type = choose_type(part);
    const bool has_importance = importance_of(part) != nullptr;
    if (!has_importance && compress::needs_importance(part.type.name, part.name)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "'" + part.name + "' becomes " + part.type.name +
                      ", which is of no use without importances; expected an importance matrix "
                      "that has it: `vitrine calibrate MODEL --calibration FILE --imatrix FILE` "
                      "makes one");
    }
    report_.tensors.push_back({part.name, part.type.name, has_importance});
  }

  TensorType choose_type(const Part& part) const {
    if (part.shape.size() == 1 || part.name.find("ffn_gate_inp") != std::string::npos) {
      return type_of("f32");
    }
    const TensorType wanted =
        type_of(options_.pure ? mixture_.base
                              : compress::mixture_type(mixture_, part.name, config_,
                                                       options_.importance != nullptr));
    const int64_t cols = part.shape.back();
    if (cols % wanted.block_size == 0) return wanted;
    const TensorType other = type_of("q8_0");
    return cols % other.block_size == 0 ? other : type_of("f16");
  }

  const ImportanceMatrix::Entry* importance_of(const Part& part) const {
    if (options_.importance == nullptr || part.type.quantizer == nullptr) return nullptr;
    const auto found = options_.importance->entries.find(part.name);
    if (found == options_.importance->entries.end()) return nullptr;
    const auto columns = static_cast<size_t>(part.shape.back());
    if (found->second.mean_squares.size() != columns * part.sources.size()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "importance matrix: '" + part.name + "' has " +
                      std::to_string(found->second.mean_squares.size()) +
                      " columns; expected those of this model, " +
                      std::to_string(columns * part.sources.size()));
    }
    return &found->second;
  }

  void write(const Part& part) {
    if (options_.progress) {
      options_.progress(written_, std::ssize(parts_), part.name);
    }
    ++written_;
    for (size_t i = 0; i < part.sources.size(); ++i) write_source(part, i);
  }

  /// The values of a tensor, [rows, cols].
  std::vector<float> read(const TensorInfo& info) const {
    compress::PlannedTensor planned;
    planned.source = &info;
    planned.dtype = planned.is_widened() ? DType::kF32 : info.dtype;
    if (!planned.is_widened()) return checkpoint_.read_f32(info);
    compress::SourceRows rows(checkpoint_, planned);
    const int64_t count = product(info.shape);
    std::vector<float> values(static_cast<size_t>(count));
    widen_to_f32(rows.read(0, info.shape[0]).data(), planned.dtype, count, values.data());
    return values;
  }

  void write_source(const Part& part, size_t number) {
    const TensorInfo& info = *part.sources[number];
    std::vector<float> values = read(info);
    const int64_t cols = info.shape.back();
    const int64_t rows = cols == 0 ? 0 : std::ssize(values) / cols;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      throw Error(ErrorKind::kBadFile, checkpoint_.path() + ": tensor '" + info.name + "': value " +
                                           std::to_string(i) + " is not finite; expected a number");
    }
    if (part.head_rows > 0) values = by_neighbours(values, part.head_rows, info.shape);
    if (part.type.dtype)
      return writer_.write(part.name, compress::narrow(values, *part.type.dtype));
    const float* importance = nullptr;
    if (const ImportanceMatrix::Entry* entry = importance_of(part)) {
      const size_t counted = std::min(number, std::max<size_t>(1, entry->counts.size()) - 1);
      if (!entry->counts.empty() && entry->counts[counted] > 0) {
        importance = entry->mean_squares.data() + static_cast<int64_t>(number) * cols;
      } else {
        report_.unreached.push_back(part.name + "[" + std::to_string(number) + "]");
      }
    }
    const uint64_t row_bytes = part.type.row_bytes(cols);
    std::vector<std::byte> blocks(static_cast<size_t>(rows) * row_bytes);
    const auto make_rows = [&](size_t piece) {
      const int64_t begin = static_cast<int64_t>(piece) * kBlockRows;
      for (int64_t row = begin; row < std::min(rows, begin + kBlockRows); ++row) {
        part.type.quantizer->quantize(values.data() + row * cols, cols / part.type.block_size,
                                      importance,
                                      blocks.data() + static_cast<uint64_t>(row) * row_bytes);
      }
    };
    core::run_pieces(compress::thread_count(options_.threads),
                     static_cast<size_t>((rows + kBlockRows - 1) / kBlockRows),
                     [&] { return make_rows; });
    writer_.write(part.name, blocks);
  }

  /// Row i of a head's first half becomes its row 2i, and of its second half 2i + 1.
  static std::vector<float> by_neighbours(const std::vector<float>& values, int64_t head_rows,
                                          const std::vector<int64_t>& shape) {
    const int64_t cols = shape.size() == 1 ? 1 : shape.back();
    std::vector<float> out(values.size());
    for (int64_t row = 0; row < shape[0]; ++row) {
      const int64_t head = row / head_rows, in_head = row % head_rows, half = head_rows / 2;
      const int64_t to =
          head * head_rows + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
      std::copy_n(values.begin() + row * cols, cols, out.begin() + to * cols);
    }
    return out;
  }

  void name_unused() {
    if (options_.importance == nullptr) return;
    for (const auto& [name, entry] : options_.importance->entries) {
      const auto is_it = [&tensor = name](const Part& part) { return part.name == tensor; };
      if (std::ranges::none_of(parts_, is_it)) report_.unused.push_back(name);
    }
  }

  Checkpoint checkpoint_;
  const GgufExportOptions& options_;
  const std::string& out_;
  ModelConfig config_;
  const checkpoint::GgufArchitecture& form_;
  const compress::Mixture& mixture_;
  checkpoint::GgufWriter writer_;
  std::vector<Part> parts_;
  int64_t written_ = 0;
  GgufExportReport report_;
};

}  // namespace

GgufExportReport export_gguf(const std::string& in, const std::string& out,
                             const GgufExportOptions& options) {
  return GgufExporter(in, out, options).run();
}

std::vector<std::string> gguf_export_types() {
  std::vector<std::string> names;
  for (const compress::Mixture& mixture : compress::mixtures()) names.emplace_back(mixture.name);
  return names;
}

}  // namespace vitrine
