// SPDX-License-Identifier: Apache-2.0
// Runs as Parquet tables, written by Apache Arrow. A library of its own, so that nothing else needs
// Arrow.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/schema.h>
#include <parquet/arrow/writer.h>
#include <parquet/encryption/encryption.h>

#include "audit/parquet_backend.h"

namespace vitrine::audit {
namespace {

constexpr int64_t kRowGroup = 65536;

void check(const arrow::Status& status, const std::string& path) {
  if (status.ok()) return;
  std::string reason = status.message();
  reason = reason.substr(0, reason.find('\n'));
  if (status.detail()) reason += " (" + status.detail()->ToString() + ")";
  throw Error(status.IsOutOfMemory() ? ErrorKind::kOutOfMemory : ErrorKind::kIo,
              path + ": cannot be written: " + reason);
}

/// Columns that a reader could put the text together from: also routes and norms, by which whoever
/// has the model finds each token, hidden states ("values") and terms.
bool tells_text(const std::string& column) {
  const std::string name = column.substr(0, column.find('.'));
  for (const char* known : {"routed_experts",
                            "routed_weights",
                            "residual_norms",
                            "expert",
                            "weight",
                            "score",
                            "selection_key",
                            "token_id",
                            "token",
                            "bytes",
                            "logprob",
                            "top_logprobs",
                            "entropy",
                            "next_token_id",
                            "runner_up_id",
                            "values",
                            "value",
                            "runner_up_value",
                            "sampler_candidates",
                            "sampler_probability",
                            "constraint_allowed",
                            "constraint_removed",
                            "constraint_first_ruled_out",
                            "joint",
                            "log_normaliser",
                            "share"}) {
    if (name == known) return true;
  }
  return false;
}

arrow::util::SecureString secure(std::string key) {
  return arrow::util::SecureString(std::move(key));
}

/// Names the key for Arrow's and Spark's key tools ("key material", version PKMT1): their KMS
/// client is asked to unwrap nothing under this name, and answers with the key.
std::string key_metadata(const std::string& name, bool is_footer_key) {
  return R"({"keyMaterialType":"PKMT1","internalStorage":true,"isFooterKey":)" +
         std::string(is_footer_key ? R"(true,"kmsInstanceID":"DEFAULT","kmsInstanceURL":"DEFAULT")"
                                   : "false") +
         R"(,"masterKeyID":")" + name + R"(","doubleWrapping":false,"wrappedDEK":"none"})";
}

/// Every column is encrypted; the keys' names stand in the file for whoever looks them up.
std::shared_ptr<parquet::FileEncryptionProperties> encryption_of(const ParquetKeys& keys,
                                                                 const arrow::Schema& schema,
                                                                 const std::string& path) {
  if (keys.footer.empty()) return nullptr;
  parquet::FileEncryptionProperties::Builder builder(secure(keys.footer));
  builder.footer_key_metadata(key_metadata("footer", true));
  if (keys.text.empty()) return builder.build();
  std::shared_ptr<parquet::SchemaDescriptor> columns;
  check(parquet::arrow::ToParquetSchema(&schema, *parquet::default_writer_properties(), &columns),
        path);
  parquet::ColumnPathToEncryptionPropertiesMap encrypted;
  for (int i = 0; i < columns->num_columns(); ++i) {
    const std::string column = columns->Column(i)->path()->ToDotString();
    parquet::ColumnEncryptionProperties::Builder of;
    if (tells_text(column)) of.key(secure(keys.text))->key_metadata(key_metadata("text", false));
    encrypted[column] = of.build();
  }
  return builder.encrypted_columns(std::move(encrypted))->build();
}

/// One file: builders, by the order of the schema's fields, and the writer that empties them.
class Table {
 public:
  Table(const ParquetTables& tables, const std::string& name, const arrow::FieldVector& fields)
      : path_(tables.final_folder + "/" + name) {
    std::vector<std::string> keys, values;
    for (const auto& [key, value] : tables.metadata) {
      keys.push_back(key);
      values.push_back(value);
    }
    schema_ = arrow::schema(fields, arrow::key_value_metadata(keys, values));
    auto builders = arrow::RecordBatchBuilder::Make(schema_, arrow::default_memory_pool());
    check(builders.status(), path_);
    builders_ = std::move(*builders);
    auto file = arrow::io::FileOutputStream::Open(tables.folder + "/" + name);
    check(file.status(), path_);
    file_ = *file;
    const auto properties = parquet::WriterProperties::Builder()
                                .compression(parquet::Compression::ZSTD)
                                ->encryption(encryption_of(tables.keys, *schema_, path_))
                                ->build();
    const auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    auto writer = parquet::arrow::FileWriter::Open(*schema_, arrow::default_memory_pool(), file_,
                                                   properties, arrow_properties);
    check(writer.status(), path_);
    writer_ = std::move(*writer);
  }

  template <typename Builder>
  Builder& column(int index) {
    return *builders_->GetFieldAs<Builder>(index);
  }
  /// Checks the status of what appended to a column.
  void operator()(const arrow::Status& status) const { check(status, path_); }

  void end_rows(int64_t count) {
    rows_ += count;
    if (rows_ >= kRowGroup) flush();
  }
  void finish() {
    flush();
    check(writer_->AddKeyValueMetadata(schema_->metadata()), path_);
    check(writer_->Close(), path_);
    check(file_->Close(), path_);
  }

 private:
  void flush() {
    if (rows_ == 0) return;
    auto batch = builders_->Flush();
    check(batch.status(), path_);
    check(writer_->WriteRecordBatch(**batch), path_);
    check(writer_->NewBufferedRowGroup(), path_);
    rows_ = 0;
  }

  std::string path_;
  std::shared_ptr<arrow::Schema> schema_;
  std::unique_ptr<arrow::RecordBatchBuilder> builders_;
  std::shared_ptr<arrow::io::FileOutputStream> file_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
  int64_t rows_ = 0;
};

std::shared_ptr<arrow::DataType> alternative_type() {
  return arrow::struct_(
      {arrow::field("token", arrow::utf8()), arrow::field("logprob", arrow::float32()),
       arrow::field("bytes", arrow::binary()), arrow::field("token_id", arrow::int32())});
}

/// [MoE layer][slot]
std::shared_ptr<arrow::DataType> by_layer(const std::shared_ptr<arrow::DataType>& type) {
  return arrow::list(arrow::list(type));
}

class Backend final : public ParquetBackend {
 public:
  explicit Backend(const ParquetTables& tables)
      : source_(tables),
        text_of_(tables.text_of),
        tokens_(tables, "tokens.parquet",
                {arrow::field("sequence", arrow::uint64()),
                 arrow::field("position", arrow::int64()), arrow::field("token_id", arrow::int32()),
                 arrow::field("token", arrow::utf8()), arrow::field("bytes", arrow::binary()),
                 arrow::field("routed_experts", by_layer(arrow::int32())),
                 arrow::field("routed_weights", by_layer(arrow::float32())),
                 arrow::field("residual_norms", arrow::list(arrow::float32()))}),
        logprobs_(
            tables, "logprobs.parquet",
            {arrow::field("sequence", arrow::uint64()), arrow::field("position", arrow::int64()),
             arrow::field("generated", arrow::boolean()), arrow::field("token_id", arrow::int32()),
             arrow::field("token", arrow::utf8()), arrow::field("logprob", arrow::float32()),
             arrow::field("bytes", arrow::binary()),
             arrow::field("top_logprobs", arrow::list(alternative_type())),
             arrow::field("entropy", arrow::float32()),
             arrow::field("sampler_candidates", arrow::int32()),
             arrow::field("sampler_probability", arrow::float32()),
             arrow::field("constraint_allowed", arrow::int32()),
             arrow::field("constraint_removed", arrow::float32()),
             arrow::field("constraint_first_ruled_out", arrow::boolean()),
             arrow::field("constraint_limited", arrow::boolean()),
             arrow::field("constraint_attempt", arrow::int32()),
             arrow::field("constraint_mask_us", arrow::float32())}),
        routing_(
            tables, "routing.parquet",
            {arrow::field("sequence", arrow::uint64()), arrow::field("position", arrow::int64()),
             arrow::field("token_id", arrow::int32()), arrow::field("layer", arrow::int32()),
             arrow::field("slot", arrow::int32()), arrow::field("expert", arrow::int32()),
             arrow::field("weight", arrow::float32()), arrow::field("router", arrow::utf8()),
             arrow::field("score", arrow::float32()),
             arrow::field("selection_key", arrow::float32())}) {
    if (!tables.specialists.empty()) {
      federation_ = std::make_unique<Table>(
          tables, "federation.parquet",
          arrow::FieldVector{
              arrow::field("sequence", arrow::uint64()), arrow::field("position", arrow::int64()),
              arrow::field("generated", arrow::boolean()),
              arrow::field("next_token_id", arrow::int32()),
              arrow::field("specialist", arrow::utf8()), arrow::field("logprob", arrow::float64()),
              arrow::field("weight", arrow::float64()), arrow::field("share", arrow::float64()),
              arrow::field("joint", arrow::float64()),
              arrow::field("log_normaliser", arrow::float64()),
              arrow::field("residual", arrow::float64())});
    }
    if (!tables.has_attribution) return;
    arrow::FieldVector fields = {arrow::field("sequence", arrow::uint64()),
                                 arrow::field("position", arrow::int64()),
                                 arrow::field("next_token_id", arrow::int32()),
                                 arrow::field("part", arrow::utf8()),
                                 arrow::field("layer", arrow::int32()),
                                 arrow::field("expert", arrow::int32()),
                                 arrow::field("value", arrow::float32()),
                                 arrow::field("runner_up_id", arrow::int32()),
                                 arrow::field("runner_up_value", arrow::float32())};
    if (federation_) fields.push_back(arrow::field("specialist", arrow::utf8()));
    attribution_ = std::make_unique<Table>(tables, "attribution.parquet", fields);
  }

  void add(const TokenRecord& record) override {
    add_token(record);
    if (record.has_prediction) add_prediction(record);
    add_routes(record);
    if (attribution_) add_attribution(record);
    if (federation_) add_federation(record);
    if (!record.hidden_states.empty()) add_hidden_states(record);
  }
  void finish() override {
    tokens_.finish();
    logprobs_.finish();
    routing_.finish();
    if (attribution_) attribution_->finish();
    if (federation_) federation_->finish();
    if (hidden_) hidden_->finish();
  }

 private:
  template <typename Builder, typename Value>
  static void put(Table& table, int column, const Value& value) {
    table(table.column<Builder>(column).Append(value));
  }
  template <typename Builder, typename Value>
  static void put_if(Table& table, int column, bool is_there, const Value& value) {
    auto& builder = table.column<Builder>(column);
    table(is_there ? builder.Append(value) : builder.AppendNull());
  }
  /// An id left out (-1) is null, as is every text where nobody can spell it.
  void put_text(Table& table, arrow::StringBuilder& text, arrow::BinaryBuilder& bytes, int32_t id) {
    if (!text_of_ || id < 0) {
      table(text.AppendNull());
      table(bytes.AppendNull());
      return;
    }
    const TokenText found = text_of_(id);
    table(text.Append(found.text));
    table(bytes.Append(found.bytes));
  }
  /// One more element of the list that `list` is building.
  template <typename Builder, typename Value>
  static void put_value(Table& table, arrow::ListBuilder& list, const Value& value) {
    table(static_cast<Builder*>(list.value_builder())->Append(value));
  }
  static void put_id(Table& table, int column, int32_t id) {
    auto& builder = table.column<arrow::Int32Builder>(column);
    table(id < 0 ? builder.AppendNull() : builder.Append(id));
  }

  void add_token(const TokenRecord& record) {
    put<arrow::UInt64Builder>(tokens_, 0, record.sequence);
    put<arrow::Int64Builder>(tokens_, 1, record.position);
    put_id(tokens_, 2, record.token);
    put_text(tokens_, tokens_.column<arrow::StringBuilder>(3),
             tokens_.column<arrow::BinaryBuilder>(4), record.token);
    auto& experts = tokens_.column<arrow::ListBuilder>(5);
    auto& weights = tokens_.column<arrow::ListBuilder>(6);
    auto& norms = tokens_.column<arrow::ListBuilder>(7);
    for (auto* list : {&experts, &weights, &norms}) tokens_(list->Append());
    auto& layer_experts = static_cast<arrow::ListBuilder&>(*experts.value_builder());
    auto& layer_weights = static_cast<arrow::ListBuilder&>(*weights.value_builder());
    for (const LayerRecord& layer : record.layers) {
      put_value<arrow::FloatBuilder>(tokens_, norms, layer.residual_norm);
      if (layer.routes.empty()) continue;
      tokens_(layer_experts.Append());
      tokens_(layer_weights.Append());
      for (const RouteRecord& route : layer.routes) {
        auto& slots = static_cast<arrow::Int32Builder&>(*layer_experts.value_builder());
        tokens_(route.expert < 0 ? slots.AppendNull() : slots.Append(route.expert));
        put_value<arrow::FloatBuilder>(tokens_, layer_weights, route.weight);
      }
    }
    tokens_.end_rows(1);
  }

  void add_prediction(const TokenRecord& record) {
    const PredictionRecord& prediction = record.prediction;
    put<arrow::UInt64Builder>(logprobs_, 0, record.sequence);
    put<arrow::Int64Builder>(logprobs_, 1, record.position);
    put<arrow::BooleanBuilder>(logprobs_, 2, prediction.generated);
    put_id(logprobs_, 3, prediction.token);
    put_text(logprobs_, logprobs_.column<arrow::StringBuilder>(4),
             logprobs_.column<arrow::BinaryBuilder>(6), prediction.token);
    put<arrow::FloatBuilder>(logprobs_, 5, prediction.logprob);
    auto& list = logprobs_.column<arrow::ListBuilder>(7);
    logprobs_(list.Append());
    auto& row = static_cast<arrow::StructBuilder&>(*list.value_builder());
    for (const AlternativeRecord& other : prediction.alternatives) {
      logprobs_(row.Append());
      put_text(logprobs_, static_cast<arrow::StringBuilder&>(*row.field_builder(0)),
               static_cast<arrow::BinaryBuilder&>(*row.field_builder(2)), other.token);
      logprobs_(static_cast<arrow::FloatBuilder*>(row.field_builder(1))->Append(other.logprob));
      logprobs_(static_cast<arrow::Int32Builder*>(row.field_builder(3))->Append(other.token));
    }
    put<arrow::FloatBuilder>(logprobs_, 8, prediction.entropy);
    if (prediction.sampled.candidates > 0) {
      put<arrow::Int32Builder>(logprobs_, 9, prediction.sampled.candidates);
      put<arrow::FloatBuilder>(logprobs_, 10, prediction.sampled.probability);
    } else {
      logprobs_(logprobs_.column<arrow::Int32Builder>(9).AppendNull());
      logprobs_(logprobs_.column<arrow::FloatBuilder>(10).AppendNull());
    }
    add_constraint(prediction.constraint);
    logprobs_.end_rows(1);
  }

  void add_constraint(const ConstraintDecision& constraint) {
    if (!constraint.is_given()) {
      for (const int column : {11, 15}) {
        logprobs_(logprobs_.column<arrow::Int32Builder>(column).AppendNull());
      }
      for (const int column : {12, 16}) {
        logprobs_(logprobs_.column<arrow::FloatBuilder>(column).AppendNull());
      }
      for (const int column : {13, 14}) {
        logprobs_(logprobs_.column<arrow::BooleanBuilder>(column).AppendNull());
      }
      return;
    }
    put<arrow::Int32Builder>(logprobs_, 11, constraint.allowed);
    put<arrow::FloatBuilder>(logprobs_, 12, constraint.removed);
    put<arrow::BooleanBuilder>(logprobs_, 13, constraint.first_ruled_out);
    put<arrow::BooleanBuilder>(logprobs_, 14, constraint.is_limited);
    put<arrow::Int32Builder>(logprobs_, 15, constraint.attempt);
    put<arrow::FloatBuilder>(logprobs_, 16, constraint.mask_microseconds);
  }

  void add_routes(const TokenRecord& record) {
    int64_t rows = 0;
    for (const LayerRecord& layer : record.layers) {
      for (size_t slot = 0; slot < layer.routes.size(); ++slot, ++rows) {
        put<arrow::UInt64Builder>(routing_, 0, record.sequence);
        put<arrow::Int64Builder>(routing_, 1, record.position);
        put_id(routing_, 2, record.token);
        put<arrow::Int32Builder>(routing_, 3, layer.layer);
        put<arrow::Int32Builder>(routing_, 4, static_cast<int32_t>(slot));
        put_id(routing_, 5, layer.routes[slot].expert);
        put<arrow::FloatBuilder>(routing_, 6, layer.routes[slot].weight);
        put<arrow::StringBuilder>(routing_, 7, router_kind_name(layer.router));
        const bool has_scores = slot < layer.selection.size();
        const SelectionRecord of = has_scores ? layer.selection[slot] : SelectionRecord{};
        put_if<arrow::FloatBuilder>(routing_, 8, has_scores, of.score);
        put_if<arrow::FloatBuilder>(routing_, 9, has_scores, of.key);
      }
    }
    routing_.end_rows(rows);
  }

  void add_attribution(const TokenRecord& record) {
    if (!record.has_prediction) return;
    const PredictionRecord& prediction = record.prediction;
    if (!federation_) return add_sum(record, prediction.attribution, "");
    const std::vector<AttributionRecord>& sums = prediction.federation.attributions;
    for (size_t i = 0; i < std::min(sums.size(), source_.specialists.size()); ++i) {
      add_sum(record, sums[i], source_.specialists[i]);
    }
  }

  void add_sum(const TokenRecord& record, const AttributionRecord& attribution,
               const std::string& specialist) {
    if (attribution.terms.empty()) return;
    Table& table = *attribution_;
    const auto row = [&](std::string_view part, int32_t layer, int32_t expert, float value,
                         float other) {
      put<arrow::UInt64Builder>(table, 0, record.sequence);
      put<arrow::Int64Builder>(table, 1, record.position);
      put_id(table, 2, record.prediction.token);
      put<arrow::StringBuilder>(table, 3, part);
      put_id(table, 4, layer);
      put_id(table, 5, expert);
      put<arrow::FloatBuilder>(table, 6, value);
      put_id(table, 7, attribution.runner_up);
      put<arrow::FloatBuilder>(table, 8, other);
      if (federation_) put<arrow::StringBuilder>(table, 9, specialist);
    };
    for (const TermRecord& term : attribution.terms) {
      row(term_kind_name(term.kind), term.layer, term.expert, term.value, term.runner_up);
    }
    row("rounding", -1, -1, attribution.rounding, attribution.runner_up_rounding);
    table.end_rows(static_cast<int64_t>(attribution.terms.size()) + 1);
  }

  void add_federation(const TokenRecord& record) {
    const FederationRecord& federation = record.prediction.federation;
    const size_t count = federation.specialists.size();
    if (!record.has_prediction || count != source_.specialists.size()) return;
    Table& table = *federation_;
    for (size_t i = 0; i < count; ++i) {
      const SpecialistShare& share = federation.specialists[i];
      put<arrow::UInt64Builder>(table, 0, record.sequence);
      put<arrow::Int64Builder>(table, 1, record.position);
      put<arrow::BooleanBuilder>(table, 2, record.prediction.generated);
      put_id(table, 3, record.prediction.token);
      put<arrow::StringBuilder>(table, 4, source_.specialists[i]);
      int column = 5;
      for (const double value : {share.logprob, share.weight, share.share, federation.joint,
                                 federation.log_normaliser, federation.residual}) {
        put<arrow::DoubleBuilder>(table, column++, value);
      }
    }
    table.end_rows(static_cast<int64_t>(count));
  }

  /// The table is made with the first of them: most runs have none.
  void add_hidden_states(const TokenRecord& record) {
    if (!hidden_) {
      hidden_ = std::make_unique<Table>(
          source_, "hidden.parquet",
          arrow::FieldVector{arrow::field("sequence", arrow::uint64()),
                             arrow::field("position", arrow::int64()),
                             arrow::field("layer", arrow::int32()),
                             arrow::field("values", arrow::list(arrow::float32()))});
    }
    Table& table = *hidden_;
    for (const HiddenStateRecord& state : record.hidden_states) {
      put<arrow::UInt64Builder>(table, 0, record.sequence);
      put<arrow::Int64Builder>(table, 1, record.position);
      put<arrow::Int32Builder>(table, 2, state.layer);
      auto& values = table.column<arrow::ListBuilder>(3);
      table(values.Append());
      table(static_cast<arrow::FloatBuilder*>(values.value_builder())
                ->AppendValues(state.values.data(), static_cast<int64_t>(state.values.size())));
    }
    // Wide rows: counted by their values, so that a row group has as many bytes as the others'.
    const std::vector<HiddenStateRecord>& states = record.hidden_states;
    table.end_rows(static_cast<int64_t>(states.size() * (1 + states[0].values.size() / 16)));
  }

  const ParquetTables source_;
  std::function<TokenText(int32_t)> text_of_;
  Table tokens_, logprobs_, routing_;
  std::unique_ptr<Table> attribution_, federation_, hidden_;
};

}  // namespace
}  // namespace vitrine::audit

extern "C" __attribute__((visibility("default"))) vitrine::audit::ParquetBackend*
vitrine_parquet_backend_2(const vitrine::audit::ParquetTables& tables) {
  return new vitrine::audit::Backend(tables);
}
