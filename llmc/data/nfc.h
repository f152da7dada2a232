/*
Unicode's normalization form C (UAX #15): characters that can be written in several ways, as one code point or as a
letter and its marks, are written in one: as few code points as there are for it, marks in the order of their classes.
Bytes that are not UTF-8 stay as they are. Of Unicode 16.0 (llmc/data/unicode_table.h).
*/
#pragma once
#include <string>
#include <string_view>

// Quick: false for what may or may not be NFC.
bool is_surely_nfc(std::string_view text);
std::string to_nfc(std::string_view text);
