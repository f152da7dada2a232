// Which ranks are on which host.
#include "llmc/comm/host/host_layout.h"
#include "test/testing.h"

TEST_CASE("hosts are in the order of their first ranks", "[host_layout]") {
    const HostLayout layout({"a", "b", "a", "c", "b", "a"}, 4);
    CHECK(layout.hosts == std::vector<std::vector<int>>{{0, 2, 5}, {1, 4}, {3}});
    CHECK(layout.host == 1);
    CHECK(layout.local == 1);
    CHECK(!layout.leads());
    CHECK(layout.local_size() == 2);
    CHECK(layout.local_rank(0) == 1);
    CHECK(layout.leaders() == std::vector<int>{0, 1, 3});
    CHECK(layout.host_of(5) == 0);
    CHECK(layout.host_of(3) == 2);
}

TEST_CASE("one host is led by its first rank", "[host_layout]") {
    const HostLayout layout({"a", "a"}, 0);
    CHECK(layout.num_hosts() == 1);
    CHECK(layout.leads());
    CHECK(!HostLayout({"a", "a"}, 1).leads());
}
