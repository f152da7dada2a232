// See local_checkpoints.h.
#include "llmc/train/local_checkpoints.h"
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <vector>
#include "llmc/base/check.h"       // Error, format, require
#include "llmc/base/file.h"        // FileWriter, MappedFile, make_folders, read_file, write_file_atomically
#include "llmc/base/hash.h"        // hex64
#include "llmc/base/hmac.h"        // random_bytes
#include "llmc/base/json.h"        // Json
#include "llmc/comm/watchdog.h"    // rank_list
#include "llmc/data/utf8.h"        // printable
#include "llmc/io/checkpoint.h"    // CheckpointWriter, ReceivedFile
#include "llmc/io/manifest.h"      // verify, manifest_records
#include "llmc/train/log.h"        // RunLock, last_step
#include "llmc/train/parts.h"      // PartSender, receive_parts
#include "llmc/train/placement.h"  // find_placement
#include "llmc/train/supervise.h"  // Supervised

namespace fs = std::filesystem;

namespace {

constexpr const char* kFile = "/local_checkpoints.json";

std::string random_name() {
    uint64_t number = 0;
    std::memcpy(&number, random_bytes(sizeof(number)).data(), sizeof(number));
    return hex64(number);
}

std::string true_path(const std::string& path) {
    std::error_code ignored;
    return fs::weakly_canonical(path, ignored).string();
}

// The content of OUT's local_checkpoints.json; empty if there is none, or if OUT was copied or moved.
struct Known {
    std::string dir, run;
};
Known known_in(const std::string& out_dir) {
    std::error_code ignored;
    if (!fs::is_regular_file(out_dir + kFile, ignored)) return {};
    const Json all = parse_json(read_file(out_dir + kFile));
    const auto text = [&](const char* name) {
        return all.is_object() && all.contains(name) && all[name].is_string() ? all[name].get<std::string>() : "";
    };
    if (text("out_dir") != true_path(out_dir)) return {};
    return {text("dir"), text("run")};
}

// A rank's part of a local checkpoint: of one step, in one start of the run.
struct Part {
    std::string start;
    int rank = 0, ranks = 0;
    int64_t step = 0;

    std::string folder() const { return format("%s_%05d_of_%05d", start.c_str(), rank, ranks); }
};
std::string text_of(const Part& part) {
    return format("%s %d %d %lld\n", part.start.c_str(), part.rank, part.ranks, static_cast<long long>(part.step));
}

// The parts on this host, complete or not, one per line.
std::string parts_here(const std::string& of_run) {
    std::string all;
    std::error_code error;
    for (fs::directory_iterator entry(of_run, error), end; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename();
        char start[17] = {};
        Part part;
        if (std::sscanf(name.c_str(), "%16[0-9a-f]_%5d_of_%5d", start, &part.rank, &part.ranks) != 3) continue;
        part.start = start;
        if (part.folder() != name) continue;
        try {
            for (const int64_t step : checkpoint_steps(of_run + "/" + name)) part.step = step, all += text_of(part);
        } catch (const Error&) {  // a folder that cannot be read counts as absent
        }
    }
    return all;
}

// A checkpoint of which parts exist, and the ranks that have each part.
struct Candidate {
    int64_t step = 0;
    std::string start;
    std::vector<std::vector<int>> holders;  // indexed by the rank that wrote the part
    std::vector<int> missing() const {
        std::vector<int> ranks;
        for (size_t r = 0; r < holders.size(); r++)
            if (holders[r].empty()) ranks.push_back(int(r));
        return ranks;
    }
};

// The newest first; of the same step, complete ones first.
std::vector<Candidate> candidates(const Ranks& ranks, const std::vector<std::string>& lists, int64_t newer_than) {
    std::map<std::pair<int64_t, std::string>, Candidate> found;
    for (size_t r = 0; r < lists.size(); r++) {
        std::istringstream words(lists[r]);
        for (Part part; words >> part.start >> part.rank >> part.ranks >> part.step;) {
            ranks.require_sense(part.start.size() == 16 &&
                                    part.start.find_first_not_of("0123456789abcdef") == std::string::npos &&
                                    part.ranks > 0 && part.ranks <= 1 << 20 && part.rank >= 0 && part.rank < part.ranks,
                                int(r), "the list of its local checkpoints");
            if (part.step <= newer_than) continue;
            Candidate& candidate = found[{part.step, part.start}];
            candidate.step = part.step, candidate.start = part.start;
            if (candidate.holders.empty()) candidate.holders.resize(size_t(part.ranks));
            ranks.require_sense(candidate.holders.size() == size_t(part.ranks), int(r), "the ranks of a run");
            candidate.holders[size_t(part.rank)].push_back(int(r));
        }
    }
    std::vector<Candidate> all;
    for (auto& [key, candidate] : found) all.push_back(std::move(candidate));
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
        return std::pair(a.step, a.missing().empty()) > std::pair(b.step, b.missing().empty());
    });
    return all;
}

// The rank that copies each part: of those that see it, the one with the least to copy. "START STEP 0 1 1 0"; empty: no
// checkpoint.
std::string order_of(const Candidate& candidate, int world_size) {
    std::vector<int> tasks(static_cast<size_t>(world_size));
    std::string order = format("%s %lld", candidate.start.c_str(), static_cast<long long>(candidate.step));
    for (const std::vector<int>& holders : candidate.holders) {
        const int who = *std::min_element(holders.begin(), holders.end(),
                                          [&](int a, int b) { return tasks[size_t(a)] < tasks[size_t(b)]; });
        tasks[size_t(who)]++;
        order += " " + std::to_string(who);
    }
    return order;
}

// Checksums find damage, not what somebody put there who could write to the folder.
void check_owner(const std::string& path) {
    struct stat found = {};
    require(lstat(path.c_str(), &found) == 0, "%s: %s", path.c_str(), std::strerror(errno));
    require(found.st_uid == geteuid() || found.st_uid == 0,
            "%s belongs to another user (id %u): give a --checkpoint-local in which only you can write", path.c_str(),
            unsigned(found.st_uid));
}

// The files that this rank copies from the folders of its parts. Verified.
struct File {
    std::string path;
    FileRecord record;
};
std::vector<File> verified_files(const std::string& of_run, const std::vector<Part>& mine) {
    std::vector<File> files;
    for (const Part& part : mine) {
        const std::string folder = checkpoint_path(of_run + "/" + part.folder(), part.step);
        for (const std::string& path : {of_run, of_run + "/" + part.folder(), folder, folder + kManifestFile})
            check_owner(path);
        const Verified found = verify(folder);
        require(found.why.empty() && found.step == part.step, "%s: %s", folder.c_str(),
                found.why.empty() ? "its manifest is of another step" : found.why.c_str());
        for (FileRecord& record : manifest_records(folder)) {
            files.push_back({folder + "/" + record.name, std::move(record)});
            check_owner(files.back().path);
        }
    }
    return files;
}

// The content sent by one rank: each file's name, size and bytes.
class Incoming {
public:
    Incoming(const CheckpointPart& part, std::vector<FileRecord>& received) : part_(part), received_(received) {}

    void take(const char* data, size_t bytes) {
        while (bytes > 0) {
            if (!file_) {
                const size_t n = std::min(bytes, sizeof(head_) - head_bytes_);
                std::memcpy(head_ + head_bytes_, data, n);
                head_bytes_ += n, data += n, bytes -= n;
                if (head_bytes_ < sizeof(head_)) return;
                begin();
            }
            const size_t n = size_t(std::min<uint64_t>(bytes, left_));
            file_->write(data, n);
            data += n, bytes -= n, left_ -= n;
            if (left_ == 0) end();
        }
    }
    static constexpr size_t kNameBytes = 120;
    static std::string head_of(const FileRecord& record) {
        std::string head = record.name;
        head.resize(kNameBytes);
        return head.append(reinterpret_cast<const char*>(&record.size_bytes), 8);
    }

private:
    const CheckpointPart& part_;
    std::vector<FileRecord>& received_;
    char head_[kNameBytes + 8];
    size_t head_bytes_ = 0;
    uint64_t left_ = 0;
    std::unique_ptr<ReceivedFile> file_;

    void begin() {
        head_bytes_ = 0;
        std::memcpy(&left_, head_ + kNameBytes, 8);
        const std::string name(head_, strnlen(head_, kNameBytes));
        require(!name.empty() && name.find('/') == std::string::npos, "a file without a name has come");
        file_ = std::make_unique<ReceivedFile>(part_, name);
        if (left_ == 0) end();
    }
    void end() {
        received_.push_back(file_->finish());
        file_.reset();
    }
};

template <class Write>
void read_all(const File& file, Write&& write) {
    const MappedFile mapped(file.path);
    require(mapped.size() == file.record.size_bytes, "%s has changed", file.path.c_str());
    constexpr size_t kAtOnce = 4 << 20;
    for (size_t at = 0; at < mapped.size(); at += kAtOnce)
        write(mapped.data() + at, std::min(kAtOnce, mapped.size() - at));
    mapped.check_uncut();
}

// Collective. Throws an Error on all ranks if it fails; then it leaves nothing in OUT.
void bring(Ranks& ranks, const std::string& out_dir, const std::string& of_run, const std::string& order) {
    std::istringstream words(order);
    Part part;
    std::vector<int> who;
    words >> part.start >> part.step;
    for (int r; words >> r;) who.push_back(r);
    part.ranks = int(who.size());
    std::vector<Part> mine;
    for (size_t r = 0; r < who.size(); r++)
        if (part.rank = int(r); who[r] == ranks.rank) mine.push_back(part);

    const Watchdog::Patience patience(ranks.watchdog());
    std::vector<File> files;
    share_errors(ranks, [&] { files = verified_files(of_run, mine); });
    const Placement placement =
        ranks.world_size > 1 ? find_placement(ranks, out_dir, "auto") : Placement::all_shared(1);
    std::unique_ptr<CheckpointWriter> writer;
    on_first_rank(ranks, [&] { writer = std::make_unique<CheckpointWriter>(out_dir, part.step); });
    const std::string name = ranks.broadcast(writer ? writer->name() : "");
    std::vector<FileRecord> written;
    share_errors(ranks, [&] {
        const CheckpointPart here(out_dir, name);
        if (placement.is_sent(ranks.rank)) {
            PartSender sender(ranks, 0);
            for (const File& file : files) {
                const std::string head = Incoming::head_of(file.record);
                sender.write(head.data(), head.size());
                read_all(file, [&](const void* data, size_t bytes) { sender.write(data, bytes); });
            }
            return sender.finish();
        }
        // Before its own part: if that failed first, the senders would wait forever.
        std::set<int> from;
        for (int r = 1; r < ranks.world_size && ranks.rank == 0; r++)
            if (placement.is_sent(r)) from.insert(r);
        std::map<int, Incoming> incoming;
        if (!from.empty())
            receive_parts(ranks, from, [&](int rank, const char* data, size_t bytes) {
                incoming.try_emplace(rank, here, written).first->second.take(data, bytes);
            });
        for (const File& file : files) {
            ReceivedFile copy(here, file.record.name);
            read_all(file, [&](const void* data, size_t bytes) { copy.write(data, bytes); });
            written.push_back(copy.finish());
        }
    });
    std::vector<FileRecord> records;
    for (const File& file : files) records.push_back(file.record);
    const std::vector<std::string> sizes = ranks.gather(packed(written)), expected = ranks.gather(packed(records));
    on_first_rank(ranks, [&] {
        std::map<std::string, std::pair<uint64_t, uint64_t>> there;
        for (size_t r = 0; r < sizes.size(); r++) {
            const auto theirs = unpacked(sizes[r]);
            ranks.require_sense(theirs.has_value(), int(r), "the list of its files");
            for (const FileRecord& file : *theirs) there[file.name] = {file.size_bytes, file.hash};
        }
        for (size_t r = 0; r < expected.size(); r++) {
            const auto theirs = unpacked(expected[r]);
            ranks.require_sense(theirs.has_value(), int(r), "the list of its files");
            for (const FileRecord& file : *theirs)
                require(there[file.name] == std::pair(file.size_bytes, file.hash),
                        "%s is not what rank %d has: the network or memory is failing", file.name.c_str(), int(r));
            writer->add_records(*theirs);
        }
        writer->commit();
        Supervised::say_saved();
    });
}

}  // namespace

std::string bring_in_local(Ranks& ranks, const std::string& out_dir) {
    Known known;
    std::unique_ptr<RunLock> lock;
    on_first_rank(ranks, [&] {
        known = known_in(out_dir);
        if (!known.run.empty()) lock = std::make_unique<RunLock>(out_dir);
    });
    const std::string dir = ranks.broadcast(known.dir), run = ranks.broadcast(known.run);
    if (run.empty()) return "";
    const std::string of_run = dir + "/" + run;
    const std::vector<std::string> lists = ranks.gather(parts_here(of_run));
    int64_t saved = -1;  // the newest in OUT
    std::vector<Candidate> all;
    on_first_rank(ranks, [&] {
        const std::vector<int64_t> steps = checkpoint_steps(out_dir);
        if (!steps.empty()) saved = steps.back();
        all = candidates(ranks, lists, saved);
    });
    int64_t taken = -1;
    std::vector<std::string> whys;
    for (size_t next = 0;;) {
        std::string order;
        for (; next < all.size() && order.empty(); next++) {
            const Candidate& candidate = all[next];
            const std::vector<int> missing = candidate.missing();
            if (missing.empty())
                order = order_of(candidate, ranks.world_size), taken = candidate.step;
            else
                whys.push_back(format("step %lld lacks the %s of %s", static_cast<long long>(candidate.step),
                                      missing.size() == 1 ? "part" : "parts", rank_list(missing).c_str()));
        }
        order = ranks.broadcast(order);
        if (order.empty()) break;
        try {
            bring(ranks, out_dir, of_run, order);
            break;
        } catch (const SharedError& error) {
            if (error.exit_code == kExitRank) throw;
            whys.push_back(format("step %lld: %s", static_cast<long long>(taken), printable(error.what()).c_str()));
            taken = -1;
        }
    }
    if (ranks.rank > 0) return run;
    // The log has all steps of the run, so it shows how many are lost.
    const int64_t from = std::max(taken, saved),
                  lost = std::max<int64_t>(0, last_step(out_dir) - std::max<int64_t>(from, 0));
    std::string why;
    for (const std::string& each : whys) why += (why.empty() ? "" : "; ") + each;
    const std::string text = from < 0 ? "none"
                                      : format("step %lld, from %s", static_cast<long long>(from),
                                               taken < 0 ? out_dir.c_str() : dir.c_str());
    const std::string others = !why.empty() ? (taken < 0 ? "not from the local parts: " : "passed over: ") + why
                               : taken < 0  ? "there are no newer local parts in " + dir
                               : saved < 0  ? out_dir + " has none"
                                           : format("%s has step %lld", out_dir.c_str(), static_cast<long long>(saved));
    std::fprintf(why.empty() ? stdout : stderr, "%s: %s (%s); %lld %s lost\n",
                 why.empty() ? "checkpoint" : "warning: checkpoint", text.c_str(), others.c_str(),
                 static_cast<long long>(lost), lost == 1 ? "step is" : "steps are");
    return run;
}

LocalPlace open_local(Ranks& ranks, const std::string& out_dir, const std::string& dir, const std::string& local_run) {
    std::string run;
    on_first_rank(ranks, [&] {
        if (dir.empty()) return forget_local(out_dir);
        run = local_run.empty() || known_in(out_dir).dir != dir ? random_name() : local_run;
        const Json all = {{"out_dir", true_path(out_dir)}, {"dir", dir}, {"run", run}};
        write_file_atomically(out_dir + kFile, json_text(all, 2) + "\n");
    });
    if (dir.empty()) return {};
    run = ranks.broadcast(run);
    const std::string start = ranks.broadcast(ranks.rank == 0 ? random_name() : "");
    LocalPlace place;
    place.of_run = dir + "/" + run;
    place.folder = place.of_run + "/" + Part{start, ranks.rank, ranks.world_size}.folder();
    share_errors(ranks, [&] {
        try {
            make_folders(place.folder);
        } catch (const Error& error) {
            throw Error(kExitUsage, format("--checkpoint-local %s: %s; give a folder on a disk of each host",
                                           dir.c_str(), error.what()));
        }
    });
    return place;
}

void LocalPlace::remove_others() const {
    const std::string own = fs::path(folder).filename();
    std::vector<fs::path> others;
    std::error_code error;
    for (fs::directory_iterator entry(of_run, error), end; !error && entry != end; entry.increment(error))
        if (!entry->path().filename().string().starts_with(own.substr(0, 16))) others.push_back(entry->path());
    for (const fs::path& other : others) fs::remove_all(other, error);  // another rank of this host may have removed it
}

void LocalPlace::remove_all() const {
    if (folder.empty()) return;
    std::error_code ignored;
    remove_others();
    fs::remove_all(folder, ignored);
    fs::remove(of_run, ignored);  // succeeds for the last rank of this host, when it is empty
}

void forget_local(const std::string& out_dir) {
    std::error_code ignored;
    fs::remove(out_dir + kFile, ignored);
}
