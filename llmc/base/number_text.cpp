// See number_text.h.
#include "llmc/base/number_text.h"
#include <cmath>
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
