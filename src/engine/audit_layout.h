// Where each audit value of a model's passes lies.
#pragma once

#include "ops/graph.h"
#include "vitrine/core.h"

namespace vitrine::engine {

AuditLayout make_audit_layout(const ops::Graph& graph, AuditMode mode, AuditLevel level);

}  // namespace vitrine::engine
