// SPDX-License-Identifier: Apache-2.0
// A build without ZeroMQ.
#include "vitrine/http.h"

namespace vitrine {

struct KvEventPublisher::State {};

KvEventPublisher::KvEventPublisher(KvEventOptions /*options*/,
                                   std::vector<std::string> /*models*/) {
  throw Error(ErrorKind::kUnavailable,
              "this build publishes no events about blocks; expected one with ZeroMQ (Debian's "
              "libzmq3-dev)");
}
KvEventPublisher::~KvEventPublisher() = default;
bool KvEventPublisher::on_blocks(const std::string& /*model*/,
                                 std::vector<KvBlockEvent> /*events*/) noexcept {
  return false;
}
const std::vector<std::string>& KvEventPublisher::endpoints() const {
  static const std::vector<std::string> none;
  return none;
}
const std::vector<std::string>& KvEventPublisher::replay_endpoints() const { return endpoints(); }

}  // namespace vitrine
