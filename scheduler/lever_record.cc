// See lever_record.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_record.h"

#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDigits = 8;
constexpr std::string_view kChained = "2 ";

// Of the text behind others whose checksum is `before`.
uint32_t Checksum(uint32_t before, std::string_view text) {
  return static_cast<uint32_t>(
      crc32_z(before, reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

template <class Enum, class All>
std::optional<Enum> ParseName(const std::string& name, const All& all) {
  for (Enum value : all) {
    if (Name(value) == name) return value;
  }
  return std::nullopt;
}

constexpr std::array kAllSources = {LeverSource::kBuiltIn, LeverSource::kProfile,
                                    LeverSource::kConfig,  LeverSource::kEnvironment,
                                    LeverSource::kJournal, LeverSource::kRpc};

std::string Text(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
}
uint64_t Whole(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}

struct Line {
  bool chained = false;
  uint32_t checksum = 0;
  uint64_t length = 0;
  std::string_view text;
};
std::optional<Line> Split(std::string_view line) {
  Line out;
  if (line.starts_with(kChained)) {
    out.chained = true;
    line.remove_prefix(kChained.size());
  }
  if (line.size() <= kDigits || line[kDigits] != ' ') return std::nullopt;
  if (!absl::SimpleHexAtoi(std::string(line.substr(0, kDigits)), &out.checksum)) {
    return std::nullopt;
  }
  const size_t space = line.find(' ', kDigits + 1);
  if (space == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(line.substr(kDigits + 1, space - kDigits - 1)), &out.length)) {
    return std::nullopt;
  }
  out.text = line.substr(space + 1);
  return out;
}

}  // namespace

bool MayBeCutShort(std::string_view line) {
  constexpr size_t kLongest = 1 << 20;  // far above any record
  if (line.size() > kLongest) return false;
  const std::optional<Line> parts = Split(line);
  if (parts.has_value()) return parts->text.size() <= parts->length;
  // Not even its length is whole. What is there of it: pages that were not written are zeros.
  std::string_view rest = line.substr(0, line.find('\0'));
  const auto take = [&rest](size_t most, std::string_view of) {
    const size_t other = rest.substr(0, most).find_first_not_of(of);
    const size_t taken = other == std::string_view::npos ? std::min(most, rest.size()) : other;
    rest.remove_prefix(taken);
    return taken;
  };
  if (kChained.starts_with(rest)) return true;
  if (rest.starts_with(kChained)) rest.remove_prefix(kChained.size());
  if (take(kDigits, "0123456789abcdef") < kDigits || take(1, " ") == 0) return rest.empty();
  take(line.size(), "0123456789");
  return rest.empty();
}

std::string EncodeStep(const LeverStep& step, RecordChain& chain) {
  const LeverEvent& first = step.front();
  Json json = {{"epoch", first.epoch},
               {"time", absl::FormatTime(absl::RFC3339_full, first.time, absl::UTCTimeZone())},
               {"cause", std::string(Name(first.cause))},
               {"actor", first.actor},
               {"reason", first.reason}};
  if (first.canary != 0) json["canary"] = first.canary;
  if (!first.evidence.empty()) json["evidence"] = first.evidence;
  for (const LeverEvent& event : step) {
    json["changes"].push_back({{"lever", event.lever},
                               {"from", event.from},
                               {"to", event.to},
                               {"source", std::string(Name(event.source))}});
  }
  // What callers wrote may not be UTF-8; the journal stays readable by anything.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  chain = {.checksum = Checksum(chain.checksum, text), .chained = true};
  return absl::StrFormat("%s%08x %d %s\n", kChained, chain.checksum, text.size(), text);
}

absl::StatusOr<LeverStep> DecodeStep(std::string_view line, RecordChain& chain) {
  const auto bad = [](std::string_view what) {
    return absl::DataLossError(absl::StrFormat("%s", what));
  };
  const std::optional<Line> parts = Split(line);
  if (!parts.has_value()) return bad("it does not begin with a checksum and a length");
  const std::string_view text = parts->text;
  if (text.size() != parts->length) {
    return absl::DataLossError(
        absl::StrFormat("it says that it has %d bytes, it has %d", parts->length, text.size()));
  }
  if (chain.chained && !parts->chained) {
    return bad("it is of format 1 behind one of format 2, which only another file's can be");
  }
  const RecordChain next{.checksum = Checksum(chain.checksum, text), .chained = parts->chained};
  if (parts->chained && parts->checksum != next.checksum) {
    return absl::DataLossError(absl::StrFormat(
        "its checksum is %08x, the records up to it have %08x: it was changed, or a line before it "
        "was taken out, put in or moved",
        parts->checksum, next.checksum));
  }
  if (const uint32_t own = Checksum(0, text); !parts->chained && own != parts->checksum) {
    return absl::DataLossError(
        absl::StrFormat("its checksum is %08x, its bytes have %08x", parts->checksum, own));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("it is not a JSON object");
  LeverEvent common{.epoch = Whole(json, "epoch"),
                    .actor = Text(json, "actor"),
                    .reason = Text(json, "reason"),
                    .canary = Whole(json, "canary"),
                    .evidence = Text(json, "evidence")};
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, Text(json, "time"), &common.time, &error)) {
    return bad("it has no time");
  }
  const auto cause = ParseName<LeverCause>(Text(json, "cause"), kAllLeverCauses);
  if (!cause) return bad("its cause is unknown: was it written by a later version?");
  common.cause = *cause;
  const auto changes = json.find("changes");
  if (common.epoch == 0 || changes == json.end() || !changes->is_array() || changes->empty()) {
    return bad("it has no epoch or no changes");
  }
  LeverStep step;
  for (const Json& change : *changes) {
    const auto source = ParseName<LeverSource>(Text(change, "source"), kAllSources);
    if (!source) return bad("a change has no known source: was it written by a later version?");
    LeverEvent event = common;
    event.lever = Text(change, "lever");
    event.from = Text(change, "from");
    event.to = Text(change, "to");
    event.source = *source;
    step.push_back(std::move(event));
  }
  chain = next;
  return step;
}

}  // namespace fulcrum
