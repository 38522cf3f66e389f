// SPDX-License-Identifier: Apache-2.0
// The method rtn: each weight becomes the nearest number. Texts say no more than how large the
// inputs become, for schemes that have a scale of these.
#include "inputs.h"

namespace vitrine::compress {
namespace {

class RtnMethod final : public LayerMethod {
 public:
  std::string_view obstacle(const QuantMethod&) const override { return ""; }
  bool needs_texts(const QuantMethod& scheme) const override {
    return scheme.activations == ActivationUse::kStatic;
  }

  void quantize(LayerWork& work) const override { round_layer(work); }
};

const RtnMethod kRtnMethod;
const LayerMethodRegistration kRtnRegistration("rtn", kRtnMethod);

}  // namespace
}  // namespace vitrine::compress
