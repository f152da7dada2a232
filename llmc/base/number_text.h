/*
Durations and large numbers for people, and numbers from people.
*/
#pragma once
#include <charconv>
#include <string>

// "12.3 s", "4:05", "1:02:03", "3d 04:05"
std::string duration_text(double seconds);
// Three digits: "590k", "1.20M", "768"
std::string count_text(double count);
// std::from_chars, which libc++ has for doubles only from version 20 on.
std::from_chars_result number_from_chars(const char* begin, const char* end, double& number);
template <class Integer>
std::from_chars_result number_from_chars(const char* begin, const char* end, Integer& number) {
    return std::from_chars(begin, end, number);
}
