// Runs a fuzz target without libFuzzer: on every file of a folder, on every prefix of each, and on
// a fixed number of mutations of each, the same on every run. Fails when there is no file to run.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr int kMutationsPerFile = 3000;
constexpr size_t kPrefixesPerFile = 2000;

// An exact-size heap copy, so that a sanitizer sees a read one byte past the end.
void Run(const std::string& bytes) {
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  LLVMFuzzerTestOneInput(copy.get(), bytes.size());
}

std::string Mutate(std::string bytes, std::mt19937_64& random) {
  static const std::string kInteresting[] = {
      std::string(8, '\xff'), std::string(8, '\0'),
      std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8),
      std::string("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 10), std::string("\x2a\0\0\0", 4)};
  const int edits = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < edits && !bytes.empty(); ++i) {
    const size_t at = random() % bytes.size();
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
        break;
      case 2:
        bytes.erase(at, 1 + random() % 16);
        break;
      case 3: {
        const std::string& text = kInteresting[random() % std::size(kInteresting)];
        bytes.replace(at, std::min(text.size(), bytes.size() - at), text);
        break;
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: replay FOLDER\n");
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::mt19937_64 random(1);
  size_t runs = 0;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const size_t step = bytes.size() / kPrefixesPerFile + 1;
    for (size_t n = 0; n < bytes.size(); n += step, ++runs) Run(bytes.substr(0, n));
    Run(bytes);
    for (int i = 0; i < kMutationsPerFile; ++i, ++runs) Run(Mutate(bytes, random));
  }
  std::printf("%zu files, %zu inputs\n", files.size(), runs);
  return files.empty() ? 1 : 0;
}
