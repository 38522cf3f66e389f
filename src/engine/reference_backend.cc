// SPDX-License-Identifier: Apache-2.0
#include "engine/reference_backend.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "core/shared_library.h"
#include "engine/device_backend.h"
#include "engine/run/kv_choice.h"

namespace vitrine::engine {

namespace {

using MakeReference = decltype(&vitrine_torch_make_executor);

MakeReference find_reference(const Device& device) {
  static std::once_flag once;
  static MakeReference make = nullptr;
  static std::string reason;
  std::call_once(once, [] {
    make = vitrine_torch_make_executor;  // of a program that is linked with it
    if (make != nullptr) return;
    make = reinterpret_cast<MakeReference>(
        find_library_symbol(kReferenceLibrary, kReferenceSymbol, RTLD_NOW | RTLD_LOCAL, reason));
  });
  if (make != nullptr) return make;
  const bool is_cpu = device.kind == DeviceKind::kCpu;
  throw Error(ErrorKind::kUnavailable,
              (is_cpu ? "the reference kernels need " : "device '" + device.name() + "' needs ") +
                  std::string(kReferenceLibrary) + ", which could not be loaded (" + reason +
                  "); build it with scripts/build all, or use " +
                  (is_cpu ? "--kernels fused" : "--device cpu"));
}

}  // namespace

std::unique_ptr<Executor> make_reference_executor(const ExecutorInputs& inputs) {
  const Device& device = inputs.options.device;
  if (device.kind == DeviceKind::kCuda) require_cuda_device(device);
  const MakeReference make = find_reference(device);
  std::vector<float> cos, sin, sliding_cos, sliding_sin;
  constexpr auto kOwn = model::RopeKind::kOwn, kSliding = model::RopeKind::kSliding;
  EngineOptions options = inputs.options;
  if (!inputs.makes_context) options.max_context = 1;  // of the pass that loads the weights
  fill_rope_tables(inputs.config, options, cos, sin, kOwn);
  fill_rope_tables(inputs.config, options, sliding_cos, sliding_sin, kSliding);
  ReferenceInputs given{inputs.graph,
                        inputs.layout,
                        options,
                        inputs.makes_context ? inputs.num_blocks : 0,
                        model::make_float_weights(inputs.checkpoint),
                        {},
                        model::rope_half(inputs.config, kOwn),
                        cos.data(),
                        sin.data(),
                        sliding_cos.empty() ? 0 : model::rope_half(inputs.config, kSliding),
                        sliding_cos.data(),
                        sliding_sin.data()};
  for (int64_t layer = 0; layer < inputs.graph.num_layers; ++layer) {
    const kv::CodecEntry& codec = kv_codec(inputs.options, layer);
    given.kv.push_back({*codec.reference_type, codec.reference_rounds_to_integers});
  }
  if (inputs.adapters != nullptr) {
    given.adapters = inputs.adapters;
    given.adapter_bytes = inputs.adapters->num_bytes();
    given.adapter_parameters = inputs.adapters->num_parameters();
  }
  given.taps = inputs.taps;
  given.num_states = inputs.makes_context ? inputs.num_states : 0;
  return std::unique_ptr<Executor>(make(given));
}

}  // namespace vitrine::engine
