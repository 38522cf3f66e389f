// SPDX-License-Identifier: Apache-2.0
// The recorder done wrong, on purpose (ops/naive_audit.h), on the reference path: each by-product
// is brought to the host where it appears.
#pragma once

#include <vector>

#include "backend_torch/reference.h"
#include "ops/readback.h"

namespace vitrine::backend_torch {

class NaiveReferenceAudit : public ReferenceHook {
 public:
  explicit NaiveReferenceAudit(ops::Readback& readback) : readback_(readback) {}
  void on_value(const at::Tensor& value) override;
  /// Everything read so far, in order, as float32 (ids too); then forgets it.
  std::vector<std::vector<float>> take();

 private:
  ops::Readback& readback_;
  std::vector<std::vector<float>> values_;
};

}  // namespace vitrine::backend_torch
