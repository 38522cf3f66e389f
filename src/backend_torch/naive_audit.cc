// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/naive_audit.h"

#include <utility>

#include "backend_torch/readback.h"

namespace vitrine::backend_torch {

void NaiveReferenceAudit::on_value(const at::Tensor& value) {
  const at::Tensor flat = value.reshape({-1}).to(at::kFloat).contiguous();
  std::vector<float> host(static_cast<size_t>(flat.numel()));
  read_back(readback_, host.data(), flat, flat.numel());
  values_.push_back(std::move(host));
}

std::vector<std::vector<float>> NaiveReferenceAudit::take() { return std::exchange(values_, {}); }

}  // namespace vitrine::backend_torch
