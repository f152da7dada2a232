// Files of tasks, both formats: whatever is accepted can be read whole.
#include <vector>
#include "llmc/eval/task_file.h"
#include "test/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return fuzz([&] {
        const TaskFile file(std::string_view(reinterpret_cast<const char*>(data), size), "fuzzed.tasks");
        for (size_t r = 0; r < file.rows().size(); r++) {
            std::vector<int32_t> ids(size_t(file.row(int64_t(r)).length()));
            file.copy_row(int64_t(r), ids.data());
        }
        file.check(1000, 100);
    });
}
