// SPDX-License-Identifier: Apache-2.0
#include "serve/host_error.h"

#include <exception>
#include <string>

namespace vitrine::serve {

Error host_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorKind::kInternal, std::string("the host's code threw: ") + error.what());
  } catch (...) {
    return Error(ErrorKind::kInternal, "the host's code threw something that is no exception");
  }
}

}  // namespace vitrine::serve
