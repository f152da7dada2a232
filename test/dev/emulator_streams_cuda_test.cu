// The emulator's streams, events and memory, with work that is done as late as possible.
#include "test/dev/emulator_testing.h"
#ifdef ANVIL_EMULATED

namespace emulator_cases {

using namespace emulator_test;

__global__ void add_one(float* x) { x[0] = x[0] + 1; }
__global__ void barrier_for_one() {
    if (threadIdx.x == 0) __syncthreads();
}

struct TwoStreams {
    const OtherOptions restore;
    Cuda cuda;
    cudaStream_t other = nullptr;
    cudaEvent_t event = nullptr;
    OnDevice<float> x, y;
    explicit TwoStreams(bool lazy) : x(cuda, Floats{1}), y(cuda, 1) {
        cuda_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
        cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
        cuda.synchronize();
        emulator::options().lazy_streams = lazy;
    }
    ~TwoStreams() {
        cuda_check(cudaDeviceSynchronize(), "waiting");
        cuda_check(cudaEventDestroy(event), "event");
        cuda_check(cudaStreamDestroy(other), "stream");
    }
    void copy(float* to, const float* from, cudaStream_t stream) {
        cuda_check(cudaMemcpyAsync(to, from, sizeof(float), cudaMemcpyDefault, stream), "copy");
    }
};

TEST_CASE("with lazy streams nothing is done before somebody waits", "[emulator_streams]" ON_DEVICE) {
    for (const bool lazy : {false, true}) {
        INFO("lazy: " << lazy);
        TwoStreams s(lazy);
        float host = -1;
        launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
        s.copy(&host, s.x.data, s.cuda.stream);
        CHECK(host == (lazy ? -1 : 2));
        s.cuda.synchronize();
        CHECK(host == 2);

        // A buffer that is used again before its copy was made.
        host = 10;
        s.copy(s.x.data, &host, s.cuda.stream);
        host = 20;
        s.cuda.synchronize();
        CHECK(s.x.get()[0] == (lazy ? 20 : 10));
    }
}

TEST_CASE("events order streams", "[emulator_streams]" ON_DEVICE) {
    float host = -1;
    const auto produce_and_consume = [&](bool wait) {
        TwoStreams s(true);
        launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
        cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
        launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);  // after the event: not waited for
        CHECK(cudaEventQuery(s.event) == cudaErrorNotReady);
        if (wait) cuda_check(cudaStreamWaitEvent(s.other, s.event), "wait");
        s.copy(s.y.data, s.x.data, s.other);
        s.copy(&host, s.y.data, s.other);
        cuda_check(cudaStreamSynchronize(s.other), "waiting");
    };
    produce_and_consume(true);
    CHECK(host == 2);
    produce_and_consume(false);
    CHECK(host != 3);

    TwoStreams s(true);
    CHECK(cudaEventQuery(s.event) == cudaSuccess);  // never recorded
    launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    cuda_check(cudaStreamWaitEvent(s.other, s.event), "wait");
    // Recorded again: who waits already still waits for the first time only.
    launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    s.copy(&host, s.x.data, s.other);
    cuda_check(cudaStreamSynchronize(s.other), "waiting");
    CHECK(host == 2);
    int questions = 0;
    while (cudaEventQuery(s.event) == cudaErrorNotReady) questions++;
    CHECK(questions == 2);  // the kernel and the record itself
    CHECK(s.x.get()[0] == 3);
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    cuda_check(cudaEventSynchronize(s.event), "event");
    CHECK(cudaEventQuery(s.event) == cudaSuccess);
}

TEST_CASE("with lazy streams whoever waits gets the kernel's error", "[emulator_streams]" ON_DEVICE) {
    TwoStreams s(true);
    const auto fail = [&] { launch(s.cuda, "trial", barrier_for_one, 1, kThreads, 0); };
    fail();
    launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
    CHECK(contains(error_of([&] { s.cuda.synchronize(); }), "1: waiting for GPU 0: kernel trial, block (0,0,0)"));
    s.cuda.synchronize();
    CHECK(s.x.get()[0] == 1);  // what was after it is dropped
    fail();
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    cuda_check(cudaStreamWaitEvent(s.other, s.event), "wait");
    CHECK(cudaStreamSynchronize(s.other) == cudaErrorLaunchFailure);
}

TEST_CASE("who waits for an event does so when event and stream are gone", "[emulator_streams]" ON_DEVICE) {
    TwoStreams s(true);
    int least = 1, greatest = 1;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
    CHECK(greatest < least);  // lower numbers go first
    cudaStream_t third = nullptr;
    CHECK(cudaStreamCreateWithPriority(&third, cudaStreamNonBlocking, least + 1) == cudaErrorInvalidValue);
    cuda_check(cudaStreamCreateWithPriority(&third, cudaStreamNonBlocking, greatest), "stream");
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreate(&event), "event");
    float host = 5;
    s.copy(s.x.data, &host, third);
    cuda_check(cudaEventRecord(event, third), "event");
    cuda_check(cudaStreamWaitEvent(s.cuda.stream, event), "wait");
    s.copy(s.y.data, s.x.data, s.cuda.stream);
    cuda_check(cudaEventDestroy(event), "event");
    cuda_check(cudaStreamDestroy(third), "stream");
    host = 6;  // a stream's work is done before it goes
    CHECK(s.y.get()[0] == 5);
}

TEST_CASE("streams that wait for what does not come are an error, and go on when it has",
          "[emulator_streams]" ON_DEVICE) {
    const bool lazy = GENERATE(false, true);
    INFO("lazy: " << lazy);
    const std::string never = "1: waiting for GPU 0: the host waits for a stream that waits for what does not come";
    TwoStreams s(lazy);
    const auto add_to_x = [&] { launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data); };
    emulator::stall(s.other, true);
    cuda_check(cudaEventRecord(s.event, s.other), "event");
    add_to_x();
    cuda_check(cudaStreamWaitEvent(s.cuda.stream, s.event), "wait");
    add_to_x();
    CHECK(cudaStreamQuery(s.cuda.stream) == cudaErrorNotReady);
    CHECK(cudaEventQuery(s.event) == cudaErrorNotReady);
    CHECK(cudaEventSynchronize(s.event) == cudaErrorLaunchFailure);
    CHECK(contains(error_of([&] { s.cuda.synchronize(); }), never));
    CHECK(*s.x.data == 2);  // the first launch, and not the second
    emulator::stall(s.other, false);
    s.cuda.synchronize();
    CHECK(*s.x.data == 3);
    CHECK(cudaStreamQuery(s.cuda.stream) == cudaSuccess);

    // Each waits for what the other was given before.
    cudaEvent_t own = nullptr;
    cuda_check(cudaEventCreate(&own), "event");
    emulator::stall(s.cuda.stream, true);
    emulator::stall(s.other, true);
    cuda_check(cudaEventRecord(own, s.cuda.stream), "event");
    cuda_check(cudaStreamWaitEvent(s.other, own), "wait");
    cuda_check(cudaEventRecord(s.event, s.other), "event");
    emulator::stall(s.cuda.stream, false);
    emulator::stall(s.other, false);
    cuda_check(cudaStreamWaitEvent(s.cuda.stream, s.event), "wait");
    s.cuda.synchronize();
    CHECK(cudaStreamQuery(s.other) == cudaSuccess);
    cuda_check(cudaEventDestroy(own), "event");
}

TEST_CASE("device memory is limited, and counted", "[emulator_streams]" ON_DEVICE) {
    const OtherOptions restore;
    Cuda before;
    const size_t used = emulator::options().memory_bytes - before.free_bytes();
    emulator::options().memory_bytes = used + (8 << 20);
    Cuda cuda;
    CHECK(cuda.free_bytes() == 8 << 20);
    void* half = cuda.allocate(4 << 20);
    CHECK(cuda.free_bytes() == 4 << 20);
    CHECK(error_of([&] { cuda.allocate((4 << 20) + 1); }) ==
          format("2: out of GPU memory: 4.0 MiB asked for, 4.0 of %.1f MiB are free. Lower --batch-size or --seq-len",
                 double(used) / (1 << 20) + 8));
    void* rest = cuda.allocate(4 << 20);
    CHECK(cuda.free_bytes() == 0);
    cuda.release(half, 4 << 20);
    cuda.release(rest, 4 << 20);
    CHECK(cuda.free_bytes() == 8 << 20);
    CHECK(cudaFree(&cuda) == cudaErrorInvalidValue);
    cuda.workspace(3 << 20);
    cuda.workspace(2 << 20);
    CHECK(cuda.free_bytes() == 5 << 20);
}

}  // namespace emulator_cases
#endif
