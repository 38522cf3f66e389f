// SPDX-License-Identifier: Apache-2.0
// Sampling as llama-server's own routes name it.
#pragma once

#include "http/message.h"
#include "serve/openai_fields.h"
#include "vitrine/model.h"
#include "vitrine/sample.h"

namespace vitrine::http {

/// SamplerOptions as llama-server's routes have them where a body says nothing.
SamplerOptions native_sampler();

/// Reads them from a body. A seed that is not there, or -1, is drawn. Throws kInvalidArgument and
/// kUnsupported.
SamplerOptions read_native_sampler(const serve::Fields& fields, const Model& model);

/// "generation_settings", where nothing but these is said. `n_predict`: -1, without end.
Json native_settings(const SamplerOptions& sampler, int n_predict);

}  // namespace vitrine::http
