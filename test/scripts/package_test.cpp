// The Python package python/anvil, tested with the programs by test/python/.
#include "test/program.h"  // program
#include "test/testing.h"

// Not under the sanitizers: it is about Python, and the programs have tests of their own.
TEST_CASE("the Python package reads and writes what the programs do", "[package][plain]") {
    const std::string path = program("train_gpt");
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    for (const std::string name : {"anvil", "nanochat"}) {
        const Finished done =
            run("PYTHONPATH=python ANVIL_PROGRAMS='" + folder + "' python3 -W ignore test/python/" + name + "_test.py");
        INFO(done.out << done.err);
        CHECK(done.exit_code == 0);
        CHECK(contains(done.err, "\nOK"));
    }
}
