// dev/launch_model.py: how ranks connect and end, in all interleavings of three ranks and two failures.
#include "test/testing.h"

namespace {

Finished model(const std::string& flags) { return run("python3 -B dev/launch_model.py " + flags); }

}  // namespace

TEST_CASE("no interleaving of three ranks and two failures leaves a rank waiting", "[launch_model][plain]") {
    for (const std::string failures : {"0", "1", "2"}) {
        const Finished explored = model("--failures " + failures);
        INFO(explored.out << explored.err);
        CHECK(explored.exit_code == 0);
        CHECK(contains(explored.out, " ends, 0 wrong\n"));
        CHECK(std::stoi(explored.out) > (failures == "1" ? 30'000 : 4000));
    }
}

TEST_CASE("the model of the launch misses what it is run without", "[launch_model][plain]") {
    const struct {
        const char *flags, *wrong;
    } cases[] = {{"--without timer", "\nrank 2 waits for ever ("},
                 {"--without eof", "\nrank 2 names nobody, and no rank hangs ("},
                 {"--without tell", "\nrank 2 does not name the only rank that has failed ("},
                 {"--without look --failures 0", "\nnobody has failed, and not all have ended well ("}};
    for (const auto& each : cases) {
        INFO(each.flags);
        const Finished explored = model(each.flags);
        CHECK(explored.exit_code == 1);
        CHECK(contains(explored.out, each.wrong));
        CHECK(contains(explored.out, "\n     absent  call  call"));  // a way there, from the start
    }
}
