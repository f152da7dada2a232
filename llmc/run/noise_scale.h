/*
The gradient noise scale (McCandlish et al., 2018, arXiv:1812.06162, appendix A.1): roughly the batch size in tokens
beyond which a larger one helps little. It costs almost nothing: the gradients of a step's parts are those of small
batches, and their mean is that of a large one.

  |G|^2 = (B_big |g_big|^2 - B_small |g_small|^2) / (B_big - B_small)          the true gradient's squared norm
  S     = (|g_small|^2 - |g_big|^2) / (1 / B_small - 1 / B_big)                 its variance per token, summed
  B_noise = S / |G|^2                                                           tokens

With several ranks g_small is a rank's gradient, of B_small tokens, and |g_small|^2 is averaged over the ranks. With one
rank g_small is the gradient of the first micro-batch, whose squared norm has the same mean and a larger variance. The
estimates of one step are noisy and may be negative; as in the paper, |G|^2 and S are averaged exponentially before they
are divided.
*/
#pragma once
#include <cmath>
#include <limits>

class NoiseScale {
public:
    explicit NoiseScale(double decay = 0.95) : decay_(decay) {}

    // Adds a step: |g_small|^2 with B_small, and |g_big|^2 with B_big.
    void add(double small_tokens, double small_squared, double big_tokens, double big_squared) {
        const double signal = (big_tokens * big_squared - small_tokens * small_squared) / (big_tokens - small_tokens);
        const double noise = (small_squared - big_squared) / (1 / small_tokens - 1 / big_tokens);
        if (!std::isfinite(signal) || !std::isfinite(noise)) return;
        signal_ = decay_ * signal_ + (1 - decay_) * signal;
        noise_ = decay_ * noise_ + (1 - decay_) * noise;
    }
    // B_noise in tokens; NaN until both averages are positive.
    double tokens() const {
        return signal_ > 0 && noise_ > 0 ? noise_ / signal_ : std::numeric_limits<double>::quiet_NaN();
    }

private:
    double decay_, signal_ = 0, noise_ = 0;
};
