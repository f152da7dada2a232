/*
The batches of an evaluation, divided among the ranks, each of which may ask to end early:

  each_batch(ranks, batches, stop, [&](int64_t i) { ... });    true: all are done; false: a rank asked to stop

`stop` is called before each of this rank's batches. A single rank ends at once. Several ranks must all leave in the
same round, or some would wait for others forever: about once per half second of the slowest rank they exchange a few
bytes, after a number of rounds that follows from what all of them have sent. An Error on one rank ends the batches of
all.
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include "llmc/comm/ranks.h"  // Ranks, share_errors

using StopAsked = std::function<bool()>;  // empty: never

// Collective. body(i) evaluates batch i, in ascending order. Throws the lowest failing rank's Error on all ranks.
template <class Body>
bool each_batch(Ranks& ranks, int64_t batches, const StopAsked& stop, Body&& body, double look_every_s = 0.5) {
    using Clock = std::chrono::steady_clock;
    struct News {
        double round_s;  // the longest that a round has taken, on average
        int64_t ends;    // ranks that ask to stop or have failed
    };
    const Clock::time_point began = Clock::now();
    const bool is_alone = ranks.world_size == 1;
    std::exception_ptr error;
    bool stops = false, all_stop = false;
    int64_t next_look = 0;
    for (int64_t round = 0, i = ranks.rank; i - ranks.rank < batches && !all_stop; round++, i += ranks.world_size) {
        stops = stops || (stop && stop());
        if (round == next_look && !is_alone) {
            const double taken_s = std::chrono::duration<double>(Clock::now() - began).count();
            const News mine{taken_s / double(std::max<int64_t>(1, round)), stops || error};
            const News all = ranks.joined_value(mine, "the time of its batches", [](News a, const News& b) {
                return News{std::max(a.round_s, b.round_s), a.ends + b.ends};
            });
            const double rounds = look_every_s / std::max(all.round_s, 1e-9);
            next_look = round + (round == 0 ? 1 : int64_t(std::clamp(rounds, 1., 1e9)));
            all_stop = all.ends > 0;
        } else if (is_alone) {
            all_stop = stops || error;
        }
        if (all_stop || error || i >= batches) continue;
        try {
            body(i);
        } catch (const Error&) {
            error = std::current_exception();
        }
    }
    share_errors(ranks, [&] {
        if (error) std::rethrow_exception(error);
    });
    return !all_stop;
}
