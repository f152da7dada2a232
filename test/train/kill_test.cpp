/*
SIGKILL at random moments: --resume always works, and ends with the bits of an undisturbed run.

  ANVIL_KILLS=200 make test OP=kill        the number of kills (15 by default)
*/
#include <signal.h>
#include <unistd.h>
#include <cstdlib>
#include "test/program.h"
#include "test/test_clock.h"  // now_s

namespace fs = std::filesystem;

TEST_CASE("a run that is killed again and again ends as if it had not been", "[kill]") {
    const char* wish = std::getenv("ANVIL_KILLS");
    const int kills = wish ? std::atoi(wish) : 15;
    REQUIRE(kills > 0);
    const TinyRuns runs;
    // A save after every other step: most of the time is spent saving.
    const FlagMap often = {{"steps", "40"}, {"checkpoint-every", "2"}};
    const double begin_s = now_s();
    must_succeed(runs.train("straight", often));
    const double straight_s = now_s() - begin_s;
    const std::string want = step_folder(runs.path("straight"), 40), out = runs.path("killed");

    FlagMap flags = often;
    flags["resume"] = "auto";
    const std::string command = command_of(runs.flags("killed", flags));
    Rng rng(1, Stream::tests);
    double longest_s = straight_s / 4;  // before a kill; follows the speed of the disk, which may change
    int killed = 0, in_a_save = 0, finished_runs = 0;
    int64_t newest = -1;
    // A run that comes to its end before its kill is compared and begun again.
    while (killed < kills) {
        const double moment_s = rng.uniform() * longest_s;
        const Started run_on(command, runs.path("killed"));
        usleep(useconds_t(moment_s * 1e6));
        const Finished one = run_on.finish(SIGKILL);
        INFO("kill " << killed << " after " << moment_s << " s, newest checkpoint " << newest << ": " << one.err);
        REQUIRE((one.exit_code == 128 + SIGKILL || one.exit_code == 0));
        REQUIRE((one.err == ""));  // no error, and no checkpoint passed over
        if (one.exit_code == 0) {
            REQUIRE(difference(step_folder(out, 40), want) == "");
            finished_runs++;
            fs::remove_all(out);
            newest = -1;
            longest_s *= 0.8;
            continue;
        }
        killed++;
        in_a_save += is_saving(out);
        const FoundCheckpoint found = find_checkpoint(out);
        REQUIRE(found.passed_over.empty());
        REQUIRE(found.step >= newest);  // what was saved stays saved
        for (const int64_t step : checkpoint_steps(out)) REQUIRE(verify(step_folder(out, step)).why == "");
        if (found.step == newest) longest_s *= 1.1;
        newest = found.step;
    }
    must_succeed(run(command));
    CHECK(difference(step_folder(out, 40), want) == "");
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{38, 40});
    CHECK_FALSE(is_saving(out));
    std::printf("%d kills, %d of them in a save, %d runs to the end\n", killed, in_a_save, finished_runs + 1);
    CHECK(in_a_save > 0);
}
