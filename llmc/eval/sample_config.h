// How to choose the next token: flags and checkpoints need this, but not the model (sample.h).
#pragma once

struct SampleConfig {
    int num_tokens = 256;
    double temperature = 0.8;  // 0: always the most probable token
    int top_k = 0;             // 0: all
    double top_p = 1;          // above 0; 1: all
};
