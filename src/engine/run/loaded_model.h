// SPDX-License-Identifier: Apache-2.0
// What an engine loads: a model, what runs its passes, and memory for its sequences.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/engine_options.h"
#include "engine/run/engine_threads.h"
#include "engine/run/executor.h"
#include "engine/run/features.h"
#include "engine/run/kv_budget.h"
#include "kv/block_pool.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// What an engine is loaded for.
struct LoadRequest {
  enum class Reading { kCheck, kDescribe, kLoad };
  Reading reading = Reading::kLoad;
  const DeviceJointSpec* joint = nullptr;  // what a device shall make of a step's rows
  bool record_rows = true;  // false: records say nothing of rows, which somebody else records
  int draft_layer = -1;     // the only layer that is loaded, one of those that draft; -1: the model

  bool is_draft_layer() const { return draft_layer >= 0; }
  bool is_load() const { return reading == Reading::kLoad; }
};

/// A model that is loaded, or only described. It stays where it is, since its parts and whoever
/// steps it refer to each other. Not thread-safe.
struct LoadedModel {
  LoadedModel(const std::string& path, const EngineOptions& given, const LoadRequest& request);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  /// Returns how many adapters a sequence may name.
  int num_adapters() const { return static_cast<int>(options.adapters.size()); }
  /// Returns the loaded adapter that a sequence goes through which names `adapter`. For -1 that is
  /// the sum of EngineOptions::lora where there is one.
  int32_t loaded_adapter(int adapter) const {
    return adapter < 0 && !options.lora.empty() ? num_adapters() : adapter;
  }
  /// Returns whether a sampler's stages may choose on the device.
  bool samples_on_device() const;

  Checkpoint checkpoint;
  ModelConfig config;
  ops::Graph graph;
  EngineOptions options;  // with what stands for defaults
  AuditLayout layout;
  std::optional<model::LoraAdapters> adapters;
  std::optional<ops::TapBook> taps;  // none where nothing is tapped
  FeatureRows features;
  std::shared_ptr<EngineThreads> threads;
  std::unique_ptr<Executor> executor;
  KvBlocks kv_blocks;
  kv::BlockPool pool;
  ModelSummary summary;
  TensorUse tensor_use;  // empty for a draft layer alone
};

}  // namespace vitrine::engine
