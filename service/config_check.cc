// What a configuration must satisfy before the node starts. Every problem is listed, so that one
// start shows all of them.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/ladder/levers.h"
#include "kernels/weights/name_part.h"
#include "kernels/weights/weight_source.h"
#include "service/config.h"
#include "service/tls_material.h"
#include "service/trusted_peer.h"
#include "service/unix_socket.h"

namespace fulcrum::service {
namespace {

struct HostPort {
  std::string host, port;
};

// "host:port" or "[v6]:port"; nullopt for anything else, URI schemes of gRPC included.
std::optional<HostPort> SplitHostPort(std::string_view text) {
  HostPort result;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  result.port = std::string(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return std::nullopt;
    host = host.substr(1, host.size() - 2);
    in6_addr address;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1) return std::nullopt;
  } else {
    for (char c : host) {
      const bool legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '.' || c == '-';
      if (!legal) return std::nullopt;
    }
  }
  if (host.empty()) return std::nullopt;
  result.host = std::string(host);
  return result;
}

bool IsPort(const std::string& text) {
  int port = -1;
  return absl::SimpleAtoi(text, &port) && port >= 0 && port <= 65535;
}

bool IsUnix(std::string_view listen) { return listen.starts_with("unix:"); }

class Checker {
 public:
  explicit Checker(const Config& config) : config_(config), problems_(config.problems) {}

  absl::Status Run() {
    Addresses();
    Tls();
    Identity();
    OneOf("backend", config_.backend, {"auto", "cpu", "cuda"});
    OneOf("profile", config_.profile, {"exact", "fast"});
    OneOf("log_level", config_.log_level, {"debug", "info", "warn", "error"});
    Range("cpu_threads", config_.cpu_threads, 0, 4096);
    Range("memory_budget_bytes", config_.memory_budget_bytes, 0, INT64_MAX);
    Models();
    for (size_t i = 0; i < config_.weight_roots.size(); ++i) {
      Folder(absl::StrFormat("weight_roots[%d]", i), config_.weight_roots[i], X_OK);
    }
    Levers();
    const std::string& journal = config_.lever_journal;
    if (!journal.empty() && (journal.front() != '/' || journal.back() == '/')) {
      Fail("lever_journal", absl::StrFormat("'%s'; expected an absolute path of a file", journal));
    } else if (!journal.empty()) {
      Journal(journal);
    }
    if (!config_.bundle_folder.empty()) {
      Folder("audit.bundle_folder", config_.bundle_folder, W_OK | X_OK);
    }
    Limits();
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Fail(const std::string& path, std::string_view message) {
    problems_.push_back(absl::StrFormat("%s: %s", Located(config_, path), message));
  }

  void Range(const std::string& path, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return;
    Fail(path, absl::StrFormat("%d; expected %d to %d", value, min, max));
  }

  void Seconds(const std::string& path, absl::Duration value, absl::Duration min,
               absl::Duration max) {
    if (value >= min && value <= max) return;
    Fail(path, absl::StrFormat("%s; expected %s to %s", absl::FormatDuration(value),
                               absl::FormatDuration(min), absl::FormatDuration(max)));
  }

  void OneOf(const std::string& path, const std::string& value,
             const std::vector<std::string>& allowed) {
    for (const std::string& word : allowed) {
      if (value == word) return;
    }
    Fail(path, absl::StrFormat("'%s'; expected one of: %s", value, absl::StrJoin(allowed, ", ")));
  }

  // `access_mode`: what the node does there, as for access(2).
  void Folder(const std::string& path, const std::string& folder, int access_mode) {
    struct stat info {};
    if (folder.empty() || folder.front() != '/') {
      Fail(path, absl::StrFormat("'%s'; expected an absolute path", folder));
    } else if (stat(folder.c_str(), &info) != 0) {
      Fail(path, absl::StrFormat("'%s': %s", folder, std::strerror(errno)));
    } else if (!S_ISDIR(info.st_mode)) {
      Fail(path, absl::StrFormat("'%s' is not a folder", folder));
    } else if (access(folder.c_str(), access_mode) != 0) {
      Fail(path, absl::StrFormat("'%s': %s", folder, std::strerror(errno)));
    }
  }

  // Without making or opening it: a running node may hold it.
  void Journal(const std::string& journal) {
    struct stat info {};
    const std::string folder = journal.substr(0, journal.rfind('/') + 1);
    const auto errno_of = [&](const char* part) {
      Fail("lever_journal", absl::StrFormat("'%s': %s%s", journal, part, std::strerror(errno)));
    };
    if (stat(folder.c_str(), &info) != 0) return errno_of("its folder: ");
    if (stat(journal.c_str(), &info) != 0) {
      if (errno != ENOENT) return errno_of("");
      if (access(folder.c_str(), W_OK | X_OK) != 0) errno_of("its folder: ");
      return;
    }
    if (!S_ISREG(info.st_mode)) {
      Fail("lever_journal", absl::StrFormat("'%s' is not a regular file", journal));
    } else if (access(journal.c_str(), R_OK | W_OK) != 0) {
      errno_of("");
    }
  }

  void Addresses() {
    const std::string& listen = config_.listen;
    if (IsUnix(listen)) {
      const size_t length = listen.size() - std::strlen("unix:");
      if (length == 0 || length > UnixSocket::kMaxPath || listen.find('\0') != std::string::npos) {
        Fail("listen", absl::StrFormat("'%s'; a socket path has 1 to %d bytes, none of them zero",
                                       absl::Utf8SafeCHexEscape(listen), UnixSocket::kMaxPath));
      }
    } else if (const auto parts = SplitHostPort(listen); !parts || !IsPort(parts->port)) {
      Fail("listen", absl::StrFormat("'%s'; expected host:port, [ipv6]:port or unix:PATH", listen));
    } else if (!IsLoopback(listen) && !config_.tls.enabled() && !config_.allow_insecure_bind) {
      Fail("listen",
           absl::StrFormat("'%s' can be reached from other machines and the connection would not "
                           "be encrypted; set tls, or listen on 127.0.0.1, or set "
                           "allow_insecure_bind: true if the network is trusted",
                           listen));
    }
    if (config_.metrics_listen != "off") {
      const auto parts = SplitHostPort(config_.metrics_listen);
      if (!parts || !IsPort(parts->port)) {
        Fail("metrics_listen",
             absl::StrFormat("'%s'; expected host:port or off", config_.metrics_listen));
      } else if (!IsLoopback(config_.metrics_listen) && !config_.allow_insecure_bind) {
        Fail("metrics_listen",
             absl::StrFormat("'%s' can be reached from other machines, and metrics are served "
                             "without TLS, also where tls is set; listen on 127.0.0.1, or set "
                             "allow_insecure_bind: true if the network is trusted",
                             config_.metrics_listen));
      }
    }
  }

  void Tls() {
    const TlsFiles& tls = config_.tls;
    if (tls.certificate.empty() != tls.key.empty()) {
      Fail(tls.key.empty() ? "tls.certificate" : "tls.key", "needs both certificate and key");
    } else if (tls.enabled()) {
      if (const auto material = ReadTlsMaterial(tls); !material.ok()) {
        for (absl::string_view problem : absl::StrSplit(material.status().message(), '\n')) {
          Fail("tls", std::string(problem));
        }
      }
    } else if (tls.mutual()) {
      Fail("tls.client_ca", "needs certificate and key");
    }
    if (!tls.mutual() && !tls.allowed_clients.empty()) {
      Fail("tls.allowed_clients", "needs client_ca: without it clients have no verified name");
    }
    if (!tls.mutual() && !tls.admin_clients.empty()) {
      Fail("tls.admin_clients", "needs client_ca: without it clients have no verified name");
    }
    const std::set<std::string> allowed(tls.allowed_clients.begin(), tls.allowed_clients.end());
    for (size_t i = 0; i < tls.admin_clients.size(); ++i) {
      if (!allowed.empty() && !allowed.contains(tls.admin_clients[i])) {
        Fail(absl::StrFormat("tls.admin_clients[%d]", i),
             absl::StrFormat("'%s' is not in allowed_clients, so it could never call",
                             tls.admin_clients[i]));
      }
    }
    Seconds("tls.reload_seconds", tls.reload, absl::Seconds(1), absl::Hours(24));
  }

  void Identity() {
    const IdentityConfig& identity = config_.identity;
    if (!identity.header.empty()) {
      if (absl::Status s = CheckIdentityHeader(identity.header); !s.ok()) {
        Fail("identity.header", std::string(s.message()));
      }
      if (identity.trusted_peers.empty()) {
        Fail("identity.header",
             "needs trusted_peers: a header that any caller sets identifies no client");
      }
    } else if (!identity.trusted_peers.empty()) {
      Fail("identity.trusted_peers", "needs header: the one in which they name clients");
    }
    for (size_t i = 0; i < identity.trusted_peers.size(); ++i) {
      const std::string path = absl::StrFormat("identity.trusted_peers[%d]", i);
      const absl::StatusOr<TrustedPeer> peer = ParseTrustedPeer(identity.trusted_peers[i]);
      if (!peer.ok()) {
        Fail(path, std::string(peer.status().message()));
      } else if (std::holds_alternative<CertificateName>(*peer) != config_.tls.mutual()) {
        const char* const why =
            config_.tls.mutual()
                ? ": with tls.client_ca every peer has a certificate and goes by its names; name "
                  "the proxy's"
                : " is no address, and a certificate's name needs tls.client_ca";
        Fail(path, absl::StrFormat("'%s'%s", identity.trusted_peers[i], why));
      }
    }
  }

  void ExplicitShards(const std::string& model_path,
                      const std::vector<ExplicitShardConfig>& shards) {
    std::set<std::string> names;
    if (shards.empty()) Fail(model_path, "lists no shard");
    for (size_t i = 0; i < shards.size(); ++i) {
      const ExplicitShardConfig& shard = shards[i];
      const std::string path = absl::StrFormat("%s.shards.shard[%d]", model_path, i);
      if (absl::Status s = CheckShardLeaf(shard.name); !s.ok()) {
        Fail(path + ".name", std::string(s.message()));
      } else if (!names.insert(shard.name).second) {
        Fail(path + ".name", absl::StrFormat("'%s' is listed twice", shard.name));
      }
      if (shard.path.empty()) Fail(path + ".path", "is not set");
      if (shard.tensor.empty()) Fail(path + ".tensor", "is not set");
      Slice(path, "row", shard.row_begin, shard.row_end);
      Slice(path, "col", shard.col_begin, shard.col_end);
      if (!shard.expect_hash.empty() && !IsContentHash(shard.expect_hash)) {
        Fail(path + ".expect_hash",
             absl::StrFormat("'%s'; expected 64 lower-case hex digits", shard.expect_hash));
      }
    }
  }

  void Slice(const std::string& path, const char* axis, int64_t begin, int64_t end) {
    if (begin >= 0 && (end == 0 || end > begin)) return;
    Fail(absl::StrFormat("%s.%s_begin", path, axis),
         absl::StrFormat("%d to %d; expected 0 <= begin < end, or an end of 0 for the whole extent",
                         begin, end));
  }

  void Models() {
    std::set<std::string> names;
    for (size_t i = 0; i < config_.models.size(); ++i) {
      const ModelConfig& model = config_.models[i];
      const std::string path = absl::StrFormat("models[%d]", i);
      if (absl::Status s = CheckModelName(model.model); !s.ok()) {
        Fail(path + ".model", std::string(s.message()));
      } else if (!names.insert(model.model).second) {
        Fail(path + ".model", absl::StrFormat("'%s' is configured twice", model.model));
      }
      if (std::holds_alternative<std::monostate>(model.source)) {
        Fail(path, "has no source; set one of: checkpoint, synthetic, shards");
      } else if (const auto* shards =
                     std::get_if<std::vector<ExplicitShardConfig>>(&model.source)) {
        ExplicitShards(path, *shards);
      } else if (const auto* file = std::get_if<CheckpointPath>(&model.source)) {
        if (file->path.empty()) Fail(path + ".checkpoint", "is empty");
      } else if (std::get<SyntheticName>(model.source).name.empty()) {
        Fail(path + ".synthetic", "is empty");
      }
    }
  }

  void Levers() {
    LeverSet levers;
    for (const auto& [name, value] : config_.levers) {
      if (absl::Status s = levers.Set(name, value); !s.ok()) {
        Fail(absl::StrFormat("levers[%s]", name), std::string(s.message()));
      }
    }
    std::vector<std::string> known;
    for (const LeverInfo& info : LeverTable()) known.emplace_back(info.name);
    for (size_t i = 0; i < config_.latched_levers.size(); ++i) {
      if (FindLever(config_.latched_levers[i]) != nullptr) continue;
      Fail(absl::StrFormat("latched_levers[%d]", i),
           absl::StrFormat("no lever '%s'; levers are: %s", config_.latched_levers[i],
                           absl::StrJoin(known, ", ")));
    }
  }

  void Limits() {
    const LimitsConfig& limits = config_.limits;
    Range("limits.max_prefill_rows", limits.max_prefill_rows, 1, 1 << 20);
    Range("limits.max_message_bytes", limits.max_message_bytes, 1 << 20, INT_MAX);
    Range("limits.max_queue_rows", limits.max_queue_rows, kMaxDecodeRows, int64_t{1} << 32);
    Range("limits.max_queue_bytes", limits.max_queue_bytes, 1 << 20, int64_t{1} << 48);
    Range("limits.max_stream_calls", limits.max_stream_calls, 1, 1 << 16);
    Range("limits.max_concurrent_streams", limits.max_concurrent_streams, 1, 1 << 20);
    Range("limits.slots_per_device", limits.slots_per_device, 0, 64);
    Seconds("limits.max_connection_age_seconds", limits.max_connection_age, absl::Seconds(1),
            absl::InfiniteDuration());
    if (limits.max_receive_bytes != 0 && limits.max_receive_bytes < 2 * limits.max_message_bytes) {
      Fail("limits.max_receive_bytes",
           absl::StrFormat("%d; expected at least %d, two messages of limits.max_message_bytes, or "
                           "0 for eight",
                           limits.max_receive_bytes, 2 * limits.max_message_bytes));
    }
    if (limits.max_prefill_rows > limits.max_queue_rows) {
      Fail("limits.max_queue_rows",
           absl::StrFormat("%d is less than limits.max_prefill_rows, %d: such a call could never "
                           "be accepted",
                           limits.max_queue_rows, limits.max_prefill_rows));
    }
    Range("audit.outputs_per_batch", config_.audit.outputs_per_batch, 1, 4096);
    Seconds("drain_seconds", config_.drain, absl::ZeroDuration(), absl::Hours(1));
    Seconds("device_stall_seconds", config_.device_stall, absl::Milliseconds(100),
            absl::InfiniteDuration());
  }

  const Config& config_;
  std::vector<std::string> problems_;
};

}  // namespace

bool IsLoopback(std::string_view listen) {
  if (IsUnix(listen)) return true;
  const std::optional<HostPort> parts = SplitHostPort(listen);
  if (!parts.has_value()) return false;
  if (parts->host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, parts->host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, parts->host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::string PlaceOf(const Config& config, std::string field) {
  while (true) {
    if (const auto it = config.places.find(field); it != config.places.end()) return it->second;
    const size_t cut = field.find_last_of(".[");
    if (cut == std::string::npos || cut == 0) return "";
    field.resize(cut);
  }
}

std::string Located(const Config& config, const std::string& field) {
  const std::string place = PlaceOf(config, field);
  return place.empty() ? field : absl::StrFormat("%s: %s", place, field);
}

absl::Status CheckConfig(const Config& config) { return Checker(config).Run(); }

}  // namespace fulcrum::service
