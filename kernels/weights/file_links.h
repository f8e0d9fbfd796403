// Symbolic links on the way to a file. Names and neighbours of a checkpoint's files are those of
// the path that was named (in a download cache, files are links to blobs whose names say nothing);
// what lies beside a link's target counts too where it speaks about the target.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fulcrum {

// `path`, then where each link leads whose last part is a link itself; a circle is cut. Links among
// the folders are left to the system.
std::vector<std::string> LinkChain(const std::string& path);

// "a (a link to b, a link to c, which does not exist)", or empty where `path` is no link.
std::string LinkText(const std::string& path);

// Whether the folder holds this name, even if only as a link that leads nowhere.
bool NameExists(const std::string& path);

// "." for a bare file name.
std::string FolderOf(const std::string& path);

std::string_view FileName(std::string_view path);

}  // namespace fulcrum
