// Task scores on a GPU equal PyTorch's, and a run computes them when they are due.
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/eval/tasks.h"
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/eval/task_runs.h"
#include "test/models.h"   // Gpt
#include "test/program.h"  // TinyRuns

TEST_CASE("scores and answers agree with PyTorch, on the GPU", "[tasks][once]" ON_DEVICE) {
    Cuda cuda;
    Gpt<Cuda> model(cuda, kFixtureShape, 3, kTaskT);
    load_weights(model, Fixture("model"));
    check_tasks(model, 3, kModelTolerance);
}

TEST_CASE("a run on a GPU scores its model between two steps, as the CPU would", "[tasks][once]" ON_DEVICE) {
    const TinyRuns runs;
    const std::string tasks = runs.path("small.tasks");
    write_file_atomically(tasks, small_tasks(2, 8));
    FlagMap flags = {{"steps", "6"}, {"eval-tasks", tasks}, {"eval-tasks-every", "4"}, {"dtype", "fp32"}};
    for (const std::string device : {"cpu", "cuda"}) {
        flags["device"] = device;
        must_succeed(runs.train(device, flags));
    }
    const std::vector<std::string> cpu = records_in(runs.path("cpu"), "tasks"),
                                   cuda = records_in(runs.path("cuda"), "tasks");
    REQUIRE((cpu.size() == 2 && cuda.size() == 2));
    const auto without_time = [](const std::string& record) { return record.substr(0, record.find(",\"ms\"")); };
    for (size_t i = 0; i < 2; i++) CHECK(without_time(cuda[i]) == without_time(cpu[i]));
}
