// What audit replay runs a log with: the model or the federation that made it.
#pragma once

#include <memory>
#include <string>

#include "audit.h"
#include "audit_run.h"
#include "vitrine/group.h"

namespace cli {

/// How the model's files, or the federation's file and members, differ from those that the log
/// names; empty where they do not.
std::string other_model(const Run& run, const vitrine::Checkpoint& checkpoint);
std::string other_federation(const Run& run, const vitrine::FederationSpec& spec);

/// The federation file that the log names, or empty.
std::string logged_federation(const Run& run);

/// Loads it as the log was made: device, kernels, threads, types, and the instruction set where
/// this machine has it and the user chose none.
std::unique_ptr<vitrine::Engine> load_replayed(const Run& run, const std::string& path,
                                               const AuditArguments& arguments,
                                               bool is_other_model);
std::unique_ptr<vitrine::Federation> load_replayed(const Run& run,
                                                   const vitrine::FederationSpec& spec,
                                                   const AuditArguments& arguments);

}  // namespace cli
