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

  void quantize(LayerWork& work) const override {
    for (const SiteMatrix& matrix : work.layer().matrices) {
      const PlannedTensor* planned = work.find(matrix.module);
      const SiteRows& site = work.site(matrix.site);
      if (planned == nullptr || site.rows.count() == 0) continue;
      const std::vector<float> weights = work.weights(*planned);
      work.finish(*planned, weights, work.round(*planned, weights),
                  {.rows_seen = std::ssize(rows_of(site, matrix.expert)),
                   .largest_input = largest_of(site)});
    }
  }
};

const RtnMethod kRtnMethod;
const LayerMethodRegistration kRtnRegistration("rtn", kRtnMethod);

}  // namespace
}  // namespace vitrine::compress
