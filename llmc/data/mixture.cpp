// See mixture.h.
#include "llmc/data/mixture.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include "llmc/base/check.h"        // require, ensure
#include "llmc/base/number_text.h"  // number_from_chars

namespace {

constexpr int64_t kOneRow = int64_t(1) << 32;

// The whole text as a number; also if it is too large or too small for a double.
std::optional<double> number_of(const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = number_from_chars(text.data(), end, value);
    if (text.empty() || stop != end || error == std::errc::invalid_argument) return {};
    return error == std::errc() ? value : HUGE_VAL;
}

// The state of one source: "rows given,epoch,position,rows,cropped,waiting"
std::string text_of(uint64_t given, const LoaderState& s) {
    std::string text;
    for (const uint64_t number : {given, s.epoch, s.position, s.rows, s.cropped}) text += std::to_string(number) + ",";
    return text + s.waiting;
}

std::vector<std::pair<uint64_t, LoaderState>> places_of(const std::string& text, size_t sources) {
    std::vector<std::pair<uint64_t, LoaderState>> places;
    bool good = true;
    for (size_t begin = 0; good && begin <= text.size();) {
        const size_t end = std::min(text.find(';', begin), text.size());
        auto& [given, state] = places.emplace_back();
        const char *at = text.data() + begin, *const stop = text.data() + end;
        for (uint64_t* number : {&given, &state.epoch, &state.position, &state.rows, &state.cropped}) {
            const auto read = std::from_chars(at, stop, *number);
            good = good && read.ec == std::errc() && read.ptr != stop && *read.ptr == ',';
            if (!good) break;
            at = read.ptr + 1;
        }
        if (good) state.waiting.assign(at, stop);
        begin = end + 1;
    }
    require(good && places.size() == sources,
            "the state of the data, '%.60s', is not that of %zu sources; is this the --train-data that the run was "
            "started with?",
            text.c_str(), sources);
    return places;
}

}  // namespace

// Parses the list at the beginning of a text. Returns it and the rest after its last weight: the whole text if there is
// no list.
static std::pair<std::vector<DataSource>, std::string> split(const std::string& text) {
    std::vector<DataSource> sources;
    size_t begin = 0;
    for (size_t colon = text.find(':'); colon != std::string::npos; colon = text.find(':', colon + 1)) {
        const size_t end = std::min(text.find(',', colon), text.size());
        const std::optional<double> weight = number_of(text.substr(colon + 1, end - colon - 1));
        if (!weight) continue;  // part of a name
        sources.push_back({text.substr(begin, colon - begin), *weight});
        begin = end + 1;
    }
    return {sources, begin > text.size() ? "" : text.substr(begin)};
}

bool has_weights(const std::string& text) { return !split(text).first.empty(); }

std::vector<DataSource> data_sources(const std::string& text) {
    auto [sources, rest] = split(text);
    if (sources.empty()) return {{text, 1}};
    const std::string expected =
        " (--train-data " + text + "): expected PATTERN:WEIGHT,PATTERN:WEIGHT with weights above 0, or one pattern";
    const auto check = [&](bool good, const std::string& what) {
        require(good, "%s%s", what.c_str(), expected.c_str());
    };
    check(rest.empty() && !text.ends_with(","), "'" + rest + "' has no weight");
    check(sources.size() > 1, "a weight, and no other source");
    double sum = 0;
    for (const DataSource& source : sources) {
        check(source.weight > 0 && std::isfinite(source.weight),
              format("the weight of '%s' is %g", source.pattern.c_str(), source.weight));
        check(!source.pattern.empty(), format("there is no pattern before the weight %g", source.weight));
        sum += source.weight;
    }
    for (const DataSource& source : sources)
        check(source.weight / sum * double(kOneRow) >= 1,
              "'" + source.pattern + "' has less than 1 in 2^32 of all weight");
    return sources;
}

Mixture::Mixture(std::vector<std::unique_ptr<RowSource>> sources, const std::vector<double>& weights)
    : sources_(std::move(sources)) {
    ensure(sources_.size() == weights.size() && sources_.size() > 1);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (const double weight : weights) shares_.push_back(std::llround(weight / sum * double(kOneRow)));
    // The largest share takes the rounding error of a unit or two.
    *std::max_element(shares_.begin(), shares_.end()) +=
        kOneRow - std::accumulate(shares_.begin(), shares_.end(), int64_t(0));
    set_given(std::vector<uint64_t>(sources_.size()));
}

// Sets by how much each source lags: its share of all rows so far, minus the rows it has provided.
void Mixture::set_given(const std::vector<uint64_t>& given) {
    given_ = given;
    const auto rows = __int128(std::accumulate(given.begin(), given.end(), uint64_t(0)));
    owed_.clear();
    for (size_t s = 0; s < given.size(); s++)
        owed_.push_back(int64_t(rows * shares_[s] - __int128(given[s]) * kOneRow));
}

size_t Mixture::choose() {
    for (size_t s = 0; s < shares_.size(); s++) owed_[s] += shares_[s];
    const size_t next = size_t(std::max_element(owed_.begin(), owed_.end()) - owed_.begin());
    owed_[next] -= kOneRow;
    given_[next]++;
    return next;
}

void Mixture::skip(int64_t rows) {
    const std::vector<uint64_t> before = given_;
    for (int64_t i = 0; i < rows; i++) choose();
    for (size_t s = 0; s < sources_.size(); s++)
        if (given_[s] > before[s]) sources_[s]->skip(int64_t(given_[s] - before[s]));
}

LoaderState Mixture::state() const {
    LoaderState all;
    for (size_t s = 0; s < sources_.size(); s++) {
        const LoaderState one = sources_[s]->state();
        all.position += given_[s], all.rows += one.rows, all.cropped += one.cropped;
        all.waiting += (s ? ";" : "") + text_of(given_[s], one);
    }
    return all;
}

void Mixture::restore(const LoaderState& state) {
    std::vector<std::pair<uint64_t, LoaderState>> places(sources_.size());
    if (!state.waiting.empty()) places = places_of(state.waiting, sources_.size());  // else all at the beginning
    std::vector<LoaderState> before;
    for (const auto& source : sources_) before.push_back(source->state());
    try {
        for (size_t s = 0; s < places.size(); s++) sources_[s]->restore(places[s].second);
    } catch (...) {
        for (size_t s = 0; s < places.size(); s++) sources_[s]->restore(before[s]);
        throw;
    }
    std::vector<uint64_t> given;
    for (const auto& place : places) given.push_back(place.first);
    set_given(given);
}

int64_t Mixture::num_rows(uint64_t epoch) const {
    int64_t rows = 0;
    for (const auto& source : sources_) rows += source->num_rows(epoch);
    return rows;
}

std::vector<uint64_t> Mixture::rows_given(const LoaderState& state, size_t sources) {
    std::vector<uint64_t> given(sources);
    if (state.waiting.empty()) return given;
    const auto places = places_of(state.waiting, sources);
    for (size_t s = 0; s < sources; s++) given[s] = places[s].first;
    return given;
}
