// See placement.h.
#include "llmc/checkpoint/placement.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>
#include <filesystem>
#include <thread>
#include "llmc/base/check.h"         // require, format
#include "llmc/base/file.h"          // FileWriter, make_folders, read_file
#include "llmc/base/hash.h"          // hex64
#include "llmc/comm/tcp/hmac.h"      // random_bytes
#include "llmc/comm/watchdog.h"      // rank_list
#include "llmc/platform/platform.h"  // change_times

namespace fs = std::filesystem;

namespace {

constexpr const char* kProbe = ".probe_";  // followed by a random name

// A file with a new random name, which is removed with the object.
struct Probe {
    std::string path;

    explicit Probe(const std::string& path) : path(path) {
        FileWriter file(path);
        file.write(path.data(), path.size());
        file.sync_and_close();
    }
    ~Probe() {
        std::error_code ignored;
        fs::remove(path, ignored);
    }
    Probe(const Probe&) = delete;
    Probe& operator=(const Probe&) = delete;
};

std::string probe_name() {
    std::string name = kProbe;
    for (const char c : random_bytes(8)) name += format("%02x", unsigned(static_cast<unsigned char>(c)));
    return name;
}

void remove_old_probes(const std::string& folder) {
    std::error_code error;
    std::vector<fs::path> old;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
        if (entry->path().filename().string().starts_with(kProbe)) old.push_back(entry->path());
    for (const fs::path& path : old) fs::remove(path, error);
}

// NFS caches for half a minute that a file does not exist. Opening a folder revalidates it with the server and discards
// the cache of an older one, so all folders on the path are opened first.
bool is_there(const std::string& folder, const std::string& name) {
    std::string path;
    std::error_code ignored;
    for (const fs::path& part : fs::absolute(folder, ignored)) {
        path = (fs::path(path) / part).string();
        if (const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) close(fd);
    }
    return fs::is_regular_file(folder + "/" + name, ignored);
}

bool comes_to_be_there(const std::string& folder, const std::string& name, int tenths) {
    for (int i = 0; i <= tenths; i++) {
        if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (is_there(folder, name)) return true;
    }
    return false;
}

std::string why_not_writable(const std::string& folder) {
    try {
        const Probe mine(folder + "/" + probe_name());
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

// For each rank, why it cannot write to rank 0's folder; "": it can. Collective. `must_see`: looks for longer.
std::vector<std::string> look_at_first(Ranks& ranks, const std::string& out_dir, bool must_see) {
    std::unique_ptr<Probe> probe;
    on_first_rank(ranks, [&] {
        make_folders(out_dir);
        remove_old_probes(out_dir);
        probe = std::make_unique<Probe>(out_dir + "/" + probe_name());
    });
    const std::string name = ranks.broadcast(probe ? fs::path(probe->path).filename().string() : "");
    std::string mine;
    if (ranks.rank != 0)
        mine = comes_to_be_there(out_dir, name, must_see ? 50 : 5) ? why_not_writable(out_dir)
                                                                   : out_dir + " is not rank 0's there";
    const Watchdog::Patience patience(ranks.watchdog());
    return ranks.all_gather(mine);
}

}  // namespace

Placement find_placement(Ranks& ranks, const std::string& out_dir, const std::string& checkpoint_to) {
    Placement placement = Placement::all_shared(ranks.world_size);
    std::vector<int> elsewhere;  // the ranks that do not write to rank 0's folder
    const std::string first_out_dir = ranks.broadcast(out_dir);
    const char* const where = first_out_dir.c_str();
    std::string why;
    if (checkpoint_to == "rank0") {
        for (int r = 1; r < ranks.world_size; r++) placement.sends[size_t(r)] = true, elsewhere.push_back(r);
    } else {
        const std::vector<std::string> whys = look_at_first(ranks, out_dir, checkpoint_to == "shared");
        for (int r = 1; r < ranks.world_size; r++) {
            const std::string& theirs = whys[size_t(r)];
            if (theirs.empty()) continue;
            if (checkpoint_to == "shared")
                throw SharedError(kExitUsage,
                                  format("checkpoint-to = shared: rank %d cannot write to %s of rank 0: %s; give an "
                                         "--out-dir that all hosts see, or checkpoint-to = rank0",
                                         r, where, peer_text(theirs).c_str()));
            if (why.empty()) why = peer_text(theirs);
            placement.sends[size_t(r)] = true, elsewhere.push_back(r);
        }
    }
    if (elsewhere.empty()) {
        placement.text = format("checkpoints: all ranks write to %s\n", where);
        return placement;
    }
    const bool is_one = elsewhere.size() == 1;
    const std::string who = rank_list(elsewhere);
    placement.text = format("checkpoints: to %s of rank 0; %s %s there%s%s%s\n", where, who.c_str(),
                            is_one ? "sends its parts" : "send their parts", why.empty() ? "" : " (", why.c_str(),
                            why.empty() ? "" : ")");
    return placement;
}

std::string identity_of(const std::string& path) {
    struct stat found = {};
    if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return "";
    return format("%lu:%ld:", found.st_ino, found.st_size) + change_times(found);
}
