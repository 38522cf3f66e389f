// SPDX-License-Identifier: Apache-2.0
// The options of engines that are compared, on the CPU and on the emulated device.
#pragma once

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {

inline EngineOptions options_on(bool is_cuda) {
  EngineOptions options = test_options(1);
  options.max_context = 96;
  options.max_sequences = 4;
  options.max_step_tokens = 16;
  options.max_logit_rows = 16;
  options.keep_logits = false;
  options.kernels = KernelPath::kFused;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  options.kv_codecs = {"f32"};  // CUDA's default
  if (is_cuda) options.device = Device::parse("cuda");
  return options;
}

}  // namespace vitrine::testing
