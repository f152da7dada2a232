// See parts.h. A piece consists of a byte with its kind, and bytes of the part.
#include "llmc/checkpoint/parts.h"
#include <algorithm>
#include <cstring>
#include <exception>
#include "llmc/base/check.h"  // ensure, format

namespace {

constexpr char kMoreParts = 'm', kLastPart = 'l', kFailedPart = 'f';
constexpr uint64_t kMostText = uint64_t(1) << 30;

// The kind of a piece.
char kind_of(Ranks& ranks, const Ranks::Piece& piece) {
    const char kind = piece.bytes.empty() ? '\0' : piece.bytes[0];
    ranks.require_sense(kind == kMoreParts || kind == kLastPart || kind == kFailedPart, piece.from,
                        "a part of a checkpoint");
    return kind;
}

Error no_more_from(const Ranks& ranks, int rank) {
    return Error(kExitUsage, format("%s could not send its part of the checkpoint", ranks.name_of(rank).c_str()));
}

}  // namespace

PartSender::PartSender(Ranks& ranks, int to) : ranks_(ranks), to_(to), piece_(1, kMoreParts) {}

PartSender::~PartSender() {
    if (ended_) return;
    piece_.clear();
    send(kFailedPart);
}

void PartSender::send(char kind) {
    if (piece_.empty()) piece_ += kind;
    piece_[0] = kind;
    ranks_.send_piece(to_, piece_);
    piece_.assign(1, kMoreParts);
}

void PartSender::write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const size_t n = std::min(bytes, ranks_.most_piece_bytes() - (piece_.size() - 1));
        piece_.append(from, n);
        from += n, bytes -= n;
        if (piece_.size() - 1 == ranks_.most_piece_bytes()) send(kMoreParts);
    }
}

void PartSender::write_text(const std::string& text) {
    const uint64_t bytes = text.size();
    write(&bytes, sizeof(bytes));
    write(text.data(), text.size());
}

void PartSender::finish() {
    ensure(!ended_);
    ended_ = true;
    send(kLastPart);
}

PartReader::~PartReader() {
    try {
        while (!ended_) ended_ = kind_of(ranks_, ranks_.next_piece()) != kMoreParts;
    } catch (const Error&) {  // a destructor must not throw
    }
}

void PartReader::next() {
    const Ranks::Piece piece = ranks_.next_piece();
    const char kind = kind_of(ranks_, piece);
    ended_ = kind != kMoreParts;
    if (kind == kFailedPart) throw no_more_from(ranks_, piece.from);
    piece_ = piece.bytes;
    at_ = 1;
}

void PartReader::read(void* to, size_t bytes) {
    char* out = static_cast<char*>(to);
    while (bytes > 0) {
        if (at_ == piece_.size()) {
            ranks_.require_sense(!ended_, 0, "a part of the checkpoint");
            next();
            continue;
        }
        const size_t n = std::min(bytes, piece_.size() - at_);
        std::memcpy(out, piece_.data() + at_, n);
        out += n, bytes -= n, at_ += n;
    }
}

std::string PartReader::read_text() {
    uint64_t bytes = 0;
    read(&bytes, sizeof(bytes));
    ranks_.require_sense(bytes <= kMostText, 0, "a file of the checkpoint");
    std::string text(bytes, '\0');
    read(text.data(), text.size());
    return text;
}

void PartReader::finish() {
    while (!ended_ && at_ == piece_.size()) next();
    ranks_.require_sense(ended_ && at_ == piece_.size(), 0, "a part of the checkpoint");
}

void receive_parts(Ranks& ranks, std::set<int> from,
                   const std::function<void(int from, const char* data, size_t bytes)>& take) {
    std::exception_ptr error;
    while (!from.empty()) {
        const Ranks::Piece piece = ranks.next_piece();
        const char kind = kind_of(ranks, piece);
        ranks.require_sense(from.contains(piece.from), piece.from, "a part of a checkpoint");
        if (kind != kMoreParts) from.erase(piece.from);
        if (error) continue;  // keeps receiving, because the senders would wait otherwise
        try {
            if (kind == kFailedPart) throw no_more_from(ranks, piece.from);
            take(piece.from, piece.bytes.data() + 1, piece.bytes.size() - 1);
        } catch (...) {
            error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
}
