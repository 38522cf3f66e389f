// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/forced_tensors.h"

#include "backend_torch/upload.h"

namespace vitrine::backend_torch {

void force_routes(const AuditLayout& layout,
                  const std::vector<std::span<const ForcedRoute>>& routes, at::Device device,
                  std::vector<at::Tensor>& ids, std::vector<at::Tensor>& weights) {
  const auto tokens = static_cast<int64_t>(routes.size());
  int64_t all_k = 0;
  std::vector<int64_t> first_of_layer;
  for (const AuditLayout::Layer& layer : layout.layers) {
    first_of_layer.push_back(all_k * tokens);
    all_k += layer.top_k;
  }
  std::vector<int64_t> all_ids(static_cast<size_t>(all_k * tokens), -1);
  std::vector<float> all_weights(all_ids.size(), ForcedRoute::kRouterWeight);
  for (int64_t token = 0; token < tokens; ++token) {
    int32_t layer = -1;
    size_t place = 0;
    for (const ForcedRoute& route : routes[static_cast<size_t>(token)]) {
      if (route.layer != layer) {
        layer = route.layer;
        const auto index = static_cast<size_t>(layer);
        place = static_cast<size_t>(first_of_layer[index] + token * layout.layers[index].top_k);
      }
      all_ids[place] = route.expert;
      all_weights[place++] = route.weight;
    }
  }
  const at::Tensor uploaded_ids = upload(all_ids, at::kLong, device);
  const at::Tensor uploaded_weights = upload(all_weights, at::kFloat, device);
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const int64_t top_k = layout.layers[i].top_k;
    auto part = [&](const at::Tensor& all) {
      return top_k == 0 ? at::Tensor()
                        : all.narrow(0, first_of_layer[i], tokens * top_k).view({tokens, top_k});
    };
    ids.push_back(part(uploaded_ids));
    weights.push_back(part(uploaded_weights));
  }
}

}  // namespace vitrine::backend_torch
