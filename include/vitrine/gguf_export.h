// SPDX-License-Identifier: Apache-2.0
// The room `compress`: a model as a GGUF file, which llama.cpp and its like run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// How much the squared error of each column of a matrix counts: the mean square of what it was
/// multiplied with. By the tensor's name in the GGUF file ("blk.0.ffn_down_exps.weight"); of
/// stacked experts one expert behind another.
struct ImportanceMatrix {
  /// Holds what one tensor has.
  struct Entry {
    std::vector<float> mean_squares;  ///< [experts, columns]; 1 expert where it is one matrix
    std::vector<int64_t> counts;  ///< [experts] rows that were added; 0: the squares say nothing
  };
  std::map<std::string, Entry> entries;  ///< by the tensor's name in the GGUF file
};

/// Runs texts (token ids, each a context of its own) through a model on the CPU's fused kernels and
/// adds up what its layers' matrices are multiplied with. `threads` 0: all; no bit hangs on it.
/// Throws what Engine::load and its steps throw, kUnsupported for a model that is not written to
/// GGUF files. Thread-safe.
VITRINE_API ImportanceMatrix measure_importance(const std::string& model,
                                                const std::vector<std::vector<int32_t>>& texts,
                                                int threads = 0, bool lenient_weights = false);

/// Writes one as llama-imatrix does, whole or not at all: a GGUF file, or, where the path ends in
/// ".dat", the older form, which ik_llama.cpp reads. That one has one number of calls for all
/// experts of a tensor, ones for an expert that no row reached, and no tensor without rows.
/// `source` is the name of the texts, `texts` how many of `length` tokens there were. Throws kIo.
/// Thread-safe.
VITRINE_API void write_importance_matrix(const std::string& path, const ImportanceMatrix& matrix,
                                         const std::string& source, int64_t texts, int64_t length);

/// Reads what llama-imatrix writes: a GGUF file (`NAME.in_sum2`, `NAME.counts`), or the older
/// `.dat`. Throws kIo, kBadFile.
VITRINE_API ImportanceMatrix read_importance_matrix(const std::string& path);

/// How a model becomes a GGUF file.
struct GgufExportOptions {
  /// Names what the matrices become, as llama-quantize does: all the same ("f32", "f16", "bf16",
  /// "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q3_k", "q4_k", "q5_k", "q6_k"), or a mixture by its
  /// rules, in which the head and some of the values, downs and outputs of attention have more bits
  /// ("q4_k_m", "iq4_xs"). gguf_export_types() has all.
  std::string type = "bf16";
  bool pure = false;                             ///< every matrix of a mixture is what most are
  std::string name = {};                         ///< general.name; empty: last part of the path
  const ImportanceMatrix* importance = nullptr;  ///< not owned; null: none
  int threads = 0;                               ///< 0: all. The file hangs on it in no bit
  /// Called before each tensor (done, total, name). May throw: nothing is left.
  std::function<void(int64_t done, int64_t total, std::string_view tensor)> progress = {};
};

/// Tells what a tensor became.
struct GgufTensorReport {
  std::string name;             ///< in the file
  std::string type;             ///< "f32", "q4_k", …
  bool had_importance = false;  ///< whether the importance matrix said how columns count
};

/// Tells what export_gguf() did.
struct GgufExportReport {
  std::vector<GgufTensorReport> tensors;  ///< in the order of the file
  uint64_t bytes = 0;                     ///< of all tensors
  std::vector<std::string> unused;        ///< tensors of the importance matrix that the model lacks
  std::vector<std::string> unreached;     ///< experts that no row reached, as the file names them
};

/// Writes the model of a folder of floats (F32, F16, BF16, or E4M3 with its scales) as a GGUF file
/// with its tokenizer and chat template: what llama.cpp's converter makes of it, and llama-quantize
/// of that. Norms, biases and routers stay float32; a matrix whose columns a type's blocks do not
/// divide becomes q8_0, or f16 where these do not either. A folder without a tokenizer gives a file
/// without, which few programs load. `out` appears whole or not at all.
///
/// Throws kInvalidArgument (an unknown type, a file that exists, a matrix of iq2_xxs, iq2_xs, iq2_s
/// or iq3_xxs without importances), kUnsupported (a model or a
/// tokenizer that such files do not say, quantized integers), and what reading and writing throws.
/// Thread-safe.
VITRINE_API GgufExportReport export_gguf(const std::string& in, const std::string& out,
                                         const GgufExportOptions& options);

/// Returns the types that export_gguf() writes.
VITRINE_API std::vector<std::string> gguf_export_types();

}  // namespace vitrine
