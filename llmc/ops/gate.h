/*
The gate of smear.h and value_embedding.h: the sigmoid of a weighted sum of some of a token's channels.
*/
#pragma once

// A learned gate, between 0 and 1.
struct GateOpening {
    float open, slope;  // sigmoid of its input, and the derivative: open (1 - open)
};
