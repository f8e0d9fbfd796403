// fulcrum load and fulcrum replace: a tensor of a file under one of the node's weight roots becomes
// a shard, or a shard's next version.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

// "BEGIN:END", either side may be empty; an empty end is the whole extent (0 on the wire).
absl::Status ParseSlice(const char* what, const std::string& text, int64_t* begin, int64_t* end) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const auto number = [](const std::string& part, int64_t* out) {
    return part.empty() || (absl::SimpleAtoi(part, out) && *out >= 0);
  };
  if (parts.size() != 2 || !number(parts[0], begin) || !number(parts[1], end)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected BEGIN:END, got \"", text, "\""));
  }
  return absl::OkStatus();
}

class Load final : public Command {
 public:
  explicit Load(bool replace) : replace_(replace) {}

  void Declare(Options& options) override {
    options.Add("--name,name", &name_, "models/MODEL/shards/SHARD");
    options.Required();
    options.Add("--path", &path_, "File on the node, absolute or relative to a weight root");
    options.Required();
    options.Add("--tensor", &tensor_, "Its name in the file");
    options.Required();
    options.Add("--family", &family_,
                std::string("Projection family: attn_qkv, ffn_down, ... (default: ") +
                    (replace_ ? "the shard's own)" : "other)"));
    options.Add("--device", &device_, "Where it goes (default: the node chooses)");
    options.Add("--rows", &rows_, "Row slice BEGIN:END on block boundaries");
    options.Add("--cols", &cols_, "Column slice BEGIN:END on block boundaries");
    options.Add("--expect-hash", &expect_hash_, "Refuse other content");
    options.Flag("--allow-nan", &allow_nan_,
                 "Accept weights that are not finite: NaN codes, scales that overflow");
  }

  int Run(const Context& context) override {
    v1::ReplaceShardRequest request;
    v1::LoadShardRequest& load = *request.mutable_load();
    load.set_name(name_);
    load.mutable_file()->set_path(path_);
    load.mutable_file()->set_tensor(tensor_);
    int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
    absl::Status status = ParseSlice("--rows", rows_, &row_begin, &row_end);
    status.Update(ParseSlice("--cols", cols_, &col_begin, &col_end));
    const auto family = ParseFamilyWord(family_);
    status.Update(family.status());
    if (!status.ok()) return context.InputError(status);
    load.mutable_file()->set_row_begin(row_begin);
    load.mutable_file()->set_row_end(row_end);
    load.mutable_file()->set_col_begin(col_begin);
    load.mutable_file()->set_col_end(col_end);
    load.set_family(*family);
    load.set_device(device_);
    load.set_allow_nan(allow_nan_);
    load.set_expect_hash(expect_hash_);

    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto shard = replace_ ? (*client)->ReplaceShard(request, context.Call())
                                : (*client)->LoadShard(load, context.Call());
    if (!shard.ok()) return context.NodeError(shard.status(), kLookAtFile);
    if (context.json()) {
      Print(context.out(), ToJson(*shard));
    } else {
      context.out() << shard->name() << ": " << Word(shard->state()) << " on " << shard->device()
                    << ", " << shard->n() << " x " << shard->k() << " " << Word(shard->format())
                    << ", version " << shard->version() << "\nhash " << shard->hash() << "\n";
    }
    return kOk;
  }

 private:
  const bool replace_;
  std::string name_, path_, tensor_, family_, device_, rows_, cols_, expect_hash_;
  bool allow_nan_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLoad() { return std::make_unique<Load>(/*replace=*/false); }
std::unique_ptr<Command> MakeReplace() { return std::make_unique<Load>(/*replace=*/true); }

}  // namespace fulcrum::cli
