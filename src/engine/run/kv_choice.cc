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

void check_codec(const kv::KvCodec& codec, const EngineOptions& options) {
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

// The CPU's fused kernels give a codec's attention windows and sinks; the other paths have their
// own.
void check_layers(const EngineOptions& options, const ops::Graph& graph) {
  for (const ops::OpNode& node : graph.nodes) {
    const auto reads = node.parameters->kv_reads();
    if (!reads) continue;
    const kv::KvCodec& codec = kv_codec(options, node.layer);
    const bool has_window = reads->window > 0 && reads->window < options.max_context;
    const char* lacks = has_window && !codec.sees_windows       ? "windows"
                        : reads->has_sinks && !codec.sees_sinks ? "sinks"
                                                                : nullptr;
    if (lacks == nullptr) continue;
    refuse_codecs(ErrorKind::kUnsupported,
                  "names " + std::string(codec.name) + ", which knows no " + lacks +
                      " of attention; layer " + std::to_string(node.layer) +
                      " has them, so expected another there, as f32");
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
    const kv::KvCodec& codec = kv::find_codec(name);
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

const kv::KvCodec& kv_codec(const EngineOptions& options, int64_t layer) {
  const size_t last = options.kv_codecs.size() - 1;
  return kv::find_codec(options.kv_codecs[std::min(static_cast<size_t>(layer), last)]);
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
