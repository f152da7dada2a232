/*
Sends files of a checkpoint between rank 0 and a rank that does not see its folder, in pieces over the control plane
(Ranks::send_piece). A part is one file or text, sent front to back; one at a time to each rank.

  PartSender part(ranks, 0);                       PartReader part(ranks);       on another rank, from rank 0
  part.write(data, bytes);                         part.read(to, bytes);
  part.finish();                                   part.finish();

  receive_parts(ranks, {1, 2}, take);              on rank 0, from several ranks at once: take(from, data, bytes)

If the sender fails, the receiver throws an Error. If the receiver fails, it still takes the rest. So no rank waits for
a piece that does not come, and share_errors tells all what went wrong.
*/
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include "llmc/comm/ranks.h"  // Ranks

class PartSender {
public:
    PartSender(Ranks& ranks, int to);
    ~PartSender();  // without finish(): the receiver learns that there is no more to come
    PartSender(const PartSender&) = delete;
    PartSender& operator=(const PartSender&) = delete;
    void write(const void* data, size_t bytes);
    void write_text(const std::string& text);  // with its length before it
    void finish();

private:
    Ranks& ranks_;
    int to_;
    std::string piece_;  // its kind, and bytes that have not been sent
    bool ended_ = false;

    void send(char kind);
};

class PartReader {
public:
    explicit PartReader(Ranks& ranks) : ranks_(ranks) {}
    ~PartReader();  // takes what still comes
    PartReader(const PartReader&) = delete;
    PartReader& operator=(const PartReader&) = delete;
    void read(void* to, size_t bytes);
    std::string read_text();
    void finish();  // an Error if there is more

private:
    Ranks& ranks_;
    std::string piece_;
    size_t at_ = 0;  // in piece_
    bool ended_ = false;

    void next();
};

// Returns, or throws an Error of `take`, only after the parts of all these ranks have arrived completely.
void receive_parts(Ranks& ranks, std::set<int> from,
                   const std::function<void(int from, const char* data, size_t bytes)>& take);
