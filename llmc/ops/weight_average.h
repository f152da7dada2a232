/*
A running average of weights, in place (an exponential moving average where the rate is constant):

  average += rate (weight - average)

  average, weight (n) float
One call updates several tensors.
*/
#pragma once
#include <cstdint>

struct WeightAverage {
    float* average;
    const float* weight;
    int64_t n;
};

template <class Device>
struct WeightAverageOps {
    void (*average_weights)(Device&, const WeightAverage* tensors, int64_t count, double rate);
};
