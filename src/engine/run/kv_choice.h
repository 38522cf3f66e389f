// SPDX-License-Identifier: Apache-2.0
// Which codecs keep an engine's keys and values.
#pragma once

#include <string>

#include "kv/codec.h"
#include "ops/graph.h"
#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Returns what EngineOptions::kv_codecs names for this model where it is empty.
std::string default_kv_codec(const Device& device, const Checkpoint& checkpoint);

/// Names the codecs (one where all layers have the same) and the block length. The kernels and the
/// device and the context are resolved. Throws kInvalidArgument and kUnsupported, also for a codec
/// that cannot do what a layer's attention asks for.
void resolve_kv_codecs(EngineOptions& options, const Checkpoint& checkpoint,
                       const ops::Graph& graph);

/// Return a layer's codec by resolved options, and the names of all codecs as one ("i16",
/// "f32,i16").
const kv::CodecEntry& kv_codec(const EngineOptions& options, int64_t layer);
std::string kv_codec_name(const EngineOptions& options);

/// Throws kUnsupported, naming the codec, where one does not have a feature that a step asks for;
/// `what`: how the message calls it ("drafts in a tree").
void require_codec_feature(const EngineOptions& options, KvFeature feature, const char* what);

}  // namespace vitrine::engine
