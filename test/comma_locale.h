/*
A locale whose decimal point is a comma, as in much of the world, for scripts that must not depend on it.

  run(comma_locale() + "scripts/proxy.sh ...")

It is made here, of nothing that the system has installed but glibc's localedef.
*/
#pragma once
#include <fstream>
#include <string>
#include "test/testing.h"  // run, ScratchFolder

// Variables to put before a command, with a blank at the end; "": there is no localedef.
inline const std::string& comma_locale() {
    static const ScratchFolder folder;
    static const std::string variables = [] {
        std::ofstream(folder / "comma") << "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"<U002E>\"\n"
                                           "grouping 3;3\nEND LC_NUMERIC\n";
        // -c: without a character set and the other categories, which it warns of.
        run("localedef -c -f ANSI_X3.4-1968 -i " + folder / "comma" + " " + folder / "xx_XX");
        const std::string set = "LOCPATH=" + folder.path + " LC_ALL=xx_XX ";
        return run(set + "bash -c 'printf %.1f 0,5'").out == "0,5" ? "env " + set : "";
    }();
    return variables;
}
