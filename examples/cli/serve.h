// SPDX-License-Identifier: Apache-2.0
// Holds what `vitrine serve` was asked for, and declares what runs it.
#pragma once

#include <string>
#include <vector>

#include "common.h"
#include "kv_event_options.h"
#include "vitrine/http.h"

namespace cli {

/// The command's options.
struct ServeArguments {
  std::vector<std::string> models;  // PATH or NAME=PATH each
  std::string policy = "hrrn", drafter, key_file, alias;
  std::string chat_template, pooling = "mean";
  std::vector<std::string> api_keys, adapters;
  std::string prefix_store;
  uint64_t prefix_store_bytes = uint64_t{4} << 30;
  int streams = 16, context = 0;
  double step_ms = 0, drain_seconds = 10;
  bool embeddings = false, no_cache = false, no_logprobs = false, quiet = false;
  // The logs.
  std::string audit_dir, seal, audit_mode = "deferred", when_behind = "wait", on_error = "fail";
  std::vector<std::string> encrypt_for, redact;
  bool durable = false;
  KvEventArguments events;
  vitrine::HttpOptions http;
  DeviceOptions device;
};

/// Serves until a signal comes; returns the exit code. A build without libvitrine_http.so has one
/// that throws kUnavailable.
int run_serve(const ServeArguments& arguments);

}  // namespace cli
