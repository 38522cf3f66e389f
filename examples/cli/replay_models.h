// SPDX-License-Identifier: Apache-2.0
// What audit replay runs a log with: the model or the federation that made it.
#pragma once

#include <memory>
#include <string>

#include "audit.h"
#include "audit_run.h"
#include "model_hashes.h"
#include "vitrine/federation_engine.h"

namespace cli {

/// How the model's files, or the federation's file and members, differ from those that the log
/// names; empty where they do not.
std::string other_model(const vitrine::LogHeader& log, const vitrine::Checkpoint& checkpoint,
                        HashCache cache = HashCache::kUse);
std::string other_federation(const vitrine::LogHeader& log, const vitrine::FederationSpec& spec,
                             HashCache cache = HashCache::kUse);
/// Why the model or federation at `path` is not known to be the log's; empty where it is. Reads
/// every file.
std::string model_problem(const vitrine::LogHeader& log, const std::string& path);

/// The federation file that the log names, or empty.
std::string logged_federation(const vitrine::LogHeader& log);

/// Loads it as the log was made: device, kernels, threads, types, and the instruction set where
/// this machine has it and the user chose none.
std::unique_ptr<vitrine::Engine> load_replayed(const Run& run, const std::string& path,
                                               const AuditArguments& arguments,
                                               bool is_other_model);
std::unique_ptr<vitrine::Federation> load_replayed(const Run& run,
                                                   const vitrine::FederationSpec& spec,
                                                   const AuditArguments& arguments);

}  // namespace cli
