/*
Unicode's normalization form C (UAX #15, Unicode 16.0: llmc/data/unicode_table.h). A character that can be written in
several ways, as one code point or as a letter with marks, gets a unique form: with the fewest code points, and marks
ordered by combining class. Bytes that are not UTF-8 are not changed.
*/
#pragma once
#include <string>
#include <string_view>

// Fast check; false if the text may or may not be NFC.
bool is_surely_nfc(std::string_view text);
// The normalization form C of a text.
std::string to_nfc(std::string_view text);
