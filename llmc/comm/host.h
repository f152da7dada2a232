/*
Which host a rank is on. Ranks with the same identity can share memory and see each other's process ids.
*/
#pragma once
#include <string>

// A hash of host name, boot, network namespace and pid namespace: two containers on one machine count as two hosts.
std::string host_identity();
