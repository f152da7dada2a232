// scripts/report.py: the page of a run, and of several.
#include <unistd.h>
#include <algorithm>
#include "llmc/base/file.h"
#include "llmc/base/log.h"
#include "test/testing.h"

namespace {

// Nothing is printed to the terminal of the tests.
template <class F>
void quietly(F f) {
    std::fflush(stdout);
    const int terminal = dup(1);
    REQUIRE(std::freopen("/dev/null", "w", stdout));
    f();
    std::fflush(stdout);
    dup2(terminal, 1);
    close(terminal);
}

constexpr RunLog::Mode kFresh = RunLog::Mode::fresh, kResume = RunLog::Mode::resume;

}  // namespace

TEST_CASE("the report draws what counts, the later run after a resume", "[report]") {
    const ScratchFolder out;
    const auto step = [](RunLog& log, int step, double loss) {
        log.step({.step = step, .loss = loss, .norm = 1, .lr = 1e-3, .ms = 1000, .tokens = 500});
    };
    quietly([&] {
        RunLog log(out.path, kFresh, {.steps = 4});
        log.start({"{\"prompt\":\"<b>\"}", "cpu", 1, "ff"});
        for (int i = 1; i <= 3; i++) step(log, i, 9);
        log.validation(3, 0.125);  // void: the run below goes on from step 2
    });
    FileWriter(out / "cut").write("{\"type\":\"st", 11);
    REQUIRE(run("cat " + out / "cut" + " >>" + out / "log.jsonl").exit_code == 0);
    quietly([&] {
        RunLog log(out.path, kResume, {.steps = 4});
        log.resume({"{\"prompt\":\"<i>\"}", "cpu", 1, "ff"}, 2, "step_00000002", {});
        for (int i = 3; i <= 4; i++) step(log, i, 9 - i);
        log.validation(4, 2.5);
        log.sample(4, "<RO>", "MEO & \xFF");
    });
    REQUIRE(run("cat " + out / "cut" + " >>" + out / "log.jsonl").exit_code == 0);

    const Finished report = run("python3 -B scripts/report.py " + out.path);
    INFO(report.err);
    REQUIRE(report.exit_code == 0);
    CHECK(report.err == "");
    CHECK(report.out == out / "report.html" + "\n");
    const std::string page = read_file(out / "report.html");
    CHECK(contains(page, "<td>steps</td><td>4</td>"));
    CHECK(contains(page, "5.0000 nats per token"));  // the loss of step 4
    CHECK(contains(page, "2.5000 nats per token at step 4"));
    CHECK_FALSE(contains(page, "0.125"));
    CHECK(contains(page, "<td>median speed</td><td>500 tokens/s</td>"));
    CHECK(contains(page, "<td>time in training steps</td><td>0:04</td>"));
    CHECK(contains(page, "&lt;RO&gt;</b>MEO &amp; "));
    CHECK(contains(page, "<td>prompt</td><td>&lt;i&gt;</td>"));
    // One point per step.
    const size_t line = page.find("class=\"line train\" points=\"");
    REQUIRE(line != std::string::npos);
    const std::string points = page.substr(line + 27, page.find('"', line + 27) - line - 27);
    CHECK(std::count(points.begin(), points.end(), ',') == 4);
    for (const char* heading : {"Loss", "Gradient norm", "Learning rate", "Speed", "Samples at step 4", "Config"})
        CHECK(contains(page, std::string("<h2>") + heading + "</h2>"));

    CHECK_FALSE(contains(page, "Exchange"));

    quietly([&] {
        RunLog log(out.path, kFresh, {.steps = 3});
        log.start({"{}", "cpu", 1, "ff"});
        for (int i = 1; i <= 3; i++)
            log.step({.step = i,
                      .ms = 10,
                      .tokens = 5,
                      .has_comm = true,
                      .comm_ms = i + 1.25,
                      .comm_exposed_ms = i + 0.5,
                      .comm_predicted_ms = 0.5 * i});
        log.ranks(2, 7, 1, 2, 3, 0);
        log.ranks(3, 7, 4, 5, 6.5, 1);
    });
    REQUIRE(run("python3 -B scripts/report.py " + out.path).exit_code == 0);
    const std::string of_ranks = read_file(out / "report.html");
    CHECK(contains(of_ranks, "<td>3.25 ms a step, 2.50 of it waited for; 1.00 predicted</td>"));
    CHECK(
        contains(of_ranks, "<td>ranks compute, at step 3</td><td>4.0 to 6.5 ms a step, median 5.0; rank 1 is slowest"));
    CHECK(contains(of_ranks, "<h2>Exchange between ranks</h2>"));

    const Finished missing = run("python3 -B scripts/report.py " + out / "none");
    CHECK(missing.exit_code == 2);
    CHECK(contains(missing.err, "error: cannot read " + out / "none/log.jsonl"));
    write_file_atomically(out / "log.jsonl", "");
    CHECK(contains(run("python3 -B scripts/report.py " + out.path).err, "holds no records"));
    CHECK(contains(run("python3 -B scripts/report.py " + out.path + " --out /dev/null/x").err, "error: "));
}

TEST_CASE("several runs on one page", "[report]") {
    const ScratchFolder out;
    const auto make = [&](const std::string& name, int steps, double offset, const std::string& config) {
        quietly([&] {
            RunLog log(out / name, kFresh, {.steps = steps});
            log.start({config, "cpu", 1, "ff"});
            for (int i = 1; i <= steps; i++)
                log.step({.step = i, .loss = 9 - i + offset, .norm = 1, .lr = 1e-3, .ms = 1000, .tokens = 500});
            log.validation(steps, 3 + offset);
            log.sample(steps, "To <", name);
            log.end(steps, "finished");
        });
    };
    make("a", 4, 0, "{\"learning-rate\":0.1,\"seed\":5,\"prompt\":\"<i>\"}");
    make("more/b", 6, 0.25, "{\"learning-rate\":0.2,\"seed\":5}");
    const std::string both = "python3 -B scripts/report.py " + out / "a" + " " + out / "more/b";
    const Finished report = run(both + " --reference 'others=2.75' --usd-per-hour 3600");
    INFO(report.err);
    REQUIRE(report.exit_code == 0);
    CHECK(report.out == out / "report.html" + "\n");  // in the folder that holds both
    const std::string page = read_file(out / "report.html");
    CHECK(contains(page, "<title>a, more/b</title>"));
    for (const char* heading : {"Validation loss", "Training loss", "Gradient norm", "Learning rate", "Speed"})
        CHECK(contains(page, std::string("<h2>") + heading + "</h2>"));
    CHECK(contains(page,
                   "<tr><td class=key-run0>a</td><td>4</td><td>5.0000</td><td>3.0000 at 4</td><td>3.0000 at 4</td>"
                   "<td>500</td><td>0:04</td><td>4.00</td>"
                   "<td>2.7500 nats per token; this run +0.2500 at step 4</td><td>ended: finished</td></tr>"));
    CHECK(contains(page, "<tr><td class=key-run1>more/b</td><td>6</td><td>3.2500</td>"));
    CHECK(contains(page, "this run +0.5000 at step 6"));
    // In each of the five charts a curve of each run, with a point for each of its steps; one of the reference.
    size_t curves[2] = {};
    for (int i : {0, 1}) {
        const std::string begin = "<polyline class=\"line run" + std::to_string(i) + "\" points=\"";
        for (size_t at = 0; (at = page.find(begin, at)) != std::string::npos; at++) {
            at += begin.size();
            const std::string points = page.substr(at, page.find('"', at) - at);
            const auto count = std::count(points.begin(), points.end(), ',');
            CHECK(count == (curves[i] == 0 ? 1 : i == 0 ? 4 : 6));  // the first chart is that of validation
            curves[i]++;
        }
        CHECK(curves[i] == 5);
    }
    CHECK(contains(page, "<polyline class=\"line ref\""));
    CHECK(contains(page, "<b>To &lt;</b>more/b"));
    // Settings that are alike are left out.
    CHECK(contains(page, "<tr><td>learning-rate</td><td>0.1</td><td>0.2</td></tr>"));
    CHECK(contains(page, "<tr><td>prompt</td><td>&lt;i&gt;</td><td></td></tr>"));
    CHECK_FALSE(contains(page, "<td>seed</td>"));
    CHECK_FALSE(contains(page, "<script"));
    CHECK_FALSE(contains(page, "http"));

    CHECK(run("python3 -B scripts/report.py " + out / "more/b" + " " + out / "a").out == report.out);
    CHECK(contains(run(both + " " + out / "./a").err, "error: a run is given twice"));
    CHECK(contains(run(both + " " + out / "none").err, "error: cannot read " + out / "none/log.jsonl"));
    CHECK(run(both + " --out " + out / "x.html").out == out / "x.html" + "\n");
}
