/*
The scripts of data/ and scripts/, which download what is not in the repository or need Python. In a checkout they are
below the program's folder; `make install` puts those that the program names into PREFIX/share/anvil. They are run with
the user's rights, so no other folder is looked at, the working directory least of all.

  const std::string script = find_script("data/model.sh");   "": not found
  script_lines(script, {"gpt2"})                              the lines it prints; an Error if it fails
  with_installed_names(text)                                  as the user of an installed program calls them
*/
#pragma once
#include <string>
#include <vector>

// The path of a script, which is named as in the repository; "" if there is none.
std::string find_script(const std::string& name);

// Each of `arguments` reaches the script as one word, whatever it contains.
std::vector<std::string> script_lines(const std::string& script, const std::vector<std::string>& arguments = {});

// Messages and help name programs and scripts as in the repository: data/tokenize, data/model.sh. An installed program
// (PREFIX/bin beside PREFIX/share/anvil) says anvil-tokenize and /PREFIX/share/anvil/data/model.sh instead.
std::string with_installed_names(const std::string& text);
