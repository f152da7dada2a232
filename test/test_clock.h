/*
A clock for tests, and waiting for a condition.
*/
#pragma once
#include <chrono>
#include <thread>

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Polls the condition. False if it is not true within limit_s.
template <class Condition>
bool wait_until(Condition&& condition, double limit_s = 30) {
    for (const double end_s = now_s() + limit_s; !condition(); sleep_s(0.005))
        if (now_s() > end_s) return false;
    return true;
}
