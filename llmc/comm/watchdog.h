/*
Ends a run that waits too long for another rank. One watchdog per rank:

  Watchdog watchdog(rank, 600);
  watchdog.set_step(17);
  {
      Watchdog::Watch watch(&watchdog, "all-gather of bucket", 3);   around any wait for other ranks
      ...
  }

If a watch lasts longer than the timeout, the watchdog prints

  error: rank 1: the all-gather of bucket 3 in step 17 was not over after 600 s; not there yet: rank 0

to stderr and ends the process with exit code 3. It does not throw, because the waiting thread may be inside a library.
No destructor runs, so the files on disk must be valid at any moment (doc/design.md).

Where ranks wait while others read or write files, a slow disk must not be taken for a dead rank. There

  const Watchdog::Patience patience(&watchdog);

gives watches that this thread begins during the object's lifetime a longer timeout, disk_timeout_s. The connections
between ranks still detect a dead rank at once.

A watch costs a few stores and no system call. Watches nest, and several threads may watch. Only time in which this
process runs counts, not time for which it is stopped (Ctrl-Z and fg).
*/
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

class Watchdog {
public:
    // The missing ranks, as far as they are known: "rank 0". Called by the watchdog's thread while the owner waits.
    using Missing = std::function<std::string()>;

    Watchdog(int rank, double timeout_s);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    const double timeout_s;
    double disk_timeout_s = 3600;              // io-timeout; set it before the first Patience
    void set_rank(int rank) { rank_ = rank; }  // if the rank is not known at first
    void set_step(int64_t step) { step_ = step; }

    // Adds a function to call before the process ends, with the printed text "rank 1: WHY": to tell other ranks, for
    // example. All functions together have one second. Remove a function before destroying anything that it uses.
    using Hook = std::function<void(const std::string& why)>;
    int add_hook(Hook hook);
    void remove_hook(int id);

    // Prints "error: rank 1: WHY (during the all-gather of bucket 3 in step 17)" and ends the process. The first thread
    // wins.
    [[noreturn]] void give_up(const std::string& why);

    class Watch {
    public:
        // Both pointers must outlive the watch. A null watchdog watches nothing; a number below 0 is not printed.
        Watch(Watchdog* watchdog, const char* what, int64_t number = -1, const Missing* missing = nullptr);
        ~Watch();
        Watch(const Watch&) = delete;
        Watch& operator=(const Watch&) = delete;

    private:
        Watchdog* watchdog_;
        int slot_ = -1;
    };

    class Patience {
    public:
        explicit Patience(const Watchdog* watchdog) : kept_ms_(patience_ms_) {
            if (watchdog) patience_ms_ = ms_of(std::max(watchdog->timeout_s, watchdog->disk_timeout_s));
        }
        ~Patience() { patience_ms_ = kept_ms_; }
        Patience(const Patience&) = delete;
        Patience& operator=(const Patience&) = delete;

    private:
        int64_t kept_ms_;
    };

private:
    inline static thread_local int64_t patience_ms_ = 0;  // of watches that this thread begins; 0: timeout_s
    static int64_t ms_of(double seconds) { return std::max<int64_t>(1, int64_t(seconds * 1e3)); }
    struct Slot {
        std::atomic<int64_t> since_ms{0};  // 0: free
        std::atomic<const char*> what{nullptr};
        std::atomic<int64_t> number{-1};
        std::atomic<int64_t> timeout_ms{0};
        std::atomic<const Missing*> missing{nullptr};
    };
    std::array<Slot, 16> slots_;
    std::atomic<int64_t> now_ms_{1};  // advanced by the thread
    std::atomic<int> rank_;
    std::atomic<int64_t> step_{-1};
    std::mutex mutex_;  // guards hooks_ and stop_, and a Missing function while it is called
    std::condition_variable wake_;
    std::map<int, Hook> hooks_;
    int next_hook_ = 0;
    bool stop_ = false;
    std::thread thread_;

    void run();
    std::string what_of(const Slot& slot) const;
    [[noreturn]] void end(const std::string& message);
};

// "rank 3", "ranks 1, 2 and 5": in ascending order, and only the first few of many.
std::string rank_list(std::vector<int> ranks);
