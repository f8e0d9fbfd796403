// The node's configuration as plain checked values: proto/fulcrum/v1/node_config.proto in text
// format, with every default applied. Reading a file is LoadConfig's; what the command line
// overrides is main's, between ParseConfig and CheckConfig; levers from all sources meet in
// lever_sources.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/types.h"

namespace fulcrum::service {

struct TlsFiles {
  std::string certificate;  // PEM, the server's chain; empty = no TLS
  std::string key;          // PEM
  std::string client_ca;    // PEM; set = clients must present a certificate of this CA
  std::vector<std::string> allowed_clients;  // SAN or CN; empty = any client of the CA
  std::vector<std::string> admin_clients;  // who may change levers and shards; empty = any allowed
  absl::Duration reload = absl::Seconds(10);

  bool enabled() const { return !certificate.empty(); }
  bool mutual() const { return !client_ca.empty(); }
};

// Which calls are whose (identity.h).
struct IdentityConfig {
  std::string header;                      // that names the client; empty = none counts
  std::vector<std::string> trusted_peers;  // that may set it: addresses, networks, names of
                                           // certificates, "unix:"
};

struct ExplicitShardConfig {
  std::string name;  // last part of the resource name
  std::string path, tensor;
  Family family = Family::kOther;
  int64_t row_begin = 0, row_end = 0;  // half-open; an end of 0 = the whole extent
  int64_t col_begin = 0, col_end = 0;
  std::string device;       // "" = the node places it
  std::string expect_hash;  // "" = any
  bool allow_nan = false;
};
struct CheckpointPath {
  std::string path;
};
struct SyntheticName {
  std::string name;
};
struct ModelConfig {
  std::string model;
  std::variant<std::monostate, CheckpointPath, SyntheticName, std::vector<ExplicitShardConfig>>
      source;  // monostate: none was set, which CheckConfig refuses
  bool allow_nan = false;
};

struct LimitsConfig {
  int max_prefill_rows = 2048;
  int64_t max_message_bytes = int64_t{64} << 20;
  int64_t max_queue_rows = 4096;
  int64_t max_queue_bytes = int64_t{1} << 30;
  int max_stream_calls = 64;
  int max_concurrent_streams = 1024;
  int slots_per_device = 0;  // 0 = the backend's preference
  absl::Duration max_connection_age = absl::InfiniteDuration();
  int64_t max_receive_bytes = 0;  // 0 = eight messages

  int64_t ReceiveBytes() const {
    return max_receive_bytes > 0 ? max_receive_bytes : 8 * max_message_bytes;
  }
};

struct AuditConfig {
  int outputs_per_batch = 4;
  absl::Duration scrub = absl::Seconds(600);  // one shard's checksum each; 0 = never
  bool stop_device_on_mismatch = false;
};

struct Config {
  std::string listen = "127.0.0.1:50051";         // host:port or unix:PATH
  std::string metrics_listen = "127.0.0.1:9464";  // "off" = none
  bool allow_insecure_bind = false;
  TlsFiles tls;
  IdentityConfig identity;

  std::string backend = "auto";  // auto, cpu, cuda
  int cpu_threads = 0;
  int64_t memory_budget_bytes = 0;

  std::vector<ModelConfig> models;
  std::vector<std::string> weight_roots;

  Policy default_policy = Policy::kBatchInvariant;
  std::string profile = "exact";  // exact, fast
  std::map<std::string, std::string> levers;
  std::vector<std::string> latched_levers;
  std::string lever_journal;  // "" = changes are lost at a restart

  LimitsConfig limits;
  AuditConfig audit;
  std::string bundle_folder;  // of the message audit; "" = no bundles are written
  absl::Duration drain = absl::Seconds(20);
  absl::Duration device_stall = absl::Seconds(30);  // infinite: never
  std::string log_level = "info";                   // debug, info, warn, error
  bool log_calls = false;

  // Where a field was set: "limits.max_queue_rows" -> "node.txtpb:12:3". What overrides a field
  // sets its own place here ("--listen"), so that an error points at what has to be changed.
  std::map<std::string, std::string> places;

  // What the text has wrong although it can be read, with its place: CheckConfig lists it together
  // with everything else.
  std::vector<std::string> problems;
};

// Text format to Config. INVALID_ARGUMENT with "origin:line:column: ..." for text that does not
// parse. Unknown fields and enum values, and a map key given twice, are in `problems`: CheckConfig
// refuses them and wrong values.
absl::StatusOr<Config> ParseConfig(std::string_view text, std::string_view origin);
absl::StatusOr<Config> LoadConfig(const std::string& path);

// Everything that can be known before starting: ranges, names, addresses, that files and folders
// are there, that levers parse, and that an address others can reach is protected by TLS or allowed
// by hand. INVALID_ARGUMENT lists every problem, one a line, each with its place and field.
absl::Status CheckConfig(const Config& config);

// Where a field ("models[1].checkpoint"), or the nearest enclosing one that is set, was set; empty
// for a configuration that no text or flag made.
std::string PlaceOf(const Config& config, std::string field);
// "PLACE: FIELD", or the field alone.
std::string Located(const Config& config, const std::string& field);

// True for unix sockets, "localhost", 127.0.0.0/8 and ::1.
bool IsLoopback(std::string_view listen);

}  // namespace fulcrum::service
