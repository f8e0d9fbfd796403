// Construction and the stop of a node.
// SPDX-License-Identifier: Apache-2.0
#include "service/server.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "kernels/backend_factory.h"
#include "proto/unix_target.h"
#include "scheduler/auditor.h"
#include "scheduler/canary_control.h"
#include "scheduler/clock.h"
#include "scheduler/lever_store.h"
#include "scheduler/scheduler.h"
#include "scheduler/shadow.h"
#include "scheduler/shard_store.h"
#include "service/authorization.h"
#include "service/backend_options.h"
#include "service/call_book.h"
#include "service/device_watch.h"
#include "service/drain.h"
#include "service/grpc_metrics.h"
#include "service/health.h"
#include "service/initial_load.h"
#include "service/lever_service.h"
#include "service/lever_sources.h"
#include "service/load_plan.h"
#include "service/log.h"
#include "service/metrics.h"
#include "service/metrics_endpoint.h"
#include "service/node_events.h"
#include "service/projection_service.h"
#include "service/reflection_service.h"
#include "service/rpc_interceptor.h"
#include "service/shard_loader.h"
#include "service/shard_service.h"
#include "service/tls.h"
#include "service/transport.h"
#include "service/unix_socket.h"

namespace fulcrum::service {
namespace {

// Fewer HTTP/2 streams a connection than rows of a decode launch: one client's single-row calls
// could then never fill a batch.
constexpr int kStreamsForFullBatch = kMaxDecodeRows;

std::string NewNodeId() {
  std::random_device entropy;
  return absl::StrFormat("%08x%08x", entropy(), entropy());
}

std::vector<Backend*> Pointers(const std::vector<std::unique_ptr<Backend>>& backends) {
  std::vector<Backend*> out;
  for (const auto& backend : backends) out.push_back(backend.get());
  return out;
}

MetricsSetup SetupOf(const std::vector<Backend*>& backends) {
  MetricsSetup setup;
  setup.version = FULCRUM_VERSION;
  setup.grpc_methods = NodeGrpcMethods();
  for (const Backend* backend : backends) {
    setup.ladders.push_back(backend->ladder());
    setup.devices.push_back(backend->device().id);
  }
  return setup;
}

SchedulerOptions SchedulerOptionsOf(const LimitsConfig& limits) {
  SchedulerOptions options;
  options.max_queue_rows = limits.max_queue_rows;
  options.max_queue_bytes = limits.max_queue_bytes;
  options.max_prefill_rows = limits.max_prefill_rows;
  options.slots_per_device = limits.slots_per_device;
  return options;
}

AuditorOptions AuditorOptionsOf(const AuditConfig& audit) {
  AuditorOptions options;
  options.outputs_per_batch = audit.outputs_per_batch;
  options.scrub_interval = audit.scrub;
  options.seed = std::random_device{}();
  return options;
}

}  // namespace

// Members are in the order of construction; each uses those above it alone.
class Server::Impl final {
 public:
  Impl(const Config& config, ServerOptions options, std::vector<std::unique_ptr<Backend>> backends,
       NodeLevers levers, LoadPlan plan);
  ~Impl() { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen();
  void StartLoading() { loading_.Start(); }
  void Shutdown(absl::Duration patience) {
    absl::call_once(shutdown_once_, [&] { Stop(patience); });
  }

  const Config config_;
  const ServerOptions options_;
  const Logger log_;
  const std::string id_ = NewNodeId();
  const absl::Time started_ = absl::Now();
  const Clock clock_;
  const std::vector<std::unique_ptr<Backend>> backends_;
  const std::vector<Backend*> devices_;
  Metrics metrics_;
  NodeHealth health_;
  NodeEvents events_;
  const std::unique_ptr<LeverJournal> journal_;
  LeverStore levers_;
  CanaryControl canaries_;
  ShardStore shards_;
  BundleStore bundles_;
  Auditor auditor_;
  Shadow shadow_;
  Scheduler scheduler_;
  DeviceWatch device_watch_;
  CallBook book_;
  const Authorizer authorizer_;
  ShardLoader loader_;
  InitialLoad loading_;
  ProjectionNode node_;
  ProjectionServiceImpl projection_service_;
  ShardServiceImpl shard_service_;
  LeverServiceImpl lever_service_;
  const std::unique_ptr<grpc::Service> reflection_service_ =
      MakeReflectionService(NodeGrpcServices());
  std::shared_ptr<LeverStore::Subscription> lever_changes_;
  std::unique_ptr<ServerTls> tls_;
  std::unique_ptr<MetricsEndpoint> metrics_endpoint_;
  std::unique_ptr<UnixSocket> unix_socket_;
  std::unique_ptr<grpc::Server> grpc_;
  int port_ = 0;
  bool listening_ = false;  // others may have heard of this node
  std::string address_;

 private:
  void LogDevice(const DeviceInfo& device) const;
  void Stop(absl::Duration patience);
  void Fail(const absl::Status& why);
  // Metrics and logs of what has happened: that it happened does not hang on them.
  template <class Body>
  void Tell(Body&& body) {
    (void)Guarded(events_, Thrower::kObserver, std::forward<Body>(body));
  }
  void OnShardChange(const ShardInfo& info);

  absl::once_flag shutdown_once_, failure_once_;
};

Server::Impl::Impl(const Config& config, ServerOptions options,
                   std::vector<std::unique_ptr<Backend>> backends, NodeLevers levers, LoadPlan plan)
    : config_(config),
      options_(std::move(options)),
      log_(ParseLogLevel(config.log_level).value_or(LogLevel::kInfo), options_.log_descriptor),
      backends_(std::move(backends)),
      devices_(Pointers(backends_)),
      metrics_(SetupOf(devices_)),
      health_(devices_),
      events_(devices_, metrics_, health_, log_,
              {.stop_device_on_mismatch = config_.audit.stop_device_on_mismatch,
               .on_device_lost = [this](const absl::Status& why) { Fail(why); }}),
      journal_(std::move(levers.journal)),
      levers_(
          clock_, levers.start,
          {.log = journal_.get(),
           .history = std::move(levers.history),
           .unwritten = levers.unwritten,
           .on_not_kept = [this](const LeverStep& step,
                                 const absl::Status& why) { events_.OnLeverNotKept(step, why); }}),
      canaries_(
          levers_, events_, clock_,
          [this](const CanaryReport& report) { Tell([&] { events_.CanaryChanged(report); }); }),
      shards_(devices_, [this](const ShardInfo& info) { Tell([&] { OnShardChange(info); }); }),
      bundles_(config_.bundle_folder, id_),
      auditor_(shards_, canaries_, AuditorOptionsOf(config_.audit), &bundles_),
      shadow_(canaries_, &bundles_, {.seed = std::random_device{}()}),
      scheduler_(devices_, levers_, canaries_, {.auditor = &auditor_, .shadow = &shadow_}, clock_,
                 SchedulerOptionsOf(config_.limits)),
      device_watch_(scheduler_, health_, clock_, log_, events_, config_.device_stall),
      book_(clock_, events_),
      authorizer_(config_.tls, config_.identity,
                  [this](HeaderUse use, const Peer& peer) { events_.OnIdentityHeader(use, peer); }),
      loader_(shards_, config_.weight_roots),
      loading_(config_, std::move(plan), loader_, health_, log_,
               [this](const absl::Status& why) { Fail(why); }),
      node_{.shards = shards_,
            .scheduler = scheduler_,
            .metrics = metrics_,
            .events = events_,
            .book = book_,
            .health = health_,
            .authorizer = authorizer_,
            .log = log_,
            .rules = {.limits = config_.limits, .default_policy = config_.default_policy},
            .id = id_,
            .log_calls = config_.log_calls},
      projection_service_(node_),
      shard_service_(
          shards_, loader_, levers_, devices_, authorizer_,
          NodeFacts{.node = id_,
                    .version = FULCRUM_VERSION,
                    .started = started_,
                    .default_policy = config_.default_policy,
                    .limits = config_.limits,
                    .draining = [this] { return health_.draining(); },
                    .not_serving = [this] { return health_.WhyNot(); },
                    .calls_in_flight = [this] { return book_.open(OpenKind::kProjection); },
                    .events = &events_}),
      lever_service_(levers_, canaries_, authorizer_, {.events = &events_}) {
  metrics_.SetLevers(*levers_.Snapshot());
  metrics_.SetCanarySource([this] { return canaries_.Last(); });
  metrics_.SetClientsSource(
      [this] { return static_cast<double>(canaries_.Clients().units.size()); });
  metrics_.SetJournalSource([this] { return levers_.unwritten() ? 1 : 0; });
  metrics_.SetBookSource([this] { return book_.open(OpenKind::kProjection); },
                         [this](int method) { return book_.open(method); });
  metrics_.SetDeviceSources([this] { return LastLaunches(scheduler_); },
                            [this] { return ServingDevices(scheduler_, health_); });
  lever_changes_ = levers_.Subscribe([this](const LeverEvent& event) {
    Tell([&] {
      metrics_.LeverChanged(event);
      metrics_.SetLevers(*levers_.Snapshot());
    });
    Tell([&] { events_.LeverChanged(event); });
  });
  for (const std::string& warning : levers.warnings) {
    log_.Warn("lever journal", {{"what", warning}});
  }
  for (const LeverStep& step : levers.unwritten) {
    events_.OnLeverNotKept(step, levers.why_unwritten);
  }
}

void Server::Impl::LogDevice(const DeviceInfo& device) const {
  const MmaProbe& probe = device.mma_probe;
  log_.Info("device", {{"id", device.id},
                       {"description", device.description},
                       {"memory_bytes", device.memory_bytes},
                       {"mma_model", Name(probe.model())}});
  if (!device.library_missing.empty()) {
    log_.Warn("w8a8_prefill=library: the device has no library, its arm will be declined",
              {{"device", device.id}, {"error", device.library_missing}});
  }
  if (probe.model() != MmaModel::kNotFollowed) return;
  log_.Warn("class mma is not audited: the device's tensor cores do not compute as the emulator",
            {{"device", device.id}, {"outputs", probe.outputs}, {"agreeing", probe.agreeing}});
}

absl::Status Server::Impl::Listen() {
  auto tls = ServerTls::Make(config_.tls, [this](const absl::StatusOr<absl::Time>& expiry) {
    if (expiry.ok()) {
      metrics_.SetCertificateExpiry(*expiry);
      log_.Info("certificate reloaded", {{"expiry", absl::FormatTime(*expiry)}});
    } else {
      log_.Error("new certificate refused, the old one stays", {{"error", expiry.status()}});
    }
  });
  if (!tls.ok()) return tls.status();
  tls_ = *std::move(tls);
  if (config_.tls.enabled()) metrics_.SetCertificateExpiry(tls_->expiry());

  if (config_.metrics_listen != "off") {
    auto endpoint = MetricsEndpoint::Start(config_.metrics_listen, metrics_);
    if (!endpoint.ok()) return endpoint.status();
    metrics_endpoint_ = *std::move(endpoint);
  }

  std::string listen = config_.listen;
  if (listen.starts_with(kUnixScheme)) {
    auto socket = UnixSocket::Claim(listen.substr(kUnixScheme.size()));
    if (!socket.ok()) return socket.status();
    unix_socket_ = *std::move(socket);
    listen = GrpcTarget(std::string(kUnixScheme) + unix_socket_->bind_path());
  }
  const LimitsConfig& limits = config_.limits;
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, tls_->credentials(), &port_);
  builder.RegisterService(&projection_service_);
  builder.RegisterService(&shard_service_);
  builder.RegisterService(&lever_service_);
  builder.RegisterService(reflection_service_.get());
  builder.experimental().SetInterceptorCreators(MakeRpcInterceptors(metrics_, book_, events_));
  SetTransport(config_, builder);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("listen: cannot listen on \"", config_.listen,
                     "\": is the address taken, or not of this machine? Choose another"));
  }
  if (unix_socket_ != nullptr) {
    if (auto status = unix_socket_->Publish(); !status.ok()) return status;
    port_ = 0;
    address_ = config_.listen;
  } else {
    address_ = absl::StrCat(config_.listen.substr(0, config_.listen.rfind(':')), ":", port_);
  }
  health_.Attach(grpc_->GetHealthCheckService());
  listening_ = true;

  // Not before: a start that fails is its one sentence.
  for (const Backend* backend : devices_) LogDevice(backend->device());
  if (limits.max_concurrent_streams < kStreamsForFullBatch) {
    log_.Warn("one connection cannot fill a batch",
              {{"max_concurrent_streams", limits.max_concurrent_streams},
               {"rows_of_a_full_batch", kStreamsForFullBatch}});
  }
  return absl::OkStatus();
}

void Server::Impl::Stop(absl::Duration patience) {
  const absl::Time hard_stop = absl::Now() + patience;
  const Drain drain{.book = book_, .scheduler = scheduler_, .log = log_};
  loading_.RequestStop();
  health_.Drain();
  if (listening_) drain.Begin(patience);
  lever_service_.Shutdown();
  drain.EndCalls(hard_stop, [this] { shard_service_.RequestStop(); });
  if (grpc_ != nullptr) {
    node_.parting.Hold();
    node_.parting.AwaitQuiet(hard_stop);
    drain.EndStreams();
    std::thread goodbye([this, patience] { node_.parting.ReleaseSoon(patience / 4); });
    // Replies are on their way; what is still open a moment later is cut.
    const absl::Duration rest = std::max(hard_stop - absl::Now(), absl::Milliseconds(500));
    grpc_->Shutdown(absl::ToChronoTime(absl::Now() + std::min(rest, absl::Seconds(5))));
    goodbye.join();
    unix_socket_.reset();
    health_.Detach();
  }
  loading_.Join();
  lever_changes_.reset();
  if (listening_) log_.Info("stopped", {{"calls_in_flight", book_.open(OpenKind::kProjection)}});
}

void Server::Impl::Fail(const absl::Status& why) {
  absl::call_once(failure_once_, [&] {
    if (options_.on_failure) options_.on_failure(why);
  });
}

void Server::Impl::OnShardChange(const ShardInfo& info) {
  canaries_.OnShard(info);
  health_.OnShard(info);
  log_.Info("shard", {{"name", info.name},
                      {"state", Name(info.state)},
                      {"version", info.version},
                      {"device", info.device}});
  for (const Backend* backend : devices_) {
    int64_t bytes = 0;
    for (const auto& shard : shards_.Serving()) {
      if (shard->backend == backend) bytes += shard->weight->resident_bytes();
    }
    metrics_.SetShardBytes(backend->device().id, bytes);
  }
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config, ServerOptions options) {
  if (auto status = CheckConfig(config); !status.ok()) return status;
  // From headers alone, and before a GPU is woken up.
  LoadPlan plan = OpenModels(config);
  if (auto status = plan.status(); !status.ok()) return status;
  std::vector<std::unique_ptr<Backend>> backends = std::move(options.backends);
  if (backends.empty()) {
    auto made = MakeBackends(config.backend, BackendOptionsOf(config, options.environment));
    if (!made.ok()) return made.status();
    backends = *std::move(made);
  }
  PlaceModels(Pointers(backends), plan);
  if (auto status = plan.status(); !status.ok()) return status;
  const std::string_view kind = backends.front()->name();
  auto levers = StartLevers(config, kind, options.environment);
  if (!levers.ok()) return levers.status();
  auto impl = std::make_unique<Impl>(config, std::move(options), std::move(backends),
                                     *std::move(levers), std::move(plan));
  if (const std::string opened = DescribeProfile(config.profile, kind); !opened.empty()) {
    impl->log_.Info("profile", {{"opens", opened}});
  }
  if (auto status = impl->Listen(); !status.ok()) return status;
  impl->StartLoading();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::Status Server::WaitLoaded() const { return impl_->loading_.Await(); }
void Server::Shutdown(absl::Duration patience) { impl_->Shutdown(patience); }
int Server::port() const { return impl_->port_; }
const std::string& Server::address() const { return impl_->address_; }
int Server::metrics_port() const {
  return impl_->metrics_endpoint_ == nullptr ? 0 : impl_->metrics_endpoint_->port();
}
const std::string& Server::node_id() const { return impl_->id_; }
Scheduler& Server::scheduler() { return impl_->scheduler_; }
ShardStore& Server::shards() { return impl_->shards_; }
Metrics& Server::metrics() { return impl_->metrics_; }
NodeHealth& Server::health() { return impl_->health_; }

}  // namespace fulcrum::service
