/*
Small texts that are kept between runs and can be recreated if lost: files below ${XDG_CACHE_HOME:-~/.cache}/anvil.
Processes may read and write at the same time: a file is replaced atomically.

  const std::string folder = user_cache_folder(std::getenv);     "": the user has no such folder
  cached_text(folder, "peak-0123456789abcdef.json")              "": missing or unreadable
  cache_text(folder, "peak-0123456789abcdef.json", text);        ignores errors
*/
#pragma once
#include <functional>
#include <string>

std::string user_cache_folder(const std::function<const char*(const char*)>& environment);
std::string cached_text(const std::string& folder, const std::string& name);
void cache_text(const std::string& folder, const std::string& name, const std::string& text) noexcept;
