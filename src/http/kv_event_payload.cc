// SPDX-License-Identifier: Apache-2.0
#include "http/kv_event_payload.h"

#include "http/message.h"

namespace vitrine::http {

namespace {

// What vLLM calls the memory that steps read, on every device.
constexpr const char* kMedium = "GPU";

// The fields in vLLM's order, which arrays go by.
Json fields_of(const KvBlockEvent& event) {
  switch (event.kind) {
    case KvBlockEvent::Kind::kRemoved:
      return {{"type", "BlockRemoved"}, {"block_hashes", event.blocks}, {"medium", kMedium}};
    case KvBlockEvent::Kind::kCleared: return {{"type", "AllBlocksCleared"}};
    case KvBlockEvent::Kind::kStored: break;
  }
  const bool has_adapter = event.adapter >= 0;
  return {{"type", "BlockStored"},
          {"block_hashes", event.blocks},
          {"parent_block_hash", event.parent != 0 ? Json(event.parent) : Json(nullptr)},
          {"token_ids", event.tokens},
          {"block_size", event.block_size},
          {"lora_id", has_adapter ? Json(event.adapter + 1) : Json(nullptr)},
          {"medium", kMedium},
          {"lora_name", has_adapter ? Json(event.adapter_name) : Json(nullptr)}};
}

}  // namespace

std::string kv_event_payload(double seconds, std::span<const KvBlockEvent> events, bool as_arrays) {
  Json all = Json::array();
  for (const KvBlockEvent& event : events) {
    Json fields = fields_of(event);
    if (as_arrays) {
      Json values = Json::array();
      for (auto& value : fields) values.push_back(std::move(value));
      fields = std::move(values);
    }
    all.push_back(std::move(fields));
  }
  std::string payload;
  Json::to_msgpack(Json::array({seconds, std::move(all), 0}), payload);
  return payload;
}

}  // namespace vitrine::http
