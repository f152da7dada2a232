// scripts/report.py: the page of a run, and of several.
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include "llmc/base/file.h"
#include "llmc/run/log.h"
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

TEST_CASE("the training time is what the budget counts: without the first ten steps of a timed run", "[report]") {
    const ScratchFolder out;
    for (const std::string by : {"time", "steps"}) {
        const std::string folder = out / by;
        quietly([&] {
            RunLog log(folder, kFresh, {.steps = 12});
            log.start({"{\"schedule-by\":\"" + by + "\"}", "cpu", 1, "ff"});
            for (int i = 1; i <= 12; i++)
                log.step({.step = i, .loss = 1, .norm = 1, .lr = 1e-3, .ms = 1000, .tokens = 500});
        });
        REQUIRE(run("python3 -B scripts/report.py " + folder).exit_code == 0);
        const std::string row = std::string("<td>training time</td><td>") + (by == "time" ? "0:02" : "0:12") + "</td>";
        CHECK(contains(read_file(folder + "/report.html"), row));
    }
}

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
    CHECK(contains(page, "<td>training time</td><td>0:04</td>"));
    CHECK(contains(page, "&lt;RO&gt;</b>MEO &amp; "));
    CHECK(contains(page, "<td>prompt</td><td>&lt;i&gt;</td>"));
    // One point per step.
    const size_t line = page.find("class=\"line train\" points=\"");
    REQUIRE(line != std::string::npos);
    const std::string points = page.substr(line + 27, page.find('"', line + 27) - line - 27);
    CHECK(std::count(points.begin(), points.end(), ',') == 4);
    for (const char* heading : {"Loss", "Gradient norm", "Learning rate", "Speed", "Samples at step 4", "Config"})
        CHECK(contains(page, std::string("<h2>") + heading + "</h2>"));

    // Bits per byte where the log has them. Of the flags those that are not their defaults, and all of them folded
    // away.
    CHECK_FALSE(contains(page, "its per byte"));
    CHECK(contains(page, "<details><summary>all flags</summary><table><tr><td>prompt</td><td>&lt;i&gt;"));

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
    CHECK(contains(of_ranks, "<td>3.25 ms per step, 2.50 of it waited for; 1.00 predicted</td>"));
    CHECK(contains(of_ranks,
                   "<td>ranks compute, at step 3</td><td>4.0 to 6.5 ms per step, median 5.0; rank 1 is slowest"));
    CHECK(contains(of_ranks, "<h2>Communication between ranks</h2>"));

    const Finished missing = run("python3 -B scripts/report.py " + out / "none");
    CHECK(missing.exit_code == 2);
    CHECK(contains(missing.err, "error: cannot read " + out / "none/log.jsonl"));
    write_file_atomically(out / "log.jsonl", "");
    CHECK(contains(run("python3 -B scripts/report.py " + out.path).err, "holds no records"));
    CHECK(contains(run("python3 -B scripts/report.py " + out.path + " --out /dev/null/x").err, "error: "));
}

TEST_CASE("the report's axes, its smoothed curve, bits per byte and the flags that were changed", "[report]") {
    const ScratchFolder out;
    std::string log =
        "{\"type\":\"start\",\"config\":{\"steps\":200,\"shuffle\":true,\"beta2\":-1.0,\"beta1\":null,\"model\":"
        "\"custom\","
        "\"learning-rate\":0.0006,\"seed\":7,\"val-data\":\"\",\"no-such-flag\":1}}\n";
    for (int step = 1; step <= 200; step++)  // a straight line, 1000 tokens in 2 s a step, faster from step 101 on
        log += format("{\"type\":\"step\",\"step\":%d,\"loss\":%d,\"lr\":0.00025,\"ms\":%d,\"tokens_per_s\":%d}\n",
                      step, 1000 - step, step > 100 ? 1000 : 2000, step > 100 ? 1000 : 500);
    log += "{\"type\":\"val\",\"step\":100,\"loss\":3.5,\"bpb\":1.25}\n{\"type\":\"val\",\"step\":200,\"loss\":4.5}\n";
    write_file_atomically(out / "log.jsonl", log);
    const auto page_of = [&](const std::string& flags) {
        const Finished report = run("python3 -B scripts/report.py " + out.path + flags);
        INFO(report.err);
        REQUIRE(report.exit_code == 0);
        return read_file(out / "report.html");
    };
    // The points of the n-th curve of a class: x and y in turn.
    const auto points_of = [](const std::string& page, const std::string& css, int n = 0) {
        size_t at = 0;
        for (int i = 0; i <= n; i++) at = page.find("<polyline class=\"line " + css + "\" points=\"", at) + 1;
        REQUIRE(at != 0);
        at = page.find("points=", at) + 8;
        std::string text = page.substr(at, page.find('"', at) - at);
        std::replace(text.begin(), text.end(), ',', ' ');
        std::vector<double> numbers;
        for (char* next = text.data(); *next;) numbers.push_back(std::strtod(next, &next));
        return numbers;
    };
    const std::string page = page_of("");
    // Of a straight line the mean around each point is the line: it does not lag, nor begin or end elsewhere.
    const std::vector<double> raw = points_of(page, "train raw"), smooth = points_of(page, "train");
    REQUIRE(raw.size() == 400);
    CHECK(smooth == raw);
    CHECK(contains(page, "<td>training loss, mean of the last 5</td><td>802.0000 nats per token</td>"));
    CHECK(contains(page,
                   "<td>best validation loss</td><td>3.5000 nats per token at step 100, 1.2500 bits per byte</td>"));
    CHECK(contains(page, "<td>last validation loss</td><td>4.5000 nats per token at step 200</td>"));
    CHECK(contains(page, "<h2>Bits per byte</h2>"));
    CHECK(contains(page, "<td>tokens learned from</td><td>200k</td>"));
    // What the axes say is above them, and no longer than needed.
    CHECK(contains(page, "<text x=\"4\" y=\"16\">loss [nats per token]</text>"));
    CHECK(contains(page, ">2e-4</text>"));
    CHECK_FALSE(contains(page, "rotate("));
    const std::string flags = page.substr(0, page.find("<details>"));
    for (const char* changed :
         {"<td>learning-rate</td><td>0.0006</td>", "<td>seed</td><td>7</td>", "<td>no-such-flag</td>"})
        CHECK(contains(flags, changed));
    for (const char* same : {"<td>shuffle</td>", "<td>beta2</td>", "<td>beta1</td>", "<td>model</td>"}) {
        CHECK_FALSE(contains(flags, same));
        CHECK(contains(page, same));
    }

    // Half of the steps are half of the tokens and two thirds of the time; and the axis says so.
    const auto place = [&](const std::string& of_page, size_t step) {
        const std::vector<double> points = points_of(of_page, "train raw");
        return (points[2 * step - 2] - 64) / (points[398] - 64);
    };
    CHECK(std::fabs(place(page, 100) - 0.5) < 1e-3);
    const std::string tokens = page_of(" --x tokens"), time = page_of(" --x time");
    CHECK(contains(tokens, ">tokens learned from</text>"));
    CHECK(std::fabs(place(tokens, 100) - 0.5) < 1e-3);
    CHECK(contains(time, ">time in training steps [minutes]</text>"));
    CHECK(std::fabs(place(time, 100) - 2. / 3) < 1e-3);
    CHECK(contains(run("python3 -B scripts/report.py " + out.path + " --x hours").err, "invalid choice"));

    // Of several runs each on its own scale: the one with half the steps has the same number of tokens.
    std::string other = "{\"type\":\"start\"}\n";
    for (int step = 1; step <= 100; step++)
        other += format("{\"type\":\"step\",\"step\":%d,\"loss\":3,\"ms\":1000,\"tokens_per_s\":2000}\n", step);
    make_folders(out / "other");
    write_file_atomically(out / "other/log.jsonl", other + "{\"type\":\"val\",\"step\":100,\"loss\":3,\"bpb\":1.5}\n");
    const std::string two =
        "python3 -B scripts/report.py " + out.path + " " + out / "other" + " --out " + out / "two.html";
    REQUIRE(run(two + " --x tokens").exit_code == 0);
    const std::string both = read_file(out / "two.html");
    CHECK(contains(both, "<th>bits per byte</th>"));
    CHECK(contains(both, "<td>1.2500 at 100</td>"));
    CHECK(contains(both, "<td>1.5000 at 100</td>"));
    CHECK(contains(both, "<h2>Bits per byte</h2>"));
    CHECK(points_of(both, "run0", 2).at(398) == points_of(both, "run1", 2).at(198));
    REQUIRE(run(two).exit_code == 0);
    const std::string by_steps = read_file(out / "two.html");
    CHECK(points_of(by_steps, "run0", 2).at(198) == points_of(by_steps, "run1", 2).at(198));
    CHECK(contains(run(two + " --x time --reference 'a=5:3'").err, "error: a reference by steps has no place"));
}

TEST_CASE("what the report's script is given: exact values, and every axis that the log has", "[report]") {
    const ScratchFolder out;
    const std::string folder = out / "a<script>b";
    make_folders(folder);
    const std::string steps =
        "{\"type\":\"step\",\"step\":1,\"loss\":4.1234,\"ms\":1000,\"tokens_per_s\":500}\n"
        "{\"type\":\"step\",\"step\":2,\"loss\":3.25,\"ms\":2000,\"tokens_per_s\":250}\n";
    const auto page_of = [&](const std::string& log, const std::string& flags) {
        write_file_atomically(folder + "/log.jsonl", log);
        const Finished report = run("python3 -B scripts/report.py '" + folder + "' " + flags);
        INFO(report.err);
        REQUIRE(report.exit_code == 0);
        return read_file(folder + "/report.html");
    };
    const std::string old = page_of("{\"type\":\"start\"}\n" + steps, "--reference '</script>=3.5'");
    CHECK(contains(old, "\"kinds\":[\"step\",\"tokens\",\"time\"]"));
    CHECK(contains(old, "\"runs\":[{\"step\":[1,2],\"tokens\":[500.0,1000.0],\"time\":[1.0,3.0]}]"));
    CHECK(contains(old, "\"step\":[1,2],\"value\":[4.1234,3.25],\"level\":false"));
    CHECK(contains(old, "\"name\":\"\\u003c/script>\""));
    CHECK(contains(old, "\"value\":[3.5,3.5],\"level\":true"));
    CHECK(contains(run("python3 -B scripts/report.py '" + folder + "' --x flops").err, "error: --x flops: this log "));

    const std::string start = "{\"type\":\"start\",\"model\":{\"parameters\":7,\"flops_per_token\":2e6}}\n";
    const std::string page = page_of(start + steps, "--x flops");
    CHECK(contains(page, "\"flops\":[1000000000.0,2000000000.0]"));
    CHECK(contains(page, ">FLOPs of training</text>"));
    CHECK(contains(page, "\"kind\":\"flops\""));

    // Watched until the run ends, and only as long.
    const std::string ended = start + steps + "{\"type\":\"end\",\"step\":2,\"reason\":\"finished\"}\n";
    CHECK_FALSE(contains(page_of(ended, "--watch 1000"), "http-equiv"));
    write_file_atomically(folder + "/log.jsonl", start + steps);
    const std::string later = out / "later.jsonl";
    write_file_atomically(later, ended);
    const Finished watched =
        run("timeout 60 python3 -B scripts/report.py '" + folder + "' --watch 1 >/dev/null & pid=$!; " +
            "for i in $(seq 600); do grep -qs http-equiv '" + folder + "/report.html' && break; sleep 0.05; done; mv " +
            later + " '" + folder + "/log.jsonl'; wait $pid");
    CHECK(watched.exit_code == 0);
    const std::string last = read_file(folder + "/report.html");
    CHECK_FALSE(contains(last, "http-equiv"));
    CHECK(contains(last, "ended: finished"));
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
    // One file: nothing is fetched, and no text ends the script early.
    for (const char* other : {"http", "src=", "href=", "url(", "import ", "fetch("}) CHECK_FALSE(contains(page, other));
    const auto count_of = [&](const std::string& what) {
        size_t found = 0;
        for (size_t at = 0; (at = page.find(what, at)) != std::string::npos; at++) found++;
        return found;
    };
    CHECK(count_of("<script") == 5 + 2);  // the charts' data, the axes, and what the page does
    CHECK(count_of("</script>") == 5 + 2);

    CHECK(run("python3 -B scripts/report.py " + out / "more/b" + " " + out / "a").out == report.out);
    CHECK(contains(run(both + " " + out / "./a").err, "error: a run is given twice"));
    CHECK(contains(run(both + " " + out / "none").err, "error: cannot read " + out / "none/log.jsonl"));
    CHECK(run(both + " --out " + out / "x.html").out == out / "x.html" + "\n");
}

TEST_CASE("what logs and names say is escaped, and of the wrong type left out", "[report]") {
    const Finished done = run("python3 -B test/python/report_test.py");
    INFO(done.err);
    CHECK(done.exit_code == 0);
    CHECK(contains(done.err, "\nOK"));
}
