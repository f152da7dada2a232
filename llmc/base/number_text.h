/*
Durations and large numbers for people.
*/
#pragma once
#include <string>

// "12.3 s", "4:05", "1:02:03", "3d 04:05"
std::string duration_text(double seconds);
// Three digits: "590k", "1.20M", "768"
std::string count_text(double count);
