// SPDX-License-Identifier: Apache-2.0
// Families of models: what the files of one family hold that others' do not, and what a config that
// leaves a key out means. The room `model` registers each in the file of its architecture; this
// room reads every file by what is registered, and knows no family itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "decoder_config.h"
#include "fields.h"
#include "gguf_model.h"
#include "model_config.h"

namespace vitrine::checkpoint {

/// A model that sees or hears, whose `text_config` is a text model of a family.
struct Wrapper {
  std::string_view type;  ///< the wrapper's model_type, which a text model's config may have too
  bool is_tied = false;   ///< where neither config says whether the head is the embedding
};

/// What the files of a family hold.
struct Family {
  /// `model_type` of config.json; all are read alike. The first stands where a file names none.
  std::vector<std::string_view> model_types;
  /// JSON object of the values that transformers 5.23 has for keys which a config leaves out, of
  /// the keys that are read. tests/engine/absent_keys.py finds what comes of each.
  const char* defaults = "{}";
  std::string_view epsilon = "rms_norm_eps";  ///< name of the field of that meaning
  /// Reads what not all families have: heads, RoPE, windows and feed-forward blocks. Vocabulary,
  /// sizes, layers, epsilon and dtype are set. Throws kBadFile and kUnsupported naming the field.
  void (*read_config)(const Fields& fields, ModelConfig& config) = read_decoder_config;
  std::vector<Wrapper> wrappers = {};             ///< models around a text model of the family
  std::vector<GgufArchitecture> gguf_forms = {};  ///< empty: it is not read from GGUF files
  /// Why models of the family do not run, for messages; empty: they do.
  std::string_view refusal = {};
};

/// Makes a family known; called by static initialisers. The `model_type` of its GGUF forms becomes
/// the family's first. Returns false where one of its names is taken (find_family() throws then).
bool register_family(Family family);

/// Returns the family of a `model_type`; null where none is registered.
const Family* find_family(std::string_view model_type);

/// Returns all families, in the order of their names. They stay where they are.
std::vector<const Family*> all_families();

}  // namespace vitrine::checkpoint
