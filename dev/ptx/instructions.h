// From an opcode and its operands to a function that executes it: see instructions.cpp.
#pragma once
#include <string>
#include <vector>
#include "dev/ptx/module.h"

namespace ptx {

enum class Space { generic, global, shared, local, param };

// An instruction that computes one register from others, lane by lane: bytes that these hold.
struct Arithmetic {
    Run run;
    int to;
    std::vector<int> from;
};
const Arithmetic* find_arithmetic(const std::string& opcode);  // null: there is none

// Finds the registers that operands name. refuse() throws: the instruction is not known.
class Operands {
public:
    explicit Operands(Kernel& of) : kernel(of) {}
    virtual ~Operands() = default;
    Kernel& kernel;
    virtual Register target(const std::string& name, int bytes) = 0;
    virtual Register source(const std::string& name, int bytes) = 0;
    virtual Register constant(uint64_t value, int bytes) = 0;
    // Of "[%rd1+16]": the register, its bytes and the offset.
    virtual Register address(const std::string& text, int* bytes, int64_t* offset) = 0;
    virtual int size_of(const std::string& name) const = 0;        // of a register, in bytes
    std::vector<std::string> list(const std::string& text) const;  // of "{a, b}", or "a"
    [[noreturn]] virtual void refuse() const = 0;
};

// Completes `own`, but for its guard and a branch's target.
void decode(Operands& operands, const std::string& opcode, const std::vector<std::string>& args, Instruction& own);

}  // namespace ptx
