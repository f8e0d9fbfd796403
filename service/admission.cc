// The checks, in the order in which they can be made.
// SPDX-License-Identifier: Apache-2.0
#include "service/admission.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/call_context.h"
#include "service/grpc_status.h"
#include "service/proto_names.h"
#include "service/shard_service.h"

namespace fulcrum::service {
namespace {

// Products of sizes from the wire: beyond the range they stay at its end, which no limit allows.
int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}
int64_t Plus(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

template <class Value>
absl::Status UnknownEnum(std::string_view field, Value got, std::string_view allowed) {
  return InvalidField(field, absl::StrFormat("expected %s, got the undefined number %d", allowed,
                                             static_cast<int>(got)));
}

// Words of the call that stand alone: enums and counts.
absl::Status CheckWords(const ProjectRequest& request, const AdmissionRules& rules, Call* call,
                        PayloadLayout* layout) {
  if (request.call_id.size() > kMaxCallIdBytes) {
    return InvalidField("call_id", absl::StrFormat("expected at most %d bytes, got %d",
                                                   kMaxCallIdBytes, request.call_id.size()));
  }
  const auto activation_type = FromProto(static_cast<v1::DType>(request.activation_type));
  if (!activation_type) {
    return UnknownEnum("activation_type", request.activation_type, "BF16, F16 or F32");
  }
  const auto output_type = FromProto(static_cast<v1::DType>(request.output_type));
  if (!output_type) return UnknownEnum("output_type", request.output_type, "BF16 or F32");
  if (*output_type == DType::kF16) {
    return InvalidField("output_type",
                        "expected BF16 or F32, got F16, which is for activations only");
  }
  const auto step = FromProto(static_cast<v1::Step>(request.step));
  if (!step) return UnknownEnum("step", request.step, "DECODE or PREFILL");
  const auto policy = FromProto(static_cast<v1::Policy>(request.policy), rules.default_policy);
  if (!policy) {
    return UnknownEnum("policy", request.policy, "EXACT, BATCH_INVARIANT or FASTEST");
  }
  const int64_t max_rows =
      *step == Step::kDecode ? kMaxDecodeRows : int64_t{rules.limits.max_prefill_rows};
  if (request.rows < 1 || request.rows > max_rows) {
    return InvalidField(
        "rows",
        absl::StrFormat("expected 1..%d for step %s, got %d%s", max_rows, Name(*step), request.rows,
                        request.rows > max_rows ? "; send the rows in several calls" : ""));
  }
  layout->type = *activation_type;
  layout->rows = request.rows;
  call->rows = static_cast<int>(request.rows);
  call->step = *step;
  call->policy = *policy;
  call->output_type = *output_type;
  return absl::OkStatus();
}

absl::Status WithShardDetail(absl::Status status, const std::string& name) {
  if (absl::IsNotFound(status)) return WithResource(std::move(status), "shard", name);
  if (absl::IsFailedPrecondition(status)) {
    return WithPrecondition(std::move(status), "SHARD_STATE", name);
  }
  return status;
}

absl::Status FindShards(const ProjectRequest& request, const ShardStore& store, Call* call) {
  static_assert(kMaxKeptShards > kMaxShardsPerCall);
  if (request.shards.empty() || request.shards.size() > size_t{kMaxShardsPerCall}) {
    return InvalidField("shards", absl::StrFormat("expected 1..%d names, got %d", kMaxShardsPerCall,
                                                  static_cast<int64_t>(request.shards.size()) +
                                                      request.more_shards));
  }
  for (size_t i = 0; i < request.shards.size(); ++i) {
    const std::string& name = request.shards[i];
    if (name.empty()) {
      return InvalidField(absl::StrCat("shards[", i, "]"),
                          "expected \"models/{model}/shards/{shard}\", got an empty name");
    }
    auto shard = store.Find(name);
    if (!shard.ok()) return WithShardDetail(shard.status(), name);
    call->shards.push_back(*std::move(shard));
    const Shard& first = *call->shards.front();
    const Shard& last = *call->shards.back();
    if (last.k() != first.k()) {
      return InvalidField(absl::StrCat("shards[", i, "]"),
                          absl::StrFormat("shards of one call share its activations: expected K = "
                                          "%d as of %s, got K = %d of %s",
                                          first.k(), Quoted(first.name), last.k(), Quoted(name)));
    }
    if (last.backend != first.backend) {
      return InvalidField(
          absl::StrCat("shards[", i, "]"),
          absl::StrFormat(
              "shards of one call are on one device: expected %s as of %s, got %s of %s",
              first.backend->device().id, Quoted(first.name), last.backend->device().id,
              Quoted(name)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckActivations(const ProjectRequest& request, int64_t k, PayloadLayout* layout) {
  layout->k = k;
  layout->pitch = request.activation_pitch == 0 ? k : request.activation_pitch;
  if (layout->pitch < k) {
    return InvalidField("activation_pitch",
                        absl::StrFormat("expected 0 or at least K = %d elements, got %d", k,
                                        request.activation_pitch));
  }
  const auto element = static_cast<int64_t>(SizeOf(layout->type));
  const int64_t shortest = Times(Plus(Times(layout->rows - 1, layout->pitch), layout->k), element);
  const int64_t longest = Times(Times(layout->rows, layout->pitch), element);
  const int64_t got = request.activations_size;
  if (got == shortest || got == longest) return absl::OkStatus();
  const std::string expected =
      shortest == longest ? absl::StrCat(shortest) : absl::StrCat(shortest, " or ", longest);
  return InvalidField(
      "activations",
      absl::StrFormat("expected %s bytes (rows %d, K %d, pitch %d, %s of %d bytes), got %d",
                      expected, layout->rows, k, layout->pitch, Name(layout->type), element, got));
}

absl::Status CheckReply(const ProjectRequest& request, const AdmissionRules& rules, Call* call) {
  const auto element = static_cast<int64_t>(SizeOf(call->output_type));
  int64_t needed = kReplyOverheadBytes;
  for (const auto& shard : call->shards) {
    const int64_t n = shard->n();
    const int64_t most = Times(n, kMaxOutputPitchFactor);
    const int64_t pitch = request.output_pitch;
    if (pitch != 0 && (pitch < n || pitch > most)) {
      return InvalidField(
          "output_pitch",
          absl::StrFormat("expected 0 or %d..%d elements for shard %s (N = %d), got %d", n, most,
                          Quoted(shard->name), n, pitch));
    }
    const int64_t data = Times(Times(call->rows, pitch == 0 ? n : pitch), element);
    needed = Plus(needed, Plus(data, kOutputOverheadBytes));
  }
  const LimitsConfig& limits = rules.limits;
  if (needed > limits.max_message_bytes) {
    return WithInfo(
        absl::ResourceExhaustedError(absl::StrFormat(
            "the reply would need %d bytes, this node sends at most %d (its max_message_bytes); "
            "ask "
            "for fewer rows or shards, or raise the node's limit and the client's receive limit",
            needed, limits.max_message_bytes)),
        "REPLY_TOO_LARGE",
        {{"needed_bytes", absl::StrCat(needed)},
         {"limit_bytes", absl::StrCat(limits.max_message_bytes)}});
  }
  call->payload_bytes = Plus(request.activations_size, needed);
  if (call->payload_bytes > limits.max_queue_bytes || call->rows > limits.max_queue_rows) {
    return WithInfo(
        absl::ResourceExhaustedError(absl::StrFormat(
            "the call alone is larger than this node's queue: %d rows and %d bytes, the "
            "limits are %d rows and %d bytes; send it in parts",
            call->rows, call->payload_bytes, limits.max_queue_rows, limits.max_queue_bytes)),
        "CALL_TOO_LARGE",
        {{"needed_bytes", absl::StrCat(call->payload_bytes)},
         {"limit_bytes", absl::StrCat(limits.max_queue_bytes)}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Admit(const ProjectRequest& request, const AdmissionRules& rules,
                   const ShardStore& store, Call* call, PayloadLayout* layout) {
  if (auto status = CheckWords(request, rules, call, layout); !status.ok()) return status;
  if (auto status = FindShards(request, store, call); !status.ok()) return status;
  const int64_t k = call->shards.front()->k();
  if (auto status = CheckActivations(request, k, layout); !status.ok()) return status;
  return CheckReply(request, rules, call);
}

}  // namespace fulcrum::service
