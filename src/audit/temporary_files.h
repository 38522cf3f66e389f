// SPDX-License-Identifier: Apache-2.0
// The temporary files that logs are written to: their names, and what becomes of those that are
// left.
#pragma once

#include <cstdint>
#include <string>

namespace vitrine::audit {

/// Returns ".vitrine-PID-NUMBER.tmp", with this process's id.
std::string temporary_name(uint32_t number);
/// Marks an open temporary as being written, until it is closed: a lock that other processes see,
/// also where their process ids are not ours. Where the file system has no locks nothing happens.
void mark_in_use(int descriptor) noexcept;
/// Removes from the folder the temporaries that killed processes left: files of exactly such a
/// name, of this user, that nobody has written to for a minute or marks as in use, and whose
/// process is no more. All of that must hold, since a folder may be shared with machines and
/// containers whose processes are not seen from here. What cannot be read or removed stays.
void remove_left_temporaries(const std::string& folder) noexcept;

}  // namespace vitrine::audit
