/*
PTX as nvcc writes it, read into kernels that machine.h executes. Only what Anvil's kernels use is known: anything else
is an error that names the instruction. From the PTX ISA 9.0.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ptx {

class Warp;
struct Instruction;

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFF;

// A register of a warp: 32 lanes of four or eight bytes from `at` on. Constants and special registers such as %tid.x
// are registers, too, which each warp starts with. A predicate is four bytes, 0 or 1, a lane.
struct Register {
    uint32_t at = 0;      // in bytes, in Warp::file
    uint32_t number = 0;  // in Warp::written
};

// What a register holds before the first instruction, the same in all lanes, or what is known of a special one.
struct Constant {
    Register reg;
    uint64_t value = 0;
    int bytes = 4;
    std::string special;  // "%tid.x"; empty: `value`
};

using Run = void (*)(Warp&, const Instruction&, uint32_t lanes);

// How the machine goes on after an instruction.
enum class Flow : uint8_t {
    next,
    branch,
    exit,
    lanes,    // the lanes of the member mask, `source` 0, execute it together
    warp,     // all lanes of the warp execute it together
    barrier,  // the same, and the warp may wait then
};

struct Instruction {
    Run run = nullptr;
    Flow flow = Flow::next;
    int guard = -1;  // a predicate's place in Warp::file, or -1
    bool guard_is_negated = false;
    bool is_uniform = false;  // a load from the same address in all lanes
    uint32_t guard_number = 0;
    uint32_t target = 0;             // of a branch: an instruction's number
    std::vector<Register> to, from;  // what it writes and reads
    int64_t offset = 0;              // added to an address
    int number[4] = {};              // what an instruction has besides: a comparison, a look-up table, sizes
    std::string text;                // for reports
};

struct SharedArray {
    std::string name;
    uint32_t at, bytes;  // in the shared memory of a block
};

struct Parameter {
    uint32_t at, bytes;
};

struct Kernel {
    std::string name;  // mangled
    std::vector<Parameter> parameters;
    uint32_t parameter_bytes = 0;
    std::vector<Instruction> code;
    std::vector<Constant> constants;
    std::vector<SharedArray> shared;
    uint32_t shared_bytes = 0;  // with the gaps between arrays, which nobody owns
    uint32_t local_bytes = 0;   // a lane
    uint32_t file_bytes = 0, num_registers = 0;
    bool has_async_proxy = false;  // wgmma or TMA
    bool communicates = false;     // blocks may see each other's stores: it has atomics, fences, releases or acquires
};

// Address spaces have windows of generic addresses where Linux has no memory of a process. Global addresses are the
// host's.
constexpr uint64_t kSharedWindow = uint64_t(1) << 58, kLocalWindow = kSharedWindow * 2,
                   kParamWindow = kSharedWindow * 3;
constexpr uint32_t kFirstShared = 1024;  // so that a null pointer is an error

// All kernels of a text. A kernel is decoded when it is first asked for.
class Module {
public:
    explicit Module(std::string text);
    std::vector<std::string> names() const;
    const Kernel& kernel(const std::string& name);

private:
    std::string text_;
    std::map<std::string, size_t> entries_;  // where in the text
    std::map<std::string, Kernel> decoded_;
};

}  // namespace ptx
