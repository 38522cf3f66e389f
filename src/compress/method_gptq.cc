// SPDX-License-Identifier: Apache-2.0
// The method gptq: each weight's error is made up for in those behind it (gptq.h).
#include <set>

#include "gptq.h"
#include "inputs.h"

namespace vitrine::compress {
namespace {

class GptqMethod final : public LayerMethod {
 public:
  std::string_view obstacle(const QuantMethod& scheme) const override {
    return scheme.number_format == NumberFormat::kInteger ? "" : "int8, int4 or int3";
  }

  void quantize(LayerWork& work) const override {
    const GptqOptions options;
    InputRanges ranges(work);
    std::set<const SiteMatrix*> done;
    for_each_inputs(work, [&](std::span<const SiteMatrix* const> matrices, const Inputs& inputs) {
      const GptqFactor factor(inputs.hessian, inputs.width, options);
      for (const SiteMatrix* matrix : matrices) {
        const PlannedTensor& planned = *work.find(matrix->module);
        const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
        if (cols != inputs.width) {
          throw Error(ErrorKind::kInternal, "matrix " + planned.module + " has " +
                                                std::to_string(cols) + " columns and inputs of " +
                                                std::to_string(inputs.width));
        }
        const std::vector<float> weights = work.weights(planned);
        const int group = planned.group_size == 0 ? static_cast<int>(cols) : planned.group_size;
        const QuantScheme scheme{planned.method->bits, group, planned.method->symmetric};
        GptqResult result =
            gptq(weights, rows, cols, planned.dtype, scheme, factor, options, work.threads());
        work.finish(planned, weights, std::move(result.matrix),
                    {.rows_seen = inputs.rows_seen,
                     .shrinkage = inputs.shrinkage,
                     .loss = result.loss,
                     .damping = factor.damping(),
                     .input_range = ranges.of(planned, *matrix)});
        done.insert(matrix);
      }
    });
    // Experts that no token reached have the range of what the others meet.
    for (const SiteMatrix& matrix : work.layer().matrices) {
      const PlannedTensor* planned = work.find(matrix.module);
      const bool has_range =
          planned != nullptr && planned->method->activations == ActivationUse::kStatic;
      if (has_range && !done.contains(&matrix)) round_matrix(work, ranges, matrix);
    }
  }
};

const GptqMethod kGptqMethod;
const LayerMethodRegistration kGptqRegistration("gptq", kGptqMethod);

}  // namespace
}  // namespace vitrine::compress
