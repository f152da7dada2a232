/*
Durations and large numbers in human-readable form.
*/
#pragma once
#include <string>

// "12.3 s", "4:05", "1:02:03", "3d 04:05"
std::string duration_text(double seconds);
// "590k", "1.20M", "768": three digits
std::string count_text(double count);
