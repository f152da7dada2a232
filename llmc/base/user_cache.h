/*
Small texts that may be kept from one run to the next, and are made again if they are lost: files below
${XDG_CACHE_HOME:-~/.cache}/anvil. Processes may read and write at once: a file is replaced as a whole.

  const std::string folder = user_cache_folder(std::getenv);     "": the user has no such place
  cached_text(folder, "peak-0123456789abcdef.json")              "": not there, or cannot be read
  cache_text(folder, "peak-0123456789abcdef.json", text);        what fails is no error
*/
#pragma once
#include <functional>
#include <string>

std::string user_cache_folder(const std::function<const char*(const char*)>& environment);
std::string cached_text(const std::string& folder, const std::string& name);
void cache_text(const std::string& folder, const std::string& name, const std::string& text) noexcept;
