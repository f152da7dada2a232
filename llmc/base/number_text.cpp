// See number_text.h.
#include "llmc/base/number_text.h"
#include <locale.h>
#if __has_include(<xlocale.h>)  // Darwin
#include <xlocale.h>
#endif
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include "llmc/base/check.h"  // format

std::string duration_text(double seconds) {
    if (!(seconds >= 0) || seconds > 1e9) return "?";
    if (seconds < 59.95) return format("%.1f s", seconds);
    const long long s = std::llround(seconds);
    if (s < 3600) return format("%lld:%02lld", s / 60, s % 60);
    if (s < 86400) return format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return format("%lldd %02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60);
}

std::string count_text(double count) {
    const char* unit = "";
    for (const char* next : {"k", "M", "G", "T"}) {
        if (!(count >= 999.5)) break;
        count /= 1000;
        unit = next;
    }
    return format("%.*f%s", *unit == '\0' || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2, count, unit);
}

std::from_chars_result number_from_chars(const char* begin, const char* end, double& number) {
    // What strtod also reads: blanks and a plus before the number, and hexadecimal numbers.
    const std::string text(begin, std::find_if(begin, end, [](char c) { return c == 'x' || c == 'X'; }));
    if (text.empty() || std::string_view(" \t\n\v\f\r+").find(text[0]) != std::string_view::npos)
        return {begin, std::errc::invalid_argument};
    static const locale_t kC = newlocale(LC_ALL_MASK, "C", nullptr);
    char* stop = nullptr;
    errno = 0;
    const double value = strtod_l(text.c_str(), &stop, kC);
    const char* const after = begin + (stop - text.c_str());
    if (after == begin) return {begin, std::errc::invalid_argument};
    if (errno == ERANGE && (value == 0 || std::isinf(value))) return {after, std::errc::result_out_of_range};
    number = value;
    return {after, std::errc()};
}
