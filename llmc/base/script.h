/*
Runs the scripts of data/, which download what is not in the repository.

  const std::string script = find_script("model.sh");   beside the program or in ./data; "": not found
  script_lines(script, {"gpt2"})                          the lines it prints; an Error if it fails
*/
#pragma once
#include <string>
#include <vector>

// The path of a script beside the program, in data/ beside the program, or in ./data; "" if there is none.
std::string find_script(const std::string& name);

// Each of `arguments` reaches the script as one word, whatever it contains.
std::vector<std::string> script_lines(const std::string& script, const std::vector<std::string>& arguments = {});
