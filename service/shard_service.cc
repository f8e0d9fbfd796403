// Requests into the store, the loader and the ladder, and their answers back.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_service.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/ladder/ladder.h"
#include "scheduler/ladder_query.h"
#include "service/grpc_status.h"
#include "service/headers_first.h"
#include "service/proto_names.h"
#include "service/shard_name.h"
#include "service/stoppable_source.h"

namespace fulcrum::service {
namespace {

constexpr int kWorkers = 4;
constexpr size_t kMaxWaitingWork = 64;
constexpr absl::Duration kDefaultPatience = absl::Seconds(30);
constexpr absl::Duration kMaxPatience = absl::Hours(1);
constexpr int kMaxExplainedRows = 256;  // answers of one ExplainLadder

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// The store's statuses say what happened; this adds which shard, in the form clients parse.
absl::Status AboutShard(absl::Status status, std::string_view name) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kDataLoss:
      return WithResource(std::move(status), "shard", name);
    case absl::StatusCode::kFailedPrecondition:
      return WithPrecondition(std::move(status), "SHARD_STATE", name);
    default:
      return status;
  }
}

// Errors of opening a file are about one field of the request.
absl::Status AboutFile(const absl::Status& status, std::string_view path) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return InvalidField("file", Message(status));
    case absl::StatusCode::kNotFound:
      return WithResource(status, "file", path);
    case absl::StatusCode::kFailedPrecondition:
      return WithPrecondition(status, "WEIGHT_ROOTS", "weight_roots");
    default:
      return status;
  }
}

absl::Status CheckLoad(const v1::LoadShardRequest& request, std::optional<Family>* family) {
  if (absl::Status s = CheckShardName(request.name()); !s.ok()) {
    return InvalidField("name", Message(s));
  }
  const std::optional<Family> known = FromProto(request.family());
  if (!known.has_value()) {
    return InvalidField("family", absl::StrFormat("%d is not a family", request.family()));
  }
  if (request.family() != v1::FAMILY_UNSPECIFIED) *family = *known;
  if (!request.expect_hash().empty() && !IsContentHash(request.expect_hash())) {
    return InvalidField("expect_hash", "expected 64 lower-case hex digits, or nothing");
  }
  return absl::OkStatus();
}

void Fill(const ShardInfo& info, v1::Shard* out) {
  out->set_name(info.name);
  out->set_n(info.spec.n);
  out->set_k(info.spec.k);
  // A shard that could not be opened has no format yet.
  if (info.spec.n > 0) out->set_format(ToProto(info.spec.format));
  out->set_family(ToProto(info.family));
  out->set_phase(ToProto(PhaseOf(info.family)));
  out->set_device(info.device);
  out->set_bytes(info.resident_bytes);
  out->set_hash(info.hash);
  out->set_version(info.version);
  out->set_state(ToProto(info.state));
  out->set_origin(info.origin);
  if (!info.error.ok()) out->set_error(std::string(Message(info.error)));
}

void Fill(const Shard& shard, v1::Shard* out) {
  ShardInfo info;
  info.name = shard.name;
  info.family = shard.family;
  info.spec = shard.weight->spec();
  info.device = shard.backend->device().id;
  info.hash = shard.hash;
  info.origin = shard.source->origin();
  info.resident_bytes = shard.weight->resident_bytes();
  info.version = shard.version;
  info.state = ShardState::kServing;
  Fill(info, out);
}

void FillCapabilities(uint32_t caps, v1::Device* device) {
  constexpr std::pair<uint32_t, const char*> kNames[] = {
      {kCapMma, "mma"},        {kCapSm90a, "sm90a"},        {kCapBlockScaled, "block_scaled"},
      {kCapImma, "imma"},      {kCapBulkCopy, "bulk_copy"}, {kCapFasterArms, "faster_arms"},
      {kCapLibrary, "library"}};
  for (const auto& [bit, name] : kNames) {
    if ((caps & bit) != 0) device->add_capabilities(name);
  }
}

// What ListLevers calls the gate; empty for an arm that is always open.
std::string GateName(const Arm& arm) {
  if (arm.gate.lever == Lever::kAlwaysOpen) return std::string();
  return std::string(Info(arm.gate.lever).name);
}

}  // namespace

ShardServiceImpl::ShardServiceImpl(ShardStore& store, const ShardLoader& loader,
                                   const LeverStore& levers, std::vector<Backend*> backends,
                                   const Authorizer& authorizer, NodeFacts facts)
    : store_(store),
      loader_(loader),
      levers_(levers),
      backends_(std::move(backends)),
      authorizer_(authorizer),
      facts_(std::move(facts)),
      workers_(kWorkers, kMaxWaitingWork) {
  MarkMethodStreamed(0, HeadersFirst(facts_.events, this, &ShardServiceImpl::ListShards));
  MarkMethodStreamed(1, HeadersFirst(facts_.events, this, &ShardServiceImpl::LoadShard));
  MarkMethodStreamed(2, HeadersFirst(facts_.events, this, &ShardServiceImpl::ReplaceShard));
  MarkMethodStreamed(3, HeadersFirst(facts_.events, this, &ShardServiceImpl::UnloadShard));
  MarkMethodStreamed(4, HeadersFirst(facts_.events, this, &ShardServiceImpl::ExplainLadder));
  MarkMethodStreamed(5, HeadersFirst(facts_.events, this, &ShardServiceImpl::GetNodeInfo));
}

grpc::ServerUnaryReactor* ShardServiceImpl::ListShards(grpc::CallbackServerContext* context,
                                                       const v1::ListShardsRequest* request,
                                                       v1::ListShardsResponse* response) {
  if (absl::Status s = authorizer_.CheckCaller(authorizer_.PeerOf(*context)); !s.ok()) {
    return Finish(context, s);
  }
  std::string prefix;
  if (!request->parent().empty()) {
    if (absl::Status s = CheckShardParent(request->parent()); !s.ok()) {
      return Finish(context, InvalidField("parent", Message(s)));
    }
    prefix = request->parent() + "/";
  }
  for (const ShardInfo& info : store_.List()) {
    if (info.name.starts_with(prefix)) Fill(info, response->add_shards());
  }
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ShardServiceImpl::LoadShard(grpc::CallbackServerContext* context,
                                                      const v1::LoadShardRequest* request,
                                                      v1::Shard* response) {
  return StartLoad(context, *request, response, LoadKind::kLoad);
}

grpc::ServerUnaryReactor* ShardServiceImpl::ReplaceShard(grpc::CallbackServerContext* context,
                                                         const v1::ReplaceShardRequest* request,
                                                         v1::Shard* response) {
  return StartLoad(context, request->load(), response, LoadKind::kReplace);
}

// Request and response live until Finish, so a worker may use them; a client that goes away changes
// nothing: what was begun ends, and the shard is in the list.
grpc::ServerUnaryReactor* ShardServiceImpl::StartWork(grpc::CallbackServerContext* context,
                                                      std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool taken = workers_.Run([this, reactor, work = std::move(work)] {
    absl::Status status;
    const absl::Status thrown = Caught([&] { status = work(); });
    if (!thrown.ok() && facts_.events != nullptr) {
      (void)Caught([&] { facts_.events->OnException(Thrower::kWork, thrown); });
    }
    reactor->Finish(ToGrpc(thrown.ok() ? status : thrown));
  });
  if (!taken) {
    reactor->Finish(ToGrpc(
        WithRetry(absl::ResourceExhaustedError(absl::StrFormat(
                      "%d changes of shards wait already; try again later", kMaxWaitingWork)),
                  absl::Seconds(1))));
  }
  return reactor;
}

grpc::ServerUnaryReactor* ShardServiceImpl::StartLoad(grpc::CallbackServerContext* context,
                                                      const v1::LoadShardRequest& request,
                                                      v1::Shard* response, LoadKind kind) {
  if (absl::Status s = authorizer_.CheckAdmin(authorizer_.PeerOf(*context)); !s.ok()) {
    return Finish(context, s);
  }
  std::optional<Family> family;
  if (absl::Status s = CheckLoad(request, &family); !s.ok()) return Finish(context, s);
  return StartWork(context, [this, &request, response, kind, family] {
    return DoLoad(request, family, kind, response);
  });
}

absl::Status ShardServiceImpl::DoLoad(const v1::LoadShardRequest& request,
                                      std::optional<Family> family, LoadKind kind,
                                      v1::Shard* response) {
  // In the order of what the checks cost: the store asks its own again, before a row is read.
  const absl::Status held = kind == LoadKind::kLoad
                                ? store_.CheckLoad(request.name(), request.device())
                                : store_.CheckReplace(request.name(), request.device());
  if (absl::IsInvalidArgument(held)) return InvalidField("device", Message(held));
  if (!held.ok()) return AboutShard(held, request.name());
  const v1::WeightFile& file = request.file();
  absl::StatusOr<std::shared_ptr<const WeightSource>> source =
      loader_.Open({.path = file.path(),
                    .tensor = file.tensor(),
                    .row_begin = file.row_begin(),
                    .row_end = file.row_end(),
                    .col_begin = file.col_begin(),
                    .col_end = file.col_end()},
                   request.allow_nan());
  if (!source.ok()) return AboutFile(source.status(), file.path());
  const auto stoppable = std::make_shared<StoppableSource>(*std::move(source), &stop_);
  const LoadRequest load{.name = request.name(),
                         .family = family,
                         .source = stoppable,
                         .allow_nan = request.allow_nan(),
                         .device = request.device(),
                         .expect_hash = request.expect_hash()};
  const absl::StatusOr<std::shared_ptr<const Shard>> shard =
      kind == LoadKind::kLoad ? store_.Load(load) : store_.Replace(load);
  stoppable->LetGo();
  if (!shard.ok()) return AboutShard(shard.status(), request.name());
  Fill(**shard, response);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ShardServiceImpl::UnloadShard(grpc::CallbackServerContext* context,
                                                        const v1::UnloadShardRequest* request,
                                                        v1::UnloadShardResponse* /*response*/) {
  if (absl::Status s = authorizer_.CheckAdmin(authorizer_.PeerOf(*context)); !s.ok()) {
    return Finish(context, s);
  }
  if (absl::Status s = CheckShardName(request->name()); !s.ok()) {
    return Finish(context, InvalidField("name", Message(s)));
  }
  const double seconds = request->patience_seconds();
  if (!std::isfinite(seconds) || seconds < 0 || absl::Seconds(seconds) > kMaxPatience) {
    return Finish(context, InvalidField("patience_seconds",
                                        absl::StrFormat("%g; expected 0 (means %s) to %g", seconds,
                                                        absl::FormatDuration(kDefaultPatience),
                                                        absl::ToDoubleSeconds(kMaxPatience))));
  }
  // Past the caller's deadline nobody waits for the answer, and others wait for the worker.
  const absl::Time until =
      std::min(absl::Now() + (seconds == 0 ? kDefaultPatience : absl::Seconds(seconds)),
               absl::FromChrono(context->deadline()));
  return StartWork(context, [this, request, until] {
    return AboutShard(store_.Unload(request->name(), until - absl::Now()), request->name());
  });
}

grpc::ServerUnaryReactor* ShardServiceImpl::ExplainLadder(grpc::CallbackServerContext* context,
                                                          const v1::ExplainLadderRequest* request,
                                                          v1::ExplainLadderResponse* response) {
  if (absl::Status s = authorizer_.CheckCaller(authorizer_.PeerOf(*context)); !s.ok()) {
    return Finish(context, s);
  }
  return Finish(context, Explain(*request, response));
}

absl::Status ShardServiceImpl::Explain(const v1::ExplainLadderRequest& request,
                                       v1::ExplainLadderResponse* response) const {
  const std::optional<Policy> policy = FromProto(request.policy(), facts_.default_policy);
  if (!policy.has_value()) {
    return InvalidField("policy", absl::StrFormat("%d is not a policy", request.policy()));
  }
  const std::optional<Step> step = FromProto(request.step());
  if (!step.has_value()) {
    return InvalidField("step", absl::StrFormat("%d is not a step", request.step()));
  }
  std::vector<int> rows(request.rows().begin(), request.rows().end());
  if (rows.empty()) {
    for (int m = 1; m <= kMaxDecodeRows; ++m) rows.push_back(m);
  }
  if (rows.size() > kMaxExplainedRows) {
    return InvalidField(
        "rows", absl::StrFormat("%d entries; expected at most %d", rows.size(), kMaxExplainedRows));
  }
  const int max_rows = *step == Step::kDecode ? kMaxDecodeRows : facts_.limits.max_prefill_rows;
  for (int m : rows) {
    if (m >= 1 && m <= max_rows) continue;
    return InvalidField(
        "rows", absl::StrFormat("%d; expected 1 to %d for step %s", m, max_rows, Name(*step)));
  }
  const absl::StatusOr<std::shared_ptr<const Shard>> found = store_.Find(request.shard());
  if (!found.ok()) return AboutShard(found.status(), request.shard());
  const Shard& shard = **found;
  const std::shared_ptr<const LeverSnapshot> snapshot = levers_.Snapshot();
  const std::span<const Arm> ladder = shard.backend->ladder();
  const LadderQuery query = QueryFor(shard, *step, *policy);

  response->set_shard(shard.name);
  response->set_lever_epoch(snapshot->epoch);
  for (int m : rows) {
    v1::LadderChoice* choice = response->add_choices();
    choice->set_rows(m);
    for (const RungVerdict& verdict : fulcrum::Explain(ladder, query, snapshot->levers, m)) {
      const Arm& arm = *verdict.arm;
      v1::Rung* rung = choice->add_rungs();
      rung->set_arm(std::string(arm.name));
      rung->set_verdict(std::string(Name(verdict.verdict)));
      rung->set_numerics(ToProto(arm.numerics));
      rung->set_lever(GateName(arm));
      if (verdict.verdict != Decline::kRuns) continue;
      choice->set_arm(std::string(arm.name));
      choice->set_numerics(ToProto(arm.numerics));
      const std::vector<int> pieces = Pieces(arm, m);
      if (pieces.size() > 1) choice->mutable_pieces()->Add(pieces.begin(), pieces.end());
      const Backend::LaunchShape shape =
          shard.backend->Shape(arm, shard.weight->spec(), pieces.front());
      choice->set_blocks(shape.blocks);
      choice->set_waves(shape.waves);
      choice->set_expected_bytes(shape.bytes);
    }
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ShardServiceImpl::GetNodeInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetNodeInfoRequest* /*request*/,
                                                        v1::NodeInfo* response) {
  if (absl::Status s = authorizer_.CheckCaller(authorizer_.PeerOf(*context)); !s.ok()) {
    return Finish(context, s);
  }
  Describe(response);
  return Finish(context, absl::OkStatus());
}

void ShardServiceImpl::Describe(v1::NodeInfo* response) const {
  response->set_node(facts_.node);
  response->set_version(facts_.version);
  response->set_default_policy(ToProto(facts_.default_policy));
  response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - facts_.started));
  response->set_draining(facts_.draining && facts_.draining());
  if (facts_.not_serving) response->set_not_serving(facts_.not_serving());
  if (facts_.calls_in_flight) response->set_calls_in_flight(facts_.calls_in_flight());
  const std::vector<ShardInfo> shards = store_.List();
  for (const Backend* backend : backends_) {
    v1::Device* device = response->add_devices();
    device->set_id(backend->device().id);
    device->set_description(backend->device().description);
    device->set_memory_bytes(backend->device().memory_bytes);
    device->set_healthy(backend->healthy());
    FillCapabilities(backend->device().caps, device);
    device->set_mma_model(ToProto(backend->device().mma_probe.model()));
    int64_t resident = 0;
    for (const ShardInfo& info : shards) {
      if (info.device == backend->device().id) resident += info.resident_bytes;
    }
    device->set_resident_bytes(resident);
  }
  v1::Limits* limits = response->mutable_limits();
  limits->set_max_decode_rows(kMaxDecodeRows);
  limits->set_max_prefill_rows(facts_.limits.max_prefill_rows);
  limits->set_max_shards_per_call(kMaxShardsPerCall);
  limits->set_max_message_bytes(facts_.limits.max_message_bytes);
  limits->set_max_queue_rows(facts_.limits.max_queue_rows);
  limits->set_max_queue_bytes(facts_.limits.max_queue_bytes);
  limits->set_max_stream_calls(facts_.limits.max_stream_calls);
}

}  // namespace fulcrum::service
