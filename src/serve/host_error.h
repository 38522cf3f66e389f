// SPDX-License-Identifier: Apache-2.0
// What a host's code threw, as an Error.
#pragma once

#include "vitrine/core.h"

namespace vitrine::serve {

/// Returns the exception that is being handled; one that is no Error becomes kInternal.
Error host_error();

}  // namespace vitrine::serve
