/*
emulator_switch() saves the callee-saved registers on this stack, and continues where the stack `to` was saved. About
10 ns; swapcontext() would take a system call.
*/
#pragma once
#include <cstring>

extern "C" void emulator_switch(void** save_stack_pointer, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl emulator_switch
.type emulator_switch,@function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch,.-emulator_switch
)");

// Prepares the stack below `top`: the first switch to it calls entry(), which must not return.
inline void* new_fiber(char* top, void (*entry)()) {
    void** words = reinterpret_cast<void**>(top);
    *--words = nullptr;  // the return address of entry(); also aligns the stack as the ABI requires
    *--words = reinterpret_cast<void*>(entry);
    words -= 6;
    std::memset(words, 0, 6 * sizeof *words);
    return words;
}
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl emulator_switch
emulator_switch:
    sub sp, sp, #160
    stp d8, d9, [sp, #0]
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    stp x19, x20, [sp, #64]
    stp x21, x22, [sp, #80]
    stp x23, x24, [sp, #96]
    stp x25, x26, [sp, #112]
    stp x27, x28, [sp, #128]
    stp x29, x30, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp d8, d9, [sp, #0]
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp x19, x20, [sp, #64]
    ldp x21, x22, [sp, #80]
    ldp x23, x24, [sp, #96]
    ldp x25, x26, [sp, #112]
    ldp x27, x28, [sp, #128]
    ldp x29, x30, [sp, #144]
    add sp, sp, #160
    ret
)");

inline void* new_fiber(char* top, void (*entry)()) {
    char* saved = top - 160;
    std::memset(saved, 0, 160);
    reinterpret_cast<void**>(saved)[19] = reinterpret_cast<void*>(entry);  // x30, the return address
    return saved;
}
#else
#error "the emulator's fibers are written for x86-64 and aarch64"
#endif
