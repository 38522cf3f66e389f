// SPDX-License-Identifier: Apache-2.0
// The reference path is a library of its own, loaded when a model asks for it, so that a process
// that runs the fused kernels never maps libtorch. The backend includes this header; the engine
// links nothing of the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/run/executor.h"
#include "model/float_weights.h"

namespace vitrine::engine {

/// What a backend makes an executor from. `adapters` outlive it, the rest need not.
struct ReferenceInputs {
  const ops::Graph& graph;
  const AuditLayout& layout;
  const EngineOptions& options;  // sizes resolved: no zeros
  int64_t num_blocks = 0;
  std::unique_ptr<model::FloatWeights> weights;
  struct KvLayer {
    DType type = DType::kF32;
    bool rounds_to_integers = false;
  };
  std::vector<KvLayer> kv;  // [layers]
  int64_t rope_half = 0;
  const float* rope_cos = nullptr;  // [max_context, rope_half]
  const float* rope_sin = nullptr;
  // Half the rotated width in layers that slide, where these have frequencies of their own; else 0.
  int64_t sliding_half = 0;
  const float* sliding_cos = nullptr;  // [max_context, sliding_half]
  const float* sliding_sin = nullptr;
  const ops::AdapterWeights* adapters = nullptr;  // null where there are none
  uint64_t adapter_bytes = 0;
  int64_t adapter_parameters = 0;
  ops::TapBook* taps = nullptr;  // null where nothing is tapped; outlives the executor
  int64_t num_states = 0;        // slots for states of sequences
};

inline constexpr const char* kReferenceLibrary = "libvitrine_torch.so";
inline constexpr const char* kReferenceSymbol = "vitrine_torch_make_executor";

}  // namespace vitrine::engine

/// The backend's function that makes an executor, which the caller deletes. It throws kUnavailable
/// where the device is not here, and what reading the weights throws. The symbol is null in a
/// program that does not hold the backend.
extern "C" __attribute__((weak, visibility("default"))) vitrine::engine::Executor*
vitrine_torch_make_executor(vitrine::engine::ReferenceInputs& inputs);
