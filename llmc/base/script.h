/*
The scripts of data/, which get what is not in the repository.

  const std::string script = find_script("model.sh");   beside the program, or in ./data; empty: it is not there
  script_lines(script, {"gpt2"})                          what it prints; an Error if it fails, after what it said
itself
*/
#pragma once
#include <string>
#include <vector>

std::string find_script(const std::string& name);

// Each of `arguments` is one word to the script, whatever is in it.
std::vector<std::string> script_lines(const std::string& script, const std::vector<std::string>& arguments = {});
