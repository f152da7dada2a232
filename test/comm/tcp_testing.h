/*
Helpers of the tests of ranks over TCP: launch settings for ranks on this machine, and a foreign server at their port.
*/
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <string>
#include <thread>
#include <vector>
#include "llmc/comm/launch/launch.h"  // Launch
#include "llmc/comm/tcp/tcp_ranks.h"  // Meeting
#include "test/processes.h"
#include "test/test_clock.h"  // sleep_s

inline const std::string kSecret = "correct horse battery staple";

inline Launch at(int rank, int world_size, int port, const std::string& host = "localhost") {
    Launch launch;
    launch.meet = Launch::Meet::at_address;
    launch.rank = rank, launch.world_size = world_size;
    launch.master = host + ":" + std::to_string(port);
    return launch;
}

inline void must_all_succeed(const std::vector<Finished>& ended) {
    for (const Finished& rank : ended) {
        CHECK(rank.err == "");
        CHECK(rank.exit_code == 0);
    }
}

inline int connect_to(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(uint16_t(port));
    for (int tries = 0; tries < 500; tries++, sleep_s(0.02)) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
        close(fd);
    }
    return -1;
}

// A socket that listens on 127.0.0.1 at this port. The caller closes it.
inline int listening_socket(int port) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    REQUIRE(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(uint16_t(port));
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(listener, 5) == 0);
    return listener;
}

// A foreign server. It sends `answer` to the first client, and reads until that one closes the connection.
struct Stranger {
    int port = free_port(), listener = listening_socket(port);
    std::thread thread;
    explicit Stranger(const std::string& answer) {
        thread = std::thread([this, answer] {
            const int fd = accept(listener, nullptr, nullptr);
            if (fd < 0) return;
            [[maybe_unused]] const ssize_t sent = send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
            char bytes[100];
            while (recv(fd, bytes, sizeof(bytes), 0) > 0) continue;
            close(fd);
        });
    }
    ~Stranger() {
        shutdown(listener, SHUT_RDWR);
        thread.join();
        close(listener);
    }
};

// Lower limits than those of a run: on the wait for all ranks, on the time for a guest to authenticate, and on the
// number of guests.
inline Meeting impatient() {
    Meeting meeting;
    meeting.timeout_s = 20, meeting.greeting_s = 0.3, meeting.most_guests = 4;
    return meeting;
}
