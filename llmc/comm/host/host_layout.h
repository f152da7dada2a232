// Which ranks are on which host. This rank is hosts[host][local].
#pragma once
#include <algorithm>
#include <string>
#include <vector>

struct HostLayout {
    std::vector<std::vector<int>> hosts;  // the ranks of each, in ascending order; the first one talks to other hosts
    int host = 0, local = 0;

    // `names`: the name of each rank's host. Hosts are numbered in the order of their first ranks.
    HostLayout(const std::vector<std::string>& names, int rank) {
        std::vector<std::string> seen;
        for (int r = 0; r < int(names.size()); r++) {
            const size_t at = size_t(std::find(seen.begin(), seen.end(), names[size_t(r)]) - seen.begin());
            if (at == seen.size()) {
                seen.push_back(names[size_t(r)]);
                hosts.emplace_back();
            }
            if (r == rank) {
                host = int(at);
                local = int(hosts[at].size());
            }
            hosts[at].push_back(r);
        }
    }

    int num_hosts() const { return int(hosts.size()); }
    int local_size() const { return int(ranks_here().size()); }
    bool leads() const { return local == 0; }
    const std::vector<int>& ranks_of(int of_host) const { return hosts[size_t(of_host)]; }
    const std::vector<int>& ranks_here() const { return ranks_of(host); }
    int local_rank(int at) const { return ranks_here()[size_t(at)]; }  // the rank at this place on this host
    int leader_of(int of_host) const { return ranks_of(of_host)[0]; }
    std::vector<int> leaders() const {
        std::vector<int> all;
        for (int h = 0; h < num_hosts(); h++) all.push_back(leader_of(h));
        return all;
    }
    int host_of(int rank) const {
        int h = 0;
        while (std::count(ranks_of(h).begin(), ranks_of(h).end(), rank) == 0) h++;
        return h;
    }
};
