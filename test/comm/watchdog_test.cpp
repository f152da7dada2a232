/*
The watchdog: its messages, their time, and that it ends the process whatever the other threads do.
*/
#include "llmc/comm/watchdog.h"
#include <signal.h>
#include "llmc/comm/ranks.h"  // share_errors
#include "test/processes.h"
#include "test/test_clock.h"  // now_s, sleep_s

namespace {

using Watch = Watchdog::Watch;

}  // namespace

TEST_CASE("a watch that is not over in time ends the process and says which", "[watchdog]") {
    const double before_s = now_s();
    const Finished ended = in_processes(1, [](int) {
        Watchdog watchdog(1, 0.3);
        watchdog.set_step(17);
        std::printf("a last line");
        const Watchdog::Missing missing = [] { return rank_list({0, 2}); };
        const Watch watch(&watchdog, "all-gather of bucket", 3, &missing);
        sleep_s(30);
    })[0];
    CHECK(ended.exit_code == kExitRank);
    CHECK(ended.err ==
          "error: rank 1: the all-gather of bucket 3 in step 17 was not over after 0.3 s; not there yet: ranks 0 and "
          "2\n");
    CHECK(ended.out == "a last line");
    CHECK(now_s() - before_s < 10);
    CHECK(now_s() - before_s >= 0.3);
}

TEST_CASE("what is over in time is let alone, however often and deep", "[watchdog]") {
    const Finished ended = in_processes(1, [](int) {
        Watchdog watchdog(0, 0.5);
        const Watchdog::Missing missing = [] { return std::string("nobody"); };
        for (int i = 0; i < 10; i++) {
            const Watch outer(&watchdog, "outer", i, i % 2 ? &missing : nullptr);
            const Watch inner(&watchdog, "inner");
            sleep_s(0.1);
        }
        sleep_s(0.8);  // watching nothing
        for (int i = 0; i < 100'000; i++) const Watch watch(&watchdog, "often");
        const Watch none(nullptr, "nothing");
        sleep_s(0.8);
    })[0];
    CHECK(ended.err == "");
    CHECK(ended.exit_code == 0);
}

TEST_CASE("who waits for a disk has patience, and no longer than for that", "[watchdog]") {
    const auto ended_with = [](double disk_s) {
        return in_processes(1, [=](int) {
            Watchdog watchdog(0, 0.3);
            watchdog.disk_timeout_s = disk_s;
            {
                const Watchdog::Patience patience(&watchdog);
                const Watchdog::Patience none(nullptr);
                const Watch watch(&watchdog, "exchange of records");
                sleep_s(disk_s > 1 ? 1.5 : 30);  // in time, or never
            }
            std::fprintf(stderr, "the disk was there\n");
            const Watch watch(&watchdog, "barrier");
            sleep_s(30);
        })[0];
    };
    CHECK(ended_with(60).err == "the disk was there\nerror: rank 0: the barrier was not over after 0.3 s\n");
    CHECK(ended_with(0.6).err == "error: rank 0: the exchange of records was not over after 0.6 s (io-timeout)\n");
    CHECK(ended_with(0.1).err == "error: rank 0: the exchange of records was not over after 0.3 s\n");
}

TEST_CASE("what ranks do between exchanges may take as long as a disk", "[watchdog]") {
    struct SlowNeighbor : OneRank {  // whose record comes after a second
        Watchdog dog{0, 0.3};
        Watchdog* watchdog() override { return &dog; }
        std::vector<std::string> all_gather(const std::string& record) override {
            const Watch watch(&dog, "exchange of records");
            sleep_s(1);
            return {record};
        }
    };
    const Finished ended = in_processes(1, [](int) {
        SlowNeighbor ranks;
        share_errors(ranks, [] {});
        on_first_rank(ranks, [] {});
        std::fprintf(stderr, "files\n");
        ranks.barrier();
    })[0];
    CHECK(ended.err == "files\nerror: rank 0: the exchange of records was not over after 0.3 s\n");
}

TEST_CASE("of two watches the one that is late is named", "[watchdog]") {
    const Finished ended = in_processes(1, [](int) {
        Watchdog watchdog(4, 0.4);
        std::thread other([&] {
            const Watch watch(&watchdog, "broadcast");
            sleep_s(30);
        });
        for (;;) {
            const Watch watch(&watchdog, "barrier");
            sleep_s(0.05);
        }
    })[0];
    CHECK(ended.exit_code == kExitRank);
    CHECK(ended.err == "error: rank 4: the broadcast was not over after 0.4 s\n");
}

TEST_CASE("who gives up says why and where", "[watchdog]") {
    const auto err = [](const std::function<void(Watchdog&)>& body) {
        const Finished ended = in_processes(1, [&](int) {
            Watchdog watchdog(2, 60);
            body(watchdog);
        })[0];
        CHECK(ended.exit_code == kExitRank);
        return ended.err;
    };
    CHECK(err([](Watchdog& watchdog) { watchdog.give_up("rank 1 is gone"); }) == "error: rank 2: rank 1 is gone\n");
    CHECK(err([](Watchdog& watchdog) {
              watchdog.set_step(5);
              watchdog.give_up("rank 1 is gone");
          }) == "error: rank 2: rank 1 is gone (in step 5)\n");
    CHECK(err([](Watchdog& watchdog) {
              watchdog.set_step(5);
              const Watch watch(&watchdog, "all-reduce");
              watchdog.give_up("rank 1 is gone");
          }) == "error: rank 2: rank 1 is gone (during the all-reduce in step 5)\n");
    CHECK(err([](Watchdog& watchdog) {  // of several, the one that has lasted longest
              const Watch outer(&watchdog, "checkpoint");
              sleep_s(0.5);
              const Watch inner(&watchdog, "barrier");
              watchdog.give_up("rank 1 is gone");
          }) == "error: rank 2: rank 1 is gone (during the checkpoint)\n");
    for (const char* why :
         {"ended by rank 0: rank 1 is gone (in step 4)", "ended by rank 0: rank 1 is gone (during the barrier)"})
        CHECK(err([&](Watchdog& watchdog) {  // where that rank was says enough
                  watchdog.set_step(5);
                  watchdog.give_up(why);
              }) == std::string("error: rank 2: ") + why + "\n");
}

TEST_CASE("hooks run before the end, and those that hang do not keep it", "[watchdog]") {
    const double before_s = now_s();
    const Finished ended = in_processes(1, [](int) {
        Watchdog watchdog(0, 60);
        const int removed = watchdog.add_hook([](const std::string&) { std::fprintf(stderr, "never\n"); });
        watchdog.add_hook([](const std::string& why) { std::fprintf(stderr, "hook: %s\n", why.c_str()); });
        watchdog.add_hook([](const std::string&) { sleep_s(30); });
        watchdog.remove_hook(removed);
        flockfile(stdout);  // whoever prints may be the one that hangs
        watchdog.give_up("enough");
    })[0];
    CHECK(ended.exit_code == kExitRank);
    CHECK(ended.err == "error: rank 0: enough\nhook: rank 0: enough\n");
    CHECK(now_s() - before_s < 10);
}

TEST_CASE("of many threads that give up one is heard", "[watchdog]") {
    const Finished ended = in_processes(1, [](int) {
        Watchdog watchdog(0, 60);
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; i++) threads.emplace_back([&] { watchdog.give_up("enough"); });
        for (std::thread& thread : threads) thread.join();
    })[0];
    CHECK(ended.exit_code == kExitRank);
    CHECK(ended.err == "error: rank 0: enough\n");
}

TEST_CASE("a process that was stopped has not been waiting", "[watchdog]") {
    // It is stopped for longer than the timeout, and for as long again watched.
    const Finished ended = in_processes(1, [](int) {
        const pid_t pid = getpid(), helper = fork();
        if (helper == 0) {
            sleep_s(0.2);
            kill(pid, SIGSTOP);
            sleep_s(3.5);
            kill(pid, SIGCONT);
            _exit(0);
        }
        Watchdog watchdog(0, 3);
        const Watch watch(&watchdog, "barrier");
        const double before_s = now_s();
        while (now_s() - before_s < 4.2) sleep_s(0.05);
        std::printf("over");
    })[0];
    CHECK(ended.err == "");
    CHECK(ended.out == "over");
}

TEST_CASE("lists of ranks are short", "[watchdog]") {
    CHECK(rank_list({3}) == "rank 3");
    CHECK(rank_list({2, 1}) == "ranks 1 and 2");
    CHECK(rank_list({1, 2, 5}) == "ranks 1, 2 and 5");
    CHECK(rank_list({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}
