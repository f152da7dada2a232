// How an op's output is written.
#pragma once

// It overwrites (=) its output, which is then never read, or adds to it (+=).
enum class Write { set, add };
