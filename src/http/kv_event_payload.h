// SPDX-License-Identifier: Apache-2.0
// Events about blocks as vLLM's subscribers read them.
#pragma once

#include <span>
#include <string>

#include "vitrine/kv_events.h"

namespace vitrine::http {

/// Returns a batch as msgpack: [seconds since 1970, [events], 0, the rank]. An event is a map with
/// its "type", or an array that its type stands first in.
std::string kv_event_payload(double seconds, std::span<const KvBlockEvent> events, bool as_arrays);

}  // namespace vitrine::http
