// SPDX-License-Identifier: Apache-2.0
// Private to the room: the tables of a ledger's file.
#pragma once

#include "database.h"

namespace vitrine::ledger {

/// Makes the tables where the file has nothing in it yet. Throws kIo, and kBadFile for a file that
/// is no database.
void make_tables(const Database& database);

/// Brings a ledger of an older version to this one. Throws kBadFile for a file that is no ledger of
/// ours or of a newer version, kIo where an older one can't be written.
void bring_up_to_date(const Database& database);

}  // namespace vitrine::ledger
