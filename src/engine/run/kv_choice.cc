// SPDX-License-Identifier: Apache-2.0
#include "engine/run/kv_choice.h"

#include <algorithm>

#include "engine/engine_options.h"
#include "engine/model_checks.h"

namespace vitrine::engine {

namespace {

[[noreturn]] void refuse_codecs(ErrorKind kind, const std::string& what) {
  throw Error(kind, "engine option 'kv_codecs' " + what);
}

void check_codec(const kv::CodecEntry& codec, const EngineOptions& options) {
  const std::string name(codec.name);
  if (runs_fused_on_cuda(options) && !codec.device_type) {
    refuse_codecs(ErrorKind::kUnsupported,
                  "names " + name +
                      ", which CUDA's fused kernels do not have; use f16 or bf16 (--kv-type f16 or "
                      "bf16)");
  }
  if (!runs_fused(options) && !codec.reference_type) {
    refuse_codecs(ErrorKind::kUnsupported,
                  "names " + name + ", which the reference path does not have; use f32");
  }
  const int length = options.kv_block_size;
  if (codec.has_one_length && length != 0 && length != codec.block_length) {
    throw Error(ErrorKind::kInvalidArgument,
                "engine option 'kv_block_size' is " + std::to_string(length) +
                    "; keys and values as " + name + " are in blocks of " +
                    std::to_string(codec.block_length) + "; expected that, or 0");
  }
}

// Names what attention asks for that its codec does not have; null: it has all.
const char* missing_feature(const ops::KvReads& reads, bool is_latent, const kv::CodecEntry& codec,
                            const EngineOptions& options) {
  if (codec.tiles != nullptr && is_latent) return "latent form";
  const bool has_window = reads.window > 0 && reads.window < options.max_context;
  if (has_window && !codec.has(KvFeature::kWindows)) return "windows";
  return reads.has_sinks && !codec.has(KvFeature::kSinks) ? "sinks" : nullptr;
}

// Checks the sizes of a codec that gives tiles against a layer's heads.
void check_tiles(const KvCodec& codec, int64_t head_dim, const EngineOptions& options) {
  const auto refuse = [&](const std::string& what) {
    refuse_codecs(ErrorKind::kUnsupported, "names " + std::string(codec.name()) + ", " + what);
  };
  if (head_dim > kernels::kMaxHeadDim) {
    refuse("whose tiles hold heads of " + std::to_string(kernels::kMaxHeadDim) +
           " elements; this model's have " + std::to_string(head_dim));
  }
  const auto dim = static_cast<int>(head_dim);
  const int64_t open = codec.open_bytes(dim), closed = codec.closed_bytes(dim);
  constexpr int64_t kLine = 64;
  if (open <= 0 || closed < 0 || open % kLine != 0 || closed % kLine != 0) {
    refuse("whose blocks of a head of " + std::to_string(head_dim) + " elements have " +
           std::to_string(open) + " bytes open and " + std::to_string(closed) +
           " closed; expected multiples of 64");
  }
  const bool chooses = closed > 0 && (codec.chooses_blocks() || codec.refines_blocks());
  const int64_t most = int64_t{kernels::kMaxChosenBlocks} * codec.block_length();
  if (chooses && options.max_context > most) {
    refuse("which chooses among the blocks of " + std::to_string(most) +
           " positions at most; expected a max_context up to that");
  }
}

// The CPU's fused kernels give a codec's attention windows and sinks; the other paths have their
// own.
void check_layers(const EngineOptions& options, const ops::Graph& graph) {
  for (const ops::OpNode& node : graph.nodes) {
    const auto reads = node.parameters->kv_reads();
    if (!reads) continue;
    const kv::CodecEntry& codec = kv_codec(options, node.layer);
    const char* lacks = missing_feature(*reads, graph.value_dim > 0, codec, options);
    if (lacks != nullptr) {
      refuse_codecs(ErrorKind::kUnsupported,
                    "names " + std::string(codec.name) + ", which knows no " + lacks +
                        " of attention; layer " + std::to_string(node.layer) +
                        " has it, so expected another there, as f32");
    }
    if (codec.tiles != nullptr) {
      check_tiles(*codec.tiles, graph.kv_shape(node.layer).head_dim, options);
    }
  }
}

}  // namespace

std::string default_kv_codec(const Device& device, const Checkpoint& checkpoint) {
  const bool has_quantized_weights = checkpoint.is_quantized() || has_packed_blocks(checkpoint);
  return device.kind == DeviceKind::kCpu && has_quantized_weights ? "i16" : "f32";
}

void resolve_kv_codecs(EngineOptions& options, const Checkpoint& checkpoint,
                       const ops::Graph& graph) {
  std::vector<std::string>& names = options.kv_codecs;
  if (names.empty()) names = {default_kv_codec(options.device, checkpoint)};
  if (names.size() > 1 && std::ssize(names) != graph.num_layers) {
    refuse_codecs(ErrorKind::kInvalidArgument, "has " + std::to_string(names.size()) +
                                                   " names; expected one, or one for each of " +
                                                   std::to_string(graph.num_layers) + " layers");
  }
  if (std::ranges::adjacent_find(names, std::not_equal_to()) == names.end()) names.resize(1);
  int length = 0;
  for (const std::string& name : names) {
    const kv::CodecEntry& codec = kv::find_codec(name);
    check_codec(codec, options);
    if (length != 0 && codec.block_length != length) {
      refuse_codecs(ErrorKind::kInvalidArgument,
                    "names codecs with blocks of " + std::to_string(length) + " and of " +
                        std::to_string(codec.block_length) +
                        " positions; expected one length, since all layers share a block table");
    }
    length = codec.block_length;
  }
  if (names.size() > 1 && runs_fused_on_cuda(options)) {
    refuse_codecs(
        ErrorKind::kUnsupported,
        "names another codec for some layers; CUDA's fused kernels keep all layers alike, "
        "so expected one name");
  }
  if (options.kv_block_size == 0) options.kv_block_size = length;
  if (options.device.kind == DeviceKind::kCpu && runs_fused(options)) check_layers(options, graph);
}

const kv::CodecEntry& kv_codec(const EngineOptions& options, int64_t layer) {
  const size_t last = options.kv_codecs.size() - 1;
  return kv::find_codec(options.kv_codecs[std::min(static_cast<size_t>(layer), last)]);
}

void require_codec_feature(const EngineOptions& options, KvFeature feature, const char* what) {
  for (const std::string& name : options.kv_codecs) {
    if (kv::find_codec(name).has(feature)) continue;
    refuse_codecs(ErrorKind::kUnsupported, "names " + name + ", which knows no " + what +
                                               "; expected another codec, or none of these");
  }
}

std::string kv_codec_name(const EngineOptions& options) {
  std::string all;
  for (const std::string& name : options.kv_codecs) all += (all.empty() ? "" : ",") + name;
  return all;
}

}  // namespace vitrine::engine

namespace vitrine {

std::vector<std::string> kv_codec_names() { return kv::codec_names(); }

}  // namespace vitrine
