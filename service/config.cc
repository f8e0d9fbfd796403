// Text format into Config: parsing with places, and the one spot where defaults are applied.
// SPDX-License-Identifier: Apache-2.0
#include "service/config.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fulcrum/v1/node_config.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "service/proto_names.h"

namespace fulcrum::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

class Errors : public google::protobuf::io::ErrorCollector {
 public:
  explicit Errors(std::string_view origin) : origin_(origin) {}
  // The parser counts from zero; people and editors from one.
  void AddError(int line, int column, const std::string& message) override {
    Add(absl::StrFormat("%s:%d:%d", origin_, line + 1, column + 1), message);
  }
  // Unknown fields, which do not stop the parser.
  void AddWarning(int line, int column, const std::string& message) override {
    AddError(line, column, message);
  }
  void Add(std::string_view place, std::string_view message) {
    list_.push_back(absl::StrFormat("%s: %s", place, message));
  }
  absl::Status status() const {
    if (list_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(list_, "\n"));
  }
  std::vector<std::string>& list() { return list_; }

 private:
  const std::string origin_;
  std::vector<std::string> list_;
};

// Records where each field of the text stands, under its path. Reads repeated fields and maps by
// reflection in text order, so it must run before anything sorts a map.
class PlaceRecorder {
 public:
  PlaceRecorder(std::string_view origin, std::map<std::string, std::string>* places, Errors* errors)
      : origin_(origin), places_(*places), errors_(*errors) {}

  void Record(const Message& message, const TextFormat::ParseInfoTree& tree,
              const std::string& prefix) {
    const Reflection* reflection = message.GetReflection();
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message.GetDescriptor()->field(i);
      const std::string path = prefix + field->name();
      if (!field->is_repeated()) {
        Mark(path, tree.GetLocation(field, -1));
        TextFormat::ParseInfoTree* nested = tree.GetTreeForNested(field, -1);
        if (nested != nullptr) Record(reflection->GetMessage(message, field), *nested, path + ".");
        continue;
      }
      for (int j = 0; j < reflection->FieldSize(message, field); ++j) {
        const TextFormat::ParseLocation at = tree.GetLocation(field, j);
        if (field->is_map()) {
          const Message& entry = reflection->GetRepeatedMessage(message, field, j);
          const std::string key =
              entry.GetReflection()->GetString(entry, entry.GetDescriptor()->map_key());
          const std::string entry_path = absl::StrFormat("%s[%s]", path, key);
          if (places_.contains(entry_path)) {
            errors_.Add(Place(at), absl::StrFormat("%s is set twice, first at %s", entry_path,
                                                   places_.at(entry_path)));
          }
          Mark(entry_path, at);
        } else {
          const std::string item_path = absl::StrFormat("%s[%d]", path, j);
          Mark(item_path, at);
          TextFormat::ParseInfoTree* nested = tree.GetTreeForNested(field, j);
          if (nested != nullptr) {
            Record(reflection->GetRepeatedMessage(message, field, j), *nested, item_path + ".");
          }
        }
      }
    }
  }

 private:
  std::string Place(TextFormat::ParseLocation at) const {
    return absl::StrFormat("%s:%d:%d", origin_, at.line + 1, at.column + 1);
  }
  void Mark(const std::string& path, TextFormat::ParseLocation at) {
    if (at.line >= 0) places_.emplace(path, Place(at));
  }

  const std::string origin_;
  std::map<std::string, std::string>& places_;
  Errors& errors_;
};

// Applies defaults: zero and the empty string mean the default that Config already holds.
class Converter {
 public:
  Converter(const std::map<std::string, std::string>& places, std::string_view origin,
            Errors* errors)
      : places_(places), origin_(origin), errors_(*errors) {}

  template <class T, class V>
  static void Take(const V& value, T* field) {
    if (value != V{}) *field = static_cast<T>(value);
  }
  void TakeSeconds(const char* path, double seconds, absl::Duration* field) {
    if (!std::isfinite(seconds)) {
      Fail(path, absl::StrFormat("%g is not a number of seconds", seconds));
    } else if (seconds != 0) {
      *field = absl::Seconds(seconds);
    }
  }
  void Fail(const std::string& path, std::string_view message) {
    const auto it = places_.find(path);
    errors_.Add(it == places_.end() ? origin_ : it->second,
                absl::StrFormat("%s: %s", path, message));
  }

  void TakeTls(const v1::TlsConfig& in, TlsFiles* out) {
    out->certificate = in.certificate();
    out->key = in.key();
    out->client_ca = in.client_ca();
    out->allowed_clients.assign(in.allowed_clients().begin(), in.allowed_clients().end());
    out->admin_clients.assign(in.admin_clients().begin(), in.admin_clients().end());
    if (in.reload_seconds() != 0) out->reload = absl::Seconds(in.reload_seconds());
  }

  ExplicitShardConfig Shard(const v1::ExplicitShard& in, const std::string& path) {
    ExplicitShardConfig out;
    out.name = in.name();
    out.path = in.path();
    out.tensor = in.tensor();
    // Text format lets numbers through for enums, also ones that name nothing.
    if (const auto family = FromProto(in.family()); family.has_value()) {
      out.family = *family;
    } else {
      Fail(path + ".family", absl::StrFormat("%d is not a family", in.family()));
    }
    out.row_begin = in.row_begin();
    out.row_end = in.row_end();
    out.col_begin = in.col_begin();
    out.col_end = in.col_end();
    out.device = in.device();
    out.expect_hash = in.expect_hash();
    out.allow_nan = in.allow_nan();
    return out;
  }

  ModelConfig Model(const v1::ModelSource& in, const std::string& path) {
    ModelConfig out;
    out.model = in.model();
    out.allow_nan = in.allow_nan();
    switch (in.source_case()) {
      case v1::ModelSource::kCheckpoint:
        out.source = CheckpointPath{in.checkpoint()};
        break;
      case v1::ModelSource::kSynthetic:
        out.source = SyntheticName{in.synthetic()};
        break;
      case v1::ModelSource::kShards: {
        std::vector<ExplicitShardConfig> shards;
        for (int i = 0; i < in.shards().shard_size(); ++i) {
          shards.push_back(
              Shard(in.shards().shard(i), absl::StrFormat("%s.shards.shard[%d]", path, i)));
        }
        out.source = std::move(shards);
        break;
      }
      case v1::ModelSource::SOURCE_NOT_SET:
        break;
    }
    return out;
  }

  void TakeAll(const v1::NodeConfig& in, Config* out) {
    Take(in.listen(), &out->listen);
    Take(in.metrics_listen(), &out->metrics_listen);
    out->allow_insecure_bind = in.allow_insecure_bind();
    TakeTls(in.tls(), &out->tls);
    out->identity.header = in.identity().header();
    const auto& trusted = in.identity().trusted_peers();
    out->identity.trusted_peers.assign(trusted.begin(), trusted.end());

    Take(in.backend(), &out->backend);
    out->cpu_threads = in.cpu_threads();
    out->memory_budget_bytes = in.memory_budget_bytes();

    for (int i = 0; i < in.models_size(); ++i) {
      out->models.push_back(Model(in.models(i), absl::StrFormat("models[%d]", i)));
    }
    out->weight_roots.assign(in.weight_roots().begin(), in.weight_roots().end());

    if (const auto policy = FromProto(in.default_policy(), out->default_policy)) {
      out->default_policy = *policy;
    } else {
      Fail("default_policy", absl::StrFormat("%d is not a policy", in.default_policy()));
    }
    Take(in.profile(), &out->profile);
    out->levers.insert(in.levers().begin(), in.levers().end());
    out->latched_levers.assign(in.latched_levers().begin(), in.latched_levers().end());

    const v1::NodeConfig::Limits& limits = in.limits();
    Take(limits.max_prefill_rows(), &out->limits.max_prefill_rows);
    Take(limits.max_message_bytes(), &out->limits.max_message_bytes);
    Take(limits.max_queue_rows(), &out->limits.max_queue_rows);
    Take(limits.max_queue_bytes(), &out->limits.max_queue_bytes);
    Take(limits.max_stream_calls(), &out->limits.max_stream_calls);
    Take(limits.max_concurrent_streams(), &out->limits.max_concurrent_streams);
    out->limits.slots_per_device = limits.slots_per_device();
    out->limits.max_receive_bytes = limits.max_receive_bytes();
    if (limits.max_connection_age_seconds() != 0) {
      out->limits.max_connection_age = absl::Seconds(limits.max_connection_age_seconds());
    }

    Take(in.audit().outputs_per_batch(), &out->audit.outputs_per_batch);
    TakeSeconds("audit.scrub_seconds", in.audit().scrub_seconds(), &out->audit.scrub);
    if (out->audit.scrub < absl::ZeroDuration()) out->audit.scrub = absl::ZeroDuration();
    out->audit.stop_device_on_mismatch = in.audit().stop_device_on_mismatch();
    out->bundle_folder = in.audit().bundle_folder();
    out->lever_journal = in.lever_journal();
    TakeSeconds("drain_seconds", in.drain_seconds(), &out->drain);
    TakeSeconds("device_stall_seconds", in.device_stall_seconds(), &out->device_stall);
    if (out->device_stall < absl::ZeroDuration()) out->device_stall = absl::InfiniteDuration();
    Take(in.log_level(), &out->log_level);
    out->log_calls = in.log_calls();
  }

 private:
  const std::map<std::string, std::string>& places_;
  const std::string origin_;
  Errors& errors_;
};

// Where `error` is the parser's "Unknown enumeration value of "X" for field ...": overwrites the
// first X that stands as a value with a 0, so that the rest can be read. Places stay as they are.
bool TakeOutEnumValue(const std::string& error, std::string* text) {
  constexpr std::string_view kUnknown = "Unknown enumeration value of \"";
  const size_t at = error.find(kUnknown);
  if (at == std::string::npos) return false;
  const size_t begin = at + kUnknown.size();
  const std::string value = error.substr(begin, error.find('"', begin) - begin);
  for (size_t i = text->find(value); i != std::string::npos; i = text->find(value, i + 1)) {
    size_t before = i;
    while (before > 0 && absl::ascii_isspace(static_cast<unsigned char>((*text)[before - 1]))) {
      --before;
    }
    const size_t after = i + value.size();
    const bool whole =
        after == text->size() ||
        (!absl::ascii_isalnum(static_cast<unsigned char>((*text)[after])) && (*text)[after] != '_');
    if (before == 0 || (*text)[before - 1] != ':' || !whole) continue;
    text->replace(i, value.size(), "0" + std::string(value.size() - 1, ' '));
    return true;
  }
  return false;
}

using PlaceTree = std::unique_ptr<TextFormat::ParseInfoTree>;

// The parser goes on after an unknown field but not after an unknown enum value: the value is
// noted, taken out, and the text parsed again.
absl::StatusOr<PlaceTree> Parse(std::string text, std::string_view origin, Errors* errors,
                                v1::NodeConfig* proto) {
  constexpr size_t kMost = 100;
  std::vector<std::string> unknown_values;
  while (true) {
    Errors found(origin);
    auto tree = std::make_unique<TextFormat::ParseInfoTree>();
    TextFormat::Parser parser;
    parser.AllowUnknownField(true);
    parser.RecordErrorsTo(&found);
    parser.WriteLocationsTo(tree.get());
    google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
    const bool parsed = parser.Parse(&input, proto);
    std::vector<std::string>& list = found.list();
    if (!parsed && unknown_values.size() < kMost && !list.empty() &&
        TakeOutEnumValue(list.back(), &text)) {
      unknown_values.push_back(std::move(list.back()));
      continue;
    }
    list.insert(list.end(), unknown_values.begin(), unknown_values.end());
    errors->list() = std::move(list);
    if (parsed) return tree;
    if (errors->list().empty()) errors->Add(origin, "not a NodeConfig in protobuf text format");
    return errors->status();
  }
}

}  // namespace

absl::StatusOr<Config> ParseConfig(std::string_view text, std::string_view origin) {
  Errors errors(origin);
  v1::NodeConfig proto;
  const absl::StatusOr<PlaceTree> tree = Parse(std::string(text), origin, &errors, &proto);
  if (!tree.ok()) return tree.status();
  Config config;
  PlaceRecorder(origin, &config.places, &errors).Record(proto, **tree, "");
  Converter(config.places, origin, &errors).TakeAll(proto, &config);
  config.problems = std::move(errors.list());
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{16} << 20;  // a configuration, not a checkpoint by mistake
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrFormat("configuration %s: %s", path, std::strerror(errno)));
  }
  std::string text;
  char piece[4096];
  while (file.read(piece, sizeof(piece)) || file.gcount() > 0) {
    text.append(piece, static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("configuration %s: larger than %d bytes", path, kMaxBytes));
    }
  }
  if (file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("configuration %s: cannot be read: %s", path, std::strerror(errno)));
  }
  return ParseConfig(text, path);
}

}  // namespace fulcrum::service
