// fulcrumd: the node as a process. Command line, signals and exit codes; everything else is
// server.h's.
//
// Exit codes: 0 after a signal and a clean stop; 1 when the node could not start or could not go on
// (an address that is taken, a shard whose rows did not load, a lost device); 2, before anything
// listens, for a wrong command line or configuration and for models that are not there, cannot be
// served or have no room, as far as the headers of their files say.
// Signals: SIGTERM, SIGINT and SIGHUP (unless it is ignored, as under nohup) drain; a second one
// ends the process at once. A load that is running sees the stop between pieces of a weight.
// Whatever hangs, the process is gone a few seconds after the drain's bound.
// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpc/support/log.h"
#include "kernels/weights/name_part.h"
#include "scheduler/exceptions.h"
#include "scheduler/shard_store.h"
#include "service/config.h"
#include "service/log.h"
#include "service/server.h"
#include "service/validate.h"

namespace fulcrum::service {
namespace {

constexpr int kExitFailure = 1, kExitUsage = 2;

struct Flags {
  std::string config, model, synthetic, listen, metrics_listen, backend, profile, log_level;
  std::string model_name, tls_cert, tls_key, tls_client_ca, policy;
  std::vector<std::string> levers, weight_roots;
  std::optional<int> cpu_threads;
  std::optional<double> drain_seconds;
  bool allow_insecure_bind = false, allow_nan = false, log_calls = false;
  bool validate_config = false;
};

// A word that was meant to say something, as from a variable that is not set: with nothing in its
// place the node would start without it.
std::string NotEmpty(const std::string& text) { return text.empty() ? "must not be empty" : ""; }

void Declare(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", std::string("fulcrumd " FULCRUM_VERSION));
  app.add_option("--config", flags.config,
                 "configuration file (fulcrum.v1.NodeConfig in text format)");
  auto* model = app.add_option("--model", flags.model, "checkpoint file or directory to serve");
  auto* synthetic = app.add_option("--synthetic", flags.synthetic,
                                   "synthetic weights to serve: small, qwen-27b, qwen-27b:0-3");
  model->excludes(synthetic);
  app.add_option("--model-name", flags.model_name,
                 "name of the model of --model or --synthetic in resource names");
  app.add_option("--listen", flags.listen, "host:port or unix:PATH (127.0.0.1:50051)");
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "host:port of /metrics, or off (127.0.0.1:9464)");
  app.add_flag("--allow-insecure-bind", flags.allow_insecure_bind,
               "permit an address that others can reach without TLS");
  app.add_option("--backend", flags.backend, "auto, cpu or cuda (auto)");
  app.add_option("--cpu-threads", flags.cpu_threads, "threads of the CPU backend (one a core)");
  app.add_option("--profile", flags.profile, "exact or fast (exact)");
  app.add_option("--policy", flags.policy, "default policy: exact, batch_invariant or fastest");
  app.add_option("--lever", flags.levers, "NAME=VALUE; may be repeated")->allow_extra_args(false);
  app.add_option("--weight-root", flags.weight_roots,
                 "folder that LoadShard may read; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--allow-nan", flags.allow_nan,
               "serve weights that are not finite: NaN codes, scales that overflow");
  app.add_option("--tls-cert", flags.tls_cert, "PEM file with the server's chain");
  app.add_option("--tls-key", flags.tls_key, "PEM file with its key");
  app.add_option("--tls-client-ca", flags.tls_client_ca, "PEM file; clients need its certificates");
  app.add_option("--drain-seconds", flags.drain_seconds, "bound on a graceful stop (20)");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error (info)");
  app.add_flag("--log-calls", flags.log_calls, "one log line a call");
  app.add_flag("--validate-config", flags.validate_config,
               "check everything short of loading weights, and exit");
  for (CLI::Option* option : app.get_options()) option->check(NotEmpty);
}

// A model's name in resource names when none is given: the last path part of its checkpoint, or the
// synthetic model's own, in the grammar's letters.
std::string NameFromPath(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  path = path.substr(path.rfind('/') + 1);
  for (const char* suffix : {".safetensors", ".gguf"}) {
    if (absl::EndsWith(path, suffix)) path.resize(path.size() - std::string(suffix).size());
  }
  std::string name;
  for (char c : path) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const bool legal = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9') ||
                       lower == '.' || lower == '_' || lower == '-';
    name.push_back(legal ? lower : '-');
  }
  name.resize(std::min(name.size(), kMaxModelName));
  return name.empty() || name == "." || name == ".." ? "model" : name;
}

absl::StatusOr<Config> MakeConfig(const Flags& flags) {
  Config config;
  if (!flags.config.empty()) {
    auto loaded = LoadConfig(flags.config);
    if (!loaded.ok()) return loaded.status();
    config = *std::move(loaded);
  }
  const auto replace = [&config](const std::string& value, std::string& field, const char* name,
                                 const char* flag) {
    if (value.empty()) return;
    field = value;
    config.places[name] = flag;
  };
  replace(flags.listen, config.listen, "listen", "--listen");
  replace(flags.metrics_listen, config.metrics_listen, "metrics_listen", "--metrics-listen");
  replace(flags.backend, config.backend, "backend", "--backend");
  replace(flags.profile, config.profile, "profile", "--profile");
  replace(flags.log_level, config.log_level, "log_level", "--log-level");
  replace(flags.tls_cert, config.tls.certificate, "tls.certificate", "--tls-cert");
  replace(flags.tls_key, config.tls.key, "tls.key", "--tls-key");
  replace(flags.tls_client_ca, config.tls.client_ca, "tls.client_ca", "--tls-client-ca");
  if (flags.cpu_threads) {
    config.cpu_threads = *flags.cpu_threads;
    config.places["cpu_threads"] = "--cpu-threads";
  }
  if (flags.drain_seconds) {
    config.drain = absl::Seconds(*flags.drain_seconds);
    config.places["drain_seconds"] = "--drain-seconds";
  }
  config.allow_insecure_bind |= flags.allow_insecure_bind;
  config.log_calls |= flags.log_calls;
  if (!flags.weight_roots.empty()) {
    config.weight_roots = flags.weight_roots;
    config.places["weight_roots"] = "--weight-root";
  }
  if (!flags.policy.empty()) {
    const auto policy = ParsePolicy(flags.policy);
    if (!policy) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--policy: expected exact, batch_invariant or fastest, got \"", flags.policy, "\""));
    }
    config.default_policy = *policy;
  }
  for (const std::string& lever : flags.levers) {
    const size_t equals = lever.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--lever: expected NAME=VALUE, got \"", lever, "\""));
    }
    const std::string name = lever.substr(0, equals);
    config.levers[name] = lever.substr(equals + 1);
    config.places[absl::StrCat("levers[", name, "]")] = "--lever";
  }
  if (!flags.model.empty() || !flags.synthetic.empty()) {
    ModelConfig model;
    model.allow_nan = flags.allow_nan;
    if (flags.model.empty()) {
      model.source = SyntheticName{flags.synthetic};
      model.model = NameFromPath(flags.synthetic.substr(0, flags.synthetic.find(':')));
    } else {
      model.source = CheckpointPath{flags.model};
      model.model = NameFromPath(flags.model);
    }
    if (!flags.model_name.empty()) model.model = flags.model_name;
    config.models = {std::move(model)};
    config.places["models"] = flags.model.empty() ? "--synthetic" : "--model";
  }
  return config;
}

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

int Fail(const absl::Status& status, int code) {
  const absl::string_view why = status.message();
  std::fprintf(stderr, "fulcrumd: %.*s\n", static_cast<int>(why.size()), why.data());
  return code;
}

// gRPC writes errors of its own to stderr beside the one sentence that a start fails with, and for
// every stray connection. They are debug lines of our log, unless GRPC_VERBOSITY asks for gRPC's
// own.
void LogGrpc(const std::string& level) {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  static const auto* const log = new Logger(ParseLogLevel(level).value_or(LogLevel::kInfo));
  gpr_set_log_function([](gpr_log_func_args* line) {
    log->Debug("grpc", {{"severity", gpr_log_severity_string(line->severity)},
                        {"at", absl::StrCat(line->file, ":", line->line)},
                        {"message", line->message}});
  });
}

// Ends the process `after` from now unless destroyed before: nothing that hangs may outlive a stop.
class Watchdog {
 public:
  explicit Watchdog(absl::Duration after)
      : thread_([this, after] {
          if (!done_.WaitForNotificationWithTimeout(after)) {
            std::fputs("fulcrumd: the stop took too long, leaving at once\n", stderr);
            ::_exit(kExitFailure);
          }
        }) {}
  ~Watchdog() {
    done_.Notify();
    thread_.join();
  }

 private:
  absl::Notification done_;
  std::thread thread_;
};

// What ended the node, if not a signal.
struct Failure {
  absl::Mutex mu;
  absl::Status why ABSL_GUARDED_BY(mu);
};

int Run(const Config& config, const sigset_t& signals) {
  Failure failure;
  ServerOptions options;
  options.environment = Environment();
  options.on_failure = [&failure](const absl::Status& why) {
    {
      absl::MutexLock lock(&failure.mu);
      failure.why = why;
    }
    ::kill(::getpid(), SIGTERM);  // the main thread waits for nothing else
  };
  auto started = Server::Start(config, std::move(options));
  if (!started.ok()) {
    return Fail(started.status(),
                absl::IsInvalidArgument(started.status()) ? kExitUsage : kExitFailure);
  }
  const std::unique_ptr<Server> server = *std::move(started);
  std::vector<std::string> models;
  for (const ModelConfig& model : config.models) models.push_back(model.model);
  std::printf("fulcrumd %s node %s listening on %s, metrics on %s, loading %s\n", FULCRUM_VERSION,
              server->node_id().c_str(), server->address().c_str(),
              config.metrics_listen == "off"
                  ? "off"
                  : absl::StrCat(config.metrics_listen.substr(0, config.metrics_listen.rfind(':')),
                                 ":", server->metrics_port(), "/metrics")
                        .c_str(),
              models.empty() ? "nothing" : absl::StrJoin(models, ", ").c_str());
  std::fflush(stdout);
  std::thread announce([&server] {
    (void)Caught([&server] {
      if (!server->WaitLoaded().ok()) return;
      std::printf("fulcrumd serving %zu shards\n", server->shards().Serving().size());
      std::fflush(stdout);
    });
  });

  int signal = 0;
  sigwait(&signals, &signal);
  // From here a second signal has its default effect: the process ends.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  const Watchdog watchdog(config.drain + absl::Seconds(8));
  server->Shutdown(config.drain);
  announce.join();
  absl::MutexLock lock(&failure.mu);
  const int code = failure.why.ok() ? EXIT_SUCCESS : Fail(failure.why, kExitFailure);
  // Nothing is in flight. What is left to take down (weights, idle threads) the system does faster.
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

int Main(int argc, char** argv) {
  // A fresh page costs more than copying a page: what a message took is kept for the next one.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  // Debian builds Abseil with its search for lock cycles on; it costs every lock of gRPC and ours.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Before any thread exists, so that all inherit it: signals come to sigwait alone.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // A terminal that closes stops the node like anybody else, unless nohup says otherwise.
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&signals, SIGHUP);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);

  CLI::App app("Fulcrum: a remote projection node.", "fulcrumd");
  Flags flags;
  Declare(app, flags);
  try {  // the parser reports by throwing
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kExitUsage;
  }
  auto config = MakeConfig(flags);
  if (!config.ok()) return Fail(config.status(), kExitUsage);
  if (flags.validate_config) {
    if (auto status = ValidateStart(*config, Environment()); !status.ok()) {
      return Fail(status, kExitUsage);
    }
    std::puts(config->models.empty() ? "configuration is valid, and names no model to serve"
                                     : "configuration is valid");
    return EXIT_SUCCESS;
  }
  if (auto status = CheckConfig(*config); !status.ok()) return Fail(status, kExitUsage);
  LogGrpc(config->log_level);
  return Run(*config, signals);
}

}  // namespace fulcrum::service

int main(int argc, char** argv) {
  int code = fulcrum::service::kExitFailure;
  const absl::Status thrown = fulcrum::Caught([&] { code = fulcrum::service::Main(argc, argv); });
  return thrown.ok() ? code : fulcrum::service::Fail(thrown, fulcrum::service::kExitFailure);
}
