// The sum over ranks on the device has the CPU's bits, for every number of ranks, type and alignment.
#include "llmc/cuda/sum_ranks.cuh"
#include <memory>
#include "llmc/cpu/sum_ranks.h"
#include "test/cuda_testing.h"

namespace {

template <class T>
T random_element(Rng& rng, int rank) {
    if constexpr (std::is_same_v<T, uint64_t>) return rng.next();
    if constexpr (!std::is_same_v<T, uint64_t>)
        return rounded_value<T>(float(rng.normal()) * (rank % 2 ? 1e-3f : 1e3f));  // the order of additions shows
}

// Each rank's buffer `shift` elements after where it would be aligned, the sum in that of rank `own`; -1: elsewhere,
// where it is aligned if they are not.
template <class T>
void check_against_cpu(int num_ranks, int64_t n, int own, size_t shift) {
    INFO(num_ranks << " ranks, " << n << " elements of " << sizeof(T) << " bytes, into rank " << own << ", shifted by "
                   << shift);
    Rng rng(uint64_t(n), Stream::tests);
    Cpu cpu;
    Cuda cuda;
    std::vector<std::vector<T>> host;
    std::vector<std::unique_ptr<OnDevice<T>>> device;
    std::vector<const T*> host_pointers, pointers;
    for (int r = 0; r < num_ranks; r++) {
        std::vector<T> values;
        for (size_t i = 0; i < size_t(n) + shift; i++) values.push_back(random_element<T>(rng, r));
        device.push_back(std::make_unique<OnDevice<T>>(cuda, values));
        host.push_back(values);
        pointers.push_back(device.back()->data + shift);
    }
    for (const std::vector<T>& values : host) host_pointers.push_back(values.data() + shift);
    std::vector<T> want(static_cast<size_t>(n));
    sum_ranks(cpu, want.data(), host_pointers.data(), num_ranks, n);
    OnDevice<T> elsewhere(cuda, size_t(n) + 1);
    const size_t at = own < 0 ? 1 - shift : shift;
    OnDevice<T>& out = own < 0 ? elsewhere : *device[size_t(own)];
    sum_ranks(cuda, out.data + at, pointers.data(), num_ranks, n);
    const std::vector<T> got = out.values();
    CHECK((n == 0 || std::memcmp(got.data() + at, want.data(), size_t(n) * sizeof(T)) == 0));
    for (int r = 0; r < num_ranks; r++)
        if (r != own) {
            const std::vector<T> kept = device[size_t(r)]->values();
            CHECK((kept.empty() || std::memcmp(kept.data(), host[size_t(r)].data(), kept.size() * sizeof(T)) == 0));
        }
}

}  // namespace

TEST_CASE("sum_ranks on the device agrees with the CPU in every bit", "[sum_ranks]" ON_DEVICE) {
    for (int num_ranks = 1; num_ranks <= kMostSumRanks; num_ranks++)
        for (const size_t shift : {0, 1}) {
            check_against_cpu<float>(num_ranks, 1027, num_ranks - 1, shift);
            check_against_cpu<bf16>(num_ranks, 2055, -1, shift);
            check_against_cpu<uint64_t>(num_ranks, 515, 0, shift);
        }
    for (const int64_t n : {0, 1, 3, 4, 5, 1024}) check_against_cpu<float>(3, n, 1, 0);
}

TEST_CASE("sum_ranks on the device takes eight ranks at most", "[sum_ranks]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<float> x(cuda, 4);
    const std::vector<const float*> all(9, x.data);
    CHECK(error_of([&] { sum_ranks(cuda, x.data, all.data(), 9, 4); }) ==
          "2: 9 virtual ranks on one GPU: expected at most 8");
}

namespace {

// `rank`'s own terms elsewhere than the others', which lie `stride` after each other; the sum goes over its own if they
// are floats.
template <class T>
void check_terms(int num_ranks, int rank, int64_t n, int64_t stride, size_t shift) {
    INFO(num_ranks << " ranks, rank " << rank << ", " << n << " elements of " << sizeof(T) << " bytes, " << stride
                   << " apart, shifted by " << shift);
    Rng rng(uint64_t(num_ranks), Stream::tests);
    Cpu cpu;
    Cuda cuda;
    std::vector<T> all(size_t(num_ranks * stride) + shift), own(size_t(n) + shift);
    for (size_t i = 0; i < all.size(); i++) all[i] = random_element<T>(rng, int(i) / int(stride));
    for (T& x : own) x = random_element<T>(rng, rank);
    std::vector<const T*> pointers;
    for (int r = 0; r < num_ranks; r++)
        pointers.push_back(r == rank ? own.data() + shift : all.data() + shift + r * stride);
    std::vector<float> want(static_cast<size_t>(n));
    sum_ranks(cpu, want.data(), pointers.data(), num_ranks, n);
    const OnDevice<T> others(cuda, all), mine(cuda, own);
    OnDevice<float> elsewhere(cuda, size_t(n) + shift);
    float* out = elsewhere.data + shift;
    if constexpr (std::is_same_v<T, float>) out = mine.data + shift;
    sum_terms(cuda, out, mine.data + shift, others.data + shift, stride, rank, num_ranks, n);
    std::vector<float> got(static_cast<size_t>(n));
    copy_to_host(cuda, got.data(), out, n);
    CHECK((n == 0 || std::memcmp(got.data(), want.data(), size_t(n) * sizeof(float)) == 0));
}

}  // namespace

TEST_CASE("sum_terms on the device has the CPU's bits at any number of ranks", "[sum_ranks]" ON_DEVICE) {
    for (const int num_ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 40, 64, 77, 129}) {
        check_terms<float>(num_ranks, num_ranks / 2, 40, 40, 0);
        check_terms<bf16>(num_ranks, num_ranks - 1, 80, 160, 0);
    }
    for (const int64_t n : {0, 1, 3, 5, 1027}) {
        check_terms<float>(11, 0, n, n + 3, 1);
        check_terms<bf16>(11, 5, n, n + 8 - n % 8, 0);
    }
    Cuda cuda;
    OnDevice<float> x(cuda, 4);
    CHECK(error_of([&] { sum_terms(cuda, x.data, x.data, x.data, 0, 0, 65536, 4); }) ==
          "2: a sum over 65536 ranks: expected less than 65536");
}
