// SPDX-License-Identifier: Apache-2.0
// The room `checkpoint`: Hugging Face model folders, read and written; GGUF files, read; what their
// config says of a model.
//
// Nothing here trusts a file: every length, offset and shape is checked (overflow too) before it is
// used. Errors are vitrine::Error with one line that names the file, the field, what was found and
// what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/core.h"
#include "vitrine/quant.h"

namespace vitrine {

/// A tensor of a checkpoint. Where a file holds the experts of a layer fused in one 3-D tensor,
/// `Checkpoint` lists one virtual tensor per expert and projection that points into it:
///
///     model.layers.N.block_sparse_moe.input_linear.weight  [E, 2I, H]  (granitemoe)
///       -> model.layers.N.block_sparse_moe.experts.{e}.gate_proj.weight, .up_proj.weight [I, H]
///     model.layers.N.block_sparse_moe.output_linear.weight [E, H, I]
///       -> model.layers.N.block_sparse_moe.experts.{e}.down_proj.weight                  [H, I]
///     model.layers.N.mlp.experts.gate_up_proj [E, 2I, H], .down_proj [E, H, I]  (transformers 5)
///       -> model.layers.N.mlp.experts.{e}.gate_proj.weight, .up_proj.weight, .down_proj.weight
///     model.layers.N.mlp.experts.gate_up_proj [E, H, 2I], .down_proj [E, I, H], with biases beside
///     them (gpt_oss; the columns of gate and up take turns), or ….gate_up_proj_blocks
///     [E, 2I, H / 32, 16] and _scales [E, 2I, H / 32] in MXFP4
///       -> the same, and model.layers.N.mlp.experts.{e}.gate_proj.bias, …
///     model.layers.N.experts.gate_up_proj [E, 2I, H], .down_proj [E, H, I]  (gemma4)
///       -> model.layers.N.experts.{e}.gate_proj.weight, .up_proj.weight, .down_proj.weight
///
/// The fused tensor itself is then not listed. A wrapper's text model (`model.language_model.*`,
/// `language_model.model.*`) goes by the names that it has in a folder of its own.
///
/// A tensor of a GGUF file goes by its Hugging Face name, and reads as Hugging Face would store it:
/// blocks as float32, rows that the file permutes for RoPE in Hugging Face's order.
struct TensorInfo {
  std::string name;            ///< Hugging Face's
  DType dtype = DType::kF32;   ///< of its values as they are read
  std::vector<int64_t> shape;  ///< row-major, outermost first
  uint64_t file_offset = 0;    ///< absolute byte offset in the file
  uint64_t num_bytes = 0;      ///< dtype_size(dtype) * product of shape
  int file_index = 0;          ///< position in Checkpoint::weight_files()
  std::string fused_from;      ///< name of the fused tensor in the file; empty for a plain tensor

  uint64_t stored_bytes = 0;  ///< bytes in the file: num_bytes unless there is a block_format
  const BlockFormat* block_format = nullptr;  ///< how a GGUF file stores it; null: as `dtype`
  /// Multiplies each of its values as it is read: the scale of a whole NVFP4 matrix, which a GGUF
  /// file keeps in a tensor of its own. read_blocks() and map() show what is not yet multiplied.
  float multiplier = 1.0F;
  /// Strides in bytes, for a part of a fused tensor whose elements lie scattered (gpt_oss): element
  /// c of row r lies `row_stride` * r + `col_stride` * c bytes behind file_offset. Where the file
  /// stores blocks, c counts blocks. Their scales lie apart then, one byte each, `scale_row_stride`
  /// bytes to a row. 0: row after row.
  uint64_t row_stride = 0, col_stride = 0;  ///< see row_stride
  int scale_file_index = 0;                 ///< where scales lie apart
  uint64_t scale_offset = 0;                ///< as file_offset
  uint64_t scale_row_stride = 0;            ///< 0: no scales lie apart

  /// Rows of a head, where the file is interleaved; else 0. Within each head the file holds row i
  /// of the first half and row i of the second half side by side (the layout of RoPE over
  /// neighbours).
  int64_t interleaved_head_rows = 0;

  /// "BF16", "Q4_0", …: how the file stores it.
  std::string_view storage_name() const {
    return block_format != nullptr ? block_format->name : dtype_name(dtype);
  }
};

namespace checkpoint {
class ModuleLayout;
}

/// What `quantization_config` says of one module.
struct QuantizedModule {
  NumberFormat number_format = NumberFormat::kInteger;  ///< of a stored number
  int bits = 0;                                         ///< of a stored number
  int group_size = 0;     ///< columns that share a scale; 0: all of a row
  int block_rows = 1;     ///< rows that share a scale (kE4M3); 0: all
  bool symmetric = true;  ///< false: the module has a tensor of zero points
  ActivationUse activations = ActivationUse::kFloat;  ///< what its integers are multiplied with
  std::string_view format = "pack-quantized";         ///< the format's name for people
  const checkpoint::ModuleLayout* layout = nullptr;   ///< how its tensors hold the numbers
};

/// The tensors of a quantized module, checked against each other and `quantization_config`. Their
/// pointers are valid as long as a copy of the checkpoint.
///
/// Rows read as one of three things, whatever the file's format: integers of 3, 4 or 8 bits with a
/// scale and maybe a zero point for each group (QuantizedRows), 8-bit floats with scales
/// (kE4M3), or, where no kernel takes them, floats (`floats`).
///
/// `is_in_place`: the rows stand in the file so. Integers: `numbers` is I32 [rows, ceil(cols * bits
/// / 32)] as compressed-tensors packs it: each value plus 2^(bits-1), the first in the lowest bits
/// of a row's first word. `scales` is [rows, groups()]; `zero_points` null, I8 [rows, groups()], or
/// I32 packed along the rows. kE4M3: `numbers` is F8_E4M3 [rows, cols], `scales` has one for each
/// block.
struct VITRINE_API QuantizedTensors {
  NumberFormat number_format = NumberFormat::kInteger;  ///< of a number as rows are read
  int bits = 8;                                         ///< of a number as rows are read
  int group_size = 32;  ///< columns that share a scale as rows are read: 128 of kE4M3
  int64_t rows = 0;     ///< of the matrix
  int64_t cols = 0;     ///< of the matrix
  int block_rows = 1;   ///< kE4M3: rows and columns that share a stored scale; 0: all
  int block_cols = 0;   ///< see block_rows
  const TensorInfo* numbers = nullptr;      ///< the stored numbers
  const TensorInfo* scales = nullptr;       ///< of the groups or blocks
  const TensorInfo* zero_points = nullptr;  ///< of the groups; null: all zero
  std::vector<const TensorInfo*> others;    ///< what else of the module's is read

  std::string_view format;          ///< the file's format: "awq", "gptq_v2", "nvfp4-pack-quantized"
  int stored_bits = 8;              ///< of a number in the file
  int64_t stored_group = 0;         ///< columns that share a scale in the file
  DType scale_dtype = DType::kF32;  ///< of the scales as rows are read
  bool is_in_place = false;         ///< rows stand in the file as they are read
  std::optional<DType> floats = {};   ///< F32 or BF16: rows are floats, which holds them exactly
  std::string_view widened_for = {};  ///< why they are floats; empty where they are not
  /// The blocks as which rows that are floats read without loss, too, times `multiplier`
  /// (Checkpoint::read_quantized_blocks), for kernels that take them; null: none.
  const BlockFormat* blocks = nullptr;
  float multiplier = 1.0f;  ///< of `blocks`; else 1
  /// Says what the file asks of int8 activations: a scale for each token, or `input_scale`; kFloat:
  /// nothing, so that each group of a token has one.
  ActivationUse activations = ActivationUse::kFloat;
  float input_scale = 0.0f;  ///< of kStatic: above 0
  /// Holds the group of each column, where columns of a group do not lie side by side (act-order).
  std::shared_ptr<const std::vector<int32_t>> column_groups = nullptr;
  const checkpoint::ModuleLayout* layout = nullptr;  ///< what reads them

  /// Returns the groups of a row as rows are read.
  int64_t groups() const { return cols / group_size + (cols % group_size != 0 ? 1 : 0); }
  /// Returns the groups of a row in the file.
  int64_t stored_groups() const { return (cols + stored_group - 1) / stored_group; }
  /// Returns "int4, groups of 128, with zero points", "bf16 (its groups of 48 …)": what it runs as.
  std::string runs_as() const;
  /// Returns the bytes of its tensors in the file.
  uint64_t file_bytes() const;
  /// Returns the bytes that its numbers, scales and zero points take in memory, tiles filled up.
  uint64_t memory_bytes() const;
};

/// Holds rows of a module of integers: weight[r][c] = (u - 2^(bits-1) - zero_points[r][g]) *
/// scales[r][g], u being the number and g = c / group_size.
struct QuantizedRows {
  std::vector<int32_t> words;       ///< [rows, ceil(cols * bits / 32)], low bits first
  std::vector<float> scales;        ///< [rows, groups], exact in QuantizedTensors::scale_dtype
  std::vector<int8_t> zero_points;  ///< [rows, groups]; empty: all zero
};

/// A Hugging Face model folder or a GGUF file, open for reading.
///
///     Checkpoint checkpoint = Checkpoint::open("models/fractalmoe-30m");
///     ModelFacts facts = read_model_facts(checkpoint);
///     std::vector<float> norm = checkpoint.read_f32("model.norm.weight");
///
/// Immutable after `open`; any number of threads may read at once (positional reads; only map()
/// maps).
/// Cheap to copy: copies share the open files.
class VITRINE_API Checkpoint {
 public:
  /// Reads config.json and the headers of model.safetensors, or of the shards that
  /// model.safetensors.index.json names. Weights stay on disk. Throws kInvalidArgument where
  /// nothing is at `path`, kIo where a file can't be read, kBadFile where its content breaks the
  /// format, kUnsupported for a valid dtype or quantization that this build can't read.
  ///
  /// A file instead of a folder is read as GGUF (version 2 or 3, little-endian). A split file is
  /// given by its first part, and the others lie beside that. Metadata becomes config.json,
  /// generation_config. json and tokenizer.json; kUnsupported too for an architecture that isn't
  /// mapped.
  static Checkpoint open(const std::string& path);

  Checkpoint(const Checkpoint&);
  Checkpoint& operator=(const Checkpoint&);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// Returns the folder or file, as given to `open`.
  const std::string& path() const;
  /// Returns true for a GGUF file, false for a folder.
  bool is_gguf() const;
  /// Text of config.json (valid JSON object).
  const std::string& config_json() const;
  /// What stands for config.json in messages: its path, or the GGUF file's metadata.
  const std::string& config_name() const;
  /// Text of generation_config.json (valid JSON object); empty where there is none.
  const std::string& generation_config_json() const;
  /// Text of tokenizer.json, read or made when it is asked for; empty where there is none. Throws
  /// kIo, kBadFile, kUnsupported (a GGUF file whose tokenizer can't be mapped).
  std::string tokenizer_json() const;
  /// What stands for tokenizer.json in messages.
  std::string tokenizer_name() const;
  /// Path of tokenizer.json; empty where there is none, and for a GGUF file.
  const std::string& tokenizer_path() const;
  /// Text of tokenizer_config.json, read or made when it is asked for (valid JSON object; empty
  /// where there is none): `chat_template` is that of chat_template.jinja where the folder has one,
  /// and special tokens that only special_tokens_map.json names are there too. For a GGUF file it
  /// has the metadata's templates and special tokens. Throws kIo, kBadFile.
  std::string tokenizer_config_json() const;
  /// What stands for the chat template's file in messages.
  std::string tokenizer_config_name() const;
  /// Paths of the weight files, in order of name.
  const std::vector<std::string>& weight_files() const;

  /// All tensors, in order of name.
  const std::vector<TensorInfo>& tensors() const;
  /// The tensor of that name, or null.
  const TensorInfo* find(std::string_view name) const;
  /// The tensor of that name. Throws kBadFile naming the folder and the tensor.
  const TensorInfo& require(std::string_view name) const;
  /// The tensor of that name, which must have this shape. Throws kBadFile naming both shapes.
  const TensorInfo& require(std::string_view name, std::span<const int64_t> shape) const;

  /// The tensor of that name, which must be a vector of this length, or a matrix of one such row.
  /// Throws kBadFile naming both shapes.
  const TensorInfo& require_vector(std::string_view name, int64_t length) const;

  /// Reads all bytes of a tensor; `out.size()` must be `info.num_bytes`. Throws kIo.
  void read(const TensorInfo& info, std::span<std::byte> out) const;
  /// Reads `out.size()` bytes from `byte_offset` within the tensor. Throws kIo.
  void read(const TensorInfo& info, uint64_t byte_offset, std::span<std::byte> out) const;
  /// Reads whole rows of a tensor with a block_format as the file stores their blocks, from row
  /// `row_begin` of the tensor on (all extents but the last counted through). Throws kIo, or
  /// kInvalidArgument for a tensor without blocks, a part of a row, or rows that it hasn't.
  void read_blocks(const TensorInfo& info, int64_t row_begin, std::span<std::byte> out) const;
  /// Has the system begin to read a tensor that will be read soon, so that several are under way at
  /// once; a hint that may do nothing. Thread-safe.
  void read_ahead(const TensorInfo& info) const noexcept;
  /// The tensor's bytes as the file stores them, in the file's mapping: valid as long as a copy of
  /// this, and only while the file keeps its size (check_unchanged, MappedFileGuard). Empty where
  /// they cannot be used in place: rows in another order, or, unless `any_alignment`, values that
  /// are not aligned. Throws kIo.
  std::span<const std::byte> map(const TensorInfo& info, bool any_alignment = false) const;
  /// Throws kIo where a weight file has become shorter since it was opened (a mapped one also for a
  /// moment that a MappedFileGuard saw), or was written to. Takes a system call for each file.
  void check_unchanged() const;
  /// A tensor's name in its file: GGUF files have names of their own, tensors() those of Hugging
  /// Face.
  std::string name_in_file(std::string_view tensor) const;
  /// Reads a F32, F16 or BF16 tensor widened to float32, row-major. Throws kBadFile for a missing
  /// tensor, kUnsupported for another dtype.
  std::vector<float> read_f32(std::string_view name) const;
  /// Reads a tensor that tensors() listed in the same way.
  std::vector<float> read_f32(const TensorInfo& info) const;
  /// Throws what read_f32 throws for a tensor of another dtype, without reading it.
  void require_floats(const TensorInfo& info) const;

  /// Returns true where config.json has a `quantization_config` (its format was checked by `open`).
  /// A GGUF file has none, whatever its blocks.
  bool is_quantized() const;
  /// What the folder's `quantization_config` says of a module ("model.layers.0.self_attn.q_proj");
  /// nothing where it is ignored, not targeted, or the folder isn't quantized.
  std::optional<QuantizedModule> quantized_module(std::string_view base_name) const;
  /// Returns what `quantization_config` asks for beside weights (activations in few bits, scales of
  /// keys and values), and what is done about it; one line each.
  std::vector<std::string> quantization_notes() const;
  /// Returns the tensor that holds the quantized numbers of a module: `{base}.weight_packed`,
  /// `.qweight`, `.q_weight`, `.compressed`, or `.weight` of dtype F8_E4M3, I8 or U8; null where
  /// there is none.
  const TensorInfo* find_quantized(std::string_view base_name) const;
  /// Finds the tensors of a quantized module: that of find_quantized with what stands beside it;
  /// nothing where find_quantized finds none. Reads nothing but shapes, and the groups of columns.
  /// Throws kBadFile where they disagree with each other or with `quantization_config`,
  /// kUnsupported for what they cannot have beside them.
  std::optional<QuantizedTensors> find_quantized_tensors(std::string_view base_name) const;
  /// Reads the rows from `row_begin` to `row_end` - 1 of a module of integers. Throws kIo, kBadFile
  /// for a zero point that is out of range or a scale that is not finite, kInvalidArgument for rows
  /// that it hasn't, or that are no integers.
  QuantizedRows read_quantized_rows(const QuantizedTensors& tensors, int64_t row_begin,
                                    int64_t row_end) const;
  /// Reads those rows of any quantized module as float32, row-major: what the file means, each
  /// product rounded once. Throws as read_quantized_rows.
  std::vector<float> read_quantized_floats(const QuantizedTensors& tensors, int64_t row_begin,
                                           int64_t row_end) const;
  /// Reads those rows as the blocks of QuantizedTensors::blocks, row after row. Throws kIo,
  /// kBadFile for a scale that is negative or no number, kInvalidArgument for a module without
  /// blocks.
  std::vector<std::byte> read_quantized_blocks(const QuantizedTensors& tensors, int64_t row_begin,
                                               int64_t row_end) const;
  /// Reads the scales of the rows from `row_begin` to `row_end` - 1, one for each group: [rows,
  /// groups()]. Throws kIo, kBadFile for one that is not finite, kInvalidArgument for rows that it
  /// hasn't.
  std::vector<float> read_quantized_scales(const QuantizedTensors& tensors, int64_t row_begin,
                                           int64_t row_end) const;
  /// Reads the zero points of those rows, [rows, groups()], in the range of the values; empty where
  /// all are zero. Throws kIo, kBadFile for one that is out of range.
  std::vector<int8_t> read_quantized_zero_points(const QuantizedTensors& tensors, int64_t row_begin,
                                                 int64_t row_end) const;
  /// Reads a whole quantized module; nothing where find_quantized finds none. Throws as the three
  /// above, and kBadFile for what is no number.
  std::optional<QuantizedMatrix> read_quantized(std::string_view base_name) const;

  struct Impl;

 private:
  explicit Checkpoint(std::shared_ptr<const Impl> impl);
  std::optional<QuantizedTensors> find_lone_quantized(std::string_view base_name) const;
  std::shared_ptr<const Impl> impl_;
};

/// Keeps a process alive whose mapped checkpoint is truncated by somebody else while it is read.
///
/// Without it such a read ends the process (SIGBUS). While one of these exists, what the file no
/// longer has reads as zeros, and the step that read it throws kIo (EngineOptions::mmap_weights).
/// Serves hosts: it installs a handler of SIGBUS for the process, hands on what does not concern a
/// mapped checkpoint, and puts the handler that was there before back. Thread-safe. Covers up to
/// 1,024 mapped files.
class VITRINE_API MappedFileGuard {
 public:
  MappedFileGuard();
  ~MappedFileGuard();
  MappedFileGuard(const MappedFileGuard&) = delete;
  MappedFileGuard& operator=(const MappedFileGuard&) = delete;
};

/// What a checkpoint's config says that a host may need before it loads the model. ModelSummary has
/// the rest.
struct ModelFacts {
  std::string model_type;               ///< "qwen3_moe"; no judgement whether it can run
  int64_t vocab_size = 0;               ///< ids that the embedding has
  int64_t hidden_size = 0;              ///< width of the residual stream
  int64_t num_layers = 0;               ///< decoder blocks
  int64_t max_position_embeddings = 0;  ///< positions that the model was made for
  std::vector<int64_t> eos_token_ids;   ///< ascending; config.json and generation_config.json
};

/// Reads the facts of an open checkpoint. Throws kBadFile for a field of its config that is
/// missing, of the wrong type or out of range, kUnsupported for a valid one that Vitrine can't run.
/// Thread-safe.
VITRINE_API ModelFacts read_model_facts(const Checkpoint& checkpoint);

/// Writes one safetensors file: declare all tensors, then write their bytes in any order.
///
///     SafetensorsWriter writer("out/model.safetensors");
///     writer.declare("weight", DType::kF32, {2, 3});
///     writer.begin({{"format", "pt"}});
///     writer.write("weight", bytes);
///     writer.finish();
///
/// Bytes go to a temporary file beside the target; `finish` flushes it to disk and renames it over
/// the target. Without `finish` (an error, an early exit) the temporary file is removed and an
/// older target stays whole. Not thread-safe.
class VITRINE_API SafetensorsWriter {
 public:
  /// Opens nothing yet: begin() makes the temporary file.
  explicit SafetensorsWriter(std::string path);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Adds a tensor. Throws kInvalidArgument for a name given twice, a negative or overflowing
  /// shape, or after `begin`.
  void declare(const std::string& name, DType dtype, std::vector<int64_t> shape);
  /// Writes the header. Throws kIo.
  void begin(const std::vector<std::pair<std::string, std::string>>& metadata = {});
  /// Writes the next bytes of a tensor (little-endian, row-major), all at once or piece by piece.
  /// Throws kInvalidArgument for an unknown name or more bytes than declared, kIo.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// Makes the file. Throws kInvalidArgument where a declared tensor isn't complete, kIo.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Replaces a file's content at once or not at all (temporary file, flush to disk, rename).
/// Throws kIo.
VITRINE_API void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);
/// Does the same with text.
VITRINE_API void write_file_atomically(const std::string& path, std::string_view text);

/// The whole of a file of at most `max_bytes`. Throws kIo, or kBadFile where it is larger.
VITRINE_API std::string read_text_file(const std::string& path, uint64_t max_bytes);

/// SHA-256 of a file's content, 64 lower-case hexadecimal digits. Throws kIo.
VITRINE_API std::string sha256_of_file(const std::string& path);
/// SHA-256 of a text's bytes, likewise.
VITRINE_API std::string sha256_of_text(std::string_view text);

}  // namespace vitrine
