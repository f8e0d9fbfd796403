// Links followed one at a time, so that each name on the way can be looked at.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/file_links.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace fulcrum {
namespace {
namespace fs = std::filesystem;
}  // namespace

std::vector<std::string> LinkChain(const std::string& path) {
  constexpr size_t kMostLinks = 40;  // as many as the system follows
  std::vector<std::string> chain = {path};
  std::error_code error;
  while (chain.size() <= kMostLinks) {
    const fs::path target = fs::read_symlink(chain.back(), error);
    if (error) break;
    // A relative target is left as it is written: the system takes ".." after the folders' links.
    chain.push_back((fs::path(chain.back()).parent_path() / target).string());
  }
  return chain;
}

std::string LinkText(const std::string& path) {
  const std::vector<std::string> chain = LinkChain(path);
  if (chain.size() == 1) return "";
  constexpr size_t kShown = 4;
  std::string text = absl::StrCat(path, " (a link to ", chain[1]);
  for (size_t i = 2; i < chain.size() && i < kShown; ++i) {
    absl::StrAppend(&text, ", a link to ", chain[i]);
  }
  if (chain.size() > kShown) absl::StrAppend(&text, ", and so on to ", chain.back());
  return absl::StrCat(text, NameExists(chain.back()) ? ")" : ", which does not exist)");
}

bool NameExists(const std::string& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string_view FileName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

}  // namespace fulcrum
