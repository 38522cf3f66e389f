// SPDX-License-Identifier: Apache-2.0
// Where events about blocks are published.
#pragma once

#include <cstddef>
#include <string>

namespace vitrine::http {

/// An address that a socket of ZeroMQ's is bound to.
struct KvEventEndpoint {
  /// Reads what `option` of KvEventOptions says. Throws kInvalidArgument for what is no such
  /// address, and for one that others than this machine's reach where `is_public` is not set.
  KvEventEndpoint(const std::string& option, const std::string& given, bool is_public);

  /// Returns the address of the model of that number. Throws kInvalidArgument where its port would
  /// be none.
  std::string of_model(size_t number) const;

  std::string option;
  bool is_ipc = false;
  std::string place;  ///< the path, or the host
  int port = 0;       ///< 0: one that is free
};

}  // namespace vitrine::http
