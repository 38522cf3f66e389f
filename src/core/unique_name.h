// SPDX-License-Identifier: Apache-2.0
// Private to the library: names of objects whose initialiser is all that matters.
#pragma once

#define VITRINE_JOIN_NAMES(one, other) one##other
#define VITRINE_JOIN_VALUES(one, other) VITRINE_JOIN_NAMES(one, other)
/// `prefix` and a number that no other use has, also where several files are compiled as one.
#define VITRINE_UNIQUE_NAME(prefix) VITRINE_JOIN_VALUES(prefix, __COUNTER__)
