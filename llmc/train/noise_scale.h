/*
The gradient noise scale (McCandlish et al., 2018, arXiv:1812.06162, appendix A.1): roughly the number of tokens per
step beyond which more stop helping. A step yields it at almost no cost, as its parts' gradients are of small batches
and their sum is of a large one:

  |G|^2 = (B_big |g_big|^2 - B_small |g_small|^2) / (B_big - B_small)          the true gradient's squared norm
  S     = (|g_small|^2 - |g_big|^2) / (1 / B_small - 1 / B_big)                 its variance a token, summed
  B_noise = S / |G|^2                                                           tokens

g_small is a rank's gradient, of B_small tokens, and |g_small|^2 its mean over the ranks; of one rank it is the first
micro-batch's, whose norm has the same mean and a larger variance. One step's estimates are noisy and may be negative;
both are averaged exponentially before they are divided, as the paper does.
*/
#pragma once
#include <cmath>
#include <limits>

class NoiseScale {
public:
    explicit NoiseScale(double decay = 0.95) : decay_(decay) {}

    // Squared norms of mean gradients.
    void add(double small_tokens, double small_squared, double big_tokens, double big_squared) {
        const double signal = (big_tokens * big_squared - small_tokens * small_squared) / (big_tokens - small_tokens);
        const double noise = (small_squared - big_squared) / (1 / small_tokens - 1 / big_tokens);
        if (!std::isfinite(signal) || !std::isfinite(noise)) return;
        signal_ = decay_ * signal_ + (1 - decay_) * signal;
        noise_ = decay_ * noise_ + (1 - decay_) * noise;
    }
    // In tokens; NaN until the averages are positive.
    double tokens() const {
        return signal_ > 0 && noise_ > 0 ? noise_ / signal_ : std::numeric_limits<double>::quiet_NaN();
    }

private:
    double decay_, signal_ = 0, noise_ = 0;
};
