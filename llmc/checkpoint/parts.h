/*
Sends files of a checkpoint between rank 0 and a rank that does not see its folder, in pieces over the control plane
(Ranks::send_piece). A part is one file or text, sent front to back; one at a time to each rank.

  PartSender part(ranks, 0);                       PartReader part(ranks);       on another rank, from rank 0
  part.write(data, bytes);                         part.read(to, bytes);
  part.finish();                                   part.finish();

  receive_parts(ranks, {1, 2}, take);              on rank 0, from several ranks at once: take(from, data, bytes)

If the sender fails, the receiver throws an Error. If the receiver fails, it still receives the rest. So no rank waits
forever, and share_errors() reports the error to all ranks.
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
    ~PartSender();  // without finish(): tells the receiver that the sender has failed
    PartSender(const PartSender&) = delete;
    PartSender& operator=(const PartSender&) = delete;
    void write(const void* data, size_t bytes);
    void write_text(const std::string& text);  // preceded by its length
    void finish();

private:
    Ranks& ranks_;
    int to_;
    std::string piece_;  // the piece's kind, and bytes that have not been sent yet
    bool ended_ = false;

    void send(char kind);
};

class PartReader {
public:
    explicit PartReader(Ranks& ranks) : ranks_(ranks) {}
    ~PartReader();  // receives and discards the rest
    PartReader(const PartReader&) = delete;
    PartReader& operator=(const PartReader&) = delete;
    void read(void* to, size_t bytes);
    std::string read_text();
    void finish();  // throws an Error if there are more bytes

private:
    Ranks& ranks_;
    std::string piece_;
    size_t at_ = 0;  // position in piece_
    bool ended_ = false;

    void next();
};

// Returns, or throws an Error of `take`, only after the parts of all these ranks have arrived completely.
void receive_parts(Ranks& ranks, std::set<int> from,
                   const std::function<void(int from, const char* data, size_t bytes)>& take);
